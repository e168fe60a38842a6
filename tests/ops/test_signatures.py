"""The shapes in signatures are no decoration: while tests run, they are checked at every call."""

from __future__ import annotations

import pytest
import torch
from jaxtyping import TypeCheckError

from headway.ops.attention import Scoring, Seen, attend


def test_keys_of_another_size_than_the_queries_are_refused() -> None:
    q, k = torch.zeros(1, 4, 3, 8), torch.zeros(1, 2, 3, 6)
    with pytest.raises(TypeCheckError):
        attend(q, k, k, Seen("causal"), Scoring(1.0))
