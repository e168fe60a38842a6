"""The tree of a spec: every kind of part says what it is, equal layers are one line."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headway import families
from headway.cli.drawing import Node, draw, formula, ranges, scaling
from headway.families.kit import Config
from headway.spec import (
    Branch,
    DynamicScaling,
    FeedForward,
    GivenScaling,
    LinearScaling,
    LongRopeScaling,
    ModelSpec,
    Norm,
    Step,
)
from headway.spec.count import parameters
from headway.spec.parts import LayerScale
from tests import zoo

TINY = [pytest.param(spec, id=name) for name, spec in zoo.ZOO.items()] + [
    pytest.param(family.read(Config(config)), id=f"{family.name}-{name}")
    for family in families.all_families()
    for name, config in family.tiny.items()
]


def nodes(node: Node) -> Iterator[Node]:
    yield node
    for child in node.children:
        yield from nodes(child)


def leaves(node: Node) -> Iterator[Node]:
    return (each for each in nodes(node) if not each.children)


@pytest.mark.parametrize("spec", TINY)
def test_numbers_of_the_parts_add_up_to_the_whole(spec: ModelSpec) -> None:
    tree = draw(spec, "m")
    assert tree.parameters == parameters(spec)
    assert tree.parameters == sum(child.parameters for child in tree.children)
    for stack in tree.children[: len(spec.stacks)]:
        assert stack.parameters == sum(part.parameters for part in stack.children)
        for layer in (part for part in stack.children if part.name.startswith("layer")):
            places = layer.parameters // sum(leaf.parameters for leaf in leaves(layer))
            assert places * sum(leaf.parameters for leaf in leaves(layer)) == layer.parameters


def test_equal_layers_are_one_line_wherever_they_stand() -> None:
    one, two = zoo.layer(zoo.attention()), zoo.layer(zoo.attention(scale=0.5))
    tree = draw(zoo.decoder(one, one, two, one, two), "m")
    lines = [node.name for node in nodes(tree) if node.name.startswith("layer")]
    assert lines == ["layers 0-1, 3", "layers 2, 4"]


@pytest.mark.parametrize(("numbers", "text"), [([0], "0"), ([0, 1, 2], "0-2"), ([1, 3, 4, 9], "1, 3-4, 9")])
def test_ranges(numbers: list[int], text: str) -> None:
    assert ranges(numbers) == text


def test_formulas_are_those_of_the_steps() -> None:
    norm = Norm(kind="rms", eps=1e-5)
    ffn = FeedForward(hidden=4, activation="relu")
    plain = Branch(name="f", mixer=ffn)

    def with_branch(**changes: object) -> Branch:
        return Branch(name="f", mixer=ffn, **changes)  # type: ignore[arg-type]

    assert formula(Step(branches=(plain,))) == "x <- x + f(x)"
    assert formula(Step(branches=(plain,), outer=norm)) == "x <- norm(x + f(x))"
    assert formula(Step(branches=(with_branch(norm=norm, norm_out=norm),))) == "x <- x + norm(f(norm(x)))"
    assert formula(Step(branches=(plain, with_branch(scale=0.5)), inner=norm)) == "x <- x + f(norm(x)) + 0.5 f(norm(x))"
    assert formula(Step(branches=(with_branch(scale=LayerScale(initial=0.1)),), residual=2.0)) == "x <- 2 x + s * f(x)"
    assert formula(Step(branches=(plain,), residual=0.0)) == "x <- f(x)"


def test_rules_for_long_contexts_have_names() -> None:
    assert scaling(LinearScaling(factor=4.0)) == "linear x4"
    assert scaling(DynamicScaling(factor=2.0, original=64)) == "dynamic x2 past 64"
    assert scaling(LongRopeScaling(short=(1.0,), long=(2.0,), original=64, attention=1.0)) == "longrope past 64"
    assert scaling(GivenScaling(divisors=(1.0,))) == "divisors from the file"
