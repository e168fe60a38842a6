"""The worked example in words: for each step a title, its formula, a sentence and the paper, in English or Chinese."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from headway.explain.worked import Worked
from headway.reference.position import rope_magnitude
from headway.spec.parts import Norm
from headway.spec.position import Alibi, Mask

Language = Literal["en", "zh"]
LANGUAGES: tuple[Language, ...] = ("en", "zh")

VASWANI, GQA, ROFORMER = "arXiv 1706.03762", "arXiv 2305.13245", "arXiv 2104.09864"


@dataclass(frozen=True)
class Words:
    """What a step is called, what it computes, why, and where that is written."""

    title: str
    formula: str
    sentence: str
    source: str


TITLES: dict[Language, dict[str, str]] = {
    "en": {
        "input": "What enters the layer",
        "normed": "Norm",
        "q": "Queries",
        "k": "Keys",
        "v": "Values",
        "q_normed": "Queries, normed",
        "k_normed": "Keys, normed",
        "q_turned": "Queries, rotated",
        "k_turned": "Keys, rotated",
        "scores": "Scores",
        "scaled": "Scaling",
        "capped": "Cap",
        "biased": "Bias",
        "masked": "Mask",
        "weights": "Softmax",
        "mixed": "Weighted sum",
        "share": "This head's share of the output",
        "output": "All heads together",
    },
    "zh": {
        "input": "进入这一层的向量",
        "normed": "归一化",
        "q": "查询 Q",
        "k": "键 K",
        "v": "值 V",
        "q_normed": "查询的归一化",
        "k_normed": "键的归一化",
        "q_turned": "旋转后的查询",
        "k_turned": "旋转后的键",
        "scores": "分数",
        "scaled": "缩放",
        "capped": "限幅",
        "biased": "偏置",
        "masked": "掩码",
        "weights": "Softmax",
        "mixed": "加权求和",
        "share": "这个头对输出的贡献",
        "output": "所有的头合在一起",
    },
}

SENTENCES: dict[Language, dict[str, str]] = {
    "en": {
        "input": "One vector of {width} numbers a token: the embedding, and what the layers below have added to it.",
        "normed": "Each vector is brought to a common size, so that the layer sees its direction.",
        "q": "What each token looks for: {width} numbers become the {head_dim} of head {head}.",
        "k": "What each token offers to be found by. {reads}",
        "v": "What a token hands over to those that look at it: {value_dim} numbers.",
        "q_normed": "A norm keeps the size of queries in bounds before they meet the keys.",
        "k_normed": "The same for the keys.",
        "q_turned": "Each pair of numbers turns by an angle that grows with the position; lengths stay{stretch}.",
        "k_turned": "Keys turn in the same way, so that a score depends on how far apart two tokens are.",
        "scores": "How well each query (row) fits each key (column): their dot product, {head_dim} products summed.",
        "scaled": "Dot products grow with the head's size; {scaling} keeps the softmax from being all or nothing.",
        "capped": "A smooth limit: no score goes beyond {cap}.",
        "biased": "{bias}",
        "masked": "{mask} Everything else becomes minus infinity.",
        "weights": "Every row becomes shares that add up to {total}: where this token looks.",
        "mixed": "Each token gets the values of all that it looks at, each times its weight.",
        "share": "The columns of W_O that belong to head {head} carry its result back to {width} numbers.",
        "output": "The shares of all {heads} heads added up{o_bias}: what attention adds to each token's vector.",
    },
    "zh": {
        "input": "每个词元一个 {width} 维向量：词嵌入，加上前面各层写入的内容。",
        "normed": "把每个向量缩放到相近的大小，这一层只看它的方向。",
        "q": "每个词元在找什么：{width} 个数变成第 {head} 个头的 {head_dim} 个数。",
        "k": "每个词元凭什么被找到。{reads}",
        "v": "词元交给关注它的词元的内容：{value_dim} 个数。",
        "q_normed": "查询与键相遇之前先归一化，使其大小受控。",
        "k_normed": "键也一样。",
        "q_turned": "每一对数转过一个随位置增大的角度；长度不变{stretch}。",
        "k_turned": "键用同样的方式旋转，于是分数只取决于两个词元相距多远。",
        "scores": "每个查询（行）与每个键（列）有多匹配：二者的点积，{head_dim} 个乘积之和。",
        "scaled": "点积随头的维数增大；{scaling}，softmax 才不会非此即彼。",
        "capped": "平滑的上限：分数不会超过 {cap}。",
        "biased": "{bias}",
        "masked": "{mask}其余位置变为负无穷。",
        "weights": "每一行变成总和为 {total} 的份额：这个词元在看哪里。",
        "mixed": "每个词元得到它所看到的各个值，各乘以相应的权重，再相加。",
        "share": "W_O 中属于第 {head} 个头的列把结果变回 {width} 个数。",
        "output": "{heads} 个头的贡献相加{o_bias}：这就是注意力加到每个词元向量上的内容。",
    },
}

ALIBI: dict[Language, str] = {
    "en": "A penalty for every token of distance, with a slope of its own for each head.",
    "zh": "每远一个位置就扣一点分，每个头有自己的斜率。",
}
BUCKETS: dict[Language, str] = {
    "en": "A learned number for each head and range of distance.",
    "zh": "每个头、每个距离区间有一个学到的数，加到分数上。",
}

FORMULAS = {
    "input": "x",
    "q": "Q = X W_Q{+q}",
    "k": "K = X W_K{+k}",
    "v": "V = X W_V{+v}",
    "q_normed": "Q = norm(Q)",
    "k_normed": "K = norm(K)",
    "q_turned": "(a, b) → (a cos pθ − b sin pθ, a sin pθ + b cos pθ)",
    "k_turned": "θ_i = {base:g}^(−2i/{dim})",
    "scores": "S = Q Kᵀ",
    "biased": "S = S + B",
    "masked": "S[t, s] = −∞{hidden}",
    "mixed": "O = A V",
    "share": "Y_h = O W_O[h]",
    "output": "Y = Σ_h O_h W_O[h]{+o}",
}

SOURCES = {
    "q": f"{VASWANI}, 3.2.2",
    "k": f"{VASWANI}, 3.2.2",
    "v": f"{VASWANI}, 3.2.2",
    "q_normed": "arXiv 2010.04245, 3",
    "k_normed": "arXiv 2010.04245, 3",
    "q_turned": f"{ROFORMER}, eq. 34",
    "k_turned": f"{ROFORMER}, eq. 15",
    "scores": f"{VASWANI}, eq. 1",
    "scaled": f"{VASWANI}, 3.2.1",
    "capped": "arXiv 2408.00118, 2",
    "masked": f"{VASWANI}, 3.2.3",
    "weights": f"{VASWANI}, eq. 1",
    "mixed": f"{VASWANI}, eq. 1",
    "share": f"{VASWANI}, 3.2.2",
    "output": f"{VASWANI}, 3.2.2",
}


def explain_step(worked: Worked, key: str, language: Language = "en") -> Words:
    """What the step of that key is, for this attention, in that language."""
    facts = _facts(worked, language)
    return Words(
        title=TITLES[language][key],
        formula=_formula(worked, key),
        sentence=SENTENCES[language][key].format_map(facts),
        source=_source(worked, key),
    )


def _facts(worked: Worked, language: Language) -> dict[str, object]:
    mixer, zh = worked.mixer, language == "zh"
    stretch = _stretch(worked)
    if stretch == 1:
        stretched = ""
    else:
        stretched = f"，再乘以 {stretch:.4g}" if zh else f" but for a factor of {stretch:.4g}"
    return {
        "width": len(worked["input"].exact[0]),
        "head": worked.head,
        "heads": mixer.heads,
        "head_dim": mixer.head_dim,
        "value_dim": mixer.value_dim,
        "cap": f"{mixer.softcap:g}",
        "reads": _reads(worked, language),
        "scaling": _scaling(worked, language),
        "stretch": stretched,
        "bias": _bias(worked, language),
        "mask": _mask(mixer.mask, language),
        "total": _total(worked, language),
        "o_bias": ("，再加偏置" if zh else ", and the bias") if "o" in mixer.biases else "",
    }


def _reads(worked: Worked, language: Language) -> str:
    mixer = worked.mixer
    if mixer.heads == mixer.kv_heads:
        return ""
    if language == "zh":
        pair = f"第 {worked.head} 个查询头读第 {worked.kv_head} 个键头"
        return f"{mixer.heads} 个查询头共用 {mixer.kv_heads} 个键头：{pair}。"
    shared = f"{mixer.heads} query heads share {mixer.kv_heads} key head{'s' if mixer.kv_heads > 1 else ''}"
    return f"{shared}: query head {worked.head} reads key head {worked.kv_head}."


def _is_usual(worked: Worked) -> bool:
    return math.isclose(worked.mixer.scale, worked.mixer.head_dim**-0.5, rel_tol=1e-6)


def _scaling(worked: Worked, language: Language) -> str:
    scale, size = worked.mixer.scale, worked.mixer.head_dim
    if _is_usual(worked):
        value = f"√d_k = √{size} = {math.sqrt(size):.5g}"
        return f"除以 {value}" if language == "zh" else f"dividing by {value}"
    usual = f"1/√d_k = {size**-0.5:.5g}"
    if language == "zh":
        return f"这个模型乘以自己的 {scale:.5g}（通常是 {usual}）"
    return f"a factor of {scale:.5g} (this model's own; {usual} is usual)"


def _bias(worked: Worked, language: Language) -> str:
    return (ALIBI if isinstance(worked.bias, Alibi) else BUCKETS)[language]


def _mask(mask: Mask, language: Language) -> str:
    zh = language == "zh"
    if mask.after != 0:
        return "词元能看见掩码允许的范围。" if zh else "A token sees what the mask lets it."
    if mask.before is None:
        return "词元只能看自己和前面的词元。" if zh else "A token sees itself and what came before."
    if zh:
        return f"词元只能看自己和前面的 {mask.before} 个词元。"
    return f"A token sees itself and the {mask.before} tokens before it."


def _total(worked: Worked, language: Language) -> str:
    if not worked.mixer.sinks:
        return "1"
    return "1 减去汇点（sink）所占" if language == "zh" else "1, less what the sink takes"


def _stretch(worked: Worked) -> float:
    return 1.0 if worked.mixer.rope is None else rope_magnitude(worked.mixer.rope)


def _formula(worked: Worked, key: str) -> str:
    mixer = worked.mixer
    if key == "normed":
        return _norm_formula(worked)
    if key == "scaled":
        return "S = S / √d_k" if _is_usual(worked) else f"S = {mixer.scale:.5g} S"
    if key == "capped":
        return f"S = {mixer.softcap:g} tanh(S / {mixer.softcap:g})"
    if key == "weights":
        return "A = exp(S) / (Σ_s exp(S) + exp(sink))" if mixer.sinks else "A = exp(S) / Σ_s exp(S)"
    facts: dict[str, object] = {f"+{name}": f" + b_{name.upper()}" if name in mixer.biases else "" for name in "qkvo"}
    facts["hidden"] = _hidden(mixer.mask)
    if mixer.rope is not None:
        facts |= {"base": mixer.rope.base, "dim": mixer.rope.dim}
    return FORMULAS[key].format_map(facts)


def _hidden(mask: Mask) -> str:
    after = [] if mask.after is None else ["s > t" + (f" + {mask.after}" if mask.after else "")]
    before = [] if mask.before is None else [f"s < t − {mask.before}"]
    return ", " + " ∨ ".join(after + before) if after or before else ""


def _norms(worked: Worked) -> list[Norm]:
    branch = next(branch for branch in worked.step.branches if branch.name == worked.branch)
    return [norm for norm in (worked.step.inner, branch.norm) if norm is not None]


def _norm_formula(worked: Worked) -> str:
    norm = _norms(worked)[0]
    gain = "" if not norm.weight else f"({norm.offset:g} + g) · " if norm.offset else "g · "
    shift = " + b" if norm.bias else ""
    if norm.kind == "rms":
        return f"X = {gain}x / √(mean x² + {norm.eps:g}){shift}"
    return f"X = {gain}(x − mean x) / √(var x + {norm.eps:g}){shift}"


def _source(worked: Worked, key: str) -> str:
    if key == "normed":
        return "arXiv 1910.07467, eq. 4" if _norms(worked)[0].kind == "rms" else "arXiv 1607.06450, eq. 4"
    if key == "k" and worked.mixer.heads != worked.mixer.kv_heads:
        return f"{GQA}, 2.2"
    if key == "biased":
        return "arXiv 2108.12409, 3" if isinstance(worked.bias, Alibi) else "arXiv 1910.10683, 2.1"
    return SOURCES.get(key, "")
