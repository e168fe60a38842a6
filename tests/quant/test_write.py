"""Files of rounded weights: what they hold, that they open elsewhere, and that nothing is half written."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file

from headway import families
from headway.checkpoint.rules import expand
from headway.checkpoint.safetensors import write_safetensors
from headway.checkpoint.store import open_store
from headway.errors import CheckpointError, RequestError
from headway.families.kit import Config
from headway.quant import FORMATS, Recipe, plain, plan, write
from headway.quant.write import of_plan
from headway.source import Source, match, open_source
from headway.spec.count import shapes
from headway.tape.weights import Raw, of_source
from tests.families.converter import convert

CONFIG = {
    "model_type": "llama", "vocab_size": 67, "hidden_size": 96, "intermediate_size": 256, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 24, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5, "rope_theta": 500.0, "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False,
}  # fmt: skip


def numbers(shape: tuple[int, ...], name: str) -> np.ndarray:
    random = np.random.default_rng(sum(name.encode()))
    return random.standard_normal(shape).astype(np.float32) * 0.1


def folder(path: Path, config: Mapping[str, object] = CONFIG) -> Path:
    """A safetensors folder of random weights."""
    family = families.for_config(config, "config.json")
    spec = family.read(Config(config, "config.json"))
    owned = shapes(spec)
    tensors = []
    for rule in expand(family.names(spec), spec):
        (key,) = rule.keys
        (whole,) = rule.undo([numbers(owned[name], name) for name in rule.paths])
        tensors.append((key, "F32", whole.shape, np.ascontiguousarray(whole)))
    path.mkdir(parents=True)
    write_safetensors(path, tensors)
    (path / "config.json").write_text(json.dumps(config))
    return path


def gguf_file(path: Path) -> Path:
    """The same model as a GGUF file of 32-bit floats."""
    made = folder(path.parent / f"{path.stem}-source")
    return convert(path, CONFIG, load_file(made / "model.safetensors"))


@contextmanager
def opened(path: Path) -> Iterator[Source]:
    with open_store(path) as store:
        yield open_source(path, store)


def held(path: Path) -> dict[str, Raw]:
    """Every parameter of a file, with arrays of its own."""
    with opened(path) as source:
        return {
            name: Raw(raw.dtype, raw.shape, raw.array.copy(), raw.integers)
            for name, raw in of_source(source, match(source))
        }


def made(model: Path, target: Path, recipe: Recipe, **options: bool) -> Path:
    with opened(model) as source:
        write(source, plan(source.spec, recipe), target, **options)
    return target


RECIPES = [
    Recipe(to="int8"),
    *(Recipe(to="int4", group=group, symmetric=how) for group in (32, 64, 128, -1) for how in (True, False)),
    Recipe(to="int4", tables="int4"),
    Recipe(to="float16"),
    Recipe(to="bfloat16"),
]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: f"{recipe.describe()} {recipe.tables}")
def test_a_folder_holds_what_rounding_gives_and_is_written_the_same_again(recipe: Recipe, tmp_path: Path) -> None:
    model = folder(tmp_path / "model")
    once = made(model, tmp_path / "once", recipe)
    with opened(model) as source:
        raws = of_plan(of_source(source, match(source)), plan(source.spec, recipe))
        plain_type = recipe.format.code if recipe.format.floating else ""  # which vectors have too
        wanted = {name: (raw.to(plain_type) if plain_type else raw).floats().copy() for name, raw in raws}
    got = held(once)
    assert got.keys() == wanted.keys()
    for name, raw in got.items():
        assert np.array_equal(raw.floats(), wanted[name]), name
    again = made(model, tmp_path / "again", recipe)
    assert (once / "model.safetensors").read_bytes() == (again / "model.safetensors").read_bytes()
    assert (once / "config.json").read_bytes() == (again / "config.json").read_bytes()


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: f"{recipe.describe()} {recipe.tables}")
def test_rounding_what_is_rounded_already_changes_nothing(recipe: Recipe, tmp_path: Path) -> None:
    once = made(folder(tmp_path / "model"), tmp_path / "once", recipe)
    twice = made(once, tmp_path / "twice", recipe)
    for name in ("model.safetensors", "config.json"):
        assert (once / name).read_bytes() == (twice / name).read_bytes()


def test_the_folder_is_in_the_form_of_compressed_tensors(tmp_path: Path) -> None:
    out = made(folder(tmp_path / "model"), tmp_path / "out", Recipe(to="int4", group=32, symmetric=False))
    config = json.loads((out / "config.json").read_text())["quantization_config"]
    assert (config["quant_method"], config["format"], config["ignore"]) == (
        "compressed-tensors", "mixed-precision", [],
    )  # fmt: skip
    groups = {group["weights"]["num_bits"]: group for group in config["config_groups"].values()}
    assert groups[4]["targets"] == ["Linear"]
    assert groups[8]["targets"] == ["lm_head", "model.embed_tokens"]
    assert (
        groups[4]["weights"] | {"num_bits": 4, "group_size": 32, "strategy": "group", "symmetric": False}
        == (groups[4]["weights"])
    )
    tensors = load_file(out / "model.safetensors")
    module = "model.layers.0.self_attn.q_proj"
    assert tensors[f"{module}.weight_packed"].dtype == np.int32
    assert tensors[f"{module}.weight_packed"].shape == (96, 12)
    assert tensors[f"{module}.weight_scale"].shape == (96, 3)
    assert tensors[f"{module}.weight_zero_point"].shape == (12, 3)
    assert tensors[f"{module}.weight_shape"].tolist() == [96, 96]
    assert tensors["model.embed_tokens.weight"].dtype == np.int8
    assert tensors["model.norm.weight"].dtype == np.float32
    # By hand, from the definition: the first column lowest in the word, codes and zeros as they are.
    word, scale = tensors[f"{module}.weight_packed"][9, 1], tensors[f"{module}.weight_scale"][9, 0].astype(np.float32)
    zero = tensors[f"{module}.weight_zero_point"][1, 0] >> 4 & 15
    values = [((int(word) >> 4 * place & 15) - zero) * scale for place in range(8)]
    path = "stacks.decoder.layers.0.attention.q.weight"
    assert np.array_equal(np.float32(values), held(out)[path].floats()[9, 8:16])


@pytest.mark.parametrize("name", [name for name, format in FORMATS.items() if format.gguf])
def test_a_gguf_file_opens_in_the_gguf_package_with_the_same_numbers(name: str, tmp_path: Path) -> None:
    model = gguf_file(tmp_path / "model.gguf")
    out = made(model, tmp_path / "out.gguf", Recipe(to=name))
    theirs, before = gguf.GGUFReader(out), gguf.GGUFReader(model)
    for field in before.fields.values():
        if not field.name.startswith(("GGUF.", "general.file_type", "general.quantization_version")):
            assert theirs.fields[field.name].contents() == field.contents(), field.name
    assert theirs.fields["general.quantization_version"].contents() == 2
    known = {tensor.name: tensor for tensor in theirs.tensors}
    assert known.keys() == {tensor.name for tensor in before.tensors}
    with open_store(out) as store:
        for key, tensor in known.items():
            values = gguf.dequantize(tensor.data, tensor.tensor_type)
            assert np.array_equal(values.reshape(store.entry(key).shape), store.floats(key)), key
    kinds = {key: tensor.tensor_type.name for key, tensor in known.items()}
    assert kinds["blk.0.attn_norm.weight"] == "F32"
    format = FORMATS[name]
    assert kinds["blk.1.ffn_down.weight"] == format.code  # 256 columns
    assert kinds["blk.1.attn_q.weight"] == (FORMATS[format.fallback].code if format.fallback else format.code)
    assert kinds["output.weight"] == (format.code if format.bits >= 8 else "Q8_0")


def test_exceptions_are_named_in_one_line(tmp_path: Path) -> None:
    model = gguf_file(tmp_path / "model.gguf")
    with opened(model) as source:
        written = write(source, plan(source.spec, Recipe(to="q4_k")), tmp_path / "out.gguf")
    assert written.notes == (
        "2 matrices in q8_0: embeddings and heads; 12 matrices in q5_0: rows of 96 are no whole blocks of 256",
    )


@pytest.mark.parametrize("name", ["q4_0", "q5_1", "q4_k", "q6_k"])
def test_a_rounded_gguf_file_rounds_to_itself(name: str, tmp_path: Path) -> None:
    model = gguf_file(tmp_path / "model.gguf")
    once = made(model, tmp_path / "once.gguf", Recipe(to=name))
    twice = made(once, tmp_path / "twice.gguf", Recipe(to=name))
    assert once.read_bytes() == twice.read_bytes()


def test_fused_matrices_are_cut_into_their_parts(tmp_path: Path) -> None:
    family = families.by_name("phi3")
    config = next(iter(family.tiny.values()))
    out = made(folder(tmp_path / "model", config), tmp_path / "out", Recipe(to="int4", group=32))
    assert any(name.endswith("qkv_proj.weight_packed") for name in load_file(out / "model.safetensors"))
    got = held(out)
    before = held(tmp_path / "model")
    for name in ("q", "k", "v"):
        path = f"stacks.decoder.layers.0.attention.{name}.weight"
        wanted = plain(path, before[path].floats(), FORMATS["int4"], group=32)
        assert np.array_equal(got[path].floats(), wanted.floats())


def test_a_family_that_turns_matrices_round_is_kept_under_headways_own_names(tmp_path: Path) -> None:
    config = next(iter(families.by_name("gpt2").tiny.values()))
    model = folder(tmp_path / "model", config)
    with opened(model) as source:
        written = write(source, plan(source.spec, Recipe(to="int8")), tmp_path / "out")
    assert "so the folder opens in headway alone" in written.notes[-1]
    assert held(tmp_path / "out").keys() == held(model).keys()


def test_targets_are_refused_before_any_work(tmp_path: Path) -> None:
    model, gguf_model = folder(tmp_path / "model"), gguf_file(tmp_path / "m.gguf")
    there = tmp_path / "there"
    there.mkdir()
    (there / "diary.txt").write_text("mine")
    for source_path, to, target, words in (
        (model, "q4_0", tmp_path / "x", "q4_0 cannot be kept there; give a name that ends in .gguf"),
        (gguf_model, "int8", tmp_path / "x.gguf", "int8 cannot be kept there; give a folder"),
        (model, "q4_0", tmp_path / "x.gguf", "a llama folder cannot be written as GGUF"),
        (gguf_model, "q4_0", gguf_model, "is the model itself"),
        (model, "int8", there, "is there already; choose another name, or pass --overwrite"),
        (model, "int8", model / "config.json", "is a file"),
    ):
        with pytest.raises(RequestError, match=words):
            made(source_path, target, Recipe(to=to))
    with pytest.raises(RequestError, match=r"holds diary.txt, which is no part of a saved model"):
        made(model, there, Recipe(to="int8"), overwrite=True)
    assert sorted(path.name for path in there.iterdir()) == ["diary.txt"]


@pytest.mark.parametrize("to", ["int4", "q4_0"])
def test_weights_that_are_not_finite_leave_nothing_behind(to: str, tmp_path: Path) -> None:
    model = folder(tmp_path / "model")
    tensors = dict(load_file(model / "model.safetensors"))
    tensors["model.layers.1.mlp.down_proj.weight"][3, 3] = np.nan
    if to == "q4_0":
        model = convert(tmp_path / "bad.gguf", CONFIG, tensors)
    else:
        write_safetensors(model, [(name, "F32", array.shape, array) for name, array in tensors.items()])
    target = tmp_path / "results" / ("out.gguf" if to == "q4_0" else "out")
    with pytest.raises(CheckpointError, match=r"layers\.1\.feed_forward\.down\.weight holds 1 numbers"):
        made(model, target, Recipe(to=to))
    assert list(target.parent.iterdir()) == []


def test_an_existing_target_is_replaced_when_asked(tmp_path: Path) -> None:
    model = folder(tmp_path / "model")
    made(model, tmp_path / "out", Recipe(to="int8"))
    made(model, tmp_path / "out", Recipe(to="int4"), overwrite=True)
    assert "I4" in {raw.dtype for raw in held(tmp_path / "out").values()}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"quant_method": "gptq"}, r"quantization_config.quant_method = 'gptq' cannot be read"),
        ({"config_groups": {}}, "config_groups must name at least one group"),
        ({"config_groups": {"g": {"weights": None}}}, r"config_groups.g.weights must say"),
        ({"config_groups": {"g": {"weights": {"num_bits": 3, "strategy": "channel"}}}}, "3 bits, channel"),
    ],
)
def test_other_quantisations_are_refused_by_name(change: dict[str, object], words: str, tmp_path: Path) -> None:
    out = made(folder(tmp_path / "model"), tmp_path / "out", Recipe(to="int4"))
    config = json.loads((out / "config.json").read_text())
    config["quantization_config"] |= change
    (out / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=words):
        held(out)


@pytest.mark.parametrize("name", ["weight_packed", "weight_scale", "weight_shape", "weight_zero_point"])
@pytest.mark.parametrize("how", ["missing", "cut"])
def test_damaged_integers_are_refused(name: str, how: str, tmp_path: Path) -> None:
    out = made(folder(tmp_path / "model"), tmp_path / "out", Recipe(to="int4", symmetric=False))
    tensors = dict(load_file(out / "model.safetensors"))
    key = f"model.layers.0.mlp.up_proj.{name}"
    tensors[key] = tensors[key][:1]
    if how == "missing":
        del tensors[key]
    kinds = {"int8": "I8", "int32": "I32", "int64": "I64", "float16": "F16", "float32": "F32"}
    write_safetensors(out, [(each, kinds[array.dtype.name], array.shape, array) for each, array in tensors.items()])
    with pytest.raises(CheckpointError, match=r"up_proj"):
        held(out)


@pytest.mark.parametrize(
    ("tied", "recipe", "words"),
    [
        (False, Recipe(to="int4"), []),
        (True, Recipe(to="int4", tables="float16"), []),
        (True, Recipe(to="int8"), ["the head is the embedding, in integers"]),
        (False, Recipe(to="int4", symmetric=False), ["groups have zeros"]),
    ],
)
def test_what_transformers_does_not_open_is_said(tied: bool, recipe: Recipe, words: list[str], tmp_path: Path) -> None:
    model = folder(tmp_path / "model", CONFIG | {"tie_word_embeddings": tied})
    with opened(model) as source:
        notes = write(source, plan(source.spec, recipe), tmp_path / "out").notes
    assert [note for note in notes if "transformers" in note] == [
        note for note in notes if any(note.startswith(word) for word in words)
    ]
    assert all(any(note.startswith(word) for note in notes) for word in words)


def test_recipes_that_cannot_be_are_refused() -> None:
    for fields, words in (
        ({"to": "q4_x"}, "format q4_x is not known; did you mean q4_"),
        ({"to": "int4", "group": 48}, "group = 48 is not one of 32, 64, 128, -1"),
        ({"to": "int4", "tables": "q8_0"}, "tables in q8_0 do not go into one file with int4"),
    ):
        with pytest.raises(RequestError, match=words):
            Recipe(**fields)
