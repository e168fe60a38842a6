"""Loading and saving: nothing random, nothing missing, nothing silent."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from headway import families
from headway.batch import Batch
from headway.errors import CheckpointError, HeadwayError, SpecError
from headway.families.kit import Config
from headway.loader import UnusedWeights, load_network, save_network
from headway.nn import Transformer, build
from tests.zoo import ZOO

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
LLAMA = {
    "model_type": "llama",
    "vocab_size": 96,
    "hidden_size": 40,
    "head_dim": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 56,
    "num_hidden_layers": 2,
    "max_position_embeddings": 64,
}


def llama(**changes: Any) -> Transformer:
    config = {**LLAMA, **changes}
    return build(families.for_config(config, "config.json").read(Config(config)), seed=5)


def logits(model: Transformer) -> torch.Tensor:
    with torch.inference_mode():
        return model(Batch.of([[3, 1, 95, 7, 7, 20]])).logits


def saved(folder: Path, model: Transformer) -> Path:
    save_network(model, folder)
    return folder


def rewrite(folder: Path, change: Any) -> Path:
    """Change the tensors of a saved folder, as some other tool might have left them."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    return folder


def configure(folder: Path, **changes: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return folder


@pytest.mark.parametrize("name", ZOO)
def test_a_model_of_our_own_comes_back_bit_for_bit(tmp_path: Path, name: str) -> None:
    model = build(ZOO[name])
    loaded = load_network(saved(tmp_path / "m", model))
    assert loaded.network.spec == model.spec
    assert torch.equal(logits(loaded.network), logits(model))
    assert loaded.report.unused == loaded.report.ignored == ()


@pytest.fixture
def tied(tmp_path: Path) -> tuple[Transformer, Path]:
    model = llama(tie_word_embeddings=True)
    return model, saved(tmp_path / "tied", model)


@pytest.mark.case("C06")
def test_a_tied_matrix_is_stored_once(tied: tuple[Transformer, Path]) -> None:
    tensors = load_file(tied[1] / "model.safetensors")
    assert HEAD not in tensors
    assert sum(t.numel() for t in tensors.values()) == sum(p.numel() for p in tied[0].parameters())


def _only_head(tensors: dict[str, Any]) -> None:
    tensors[HEAD] = tensors.pop(EMBEDDING)


def _both(tensors: dict[str, Any]) -> None:
    tensors[HEAD] = tensors[EMBEDDING].clone()


@pytest.mark.case("C06")
@pytest.mark.parametrize("change", [lambda tensors: None, _only_head, _both])
def test_either_alias_of_a_tied_matrix_is_enough(tied: tuple[Transformer, Path], change: Any) -> None:
    model, folder = tied
    loaded = load_network(rewrite(folder, change))
    assert torch.equal(logits(loaded.network), logits(model))
    embedding = loaded.network.get_parameter("stacks.decoder.stem.tokens.weight")
    assert loaded.network.get_parameter("heads.lm.weight") is embedding
    assert loaded.report.tied == ("heads.lm.weight",)
    assert loaded.report.unused == ()


@pytest.mark.case("C06")
def test_neither_alias_is_an_error_that_names_the_key(tied: tuple[Transformer, Path]) -> None:
    folder = rewrite(tied[1], lambda tensors: tensors.pop(EMBEDDING))
    with pytest.raises(CheckpointError, match=EMBEDDING):
        load_network(folder)


@pytest.mark.case("C06")
def test_an_untied_model_without_its_head_is_an_error(tmp_path: Path) -> None:
    folder = rewrite(saved(tmp_path / "m", llama()), lambda tensors: tensors.pop(HEAD))
    with pytest.raises(CheckpointError, match="1 of 21 tensors are missing: lm_head"):
        load_network(folder)


@pytest.mark.case("C06")
def test_two_different_matrices_where_the_config_ties_them_are_an_error(tmp_path: Path) -> None:
    folder = configure(saved(tmp_path / "m", llama()), tie_word_embeddings=True)
    with pytest.raises(CheckpointError, match="two different matrices; set tie_word_embeddings to false"):
        load_network(folder)


def test_a_file_of_the_bare_stack_loads_without_its_prefix(tied: tuple[Transformer, Path]) -> None:
    model, folder = tied

    def strip(tensors: dict[str, Any]) -> None:
        for name in list(tensors):
            tensors[name.removeprefix("model.")] = tensors.pop(name)

    assert torch.equal(logits(load_network(rewrite(folder, strip)).network), logits(model))


def test_tensors_that_nobody_knows_are_a_warning_and_in_the_report(tied: tuple[Transformer, Path]) -> None:
    folder = rewrite(tied[1], lambda tensors: tensors.update(surprise=torch.zeros(3)))
    with pytest.warns(UnusedWeights, match="1 tensors are not used: surprise"):
        loaded = load_network(folder)
    assert loaded.report.unused == ("surprise",)


@pytest.mark.parametrize("shape", [(56, 41), (57, 40), (56,)])
def test_a_tensor_of_another_shape_is_an_error_with_both_shapes(tied: tuple[Transformer, Path], shape: Any) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    folder = rewrite(tied[1], lambda tensors: tensors.update({name: torch.zeros(shape)}))
    with pytest.raises(CheckpointError) as caught:
        load_network(folder)
    assert name in str(caught.value)
    assert str(list(shape)) in str(caught.value)
    assert "[56, 40]" in str(caught.value)


def _one_float32_buffer(tensors: dict[str, Any]) -> None:
    for name in tensors:
        if name != "model.norm.weight":
            tensors[name] = tensors[name].to(torch.bfloat16)


@pytest.mark.case("C15")
def test_auto_keeps_the_dtype_of_every_tensor(tmp_path: Path) -> None:
    folder = rewrite(saved(tmp_path / "m", llama()), _one_float32_buffer)
    loaded = load_network(folder)
    dtypes = {name: parameter.dtype for name, parameter in loaded.network.named_parameters()}
    assert dtypes.pop("stacks.decoder.final_norm.weight") == torch.float32
    assert set(dtypes.values()) == {torch.bfloat16}
    assert loaded.report.file_dtypes == loaded.report.dtypes == {"BF16": loaded.report.dtypes["BF16"], "F32": 40}
    assert torch.isfinite(logits(loaded.network)).all()
    again = load_file(saved(tmp_path / "again", loaded.network) / "model.safetensors")
    before = load_file(folder / "model.safetensors")
    assert {name: t.dtype for name, t in again.items()} == {name: t.dtype for name, t in before.items()}
    assert all(torch.equal(again[name], before[name]) for name in before)


@pytest.mark.case("C15")
@pytest.mark.parametrize(
    ("dtype", "expected"), [("float16", torch.float16), ("float32", torch.float32), (torch.bfloat16, torch.bfloat16)]
)
def test_an_explicit_dtype_wins(tmp_path: Path, dtype: Any, expected: torch.dtype) -> None:
    loaded = load_network(rewrite(saved(tmp_path / "m", llama()), _one_float32_buffer), dtype=dtype)
    assert {parameter.dtype for parameter in loaded.network.parameters()} == {expected}
    assert loaded.report.file_dtypes["F32"] == 40
    assert loaded.network.cache(1, 4).slots["stacks.decoder.layers.0.attention"].tensors()[0].dtype == expected


@pytest.mark.case("C15")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_comes_back_bit_for_bit(tmp_path: Path, dtype: torch.dtype) -> None:
    spec = llama().spec
    model = build(spec, dtype=dtype)
    loaded = load_network(saved(tmp_path / "m", model))
    assert all(torch.equal(model.get_parameter(n), p) for n, p in loaded.network.named_parameters())
    assert json.loads((tmp_path / "m" / "config.json").read_text())["dtype"] == str(dtype).removeprefix("torch.")


def test_an_unknown_dtype_is_refused_with_the_known_ones() -> None:
    with pytest.raises(SpecError, match="dtype = float8 is not one of auto, float32"):
        load_network(Path("anywhere"), dtype="float8")


@pytest.mark.case("C22")
def test_a_head_size_of_its_own_survives_the_round_trip(tmp_path: Path) -> None:
    model = llama()
    shapes = {n: tuple(p.shape) for n, p in model.named_parameters() if ".layers.0.attention." in n}
    assert [shapes[f"stacks.decoder.layers.0.attention.{name}.weight"] for name in "qkvo"] == [
        (64, 40), (32, 40), (32, 40), (40, 64),
    ]  # fmt: skip
    folder = saved(tmp_path / "m", model)
    assert json.loads((folder / "config.json").read_text())["head_dim"] == 16
    loaded = load_network(folder).network
    attention = loaded.stacks["decoder"].layers[0].attention.spec
    assert (attention.scale, attention.rope.dim) == (0.25, 16)
    assert torch.equal(logits(loaded), logits(model))


def test_shards_are_joined_and_a_missing_one_is_named(tmp_path: Path) -> None:
    model = llama()
    save_network(model, tmp_path / "m", max_shard_bytes=30_000)
    shards = sorted((tmp_path / "m").glob("model-*.safetensors"))
    assert len(shards) > 2
    assert torch.equal(logits(load_network(tmp_path / "m").network), logits(model))
    shards[1].unlink()
    with pytest.raises(CheckpointError, match=shards[1].name):
        load_network(tmp_path / "m")


def test_saving_over_a_folder_asks_first_and_replaces_it_whole(tmp_path: Path) -> None:
    folder = saved(tmp_path / "m", llama())
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="not empty; choose another folder, or pass overwrite=True"):
        save_network(llama(), folder)
    with pytest.raises(CheckpointError, match=r"holds notes\.txt, which is no part of a saved model"):
        save_network(llama(), folder, overwrite=True)
    assert (folder / "notes.txt").read_text() == "mine"
    (folder / "notes.txt").unlink()
    save_network(llama(num_hidden_layers=1), folder, overwrite=True)
    assert load_network(folder).network.spec.decoder.layers[1:] == ()
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


@pytest.mark.parametrize("name", ["", ".", "..", "file.txt"])
def test_no_file_and_no_folder_without_a_name_is_ever_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "file.txt").write_text("mine")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=r"names no folder|is a file"):
        save_network(llama(), Path(name), overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["file.txt"]


def test_an_error_while_saving_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = saved(tmp_path / "m", llama())
    before = (folder / "model.safetensors").read_bytes()

    def fail(where: Path) -> None:
        (where / "half").write_text("x")
        raise OSError("disk full")

    for target in (folder, tmp_path / "new"):
        with pytest.raises(OSError, match="disk full"):
            save_network(llama(num_hidden_layers=1), target, extras=fail, overwrite=True)
    assert (folder / "model.safetensors").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


@pytest.mark.case("C35")
def test_a_pickle_beside_safetensors_is_not_touched_and_alone_is_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path / "m", llama())
    marker = tmp_path / "marker"
    payload = f"cposix\nsystem\n(S'touch {marker}'\ntR.".encode()
    (folder / "pytorch_model.bin").write_bytes(payload)
    load_network(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="code"):
        load_network(folder)
    assert not marker.exists()


@pytest.mark.parametrize(
    ("break_it", "says"),
    [
        (lambda folder: (folder / "config.json").unlink(), "config.json: no such file"),
        (lambda folder: (folder / "config.json").write_text("{"), "not valid JSON"),
        (lambda folder: (folder / "config.json").write_text("[]"), "not an object"),
        (lambda folder: (folder / "config.json").write_bytes(b"\xff\xfe"), "not valid JSON"),
        (lambda folder: configure(folder, model_type="nosuch"), "nosuch"),
        (lambda folder: configure(folder, num_attention_heads=-3), "num_attention_heads = -3"),
        (lambda folder: configure(folder, num_key_value_heads=3), "kv_heads = 3"),
        (lambda folder: configure(folder, hidden_act="gulu"), "hidden_act = 'gulu'"),
        (lambda folder: configure(folder, rope_parameters={"rope_type": "spiral"}), "spiral"),
        (lambda folder: configure(folder, vocab_size=None), "vocab_size is missing"),
        (lambda folder: configure(folder, quantization_config={"quant_method": "gptq"}), "quant_method = 'gptq'"),
        (lambda folder: (folder / "config.json").write_text("[" * 100_000), "nested too deeply"),
        (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b""), "model.safetensors"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"\xff" * 64), "model.safetensors"),
    ],
)
def test_a_broken_folder_is_one_line_that_names_the_place(tmp_path: Path, break_it: Any, says: str) -> None:
    folder = saved(tmp_path / "m", llama())
    break_it(folder)
    with pytest.raises(HeadwayError) as caught:
        load_network(folder)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("cut", [1, 100, 10_000])
def test_a_cut_file_is_an_error(tmp_path: Path, cut: int) -> None:
    folder = saved(tmp_path / "m", llama())
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        load_network(folder)


def test_progress_counts_every_byte_once(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    report = load_network(saved(tmp_path / "m", llama()), progress=lambda *at: seen.append(at)).report
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (report.file_bytes, report.file_bytes)


def test_a_copied_folder_is_the_same_model(tmp_path: Path) -> None:
    folder = saved(tmp_path / "m", llama())
    shutil.copytree(folder, tmp_path / "copy")
    for name, tensor in load_network(tmp_path / "copy").network.named_parameters():
        np.testing.assert_array_equal(tensor, load_network(folder).network.get_parameter(name))
