"""Curves as SVG text, for a page that needs nothing beside itself."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence

Points = Sequence[tuple[float, float]]
WIDTH, HEIGHT = 520, 260
LEFT, RIGHT, TOP, BOTTOM = 62, 12, 28, 34
COLOURS = ("#2f6fb0", "#d9772b", "#3a8f5d", "#8a5aa8")


def chart(title: str, series: Mapping[str, Points], across: str = "step") -> str:
    """Curves by name over one axis; empty text if there is no finite point."""
    kept = {name: _finite(points) for name, points in series.items()}
    kept = {name: points for name, points in kept.items() if points}
    if not kept:
        return ""
    xs = [x for points in kept.values() for x, _ in points]
    ys = [y for points in kept.values() for _, y in points]
    x_ticks, y_ticks = ticks(min(xs), max(xs)), ticks(min(ys), max(ys))
    low, high = min(min(ys), y_ticks[0]), max(max(ys), y_ticks[-1])
    x_scale = _scale(min(xs), max(xs), LEFT, WIDTH - RIGHT)
    y_scale = _scale(low, high, HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(title)}">',
        f'<text x="{LEFT}" y="16" class="title">{html.escape(title)}</text>',
    ]
    for value in y_ticks:
        y = _at(y_scale, value)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}" class="grid"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y}" class="tick end">{number(value)}</text>')
    for value in x_ticks:
        x = _at(x_scale, value)
        parts.append(f'<text x="{x}" y="{HEIGHT - 16}" class="tick mid">{number(value)}</text>')
    parts.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 3}" class="tick end">{across}</text>')
    for index, (name, points) in enumerate(kept.items()):
        parts += _curve(index, name, points, x_scale, y_scale, legend=len(kept) > 1)
    return "".join(parts) + "</svg>"


def _finite(points: Points) -> list[tuple[float, float]]:
    return [(x, y) for x, y in points if math.isfinite(y)]


def _curve(
    index: int,
    name: str,
    points: Points,
    x_scale: tuple[float, float],
    y_scale: tuple[float, float],
    legend: bool,
) -> list[str]:
    colour = COLOURS[index % len(COLOURS)]
    places = [(_at(x_scale, x), _at(y_scale, y)) for x, y in points]
    path = " ".join(f"{x},{y}" for x, y in places)
    parts = [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>']
    if len(places) <= 30:
        parts += [f'<circle cx="{x}" cy="{y}" r="2.4" fill="{colour}"/>' for x, y in places]
    if legend:
        y = TOP + 8 + 15 * index
        parts.append(
            f'<text x="{WIDTH - RIGHT - 4}" y="{y}" class="tick end" style="fill:{colour}">'
            f"{html.escape(name)}</text>"
        )
    return parts


def _scale(low: float, high: float, start: float, end: float) -> tuple[float, float]:
    """Factor and offset of the straight line from values to places."""
    if high == low:
        return 0.0, (start + end) / 2
    factor = (end - start) / (high - low)
    return factor, start - low * factor


def _at(scale: tuple[float, float], value: float) -> float:
    return round(scale[0] * value + scale[1], 1)


def ticks(low: float, high: float) -> list[float]:
    """Three to seven round numbers from the first below ``low`` to the first above ``high``."""
    if high == low:
        return [low]
    step = 10 ** math.floor(math.log10((high - low) / 3))
    step *= next((k for k in (1, 2, 5) if (high - low) / (step * k) <= 5), 10)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [index * step for index in range(first, last + 1)]


def number(value: float) -> str:
    """A number in few signs."""
    if value and (abs(value) >= 1e6 or abs(value) < 1e-3):
        return f"{value:.0e}"
    return f"{value:.6g}" if abs(value) < 10 else f"{value:,.6g}"
