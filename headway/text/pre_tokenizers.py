"""How text is cut before byte-level BPE: the names that `tokenizer.ggml.pre` may carry, with their expressions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headway.errors import TokenizerError

if TYPE_CHECKING:
    import tokenizers

# Steps that the tokenizers library has by name; every other step is a regular expression whose matches stand alone.
GPT2: Final = "<the expression of GPT-2>"
EACH_DIGIT: Final = "<each digit alone>"
DIGITS: Final = "<runs of digits>"
PUNCTUATION: Final = "<runs of punctuation>"

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_ASCII_SIGNS = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""

_LLAMA3 = rf"{_CONTRACTION}|{_LETTERS}|\p{{N}}{{1,3}}|{_SIGNS}|{_SPACES}"
_QWEN2 = rf"{_CONTRACTION}|{_LETTERS}|\p{{N}}|{_SIGNS}|{_SPACES}"
_QWEN35 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_CHINESE = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_CHINESE_AND_WIDER = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_DEEPSEEK3 = (
    rf"{_ASCII_SIGNS}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
)
# The published class lists every cased letter, range by range; written here with escapes, some of them look alike.
_CASED = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376"
    "\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d"
    "\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4"
    "\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d"
    "\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a"
    "\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2"
    "\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_WIDE_SIGNS = "[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"
_BAILING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
_EXAONE = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
_BLOOM = " ?[^(\\s|[.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c])]+"


def _o200k(contraction: str, digits: str) -> str:
    """Words in which the case may change once, from upper to lower: the expression of o200k and of Tekken."""
    start = r"[^\r\n\p{L}\p{N}]?"
    words = rf"{start}{_UPPER}*{_LOWER}+{contraction}|{start}{_UPPER}+{_LOWER}*{contraction}"
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"


@dataclass(frozen=True)
class Cut:
    """What happens to text before BPE, in order; `whole` takes a piece that is a token as it is, without merging."""

    steps: tuple[str, ...]
    normalizer: str | None = None
    whole: bool = False
    starts: bool = False  # a start token is added unless the file says otherwise
    wraps: bool = False  # start and separator tokens are put round a text, as in RoBERTa

    def build(self) -> tokenizers.pre_tokenizers.PreTokenizer:
        """The steps as the tokenizers library runs them."""
        from tokenizers import Regex
        from tokenizers import pre_tokenizers as library

        by_name = {
            EACH_DIGIT: lambda: library.Digits(individual_digits=True),
            DIGITS: lambda: library.Digits(individual_digits=False),
            PUNCTUATION: lambda: library.Punctuation(behavior="contiguous"),
            GPT2: lambda: library.ByteLevel(add_prefix_space=False, use_regex=True),
        }
        chain = [by_name[step]() if step in by_name else library.Split(Regex(step), "isolated") for step in self.steps]
        if GPT2 not in self.steps:
            chain.append(library.ByteLevel(add_prefix_space=False, use_regex=False))
        return chain[0] if len(chain) == 1 else library.Sequence(chain)


_CUTS: Final[dict[str, Cut]] = {
    "default gpt-2 phi-2 jais gigachat a.x-4.0 mellum exaone4 trillion granite-docling": Cut((GPT2,)),
    "jina-es jina-de jina-v2-es jina-v2-de": Cut((GPT2,)),
    "jina-v1-en jina-v2-code roberta-bpe": Cut((GPT2,), wraps=True),
    "mpt olmo modern-bert": Cut((GPT2,), normalizer="NFC"),
    "smollm starcoder refact codeshell exaone minerva-7b mellum2": Cut((EACH_DIGIT, GPT2)),
    "command-r": Cut((EACH_DIGIT, GPT2), normalizer="NFC"),
    "falcon": Cut((PUNCTUATION, GPT2, DIGITS, "[0-9][0-9][0-9]")),
    "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano": Cut(
        (_LLAMA3,), whole=True, starts=True
    ),
    "dbrx smaug-bpe glm4 chatglm-bpe": Cut((_LLAMA3,)),
    "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez": Cut((_QWEN2,), normalizer="NFC"),
    "stablelm2 hunyuan solar-open grok-2": Cut((_QWEN2,)),
    "qwen35": Cut((_QWEN35,), normalizer="NFC"),
    "gpt-4o llama4 kanana2 talkie minimax-m2": Cut((_o200k(rf"{_CONTRACTION}?", r"\p{N}{1,3}"),), whole=True),
    "tekken": Cut((_o200k("", r"\p{N}"),), whole=True, starts=True),
    "deepseek-v3 hunyuan-dense joyai-llm": Cut((r"\p{N}{1,3}", _CHINESE, _DEEPSEEK3)),
    "deepseek-llm": Cut((r"[\r\n]", rf"\s?[{_CASED}]+", rf"\s?{_WIDE_SIGNS}", r"\s+$", _CHINESE_AND_WIDER, EACH_DIGIT)),
    "deepseek-coder": Cut((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CHINESE_AND_WIDER, EACH_DIGIT)),
    "bloom gpt3-finnish poro-chat": Cut((_BLOOM,)),
    "viking": Cut((_BLOOM, EACH_DIGIT)),
    "seed-coder": Cut((rf"{_CONTRACTION}|{_LETTERS}|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}",)),
    "bailingmoe bailingmoe2 llada-moe": Cut((_BAILING,)),
    "exaone-moe": Cut((_EXAONE,)),
    "minicpm5": Cut((r"\p{N}{1,3}", rf"{_CONTRACTION}|{_LETTERS}|\p{{N}}+|{_SIGNS}|{_SPACES}"), whole=True),
    "superbpe": Cut((r"\p{N}+", r"(?=(\d{3})+(?!\d))")),
}

CUTS: Final[dict[str, Cut]] = {name: cut for names, cut in _CUTS.items() for name in names.split()}

# Files older than the field `pre`: these architectures had one pre-tokenizer each.
_BEFORE_PRE: Final = {
    "gpt2": "gpt-2",
    "phi2": "phi-2",
    "falcon": "falcon",
    "starcoder": "starcoder",
    "starcoder2": "starcoder",
    "refact": "refact",
    "mpt": "mpt",
    "gptneox": "olmo",
    "bloom": "bloom",
    "codeshell": "codeshell",
    "qwen": "qwen2",
    "qwen2": "qwen2",
    "command-r": "command-r",
    "stablelm": "stablelm2",
}


def cut_named(pre: str | None, architecture: str | None = None) -> Cut:
    """The pre-tokenizer that `tokenizer.ggml.pre` names; for files older than that field, the architecture's one.

    Raises TokenizerError for a name that is not known: the wrong expression would mistokenize without a word.
    """
    if pre is None:
        if architecture not in _BEFORE_PRE:
            raise TokenizerError(
                f"tokenizer.ggml.pre: missing, and architecture {architecture!r} does not settle it; "
                "convert the model again with a recent converter, or use its tokenizer.json"
            )
        pre = _BEFORE_PRE[architecture]
    if pre not in CUTS:
        raise TokenizerError(
            f"tokenizer.ggml.pre: unknown pre-tokenizer {pre!r}; known: {', '.join(sorted(CUTS))}; "
            "use the model's tokenizer.json instead"
        )
    return CUTS[pre]
