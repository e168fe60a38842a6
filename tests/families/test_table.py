"""The table finds a family by what files call it, and imports only what is asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

from headway import families
from headway.errors import CheckpointError, SpecError


@pytest.mark.parametrize(
    ("model_type", "name"),
    [
        ("gpt2", "gpt2"),
        ("llama", "llama"),
        ("mistral", "mistral"),
        ("qwen2", "qwen"),
        ("qwen3", "qwen"),
        ("gemma2", "gemma"),
        ("gemma3_text", "gemma"),
        ("gemma3", "gemma"),
        ("phi3", "phi3"),
    ],
)
def test_a_model_type_leads_to_its_family(model_type: str, name: str) -> None:
    assert families.for_config({"model_type": model_type}, "config.json").name == name


@pytest.mark.parametrize(("architecture", "name"), [("llama", "llama"), ("qwen3", "qwen"), ("gemma3", "gemma")])
def test_an_architecture_leads_to_its_family(architecture: str, name: str) -> None:
    assert families.for_gguf(architecture, "model.gguf").name == name


@pytest.mark.parametrize("config", [{"model_type": "perceptron"}, {"model_type": ["llama"]}, {}])
def test_an_unknown_model_type_is_an_error_that_lists_the_known(config: dict[str, object]) -> None:
    with pytest.raises(CheckpointError, match=r"^a/config.json: model_type = .*gemma3_text") as caught:
        families.for_config(config, "a/config.json")
    assert "\n" not in str(caught.value)


def test_an_unknown_architecture_is_an_error_that_lists_the_known() -> None:
    with pytest.raises(CheckpointError, match=r"^a.gguf: general.architecture = 'rwkv6'.*qwen3"):
        families.for_gguf("rwkv6", "a.gguf")


def test_an_unknown_name_is_an_error_that_lists_the_known() -> None:
    with pytest.raises(SpecError, match="mistral"):
        families.by_name("perceptron")


def test_one_family_is_imported_without_the_others_and_without_torch() -> None:
    code = (
        "import sys; from headway import families; families.by_name('phi3');"
        "names = {'headway.families.llama', 'headway.families.gpt2', 'torch'};"
        "sys.exit(', '.join(names & sys.modules.keys()) or None)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_name_of_the_table_is_a_family_of_that_name() -> None:
    for family in families.all_families():
        assert families.by_name(family.name) is family
        assert family.tiny


def test_a_wrapped_model_spells_names_in_its_own_way() -> None:
    gemma = families.by_name("gemma")
    assert list(gemma.spellings("model.norm.weight")) == [
        "model.norm.weight",
        "norm.weight",
        "language_model.model.norm.weight",
        "model.language_model.norm.weight",
    ]
    assert "language_model.lm_head.weight" in gemma.spellings("lm_head.weight")
    assert list(families.by_name("gpt2").spellings("transformer.wte.weight")) == [
        "transformer.wte.weight",
        "wte.weight",
    ]
