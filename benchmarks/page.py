"""The part of docs/benchmarks.md that shows results: pictures and tables of the newest figures."""

from __future__ import annotations

import functools
import math
import pathlib
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from growth import VALUES
from newest import Row, last_of_each, last_runs, on_cpu, on_gpu, times, where_and_when
from op_anchors import geometric_mean
from report import read

PAGE = pathlib.Path(__file__).parents[1] / "docs" / "benchmarks.md"
BEGIN, END = "<!-- results: written by python -m benchmarks pictures -->", "<!-- end of results -->"


def kernels() -> list[Row]:
    return last_of_each(on_gpu(read("ops")), "operator", "shape", "type")


def kernels_on_cpu() -> list[Row]:
    return last_of_each(on_cpu(read("ops")), "operator", "shape", "type")


def models() -> list[Row]:
    return last_runs(on_gpu(read("models")), "model", "way")


def steps_on_cpu() -> list[Row]:
    return last_of_each(on_cpu(read("steps")), "model")


def forward_on_cpu() -> list[Row]:
    return last_of_each(on_cpu(read("forward")), "model")


def scaling() -> list[Row]:
    found = last_of_each(on_gpu(read("scaling")), "varied", "value")
    return sorted(found, key=lambda row: (list(VALUES).index(row["varied"]), int(row["value"])))


def curves() -> list[Row]:
    found = [{**row, "start": row.get("start") or "0"} for row in on_gpu(read("curves"))]
    return last_of_each(found, "model", "start", "step")


def planning() -> list[Row]:
    return sorted(last_of_each(read("planning"), "nodes"), key=lambda row: int(row["nodes"]))


def by(rows: list[Row], key: str) -> dict[str, list[Row]]:
    """Rows by the value of a column, in their order."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row[key], []).append(row)
    return groups


def short(text: str) -> str:
    """A fraction with three digits or its whole part, whole numbers in full, text as it is."""
    try:
        number = float(text)
    except ValueError:
        return text
    if text.isdigit():
        return f"{int(text):,}"
    digits = 2 - math.floor(math.log10(abs(number))) if number else 0
    return f"{number:,.{max(0, digits)}f}"


def markdown(columns: dict[str, str], rows: list[Row]) -> str:
    """A table: titles of the columns, and which cell of a row stands in each."""
    lines = [list(columns), ["---"] * len(columns)]
    lines += [[short(row[cell]) for cell in columns.values()] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def kernel_table(rows: list[Row]) -> str:
    summed = []
    for name, found in by(rows, "operator").items():
        speed = [times(row, "faster") for row in found]
        share = [float(row["of copy"]) for row in found]
        summed.append(
            {
                "operator": name,
                "rows": str(len(found)),
                "peer": ", ".join(dict.fromkeys(row["best peer"] for row in found)),
                "mean": f"{geometric_mean(speed):.2f}x",
                "range": f"{min(speed):.2f}x to {max(speed):.2f}x",
                "share": f"{min(share):.0%} to {max(share):.0%}",
            }
        )
    titles = {
        "operator": "operator",
        "shapes and types": "rows",
        "best peer": "peer",
        "speed": "mean",
        "from, to": "range",
        "share of a copy": "share",
    }
    best, torchs = (
        geometric_mean([times(row, of) for row in rows if row[f"times {of}"]])
        for of in ("faster", "torch")
    )
    means = f"{best:.2f} times the speed of the best peer, {torchs:.2f} times that of torch eager"
    how = ", replayed as in recorded steps" if any(row.get("recorded ms") for row in rows) else ""
    return f"All together{how}: {means}.\n\n{markdown(titles, summed)}"


MODEL = {
    "model": "model",
    "way": "way",
    "ms": "ms",
    "tokens or images/s": "tokens or images/s",
    "GB held": "reserved GB",
    "first step s": "first s",
}
STEPS = {
    "model": "model",
    "onnxtrain ms": "onnxtrain ms",
    "torch eager ms": "torch eager ms",
    "torch.compile ms": "torch.compile ms",
    "onnxruntime-training ms": "reference ms",
}
FORWARD = {
    "model": "model",
    "onnxtrain ms": "onnxtrain ms",
    "torch eager ms": "torch eager ms",
    "onnxruntime ms": "onnxruntime CPU ms",
}
SCALING = {
    "varied": "varied",
    "value": "value",
    "ms": "ms",
    "ms per unit": "ms per unit",
    "times the size": "size grew",
    "times the time": "ms grew",
    "GB held": "reserved GB",
    "torch eager ms": "torch ms",
    "its times the time": "torch ms grew",
}
CURVES = ("onnxtrain", "torch bfloat16", "torch float32")
"""Ways whose losses are compared; torch's two are apart by what rounding alone makes of a curve."""


def distance(rows: Sequence[Mapping[str, Any]], one: str, other: str) -> float:
    """How far two curves are apart, as a mean share of the loss."""
    shares = [abs(float(row[one]) / float(row[other]) - 1) for row in rows]
    return sum(shares) / len(shares)


def _loss(starts: list[list[Row]], way: str, at: int) -> str:
    """The mean loss of a step."""
    return str(statistics.fmean(float(rows[at][way]) for rows in starts))


def _apart(starts: list[list[Row]], one: str, other: str) -> str:
    """How far two ways are apart from the same start, on average over the starts."""
    return f"{statistics.fmean(distance(rows, one, other) for rows in starts):.3%}"


def _starts_apart(starts: list[list[Row]], way: str) -> str:
    """How far the curves of a way from other starts are from that of the first."""
    first, *others = ([float(row[way]) for row in found] for found in starts)
    shares = [abs(a / b - 1) for other in others for a, b in zip(other, first, strict=False)]
    return f"{statistics.fmean(shares):.3%}" if shares else ""


def curve_table(rows: list[Row]) -> str:
    ours, torchs, float32 = CURVES
    summed = []
    for name, found in by(rows, "model").items():
        starts = list(by(found, "start").values())
        summed.append(
            {
                "model": name,
                "starts": str(len(starts)),
                "steps": str(len(starts[0])),
                "first loss": _loss(starts, ours, 0),
                "last loss": _loss(starts, ours, -1),
                "torch's last loss": _loss(starts, torchs, -1),
                "apart": _apart(starts, ours, torchs),
                "torch's float32 apart": _apart(starts, float32, torchs),
                "starts apart": _starts_apart(starts, ours),
                "torch's starts apart": _starts_apart(starts, torchs),
            }
        )
    return markdown({title: title for title in summed[0]}, summed)


PLANNING = {
    "nodes": "nodes",
    "weights": "weights",
    "prepare s": "prepare s",
    "gradient s": "gradient s",
    "session s": "session s",
    "whole Trainer s": "trainer s",
    "ms per node": "trainer ms per node",
}
PARTS: list[tuple[str, str, str, Callable[[], list[Row]], Callable[[list[Row]], str]]] = [
    (
        "Kernels bound by memory",
        "kernels.png",
        "Each dot is one shape. Hollow ones are small, their bytes are copied in less than 5 µs: "
        "they are bound by launching.",
        kernels,
        kernel_table,
    ),
    (
        "The same on a CPU",
        "",
        "Portable kernels, of smaller shapes. Most of them call torch's, which are not all near "
        "the speed of a copy.",
        kernels_on_cpu,
        kernel_table,
    ),
    (
        "Whole steps",
        "models.png",
        "Forward, backward, clipping and AdamW in bfloat16 with float32 weights.",
        models,
        functools.partial(markdown, MODEL),
    ),
    (
        "Whole steps on a CPU",
        "",
        "Forward, backward and AdamW in float32: the three small models, and nine architectures "
        "(`--whole`) on eight samples. Torch 2.13 fails to compile the UNet.",
        steps_on_cpu,
        functools.partial(markdown, STEPS),
    ),
    (
        "Forward passes on a CPU",
        "",
        "The same nine in inference.",
        forward_on_cpu,
        functools.partial(markdown, FORWARD),
    ),
    (
        "Losses over steps",
        "curves.png",
        "Bfloat16 with float32 weights, eight batches again and again, beside torch with autocast: "
        "how far the two are apart on average, and how far torch in float32 is from its own. Of "
        "several starts, whose weights differ in their last bit, means are given; how far curves "
        "of one way from two of them are apart is noise.",
        curves,
        curve_table,
    ),
    (
        "How a step grows",
        "scaling.png",
        "A GPT-2 of width 512 (8 x 512 tokens, 6 layers, 16384 words), one size varied at a time.",
        scaling,
        functools.partial(markdown, SCALING),
    ),
    (
        "How planning grows",
        "planning.png",
        "From an ONNX graph to a plan that trains: processor time of one thread.",
        planning,
        functools.partial(markdown, PLANNING),
    ),
]
"""Title, picture if there is one, text, rows and table; a part without rows is left out."""


def section() -> str:
    """What stands between the two marks of the page."""
    parts = []
    for title, picture, text, rows_of, table_of in PARTS:
        rows = rows_of()
        if rows:
            image = f"![{title}](images/{picture})\n\n" if picture else ""
            where = f"Measured on: {where_and_when(rows)}."
            parts.append(f"### {title}\n\n{text} {where}\n\n{image}{table_of(rows)}\n")
    return "\n" + "\n".join(parts)


def halves() -> tuple[str, str, str]:
    """The page before its results, the results, and the page behind them."""
    before, rest = PAGE.read_text().split(BEGIN + "\n")
    found, behind = rest.split(END)
    return before, found, behind


def write() -> None:
    before, _, behind = halves()
    PAGE.write_text(f"{before}{BEGIN}\n{section()}\n{END}{behind}")
