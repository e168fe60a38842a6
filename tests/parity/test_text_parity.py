"""Token ids and rendered chats beside transformers' own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import pre_tokenizers

from headway.errors import TemplateError
from headway.text import Tokenizer, load_tokenizer
from tests.text.samples import SAMPLES, SPACES_BEFORE_DIGITS
from tests.text.templates import CHATS, TEMPLATES, TOOLS
from tests.text.vocabularies import byte_level, sentencepiece

pytestmark = pytest.mark.parity


@pytest.fixture(scope="module")
def smollm2(smollm2_gguf: Path) -> Tokenizer:
    return load_tokenizer(smollm2_gguf)


@pytest.fixture(scope="module")
def peer(smollm2_gguf: Path) -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.AutoTokenizer.from_pretrained(smollm2_gguf.parent, gguf_file=smollm2_gguf.name)


@pytest.fixture(scope="module")
def published(smollm2_gguf: Path) -> Any:
    """The peer with the pre-tokenizer of the published tokenizer.json, which its GGUF loader leaves out."""
    transformers = pytest.importorskip("transformers")
    found = transformers.AutoTokenizer.from_pretrained(smollm2_gguf.parent, gguf_file=smollm2_gguf.name)
    found.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return found


def test_smollm2_ids_are_those_of_the_published_tokenizer(smollm2: Tokenizer, published: Any) -> None:
    assert {text: smollm2.encode(text, parse_special=True) for text in SAMPLES} == {
        text: published(text)["input_ids"] for text in SAMPLES
    }


def test_control_tokens_stay_text_as_with_split_special_tokens(smollm2: Tokenizer, published: Any) -> None:
    assert {text: smollm2.encode(text) for text in SAMPLES} == {
        text: published(text, split_special_tokens=True)["input_ids"] for text in SAMPLES
    }


def test_smollm2_ids_differ_from_the_peers_gguf_loader_only_round_digits(smollm2: Tokenizer, peer: Any) -> None:
    different = {text for text in SAMPLES if smollm2.encode(text, parse_special=True) != peer(text)["input_ids"]}
    assert different & set(SPACES_BEFORE_DIGITS)
    assert all(any(char.isnumeric() for char in text) for text in different)


def test_smollm2_decodes_as_the_peer(smollm2: Tokenizer, published: Any) -> None:
    for text in SAMPLES:
        ids = smollm2.encode(text, parse_special=True)
        assert smollm2.decode(ids, skip_special=False) == published.decode(ids)
        assert smollm2.decode(ids) == published.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize("chat", CHATS)
def test_smollm2_chats_are_those_of_the_peer(
    smollm2: Tokenizer, published: Any, chat: str, add_generation_prompt: bool
) -> None:
    if chat == "tool call":
        pytest.skip("this template does not know a turn without content")
    options: dict[str, Any] = {"add_generation_prompt": add_generation_prompt}
    assert smollm2.render(CHATS[chat], **options) == published.apply_chat_template(
        CHATS[chat], tokenize=False, **options
    )
    assert smollm2.chat(CHATS[chat], **options) == published.apply_chat_template(CHATS[chat], **options)["input_ids"]


@pytest.fixture(scope="module", params=TEMPLATES)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Any]:
    """One tokenizer with one of the templates, here and as transformers opens it."""
    transformers = pytest.importorskip("transformers")
    ours = Tokenizer.from_gguf({**byte_level(), "tokenizer.chat_template": TEMPLATES[request.param]})
    folder = tmp_path_factory.mktemp(request.param)
    ours.save(folder)
    return ours, transformers.AutoTokenizer.from_pretrained(folder)


@pytest.mark.case("C12")
@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["", "tools"])
@pytest.mark.parametrize("chat", CHATS)
def test_templates_render_byte_for_byte_as_the_peer(
    both: tuple[Tokenizer, Any], chat: str, tools: Any, add_generation_prompt: bool
) -> None:
    ours, theirs = both
    options: dict[str, Any] = {"tools": tools, "add_generation_prompt": add_generation_prompt}
    try:
        expected = theirs.apply_chat_template(CHATS[chat], tokenize=False, **options)
    except Exception as error:  # noqa: BLE001  the peer lets every error of a template through
        if "must alternate" in str(error) or "roles are supported" in str(error):
            with pytest.raises(TemplateError, match=str(error)[:30]):
                ours.render(CHATS[chat], **options)
        return
    assert ours.render(CHATS[chat], **options) == expected
    assert ours.chat(CHATS[chat], **options) == theirs.apply_chat_template(CHATS[chat], **options)["input_ids"]


@pytest.mark.parametrize("config", [None, {"model_type": "llama"}, {"model_type": "gpt2"}])
@pytest.mark.parametrize(
    "metadata",
    [
        byte_level(user=("<tool>", "  ")),
        byte_level(pre="smollm", add_bos_token=True, add_eos_token=True),
        byte_level(pre="qwen2"),
        byte_level(pre="llama-bpe"),
        byte_level(pre="falcon"),
        sentencepiece(),
        sentencepiece(add_space_prefix=False, add_bos_token=False),
    ],
)
def test_a_saved_tokenizer_opens_in_transformers_and_encodes_alike(
    metadata: dict[str, Any], config: Any, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    ours = Tokenizer.from_gguf(metadata)
    ours.save(tmp_path)
    if config:
        (tmp_path / "config.json").write_text(json.dumps(config))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs.chat_template == ours.chat_template
    assert (theirs.bos_token_id, theirs.eos_token_id) == (ours.bos_id, ours.eos_ids[0])
    for text in SAMPLES:
        ids = ours.encode(text, add_special=True, parse_special=True)
        assert ids == theirs(text)["input_ids"]
        assert ours.encode(text) == theirs(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]


def test_smollm2_saved_as_a_folder_encodes_alike_there_and_here(smollm2: Tokenizer, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    smollm2.save(tmp_path)
    theirs, again = transformers.AutoTokenizer.from_pretrained(tmp_path), load_tokenizer(tmp_path)
    assert again.chat_template == theirs.chat_template == smollm2.chat_template
    for text in SAMPLES:
        ids = smollm2.encode(text, parse_special=True)
        assert ids == theirs(text)["input_ids"] == again.encode(text, parse_special=True)


def test_expressions_are_those_that_transformers_holds() -> None:
    mapping = pytest.importorskip("transformers.integrations.gguf.gguf_tokenizer_mapping")
    from headway.text.pre_tokenizers import CUTS

    for name, expression in mapping.GGUF_PRE_TOKENIZER_SPLITS.items():
        assert CUTS[name].steps == (expression,), name
