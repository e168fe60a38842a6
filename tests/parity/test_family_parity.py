"""Every family's tiny models against transformers, both ways round, and against the reference."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headway import families
from headway.batch import Batch
from headway.checkpoint.rules import expand
from headway.families.kit import Config, Family
from headway.loader import load_network, save_network
from headway.nn.build import build
from headway.reference import forward
from headway.spec.count import shapes

torch = pytest.importorskip("torch")
safetensors_torch = pytest.importorskip("safetensors.torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.parity

# Longer than every window and every rope's original length.
LENGTH = 40
TINY = [
    pytest.param(family, config, id=f"{family.name}-{name}")
    for family in families.all_families()
    for name, config in family.tiny.items()
]


def tokens(vocab: int) -> list[int]:
    generator = torch.Generator().manual_seed(3)
    return torch.randint(vocab, (LENGTH,), generator=generator).tolist()


def theirs_of(config: dict[str, Any]) -> Any:
    """The transformers model of a config.json, its weights random and large enough to saturate caps."""
    settings = transformers.AutoConfig.for_model(**config)
    model = transformers.AutoModelForCausalLM.from_config(settings, attn_implementation="eager").float().eval()
    torch.manual_seed(5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            centre = (
                1.0 if parameter.dim() == 1 and name.endswith("weight") and "gemma" not in settings.model_type else 0.0
            )
            parameter.normal_(centre, 0.2)
    return model


def their_logits(model: Any, ids: list[int]) -> Any:
    with torch.no_grad():
        return model(torch.tensor([ids]), use_cache=False).logits[0]


def our_logits(network: Any, ids: list[int]) -> Any:
    with torch.inference_mode():
        return network(Batch.of([ids])).logits[0]


def assert_equal(ours: Any, theirs: Any) -> None:
    assert theirs.std() > 0.1
    assert (ours - theirs).abs().max() <= 1e-4


def open_there(folder: Path) -> Any:
    """The folder's model in transformers, which must find every weight it needs and no other."""
    model, found = transformers.AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True, attn_implementation="eager", dtype=torch.float32
    )
    assert not found["missing_keys"]
    assert not found["unexpected_keys"]
    assert not found["mismatched_keys"]
    return model.eval()


@pytest.mark.parametrize(("family", "config"), TINY)
def test_names_and_shapes_are_those_of_transformers(family: Family, config: dict[str, Any]) -> None:
    model = theirs_of(config)
    spec = family.read(Config(config))
    tied = set(model.all_tied_weights_keys) if spec.ties else set()
    theirs = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items() if name not in tied}
    found: dict[str, tuple[int, ...]] = {}
    for rule in expand(family.names(spec), spec):
        arrays = rule.undo([torch.empty(shapes(spec)[path]).numpy() for path in rule.paths])
        found.update((key, array.shape) for key, array in zip(rule.keys, arrays, strict=True))
    assert found == theirs


@pytest.mark.case("C10", "C22", "C26")
@pytest.mark.parametrize(("family", "config"), TINY)
def test_a_folder_of_transformers_gives_the_same_logits_here(
    family: Family, config: dict[str, Any], tmp_path: Path
) -> None:
    model = theirs_of(config)
    model.save_pretrained(tmp_path)
    loaded = load_network(tmp_path)
    ids = tokens(config["vocab_size"])
    theirs = their_logits(model, ids)
    assert_equal(our_logits(loaded.network, ids), theirs)
    weights = {path: parameter.tolist() for path, parameter in loaded.network.named_parameters()}
    assert_equal(torch.tensor(forward(loaded.network.spec, weights, ids)), theirs)
    assert not loaded.report.unused


@pytest.mark.case("C22")
@pytest.mark.parametrize(("family", "config"), TINY)
def test_a_folder_saved_here_gives_the_same_logits_in_transformers(
    family: Family, config: dict[str, Any], tmp_path: Path
) -> None:
    network = build(family.read(Config(config)), seed=1)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)))
    save_network(network, tmp_path / "saved", config=config)
    model = open_there(tmp_path / "saved")
    ids = tokens(config["vocab_size"])
    assert_equal(our_logits(network, ids), their_logits(model, ids))


@pytest.mark.parametrize(("family", "config"), TINY)
def test_a_config_written_here_says_the_same_in_both_dialects(
    family: Family, config: dict[str, Any], tmp_path: Path
) -> None:
    spec = family.read(Config(config))
    written = family.write(spec)
    older = {name: value for name, value in written.items() if name not in ("rope_parameters", "layer_types")}
    newer = {name: value for name, value in written.items() if name not in ("rope_theta", "rope_scaling")}
    again = transformers.AutoConfig.for_model(**written).to_dict()
    irregular = "layer_types" in written and written.get("sliding_window_pattern", 0) is None
    for dialect in (newer, again) if irregular else (older, newer, again):
        assert family.read(Config(dialect)) == spec


@pytest.mark.parametrize("wrapping", [("model.", "model.language_model."), ("", "language_model.")])
def test_the_text_half_is_found_inside_a_gemma3_that_also_sees(wrapping: tuple[str, str], tmp_path: Path) -> None:
    text = dict(families.by_name("gemma").tiny["gemma3"])
    model = theirs_of(text)
    model.save_pretrained(tmp_path)
    inner, outer = wrapping
    tensors = safetensors_torch.load_file(tmp_path / "model.safetensors")
    wrapped = {outer + name.removeprefix(inner): tensor for name, tensor in tensors.items()}
    seeing = {"vision_tower.a.weight": torch.zeros(2), "model.multi_modal_projector.b.weight": torch.zeros(2)}
    safetensors_torch.save_file(wrapped | seeing, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": text}))
    loaded = load_network(tmp_path)
    ids = tokens(text["vocab_size"])
    assert_equal(our_logits(loaded.network, ids), their_logits(model, ids))
    assert set(loaded.report.ignored) == set(seeing)
    assert not loaded.report.unused
    save_network(loaded.network, tmp_path / "alone", config=loaded.config)
    assert_equal(our_logits(loaded.network, ids), their_logits(open_there(tmp_path / "alone"), ids))
