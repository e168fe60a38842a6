"""Loading with `quantize`: packed on a tape, rounded floats in modules, the same numbers either way."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import headway
from headway.checkpoint.gguf_blocks import BLOCKS
from headway.checkpoint.gguf_write import Planned, value, write_gguf
from headway.checkpoint.store import open_store
from headway.errors import RequestError
from headway.loader import load_tape
from headway.native import library
from headway.quant import FORMATS, Recipe
from headway.quant.exact import in_native_blocks
from headway.tape.weights import Raw
from tests import needs
from tests.quant.test_write import folder, gguf_file, made

IDS = [[5, 9, 33, 2, 61, 7, 7, 19], [1, 44, 3]]


def apart(one: torch.Tensor, other: torch.Tensor) -> float:
    """The largest share by which a token's logits differ."""
    both = torch.nan_to_num(one), torch.nan_to_num(other)
    return float(((both[0] - both[1]).norm(dim=-1) / both[0].norm(dim=-1).clamp(min=1e-9)).max())


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return folder(tmp_path / "model")


@pytest.mark.parametrize("name", FORMATS)
def test_modules_hold_what_rounding_left_and_a_tape_runs_it_packed(model: Path, name: str) -> None:
    modules = headway.load(model, quantize=name, engine="modules")
    assert modules.report is not None
    assert modules.report.note.startswith(f"rounded to {name}")
    assert modules.report.note.endswith("and held as torch.float32")
    needs.native()
    tape = headway.load(model, quantize=name, engine="tape")
    assert tape.report is not None
    assert tape.report.note == ""
    assert FORMATS[name].code in tape.report.dtypes
    bound = 0.01 if FORMATS[name].floating else 0.03  # activations are rounded to 8 bits
    assert apart(modules.logits(IDS), tape.logits(IDS)) < bound
    assert torch.equal(tape.network.get_parameter("heads.lm.weight"), modules.network.get_parameter("heads.lm.weight"))


@pytest.mark.parametrize("to", ["int8", "int4"])
def test_rounding_when_loading_and_when_writing_is_the_same(model: Path, tmp_path: Path, to: str) -> None:
    out = made(model, tmp_path / "out", Recipe(to=to))
    assert torch.equal(
        *(
            torch.nan_to_num(headway.load(of, engine="modules", **how).logits(IDS))
            for of, how in ((out, {}), (model, {"quantize": to}))
        )
    )
    if library.load() is not None:
        written, loaded = headway.load(out, engine="tape"), headway.load(model, quantize=to, engine="tape")
        assert written.report is not None
        assert written.report.dtypes == loaded.report.dtypes
        assert torch.equal(torch.nan_to_num(written.logits(IDS)), torch.nan_to_num(loaded.logits(IDS)))


def test_a_recipe_in_full(model: Path) -> None:
    found = headway.load(model, quantize=Recipe(to="int4", group=32, symmetric=True), engine="modules")
    assert found.report is not None
    assert found.report.note.startswith("rounded to int4 in groups of 32,")


def test_what_contradicts_itself_is_refused(model: Path) -> None:
    with pytest.raises(RequestError, match="quantize = int8 and dtype = float16 both say what weights become"):
        headway.load(model, quantize="int8", dtype="float16")
    with pytest.raises(RequestError, match="format int3 is not known; did you mean int"):
        headway.load(model, quantize="int3")


@pytest.mark.parametrize("half", ["F16", "BF16"])
def test_modules_are_of_one_type_beside_integers(tmp_path: Path, half: str) -> None:
    full = folder(tmp_path / "full")
    halves = made(full, tmp_path / "halves", Recipe(to={"F16": "float16", "BF16": "bfloat16"}[half]))
    out = made(halves, tmp_path / "out", Recipe(to="int8"))
    with open_store(out) as store:
        assert store.entry("model.norm.weight").dtype == half
    model = headway.load(out, engine="modules")
    assert {parameter.dtype for parameter in model.network.parameters()} == {torch.float32}
    assert torch.isfinite(model.logits(IDS[0])).all()


@pytest.mark.parametrize(("name", "held"), [("Q2_K", "F32"), ("Q3_K", "Q6_K")])
def test_formats_that_native_calls_lack_are_held_as_others_and_named_in_the_report(
    tmp_path: Path, name: str, held: str
) -> None:
    needs.native()
    model, out = gguf_file(tmp_path / "model.gguf"), tmp_path / "out.gguf"
    with open_store(model) as store:
        down = "blk.0.ffn_down.weight"
        tensors = [Planned(e.name, e.shape, name if e.name == down else e.dtype) for e in store.values()]
        blocks = np.zeros((96, BLOCKS[name].bytes), np.uint8)
        blocks[:, 20:60] = 77
        data = [blocks if tensor.name == down else store.read(tensor.name) for tensor in tensors]
        pairs = store.raw_metadata() | {"general.file_type": value(10)}
        write_gguf(out, pairs, tensors, data)
    found = load_tape(out).report
    assert held in found.dtypes
    assert found.note == ("" if held == "Q6_K" else f"no native form for {name}: held as float32")


def test_three_bits_in_blocks_of_six_are_the_same_numbers() -> None:
    random = np.random.default_rng(8)
    blocks = random.integers(0, 256, (64, BLOCKS["Q3_K"].bytes), dtype=np.uint8)
    blocks[:, 108:110] = random.standard_normal((64, 1)).astype(np.float16).view(np.uint8)
    before = Raw("Q3_K", (32, 512), blocks.reshape(32, -1))
    ((_, after),) = in_native_blocks([("w", before)])
    assert after.dtype == "Q6_K"
    assert np.array_equal(before.floats(), after.floats())
