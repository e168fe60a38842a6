"""A worked example on the terminal: a step at a time, then plain Python and the network side by side."""

from __future__ import annotations

import math
from shutil import get_terminal_size

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from headway.cli.matrix import Table, number
from headway.explain import Language, Worked, WorkedStep, explain_step

OVER_TOKENS = {"scores", "scaled", "capped", "biased", "masked", "weights"}  # steps whose columns are tokens
WORDS: dict[Language, dict[str, str]] = {
    "en": {
        "title": "Layer {layer}, head {head} of {heads}, worked by hand on the numbers of {model}",
        "rows": "A row is a token; a column is an entry of its vector or, from the scores on, the token looked at. "
        "␣ is a space, ⟨e4⟩ a byte that is only a part of a character.",
        "tokens": "Tokens",
        "summary": "Plain Python beside the network, where they differ most",
        "where": "where",
        "comma": ", ",
        "python": "plain Python",
        "network": "network",
        "difference": "difference",
        "inside": "Not in this table: {steps}. The network does these inside one kernel, together with what follows.",
        "agree": "They agree: the largest difference is {difference:.1e}, in “{title}”, whose values reach {size:.3g}.",
        "differ": "They DO NOT agree: {difference:.1e} in “{title}”, whose values reach {size:.3g}.",
        "kinds": "Plain Python reckons in 64 bits; the network in {dtype}, attention by {backend}.",
    },
    "zh": {
        "title": "第 {layer} 层，第 {head} 个头（共 {heads} 个）：用 {model} 自己的数字手算一遍",
        "rows": "一行是一个词元；一列是向量的一个分量，从分数开始则是被看的词元。␣ 是空格，⟨e4⟩ 是不成字符的一个字节。",
        "tokens": "词元",
        "summary": "纯 Python 与网络并列：相差最大之处",
        "where": "位置",
        "comma": "、",
        "python": "纯 Python",
        "network": "网络",
        "difference": "差",
        "inside": "表中没有：{steps}。网络在一个内核里把它们和后面的步骤一起算完。",
        "agree": "两者一致：最大差为 {difference:.1e}，在“{title}”一步，那里的数值最大到 {size:.3g}。",
        "differ": "两者不一致：“{title}”一步相差 {difference:.1e}，那里的数值最大到 {size:.3g}。",
        "kinds": "纯 Python 用 64 位计算；网络用 {dtype}，注意力由 {backend} 计算。",
    },
}


def screen() -> Console:
    """A console as wide as the terminal, or as COLUMNS says; 100 cells where nobody says."""
    return Console(width=max(40, get_terminal_size((100, 24)).columns), highlight=False, markup=False, emoji=False)


class Page:
    """One worked example, in one language, with so many decimals."""

    def __init__(self, worked: Worked, language: Language, digits: int) -> None:
        self.worked, self.language, self.digits = worked, language, digits
        self.say = WORDS[language]
        self.console = screen()
        self.names = [token.text for token in worked.tokens]
        self.words = {step.key: explain_step(worked, step.key, language) for step in worked.steps}

    def show(self, model: str) -> None:
        """The whole page on stdout."""
        worked = self.worked
        facts = {"layer": worked.layer, "head": worked.head, "heads": worked.mixer.heads, "model": model}
        self._paragraph(self.say["title"].format(**facts), style="bold")
        self._paragraph(self.say["rows"], style="dim")
        self._heading(1, self.say["tokens"], "", "")
        self._table(
            Table(
                heads=[str(token.position) for token in worked.tokens],
                labels=["", "id"],
                cells=[self.names, [str(token.id) for token in worked.tokens]],
            )
        )
        for place, step in enumerate(worked.steps, 2):
            words = self.words[step.key]
            self._heading(place, words.title, words.formula, words.source)
            self._paragraph(words.sentence, indent=4)
            self._table(self._numbers(step))
        self._compare()

    def _heading(self, place: int, title: str, formula: str, source: str) -> None:
        """Title, formula and source on one line, or below each other where they are too long for it."""
        lines = [Text(f"{place:>2}  {title}", style="bold")]
        if formula:
            self._append(lines, formula, "cyan", 3)
        if source:
            self._append(lines, source, "dim", self.console.width - lines[-1].cell_len - len(source))
        self.console.print()
        for line in lines:
            self.console.print(line, soft_wrap=True)

    def _append(self, lines: list[Text], text: str, style: str, gap: int) -> None:
        """Put `text` behind the last line after a gap, or on a line of its own if there is no room."""
        if gap >= 2 and lines[-1].cell_len + gap + cell_len(text) <= self.console.width:
            lines[-1].append(" " * gap + text, style=f"not bold {style}")
        else:
            lines.append(Text(f"    {text}", style=style))

    def _paragraph(self, text: str, *, style: str = "", indent: int = 0) -> None:
        for line in Text(text, style=style).wrap(self.console, self.console.width - indent):
            line.rstrip()
            self.console.print(Text(" " * indent) + line, soft_wrap=True)

    def _table(self, table: Table, indent: int = 4) -> None:
        for line in table.lines(self.console.width - indent):
            self.console.print(Text(" " * indent) + line, soft_wrap=True)

    def _numbers(self, step: WorkedStep) -> Table:
        if step.key in ("q_turned", "k_turned"):
            return self._rotation(step)
        cells = [[number(value, self.digits) for value in row] for row in step.exact]
        if step.key not in OVER_TOKENS:
            return Table(heads=[str(place) for place in range(len(step.exact[0]))], labels=self.names, cells=cells)
        if step.key != "weights":
            return Table(heads=self.names, labels=self.names, cells=cells, tail=2)
        sums = [f"= {number(sum(row), self.digits)}" for row in step.exact]
        seen = [
            ["·" if math.isinf(score) else cell for score, cell in zip(scores, row, strict=True)]
            for scores, row in zip(self.worked["masked"].exact, cells, strict=True)
        ]
        cells = [[*row, total] for row, total in zip(seen, sums, strict=True)]
        return Table(heads=[*self.names, "Σ"], labels=self.names, cells=cells, tail=3)

    def _rotation(self, step: WorkedStep) -> Table:
        """The first pair of entries before and after, with the angle that each token turns it by."""
        rope, letter = self.worked.mixer.rope, step.key[0]
        assert rope is not None
        partner = rope.dim // 2 if rope.pairing == "half" else 1
        normed = f"{letter}_normed"
        before = self.worked[normed if normed in self.words else letter].exact
        cells = []
        for position, (old, new) in enumerate(zip(before, step.exact, strict=True)):
            lengths = [math.hypot(row[0], row[partner]) for row in (old, new)]
            row = [position * self.worked.angles[0], old[0], old[partner], new[0], new[partner], *lengths]
            shown = [number(value, self.digits) for value in row]
            cells.append([*shown[:3], "→", *shown[3:5], f"{shown[5]} → {shown[6]}"])
        pair = [f"a = {letter.upper()}[0]", f"b = {letter.upper()}[{partner}]"]
        return Table(heads=["pθ", *pair, "", "a", "b", "√(a²+b²)"], labels=self.names, cells=cells)

    def _compare(self) -> None:
        compared = [step for step in self.worked.steps if step.fast is not None]
        self.console.print()
        self._paragraph(self.say["summary"], style="bold")
        table = Table(
            heads=[self.say[name] for name in ("where", "python", "network", "difference")],
            labels=[self.words[step.key].title for step in compared],
            cells=[self._widest(step) for step in compared],
            rows=len(compared),
            label=40,
        )
        self._table(table, indent=0)
        hidden = [self.words[step.key].title for step in self.worked.steps[1:] if step.fast is None]
        self._paragraph(self.say["inside"].format(steps=self.say["comma"].join(hidden)), style="dim")
        worst = max(compared, key=lambda step: step.difference or 0.0)
        verdict = self.say["agree" if self.worked.agrees else "differ"]
        verdict = verdict.format(difference=worst.difference, title=self.words[worst.key].title, size=worst.size)
        self.console.print()
        self._paragraph(verdict, style="bold green" if self.worked.agrees else "bold red")
        self._paragraph(self.say["kinds"].format(dtype=self.worked.dtype, backend=self.worked.backend), style="dim")

    def _widest(self, step: WorkedStep) -> list[str]:
        """Where a step's two calculations differ most, and both numbers there."""
        assert step.fast is not None
        gaps = [
            (0.0 if a == b else abs(a - b), row, column)
            for row, (one, two) in enumerate(zip(step.exact, step.fast, strict=True))
            for column, (a, b) in enumerate(zip(one, two, strict=True))
        ]
        _, row, column = max(gaps)
        place = self.names[column] if step.key in OVER_TOKENS else str(column)
        where = f"{self.names[row]} → {place}" if step.key in OVER_TOKENS else f"{self.names[row]} [{place}]"
        numbers = [f"{values[row][column]:.8f}" for values in (step.exact, step.fast)]
        return [where, *numbers, f"{step.difference:.1e}"]
