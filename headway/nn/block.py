"""One layer: steps of branches around a residual stream, exactly as the spec's algebra says."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from headway.nn.frame import Frame
from headway.nn.parts import Scale, ScaleVector, make_norm
from headway.spec.mixers import Mixer
from headway.spec.model import Branch, LayerSpec, Step
from headway.spec.parts import LayerScale, Norm

MakeMixer = Callable[[Mixer, int, str], nn.Module]
Chain = tuple[nn.Module, ...]


class Block(nn.Module):
    """x <- outer(residual * x + sum over branches of scale * norm_out(mixer(norm(inner(x))))), step by step.

    Every part is registered under its branch's name; a part that does nothing is not there at all.
    """

    def __init__(self, spec: LayerSpec, width: int, path: str, make_mixer: MakeMixer) -> None:
        super().__init__()
        self.spec, self.path, self._width = spec, path, width
        self._steps = tuple(self._step(step, make_mixer) for step in spec.steps)

    def forward(self, x: Tensor, frame: Frame) -> Tensor:
        for inner, branches, residual, outer in self._steps:
            start = run(inner, x)
            x = run(residual, x)
            for before, mixer, after in branches:
                x = x + run(after, mixer(run(before, start), frame))
            x = run(outer, x)
        return frame.tap(f"{self.path}.output", x)

    def _step(
        self, step: Step, make_mixer: MakeMixer
    ) -> tuple[Chain, tuple[tuple[Chain, nn.Module, Chain], ...], Chain, Chain]:
        first = step.branches[0].name
        inner = self._add(f"{first}_inner", self._norm(step.inner))
        branches = tuple(self._branch(branch, make_mixer) for branch in step.branches)
        residual: Chain = () if step.residual == 1.0 else (Scale(step.residual),)
        outer = self._add(f"{first}_outer", self._norm(step.outer))
        return inner, branches, residual, outer

    def _branch(self, branch: Branch, make_mixer: MakeMixer) -> tuple[Chain, nn.Module, Chain]:
        name, width = branch.name, self._width
        before = self._add(f"{name}_norm", self._norm(branch.norm))
        mixer = make_mixer(branch.mixer, width, f"{self.path}.{name}")
        self.add_module(name, mixer)
        after = self._add(f"{name}_norm_out", self._norm(branch.norm_out))
        if isinstance(branch.scale, LayerScale):
            after += self._add(f"{name}_scale", ScaleVector(width))
        elif branch.scale != 1.0:
            after += (Scale(branch.scale),)
        if branch.drop:
            after += self._add(f"{name}_drop", nn.Dropout(branch.drop))
        return before, mixer, after

    def _norm(self, spec: Norm | None) -> nn.Module | None:
        return None if spec is None else make_norm(spec, self._width)

    def _add(self, name: str, module: nn.Module | None) -> Chain:
        if module is None:
            return ()
        self.add_module(name, module)
        return (module,)


def run(chain: Chain, x: Tensor) -> Tensor:
    """x through every module of the chain."""
    for module in chain:
        x = module(x)
    return x
