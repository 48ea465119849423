"""Curves as an SVG, which shows in any browser and needs no library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

_COLOURS = ("#d1495b", "#2e86ab", "#7a9e3f", "#888888", "#e09f3e")
_WIDTH, _HEIGHT = 520, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 130, 34, 46


def chart(title: str, x: str, y: str, curves: Mapping[str, Sequence[float]]) -> str:
    """An SVG of curves over 0, 1, 2, ..., all as long as each other."""
    length = max(map(len, curves.values()))
    every = [value for curve in curves.values() for value in curve]
    low, high = min(0.0, *every), max(*every, 1e-9)
    span = high - low

    def at(place: int, value: float) -> str:
        across = _LEFT + place / (length - 1) * (_WIDTH - _LEFT - _RIGHT)
        return f"{across:.1f},{_TOP + (high - value) / span * (_HEIGHT - _TOP - _BOTTOM):.1f}"

    def text(left: float, top: float, words: str, rest: str = "") -> str:
        return f'<text x="{left:.1f}" y="{top:.1f}" {rest}>{escape(words)}</text>'

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'width="{_WIDTH}" height="{_HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        text(_LEFT, 20, title, 'font-weight="bold"'),
        text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 10, x, 'text-anchor="middle"'),
        text(0, 0, y, f'transform="translate(16 {_HEIGHT / 2:.0f}) rotate(-90)"'),
    ]
    for share in range(5):
        value = low + share / 4 * span
        left, top = at(0, value).split(",")
        right = _WIDTH - _RIGHT
        parts.append(f'<path d="M{left} {top}H{right}" stroke="#dddddd"/>')
        parts.append(text(_LEFT - 6, float(top) + 4, f"{value:.2f}", 'text-anchor="end"'))
    for place in range(length):
        left = float(at(place, low).split(",")[0])
        parts.append(text(left, _HEIGHT - _BOTTOM + 16, str(place), 'text-anchor="middle"'))
    for row, ((name, curve), colour) in enumerate(zip(curves.items(), _COLOURS, strict=False)):
        points = " ".join(at(place, value) for place, value in enumerate(curve))
        line = f'fill="none" stroke="{colour}" stroke-width="2"'
        parts.append(f'<polyline points="{points}" {line}/>')
        top = _TOP + 14 + 18 * row
        parts.append(f'<path d="M{_WIDTH - _RIGHT + 10} {top - 4}h18" {line}/>')
        parts.append(text(_WIDTH - _RIGHT + 34, top, name))
    return "\n".join([*parts, "</svg>\n"])
