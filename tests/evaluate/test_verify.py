"""Verification: a model agrees with itself in every way of computing, and what differs is named where it begins."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from headway.cache import slots
from headway.errors import RequestError
from headway.evaluate import CHECKS, check_alone, compare, sample_rows, usual_tolerance
from headway.evaluate.verify import sites
from headway.loader import load_network
from headway.nn import Transformer, build
from headway.spec import ModelSpec
from tests.zoo import VOCAB, ZOO, attention, decoder, layer

ROWS = [[5, 1, 88, 3, 3, 17, 96, 40, 2, 9, 11, 54], [7, 0, 9], [61, 2, 3, 4, 5, 0, 0]]
every_spec = pytest.mark.parametrize("name", ZOO)


def model_of(name: str, seed: int = 3) -> Transformer:
    return build(ZOO[name], seed=seed)


@every_spec
def test_a_model_agrees_with_itself_in_every_way(name: str) -> None:
    # All of one row are turned by the table that its longest text asks for.
    rows = [row[:9] for row in ROWS] if name == "longrope" else ROWS
    found = list(check_alone(model_of(name), rows))
    assert [each.name for each in found] == [check.name for check in CHECKS]
    for each in found:
        assert each.agrees, (each.name, each.first)
        assert each.same_choice == each.places == sum(map(len, rows))
        assert [gap.site for gap in each.gaps] == list(sites(ZOO[name]))


@every_spec
def test_a_model_beside_itself_does_not_differ_at_all(name: str) -> None:
    found = compare(model_of(name), model_of(name), ROWS)
    assert found.first is None
    assert {gap.difference for gap in found.gaps} == {0.0}


def changed(network: Transformer, path: str) -> Transformer:
    with torch.no_grad():
        network.get_parameter(path).view(-1)[3] += 0.5
    return network


@pytest.mark.parametrize(
    ("parameter", "site"),
    [
        ("stacks.decoder.stem.tokens.weight", "stacks.decoder.stem.output"),
        ("stacks.decoder.layers.0.attention.v.weight", "stacks.decoder.layers.0.output"),
        ("stacks.decoder.layers.1.feed_forward.down.weight", "stacks.decoder.layers.1.output"),
        ("stacks.decoder.final_norm.weight", "stacks.decoder.output"),
        ("heads.lm.weight", "logits"),
    ],
)
def test_the_first_site_that_differs_is_named(parameter: str, site: str) -> None:
    found = compare(model_of("window"), changed(model_of("window"), parameter), [*ROWS, [0]])
    assert found.first is not None
    assert found.first.site == site
    assert not found.agrees


def test_a_token_with_huge_values_does_not_hide_the_others() -> None:
    one, other = model_of("window"), model_of("window")
    with torch.no_grad():
        for network in (one, other):
            network.get_parameter("stacks.decoder.stem.tokens.weight")[5] *= 1e5
        other.get_parameter("stacks.decoder.layers.1.attention.o.weight")[0] += 0.01
    found = compare(one, other, [[5, 1, 88, 3]])
    assert found.first is not None
    assert found.first.site == "stacks.decoder.layers.1.output"


def test_what_is_not_a_number_agrees_with_nothing() -> None:
    broken = model_of("rotary")
    with torch.no_grad():
        broken.get_parameter("stacks.decoder.layers.1.attention.q.weight")[0, 0] = float("nan")
    found = compare(broken, broken, ROWS)
    assert found.first is not None
    assert found.first.site == "stacks.decoder.layers.1.output"
    assert found.first.difference == float("inf")


def test_a_broken_cache_is_seen_by_the_checks_that_use_one(monkeypatch: pytest.MonkeyPatch) -> None:
    keep = slots.ContiguousSlot.update

    def forgetful(self: slots.ContiguousSlot, k: Tensor, v: Tensor, step: object) -> tuple[Tensor, Tensor]:
        keys, values = keep(self, k, v, step)  # type: ignore[arg-type]
        return keys, values.roll(1, 2)

    monkeypatch.setattr(slots.ContiguousSlot, "update", forgetful)
    found = {each.name: each for each in check_alone(model_of("rotary"), ROWS)}
    assert {name for name, each in found.items() if not each.agrees} == {"cached", "chunked"}
    first = found["cached"].first
    assert first is not None
    assert first.site == "stacks.decoder.layers.0.output"


class Shifted(nn.Module):
    """A stem whose answer depends on the width of the batch."""

    def __init__(self, stem: nn.Module) -> None:
        super().__init__()
        self.stem = stem

    def forward(self, batch: object) -> Tensor:
        x = self.stem(batch)
        return x + 0.01 * x.shape[1]


def test_padding_that_leaks_is_seen() -> None:
    model = model_of("rotary")
    model.stacks["decoder"].stem = Shifted(model.stacks["decoder"].stem)
    found = {each.name: each for each in check_alone(model, ROWS)}
    assert not found["padded right"].agrees
    assert found["padded right"].first == found["padded right"].gaps[0]
    assert found["batched"].agrees


def test_a_tolerance_of_one_s_own_decides() -> None:
    one, other = model_of("rotary"), model_of("rotary", seed=4)
    assert not compare(one, other, ROWS).agrees
    assert compare(one, other, ROWS, tolerance=100.0).agrees
    half = build(ZOO["rotary"], seed=3, dtype=torch.bfloat16)
    assert compare(one, half, ROWS).tolerance == usual_tolerance(half) == 6e-2
    assert compare(one, half, ROWS).agrees
    assert not compare(one, half, ROWS, tolerance=1e-4).agrees


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (decoder(layer(attention())), "stacks.decoder.layers is 2 in the one and 1 in the other"),
        (replace(ZOO["rotary"], stacks=(replace(ZOO["rotary"].decoder, name="encoder"),), heads=(
            replace(ZOO["rotary"].heads[0], stack="encoder"),), ties=()), "stacks is"),
    ],
)  # fmt: skip
def test_models_of_another_shape_are_refused(other: ModelSpec, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        compare(model_of("rotary"), build(other), ROWS)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "no tokens"),
        ([[1], []], "no tokens"),
        ([[1] * 65], "65 tokens, but the context is 64"),
        ([[VOCAB]], f"token id {VOCAB} is not in the vocabulary"),
    ],
)
def test_texts_that_do_not_fit_are_refused(rows: list[list[int]], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        list(check_alone(model_of("rotary"), rows))


def test_sample_rows_are_the_same_each_time_and_fit() -> None:
    rows = sample_rows(ZOO["rotary"])
    assert rows == sample_rows(ZOO["rotary"])
    assert [len(row) for row in rows] == [24, 12, 8]
    assert all(0 <= token < VOCAB for row in rows for token in row)


def test_smollm2_agrees_with_itself(smollm2_gguf: Path) -> None:
    network = load_network(smollm2_gguf).network
    rows = [[504, 2644, 2643], [198]]
    assert all(each.agrees for each in check_alone(network, rows))
