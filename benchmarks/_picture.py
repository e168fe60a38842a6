"""Stacked bars as one SVG file that needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import floor, log10

COLOURS = ("#33658a", "#2f9c95", "#86bbd8", "#f26419", "#f6ae2d", "#9aa0a6", "#d0d4d9")
LEFT, WIDTH, ROW, TOP = 190, 620, 44, 64
FONT = 'font-family="system-ui, sans-serif" font-size="14" fill="#202124"'


@dataclass(frozen=True)
class Bar:
    """A label, and the length of each part."""

    label: str
    parts: Mapping[str, float]


def bars(title: str, unit: str, rows: Sequence[Bar], kinds: Sequence[str]) -> str:
    """Horizontal bars, each stacked of the parts that it has of `kinds`, over one axis."""
    longest = max(sum(row.parts.values()) for row in rows)
    scale = WIDTH / longest
    axis, height = TOP + ROW * len(rows), TOP + ROW * len(rows) + 48 + 22 * -(-len(kinds) // 3)
    colours = dict(zip(kinds, COLOURS, strict=False))
    size = f"0 0 {LEFT + WIDTH + 80} {height}"
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{size}" {FONT}>',
        f'<rect width="100%" height="100%" fill="#ffffff"/><text x="24" y="34" font-size="17">{escape(title)}</text>',
    ]
    step = _step(longest)
    for mark in range(floor(longest / step) + 1):
        x = LEFT + mark * step * scale
        out.append(f'<line x1="{x:.1f}" y1="{TOP - 6}" x2="{x:.1f}" y2="{axis}" stroke="#e3e5e8"/>')
        out.append(f'<text x="{x:.1f}" y="{axis + 18}" text-anchor="middle" fill="#5f6368">{mark * step:g}</text>')
    out.append(f'<text x="{LEFT - 12}" y="{axis + 18}" fill="#5f6368" text-anchor="end">{escape(unit)}</text>')
    for number, row in enumerate(rows):
        out += _bar(row, TOP + ROW * number, scale, kinds, colours)
    for number, kind in enumerate(kinds):
        x, y = LEFT + number % 3 * 215, axis + 44 + 22 * (number // 3)
        out.append(f'<rect x="{x}" y="{y - 11}" width="13" height="13" rx="2" fill="{colours[kind]}"/>')
        out.append(f'<text x="{x + 20}" y="{y}">{escape(kind)}</text>')
    return "\n".join([*out, "</svg>", ""])


def _bar(row: Bar, y: int, scale: float, kinds: Sequence[str], colours: Mapping[str, str]) -> list[str]:
    out = [f'<text x="{LEFT - 12}" y="{y + 20}" text-anchor="end">{escape(row.label)}</text>']
    at = float(LEFT)
    for kind in kinds:
        width = row.parts.get(kind, 0.0) * scale
        if width > 0:
            told = f"{kind}: {row.parts[kind]:.2f}"
            out.append(
                f'<rect x="{at:.1f}" y="{y}" width="{width:.1f}" height="30" fill="{colours[kind]}">'
                f"<title>{escape(told)}</title></rect>"
            )
        at += width
    return [*out, f'<text x="{at + 8:.1f}" y="{y + 20}">{sum(row.parts.values()):.2f}</text>']


def _step(longest: float) -> float:
    """Between marks: 1, 2 or 5 times a power of ten, for four to nine of them."""
    rough = longest / 6
    power = 10.0 ** floor(log10(rough))
    return power * min((1, 2, 5, 10), key=lambda by: abs(by * power - rough))
