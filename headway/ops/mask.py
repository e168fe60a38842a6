"""Who may see whom, from positions and segments alone."""

from __future__ import annotations

from torch import Tensor

from headway.spec.position import Mask


def visible(mask: Mask, positions: Tensor, segments: Tensor, key_positions: Tensor, key_segments: Tensor) -> Tensor:
    """Boolean [B, 1, T, S]: true where query (B T) may read key (B S).

    Equal segments see each other within the mask. A padding query (segment 0) sees every key: its
    output is never read, and a softmax over nothing would be NaN.
    """
    distance = key_positions[:, None, :] - positions[:, :, None]
    allowed = segments[:, :, None] == key_segments[:, None, :]
    if mask.before is not None:
        allowed = allowed & (distance >= -mask.before)
    if mask.after is not None:
        allowed = allowed & (distance <= mask.after)
    return (allowed | (segments == 0)[:, :, None])[:, None]
