"""A GGUF file of every architecture gives the logits of the transformers model that it was converted from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headway import families
from headway.loader import load_network
from tests.families.converter import convert, held
from tests.families.test_gguf import BEYOND
from tests.parity.test_family_parity import assert_equal, our_logits, their_logits, theirs_of, tokens

pytestmark = pytest.mark.parity

TINY = [
    pytest.param(held(config), id=f"{family.name}-{name}")
    for family in families.all_families()
    for name, config in family.tiny.items()
    if (name not in BEYOND or family.name == "phi3") and not (family.name == "mistral" and name == "window")
]


@pytest.mark.case("C06", "C10", "C11")
@pytest.mark.parametrize("config", TINY)
def test_a_gguf_file_gives_the_logits_of_its_model(config: dict[str, Any], tmp_path: Path) -> None:
    model = theirs_of(config)
    tied = set(model.all_tied_weights_keys) if model.config.tie_word_embeddings else set()
    tensors = {name: tensor.numpy() for name, tensor in model.state_dict().items() if name not in tied}
    loaded = load_network(convert(tmp_path / "model.gguf", config, tensors))
    ids = tokens(config["vocab_size"])
    assert_equal(our_logits(loaded.network, ids), their_logits(model, ids))
    assert bool(loaded.report.tied) == bool(tied)
    assert not loaded.report.unused
