"""Who may see whom, from positions and segments alone."""

from __future__ import annotations

from jaxtyping import Bool, Int
from torch import Tensor

from headway.spec.position import Mask


def visible(
    mask: Mask,
    positions: Int[Tensor, "B T"],
    segments: Int[Tensor, "B T"],
    key_positions: Int[Tensor, "#B S"],
    key_segments: Int[Tensor, "#B S"],
) -> Bool[Tensor, "B 1 T S"]:
    """True where a query may read a key.

    Equal segments see each other within the mask. A padding query (segment 0) sees every key: its
    output is never read, and a softmax over nothing would be NaN.
    """
    places = key_positions[:, None, :]
    allowed = segments[:, :, None] == key_segments[:, None, :]
    if mask.before is not None:
        allowed = allowed & (places >= (positions - mask.before)[:, :, None])
    if mask.after is not None:
        allowed = allowed & (places <= (positions + mask.after)[:, :, None])
    return (allowed | (segments == 0)[:, :, None])[:, None]
