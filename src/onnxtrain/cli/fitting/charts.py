"""Curves as SVG text, for a page that needs nothing beside itself."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping, Sequence

Points = Sequence[tuple[float, float]]
Scale = Callable[[float], float]
WIDTH, HEIGHT = 520, 260
LEFT, RIGHT, TOP, BOTTOM = 62, 16, 30, 34
COLOURS = ("#2f6fb0", "#d9772b", "#3a8f5d", "#8a5aa8")
FAINT = ("update",)
"""Series that are drawn thin and pale, since they jump."""
FALLING = ("loss", "perplexity")
"""Charts that may count powers of ten."""
STEEP = 30.0
"""Ratio of the largest to the smallest value from which the axis counts powers of ten."""


def chart(
    title: str, series: Mapping[str, Points], across: str = "step", mark: float | None = None
) -> str:
    """Curves by name over one axis that begins at 0; empty text if there is no finite point.

    Args:
        title: What stands above.
        series: Points by name.
        across: Name of the axis that goes across.
        mark: Where a dashed line goes from bottom to top.
    """
    kept = {name: _finite(points) for name, points in series.items()}
    kept = {name: points for name, points in kept.items() if points}
    if not kept:
        return ""
    right = max(x for points in kept.values() for x, _ in points)
    ys = [y for points in kept.values() for _, y in points]
    steep = is_steep(title, ys)
    y_ticks = powers(min(ys), max(ys)) if steep else ticks(min(ys), max(ys))
    low, high = min(*ys, y_ticks[0]), max(*ys, y_ticks[-1])
    x_scale = _scale(0, right, LEFT, WIDTH - RIGHT)
    y_scale = _scale(low, high, HEIGHT - BOTTOM, TOP, steep)
    shown = f"{title}, logarithmic" if steep else title
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(title)}">',
        f'<text x="{LEFT}" y="17" class="title">{html.escape(shown)}</text>',
        *_axes(y_ticks, [x for x in ticks(0, right) if x <= right], x_scale, y_scale, across),
    ]
    if mark is not None and mark <= right:
        x = x_scale(mark)
        parts.append(f'<line x1="{x}" x2="{x}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" class="mark"/>')
        parts.append(f'<text x="{x - 4}" y="{TOP + 9}" class="tick end">best</text>')
    for index, (name, points) in enumerate(kept.items()):
        places = [(x_scale(x), y_scale(y)) for x, y in points]
        parts += _curve(COLOURS[index % len(COLOURS)], places, name in FAINT)
    if len(kept) > 1:
        parts.append(_legend(list(kept)))
    return "".join(parts) + "</svg>"


def _axes(
    y_ticks: Sequence[float],
    x_ticks: Sequence[float],
    x_scale: Scale,
    y_scale: Scale,
    across: str,
) -> list[str]:
    """Lines and numbers, and the name of the axis that goes across."""
    parts = []
    for value in y_ticks:
        y = y_scale(value)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}" class="grid"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4}" class="tick end">{number(value)}</text>')
    for value in x_ticks:
        x = x_scale(value)
        parts.append(f'<text x="{x}" y="{HEIGHT - 18}" class="tick mid">{number(value)}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 4}" class="tick mid">{across}</text>')
    return parts


def _finite(points: Points) -> list[tuple[float, float]]:
    return [(x, y) for x, y in points if math.isfinite(y)]


def _curve(colour: str, places: Points, faint: bool) -> list[str]:
    path = " ".join(f"{x},{y}" for x, y in places)
    look = 'stroke-width="1" stroke-opacity=".45"' if faint else 'stroke-width="1.8"'
    parts = [f'<polyline points="{path}" fill="none" stroke="{colour}" {look}/>']
    if len(places) <= 30 and not faint:
        parts += [f'<circle cx="{x}" cy="{y}" r="2.4" fill="{colour}"/>' for x, y in places]
    return parts


def _legend(names: Sequence[str]) -> str:
    """The names, in the colours of their curves, above the chart on the right."""
    spans = [
        f'<tspan fill="{COLOURS[index % len(COLOURS)]}" dx="{9 if index else 0}">'
        f"{html.escape(name)}</tspan>"
        for index, name in enumerate(names)
    ]
    return f'<text x="{WIDTH - RIGHT}" y="17" class="tick end legend">{"".join(spans)}</text>'


def _scale(low: float, high: float, start: float, end: float, steep: bool = False) -> Scale:
    """From values to places: a straight line, of logarithms if it is steep."""
    change: Callable[[float], float] = math.log10 if steep else float
    low, high = change(low), change(high)
    if high == low:
        return lambda value: (start + end) / 2
    factor = (end - start) / (high - low)
    return lambda value: round(start + (change(value) - low) * factor, 1)


def is_steep(title: str, values: Sequence[float]) -> bool:
    """Whether the values of a chart are better seen by their powers of ten."""
    return title in FALLING and min(values) > 0 and max(values) / min(values) >= STEEP


def ticks(low: float, high: float) -> list[float]:
    """Three to seven round numbers from the first below ``low`` to the first above ``high``."""
    if high == low:
        return [low]
    step = 10 ** math.floor(math.log10((high - low) / 3))
    step *= next((k for k in (1, 2, 5) if (high - low) / (step * k) <= 5), 10)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [index * step for index in range(first, last + 1)]


def powers(low: float, high: float) -> list[float]:
    """Powers of ten from the first below ``low`` to the first above ``high``, at most seven."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    step = max(1, -(-(last - first) // 6))
    return [float(10.0**exponent) for exponent in range(first, last + step, step)]


def number(value: float) -> str:
    """A number in few signs."""
    if value and (abs(value) >= 1e6 or abs(value) < 1e-3):
        return f"{value:.0e}"
    return f"{value:.6g}" if abs(value) < 10 else f"{value:,.6g}"
