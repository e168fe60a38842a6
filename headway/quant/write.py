"""From an opened checkpoint to a smaller one: a GGUF file, or a folder in the form of compressed-tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway import families
from headway.checkpoint.files import naming
from headway.checkpoint.folder import stranger, whole_folder, write_json
from headway.checkpoint.gguf import GGUFFile
from headway.checkpoint.gguf_write import Planned, value, write_gguf
from headway.checkpoint.integers import joined, to_tensors, whole_row
from headway.checkpoint.packed import METHOD
from headway.checkpoint.rules import Rule, Split, expand
from headway.checkpoint.safetensors import write_safetensors
from headway.errors import RequestError
from headway.families.kit import token_ids
from headway.quant.formats import Format
from headway.quant.recipe import Plan, Recipe
from headway.quant.rounding import Rounded, Rounding, examined, plain
from headway.source import OWN, Match, Source, match
from headway.spec import codec
from headway.spec.count import shapes
from headway.tape.weights import Raw, of_source

Progress = Callable[[int, int], None]  # bytes done, bytes in all
Extras = Callable[[Path], None]  # writes what belongs beside the weights: a tokenizer

# The numbers that general.file_type has for a file mostly of one format.
FILE_TYPES = {
    "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q4_K": 15, "Q5_K": 17, "Q6_K": 18, "BF16": 32,
}  # fmt: skip
# Metadata that speak of the file they came in.
_OF_FILE = ("general.alignment", "general.file_type", "general.quantization_version", "split.")


@dataclass(frozen=True, kw_only=True)
class Written:
    """What was written, and what rounding did to every matrix."""

    path: Path
    nbytes: int
    matrices: tuple[Rounded, ...]
    notes: tuple[str, ...]  # what is not as one would think


def write(
    source: Source,
    plan: Plan,
    target: Path,
    *,
    rounding: Rounding = plain,
    extras: Extras | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Written:
    """Round `source` as `plan` says, to a new file (.gguf) or folder at `target`, which appears whole or not at all.

    RequestError before any work when the plan and the target do not go together, or something is there already;
    CheckpointError for a matrix that cannot be rounded, by name.
    """
    check_target(source, plan, target, overwrite=overwrite)
    work = _Work(source, plan, rounding, progress)
    if target.suffix == ".gguf":
        _write_gguf(work, target)
        size = target.stat().st_size
    else:
        _write_folder(work, target, extras)
        size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    return Written(path=target, nbytes=size, matrices=tuple(work.rounded), notes=tuple(work.notes))


def check_target(source: Source, plan: Plan, target: Path, *, overwrite: bool) -> None:
    """RequestError unless `target` can hold the plan's formats and may be written."""
    gguf = target.suffix == ".gguf"
    for format in (plan.recipe.format, *plan.formats.values()):
        if not (format.gguf if gguf else format.safetensors):
            way = "a folder" if gguf else "a name that ends in .gguf"
            raise RequestError(f"{target}: {format.name} cannot be kept there; give {way} to --out")
    if gguf and source.store.format != "gguf":
        family = source.family.name if source.family else OWN
        raise RequestError(
            f"{source.path}: a {family} folder cannot be written as GGUF, whose metadata headway carries over "
            f"from GGUF files alone; choose int8 or int4"
        )
    if target.resolve() == source.path.resolve():
        raise RequestError(f"{target}: is the model itself; choose another name")
    if target.is_dir() if gguf else target.is_file():
        raise RequestError(f"{target}: is a {'folder' if gguf else 'file'}; choose another name")
    if target.exists() and (gguf or any(target.iterdir())) and not overwrite:
        raise RequestError(f"{target}: is there already; choose another name, or pass --overwrite")
    if target.is_dir() and (other := stranger(target)):
        raise RequestError(f"{target}: holds {other}, which is no part of a saved model; choose another folder")


class _Work:
    """One conversion under way: rounds matrices, remembers what that did, and says how far it has come."""

    def __init__(self, source: Source, plan: Plan, rounding: Rounding, progress: Progress | None) -> None:
        self.source, self.plan, self.rounding = source, plan, rounding
        self.rounded: list[Rounded] = []
        self.notes: list[str] = [line] if (line := plan.line()) else []
        self.progress = progress

    def round(self, path: str, raw: Raw, format: Format) -> Raw:
        recipe, weights = self.plan.recipe, raw.floats()
        made = self.rounding(path, weights, format, group=recipe.group, symmetric=recipe.symmetric)
        block = made.integers.group if made.integers is not None else format.block
        self.rounded.append(examined(path, weights, made, block))
        return made


# GGUF


def _write_gguf(work: _Work, target: Path) -> None:
    """Tensor by tensor in the file's own layout: rounding goes along rows, so their order does not matter to it."""
    source = work.source
    store = source.store
    assert isinstance(store, GGUFFile)
    formats = {
        key: (found, work.plan.formats.get(found.rule.paths[0])) for found in match(source) for key in found.keys
    }
    planned = []
    for entry in store.values():
        format = formats.get(entry.name, (None, None))[1]
        planned.append(Planned(entry.name, entry.shape, entry.dtype if format is None else format.code))
    pairs = {key: raw for key, raw in store.raw_metadata().items() if not key.startswith(_OF_FILE)}
    pairs["general.file_type"] = value(FILE_TYPES[work.plan.recipe.format.code])
    pairs["general.quantization_version"] = value(2)
    write_gguf(target, pairs, planned, _gguf_data(work, store, planned, formats))


def _gguf_data(
    work: _Work,
    store: GGUFFile,
    planned: Sequence[Planned],
    formats: Mapping[str, tuple[Match, Format | None]],
) -> Iterator[NDArray[Any]]:
    done, total = 0, store.nbytes
    for tensor in planned:
        found, format = formats.get(tensor.name, (None, None))
        raw = Raw(store.entry(tensor.name).dtype, tensor.shape, store.read(tensor.name))
        if found is not None and format is not None and not is_already(raw, format, work.plan.recipe):
            raw = work.round(found.rule.paths[0], raw, format)
        yield raw.array
        store.release(tensor.name)
        done += store.entry(tensor.name).nbytes
        if work.progress is not None:
            work.progress(done, total)


# Folders


def _write_folder(work: _Work, target: Path, extras: Extras | None) -> None:
    with naming(target), whole_folder(target) as partial:
        rules, own = _file_rules(work)
        tensors, modules = _tensors(work, rules)
        write_safetensors(partial, tensors)
        work.notes += elsewhere(work, modules) if modules and not own else []
        write_json(partial / "config.json", _config(work, own, modules))
        if work.source.generation_config:
            write_json(partial / "generation_config.json", work.source.generation_config)
        if extras is not None:
            extras(partial)


def _file_rules(work: _Work) -> tuple[list[Rule], bool]:
    """The names of the file, and whether they are headway's own: for families whose files turn matrices round."""
    spec = work.source.spec
    if work.source.family is not None:
        rules = expand(work.source.family.names(spec), spec)
        if all(isinstance(form, Split) for rule in rules for form in rule.forms):
            return rules, False
        work.notes.append(f"{spec.family} files keep matrices turned round, so the folder opens in headway alone")
    return [Rule((path,), (path,)) for path in shapes(spec)], True


def _tensors(work: _Work, rules: Sequence[Rule]) -> tuple[list[tuple[str, str, Sequence[int], Any]], dict[str, Raw]]:
    """All tensors of the file, and what each rounded module holds, by its name in the file."""
    raws = {path: _rounded(work, path, raw) for path, raw in of_source(work.source, match(work.source), work.progress)}
    tensors: list[tuple[str, str, Sequence[int], Any]] = []
    modules: dict[str, Raw] = {}
    for rule in rules:
        parts = [raws.pop(path) for path in rule.paths]
        (key,) = rule.keys
        module = key.removesuffix(".weight")
        if parts[0].integers is None:
            (whole,) = rule.undo([part.array for part in parts])
            tensors.append((key, parts[0].dtype, whole.shape, np.ascontiguousarray(whole)))
            continue
        integers = joined([part.integers for part in parts if part.integers is not None])
        modules[module] = Raw.of(integers)
        for name, array in to_tensors(integers).items():
            dtype = {"int8": "I8", "int32": "I32", "int64": "I64", "float16": "F16", "float32": "F32"}[array.dtype.name]
            tensors.append((f"{module}.{name}", dtype, array.shape, array))
    return tensors, modules


def _rounded(work: _Work, path: str, raw: Raw) -> Raw:
    format = work.plan.formats.get(path)
    if format is not None:
        return raw if is_already(raw, format, work.plan.recipe) else work.round(path, raw, format)
    if work.plan.recipe.format.floating:  # a folder is of one type
        return raw.to(work.plan.recipe.format.code)
    return raw if raw.dtype in ("F16", "BF16") else Raw("F32", raw.shape, raw.floats().copy())


def _config(work: _Work, own: bool, modules: Mapping[str, Raw]) -> dict[str, Any]:
    spec = work.source.spec
    held = "bfloat16" if work.plan.recipe.to == "bfloat16" else "float16"
    common: dict[str, Any] = {"dtype": held, "torch_dtype": held}
    if modules:
        common["quantization_config"] = quantization_config(work.plan, modules)
    if own:
        return {"model_type": OWN, "spec": codec.to_json(spec), **common}
    return {**token_ids(work.source.config), **families.by_name(spec.family).write(spec), **common}


def elsewhere(work: _Work, modules: Mapping[str, Raw]) -> list[str]:
    """Lines on what keeps transformers, with compressed-tensors, from opening the folder."""
    found = []
    if work.source.spec.ties and any(name.endswith("embed_tokens") for name in modules):
        found.append(
            "the head is the embedding, in integers, which transformers does not open; --tables float16 it does"
        )
    if any(raw.integers is not None and raw.integers.zeros is not None for raw in modules.values()):
        found.append("groups have zeros, which transformers does not open yet; --symmetric ones it does")
    return found


def quantization_config(plan: Plan, modules: Mapping[str, Raw]) -> dict[str, Any]:
    """What compressed-tensors needs to know of `modules`: a group of them for each kind of integers."""
    tables = {name for name in modules if name.endswith(("embed_tokens", "lm_head", "stem.tokens", "heads.lm"))}
    kinds: dict[tuple[int, int, bool], set[str]] = {}
    for name, raw in modules.items():
        assert raw.integers is not None
        wide = raw.integers.group >= raw.shape[1] and plan.recipe.group == -1
        group = 0 if raw.integers.bits == 8 or wide else raw.integers.group
        kinds.setdefault((raw.integers.bits, group, raw.integers.zeros is None), set()).add(name)
    groups = {}
    for number, ((bits, group, symmetric), names) in enumerate(sorted(kinds.items())):
        targets = [*(["Linear"] if names - tables else []), *sorted(names & tables)]
        groups[f"group_{number}"] = {
            "targets": targets,
            "weights": {
                "num_bits": bits,
                "type": "int",
                "symmetric": symmetric,
                "strategy": "group" if group else "channel",
                "group_size": group or None,
                "dynamic": False,
            },
            "input_activations": None,
            "output_activations": None,
            "format": "int-quantized" if bits == 8 else "pack-quantized",
        }
    forms = {group["format"] for group in groups.values()}
    return {
        "quant_method": METHOD,
        "format": forms.pop() if len(forms) == 1 else "mixed-precision",
        "quantization_status": "compressed",
        "config_groups": groups,
        "ignore": [] if any(name.endswith("lm_head") for name in modules) else ["lm_head"],
    }


def is_already(raw: Raw, format: Format, recipe: Recipe) -> bool:
    """Whether a matrix is in `format` as it is, so that it stays to the bit."""
    if raw.dtype != format.code or (raw.integers is None) != (format.code not in ("I8", "I4")):
        return False
    if raw.integers is None or raw.integers.bits == 8:
        return True
    group = whole_row(raw.shape[1]) if recipe.group == -1 else recipe.group
    return raw.integers.group == group and (raw.integers.zeros is None) == recipe.symmetric


def of_plan(raws: Iterable[tuple[str, Raw]], plan: Plan, rounding: Rounding = plain) -> Iterator[tuple[str, Raw]]:
    """The same parameters, matrices rounded as `plan` says."""
    recipe = plan.recipe
    for path, raw in raws:
        format = plan.formats.get(path)
        if format is not None and not is_already(raw, format, recipe):
            raw = rounding(path, raw.floats(), format, group=recipe.group, symmetric=recipe.symmetric)
        yield path, raw
