"""From a spec to a module: without storage, for a loader to fill, or freshly initialised."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from headway.errors import SpecError
from headway.nn.transformer import Transformer
from headway.spec.check import check
from headway.spec.count import is_under, shapes
from headway.spec.mixers import Attention
from headway.spec.model import ModelSpec


def empty(spec: ModelSpec) -> Transformer:
    """The model with its ties made and no storage behind any parameter."""
    check(spec)
    _refuse_memory(spec)
    with torch.device("meta"):
        model = Transformer(spec)
    _tie(model)
    return model.eval()


def build(
    spec: ModelSpec, *, seed: int = 0, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> Transformer:
    """The model with fresh weights as `spec.init` says; the same seed gives the same weights on every device."""
    model = empty(spec)
    generator = torch.Generator().manual_seed(seed)
    modules = dict(model.named_modules())
    weights = {}
    for path, shape in shapes(spec).items():
        owner, _, name = path.rpartition(".")
        weights[path] = _initial(spec, path, modules[owner], name, shape, generator).to(device=device, dtype=dtype)
    return fill(model, weights)


def fill(model: Transformer, weights: Mapping[str, Tensor]) -> Transformer:
    """Give every parameter of an empty model its tensor, without a copy; ties follow their owners."""
    for path, tensor in weights.items():
        put(model, path, nn.Parameter(tensor, requires_grad=False))
    _tie(model)
    return model


def _tie(model: Transformer) -> None:
    """Make every alias, a parameter or all those of a module, the owner's own."""
    for tie in model.spec.ties:
        for path, parameter in list(model.named_parameters(remove_duplicate=False)):
            if is_under(path, (tie.owner,)):
                put(model, tie.alias + path.removeprefix(tie.owner), parameter)


def put(model: nn.Module, path: str, parameter: nn.Parameter) -> None:
    """Make `parameter` the one at `path`."""
    owner, _, name = path.rpartition(".")
    setattr(model.get_submodule(owner), name, parameter)


def _initial(
    spec: ModelSpec, path: str, owner: nn.Module, name: str, shape: tuple[int, ...], generator: torch.Generator
) -> Tensor:
    """Normal matrices, zero biases, norms at one, layer scales at their initial value."""
    if path.endswith("_scale.weight"):
        return torch.full(shape, _layer_scale(spec, path))
    if name == "bias" or len(shape) == 1:
        norm = name == "weight" and not getattr(owner, "offset", 0.0)
        return torch.ones(shape) if norm else torch.zeros(shape)
    std = spec.init.std
    if spec.init.depth_scaled and path.endswith((".o.weight", ".down.weight")):
        branches = sum(1 for stack in spec.stacks for layer in stack.layers for _ in layer.branches)
        std /= math.sqrt(branches)
    return torch.randn(shape, generator=generator) * std


def _layer_scale(spec: ModelSpec, path: str) -> float:
    _, stack, _, index, name, _ = path.split(".")
    layer = spec.stack(stack).layers[int(index)]
    scale = next(branch.scale for branch in layer.branches if branch.name == name.removesuffix("_scale"))
    return float(scale) if isinstance(scale, int | float) else scale.initial


def _refuse_memory(spec: ModelSpec) -> None:
    for stack in spec.stacks:
        for index, layer in enumerate(stack.layers):
            for branch in layer.branches:
                if isinstance(branch.mixer, Attention) and branch.mixer.source == "memory":
                    path = f"stacks.{stack.name}.layers[{index}].{branch.name}.source"
                    raise SpecError(f"{path} = memory cannot be built: encoder-decoders are not supported yet")
