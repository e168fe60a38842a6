"""Loading onto a tape: what runs where, what the report says, and the way back to modules."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

import headway
from headway import families
from headway.errors import CheckpointError, HeadwayError, RequestError
from headway.families.kit import Config, Family
from headway.fast import TapeNetwork, tape_of
from headway.loader import load_network, load_tape, save_network
from headway.native import build as build_native
from headway.native import library
from headway.nn import Transformer, build
from headway.spec.count import shapes
from headway.tape import Program, missing
from tests.families.converter import convert, held
from tests.families.test_gguf import TINY, weights
from tests.tape.specs import SPECS
from tests.zoo import ZOO

ROW = [3, 1, 88, 7, 7, 20]
EVERY_FAMILY = [
    pytest.param(family, config, id=f"{family.name}-{name}")
    for family in families.all_families()
    for name, config in family.tiny.items()
]


def saved(folder: Path, family: Family, config: dict[str, Any], dtype: torch.dtype = torch.float32) -> Path:
    save_network(build(family.read(Config(config)), seed=5, dtype=dtype), folder)
    return folder


def llama(folder: Path, dtype: torch.dtype = torch.float32) -> Path:
    family = families.by_name("llama")
    return saved(folder, family, next(iter(family.tiny.values())), dtype)


@pytest.mark.parametrize("name", SPECS)
def test_every_spec_has_a_native_form(name: str) -> None:
    assert missing(SPECS[name]) == ()


@pytest.mark.parametrize(("family", "config"), EVERY_FAMILY)
def test_a_folder_answers_as_its_modules(family: Family, config: dict[str, Any], tmp_path: Path) -> None:
    folder = saved(tmp_path / "m", family, config)
    tape, modules = (headway.load(folder, engine=engine) for engine in ("tape", "modules"))
    torch.testing.assert_close(tape.logits([ROW]), modules.logits([ROW]), atol=1e-4, rtol=0)
    torch.testing.assert_close(tape.hidden([ROW]), modules.hidden([ROW]), atol=1e-4, rtol=0)


@pytest.mark.parametrize(("family", "config"), TINY)
def test_a_gguf_file_answers_as_its_modules(family: Family, config: dict[str, Any], tmp_path: Path) -> None:
    spec = family.read(Config(held(config)))
    file = convert(tmp_path / "model.gguf", config, {k: 0.1 * v for k, v in weights(family, spec).items()})
    tape, modules = TapeNetwork(load_tape(file).network), load_network(file).network
    from headway.batch import Batch

    ours, theirs = tape(Batch.of([ROW])).logits, modules(Batch.of([ROW])).logits
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_read_where_the_file_has_it(dtype: torch.dtype, tmp_path: Path) -> None:
    model = headway.load(llama(tmp_path / "m", dtype), engine="auto")
    exact = headway.load(tmp_path / "m", dtype="float32", engine="modules")
    assert isinstance(model.runner, Program)
    assert model.report.dtypes.keys() == {{torch.float16: "F16", torch.bfloat16: "BF16"}[dtype], "F32"}
    torch.testing.assert_close(model.logits([ROW]), exact.logits([ROW]), atol=2e-3, rtol=2e-2)


def test_matrices_are_made_what_is_asked_for(tmp_path: Path) -> None:
    folder = llama(tmp_path / "m", torch.bfloat16)
    model = headway.load(folder, dtype="float32", engine="auto")
    exact = headway.load(folder, dtype="float32", engine="modules")
    assert set(model.report.dtypes) == {"F32"}
    torch.testing.assert_close(model.logits([ROW]), exact.logits([ROW]), atol=1e-4, rtol=0)


def test_the_report_says_what_runs_and_modules_are_loaded_when_somebody_reads_from_them(tmp_path: Path) -> None:
    model = headway.load(llama(tmp_path / "m"))
    native = library.load()
    assert native is not None
    assert model.report.engine.startswith(f"tape, {native.path}, ")
    assert model.report.note == ""
    answer = model.generate(ROW, max_tokens=5)
    assert model.attentions([ROW])
    model.save(tmp_path / "again")
    assert isinstance(model.runner, Program)
    again = headway.load(tmp_path / "again")
    assert torch.equal(again.logits([ROW]), model.logits([ROW]))
    assert again.generate(ROW, max_tokens=5) == answer


def test_whoever_asks_for_modules_is_answered_by_them(tmp_path: Path) -> None:
    model = headway.load(llama(tmp_path / "m"))
    before, answer = model.logits([ROW]), model.generate(ROW, max_tokens=5)
    assert model.network is model.network is model.runner
    assert isinstance(model.network, Transformer)
    assert (model.report.engine, model.report.note) == ("modules", "asked for as modules")
    assert model.generate(ROW, max_tokens=5).tokens == answer.tokens
    torch.testing.assert_close(model.logits([ROW]), before, atol=1e-4, rtol=0)
    with torch.no_grad():
        model.network.get_parameter("heads.lm.weight")[7] += 10
    assert not torch.allclose(model.logits([ROW]), before, atol=1e-2)


def test_modules_serve_where_they_are_asked_for(tmp_path: Path) -> None:
    model = headway.load(llama(tmp_path / "m"), engine="modules")
    assert isinstance(model.runner, Transformer)
    assert model.runner is model.network
    assert (model.report.engine, model.report.note) == ("modules", "")
    with pytest.raises(RequestError, match="engine = warp is not one of auto, tape, modules"):
        headway.load(tmp_path / "m", engine="warp")


def test_without_a_native_library_modules_serve_and_the_report_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = llama(tmp_path / "m")
    monkeypatch.setenv("HEADWAY_NATIVE", "off")
    library._loaded.cache_clear()
    try:
        model = headway.load(folder, engine="auto")
        assert isinstance(model.runner, Transformer)
        assert (model.report.engine, model.report.note) == ("modules", "HEADWAY_NATIVE is off")
        assert len(model.generate(ROW, max_tokens=3).tokens) == 3
        for ask in (lambda: headway.load(folder, engine="tape"), lambda: tape_of(model.network)):
            with pytest.raises(HeadwayError, match="HEADWAY_NATIVE is off") as caught:
                ask()
            assert "\n" not in str(caught.value)
    finally:
        library._loaded.cache_clear()


@pytest.mark.parity
def test_modules_serve_where_native_code_is_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = llama(tmp_path / "m")
    monkeypatch.setattr(build_native, "SETS", {})  # as on a processor without AVX2
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    library._loaded.cache_clear()
    try:
        model = headway.load(folder, engine="auto")
        assert model.report.engine == "modules"
        assert model.report.note == library.slow() != ""
        assert headway.load(folder, engine="tape").report.engine.startswith("tape, scalar, ")
    finally:
        library._loaded.cache_clear()


@pytest.mark.case("C40")
def test_a_machine_without_a_compiler_answers_on_modules(tmp_path: Path) -> None:
    folder = llama(tmp_path / "m")
    program = (
        f"import headway; m = headway.load({str(folder)!r}, engine='auto');"
        "print(m.generate([3, 1], max_tokens=3).tokens); print(m.report.engine, '|', m.report.note)"
    )
    env = {**os.environ, "PATH": "", "CC": "", "HEADWAY_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    tokens, said = done.stdout.splitlines()
    assert tokens.count(",") >= 2
    assert said == "modules | no C compiler on PATH (cc, gcc, clang)"


def test_a_misshaped_tensor_is_named(tmp_path: Path) -> None:
    folder = llama(tmp_path / "m")
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    tensors[name] = np.zeros((3, 5), np.float32)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=rf"{name} has shape \[3, 5\]"):
        headway.load(folder, engine="tape")


def test_a_tape_over_modules_shares_their_memory() -> None:
    modules = build(ZOO["rotary"], seed=3)
    tape = tape_of(modules, threads=1)
    path = "stacks.decoder.layers.0.attention.q.weight"
    assert tape.program.weights.matrix(path).struct.data == modules.get_parameter(path).data_ptr()
    assert tape.program.weights.nbytes == 4 * sum(np.prod(shape) for shape in shapes(ZOO["rotary"]).values())


@pytest.mark.parametrize("cache", ["float32", "float16", "bfloat16", "int8"])
def test_keys_and_values_are_kept_in_what_is_asked_for(tmp_path: Path, cache: str) -> None:
    folder = llama(tmp_path / "m")
    model, exact = headway.load(folder, cache=cache), headway.load(folder)
    assert model.report.engine == f"{exact.report.engine}, {cache} cache"
    sizes = [m.runner.cache(1, 64).nbytes for m in (model, exact)]
    assert sizes[0] < {"float32": 1.1, "float16": 0.6, "bfloat16": 0.6, "int8": 0.6}[cache] * sizes[1]
    close = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2, "int8": 3e-2}[cache]
    prompt = [*ROW, *ROW, *ROW]
    ours, theirs = (m.score([prompt])[0].tokens for m in (model, exact))
    assert max(abs(one.logprob - two.logprob) for one, two in zip(ours, theirs, strict=True)) < 10 * close


def test_a_cache_that_cannot_be_is_refused(tmp_path: Path) -> None:
    folder = llama(tmp_path / "m")
    with pytest.raises(RequestError, match="cache = int3 is not one of auto, float32, float16, bfloat16, int8"):
        headway.load(folder, cache="int3")
    with pytest.raises(RequestError, match="cache = int8 needs a tape, and modules serve here"):
        headway.load(folder, engine="modules", cache="int8")
