"""The same tokenizer seen otherwise: blind to control tokens, or without a space put before a text."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from headway.text.special import FLAGS, AddedToken

if TYPE_CHECKING:
    import tokenizers

_FILLER: Final = "\U0010fffe"


def blind(core: tokenizers.Tokenizer, added: Mapping[int, AddedToken]) -> tokenizers.Tokenizer:
    """A tokenizer on the same model (shared, not copied) that finds only the added tokens that are not special."""
    import tokenizers

    view = tokenizers.Tokenizer(core.model)
    for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        setattr(view, part, getattr(core, part))
    ordinary = {at: token for at, token in added.items() if not token.special}
    if ordinary:
        _add_in_place(view, added, max(ordinary))
    if any(view.token_to_id(token.text) != at for at, token in ordinary.items()):
        view = tokenizers.Tokenizer.from_str(core.to_str())
    view.encode_special_tokens = True
    return view


def changed(part: Any, *changes: tuple[str, Any, Any]) -> Any:
    """A copy of a normalizer or pre-tokenizer with settings changed, each as (name, value, other value)."""
    if part is None:
        return None
    state = json.loads(part.__getstate__())
    steps = [state, *(step for steps in state.values() if isinstance(steps, list) for step in steps)]
    for step in steps:
        for name, value, other in changes:
            if isinstance(step, dict) and step.get(name) == value:
                step[name] = other
    part = copy.deepcopy(part)
    part.__setstate__(json.dumps(state).encode())
    return part


def _add_in_place(core: tokenizers.Tokenizer, added: Mapping[int, AddedToken], last: int) -> None:
    """Add tokens so that each gets its id: the library numbers them one after the other, so gaps are filled."""
    from tokenizers import AddedToken as LibraryToken

    first = core.get_vocab_size(with_added_tokens=False)
    inside = [at for at in added if at < first]
    batch = []
    for at in (*sorted(inside), *range(first, last + 1)):
        if token := added.get(at):
            flags = {flag: getattr(token, flag) for flag in FLAGS}
            batch.append(LibraryToken(token.text, **flags))
        else:
            batch.append(LibraryToken(f"{_FILLER}{at}", special=True, normalized=False))
    core.add_tokens(batch)
