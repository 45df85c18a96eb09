"""Pictures of the newest results for the documentation, and the tables beside them.

python -m benchmarks pictures [--folder docs/images]

Reads results/*.csv, draws kernels, whole steps, losses, growth and planning as far as there are
figures, and writes the part of docs/benchmarks.md between its two marks again.
"""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Callable

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullFormatter

import page
from newest import Row, times, where_and_when

matplotlib.use("Agg")
OURS, PEER, FAINT, INK = "#1f6fb4", "#9aa3ab", "#d9dde1", "#2b2f33"
TYPES = {"bfloat16": OURS, "float16": "#3d9970", "float32": "#e08a1e"}
SMALL_MS = 0.005
"""A row is small if a copy of its bytes takes less: then launching counts, not the kernel."""
STYLE = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": PEER,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
}
NAMES = {
    "gpt2": "GPT-2 small",
    "bert": "BERT-large",
    "llama": "Llama, 0.2B",
    "vit": "ViT-B/16",
    "resnet": "ResNet-50",
    "unet": "UNet",
    "lstm": "LSTM",
}
UNITS = {
    "batch": "samples in a batch",
    "sequence": "tokens in a sample",
    "depth": "layers",
    "vocabulary": "words",
}


def titled(figure: Figure, title: str, rows: list[Row]) -> None:
    figure.suptitle(f"{title}\n", x=0.01, ha="left", fontsize=12, fontweight="bold")
    figure.text(
        0.01, 1 - 0.36 / figure.get_figheight(), where_and_when(rows), fontsize=9, va="center"
    )


def plain_numbers(value: float, _: int) -> str:
    """Numbers as people write them: 0.1, 512, 16k."""
    if value >= 1024 and value % 1024 == 0:
        return f"{value / 1024:.0f}k"
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def kernels(rows: list[Row]) -> Figure:
    """Two panels with a line for each operator and a dot for each shape and type."""
    groups = page.by(rows, "operator")
    figure = Figure(figsize=(10, 1.4 + 0.27 * len(groups)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    names = list(groups)
    for row in rows:
        place = names.index(row["operator"]) + (0.17 if row["type"] == "float32" else -0.17)
        colour = TYPES.get(row["type"], INK)
        small = float(row["MB moved"]) / float(row["copy TB/s"]) * 1e-3 < SMALL_MS
        face = "white" if small else colour
        for axes, value in ((left, times(row, "faster")), (right, float(row["of copy"]))):
            axes.plot(value, place, "o", ms=5, color=colour, mfc=face, mew=1.1)
    for axes in (left, right):
        axes.axvline(1, color=INK, linewidth=1, zorder=1)
        axes.tick_params(axis="y", length=0)
    left.set_yticks(range(len(names)), names)
    left.set_ylim(len(names) - 0.4, -0.6)
    left.set_xscale("log", base=2)
    left.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
    left.set_title("speed: times that of the best peer")
    right.set_title("bytes per second: share of a plain copy's")
    right.set_xlim(left=0)
    right.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
    present = [name for name in TYPES if any(row["type"] == name for row in rows)]
    handles = [Line2D([], [], ls="", marker="o", color=TYPES[name], label=name) for name in present]
    handles.append(
        Line2D(
            [], [], ls="", marker="o", color=INK, mfc="white", label="small: under 5 µs of a copy"
        )
    )
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)
    titled(figure, "Kernels bound by memory", rows)
    return figure


def models(rows: list[Row]) -> Figure:
    """A panel of bars for each model, ours first, with the time and the memory written beside."""
    groups = page.by(rows, "model")
    most = max(map(len, groups.values()))
    figure = Figure(figsize=(10, 1.2 + 0.62 * most), layout="constrained")
    for axes, (name, found) in zip(
        figure.subplots(1, len(groups), squeeze=False)[0], groups.items(), strict=True
    ):
        bars(axes, found, most)
        axes.set_title(NAMES.get(name, name))
        axes.set_xlabel("ms for a step")
    titled(figure, "Whole training steps", rows)
    return figure


def bars(axes: Axes, rows: list[Row], most: int) -> None:
    times = [float(row["ms"]) for row in rows]
    colours = [OURS if row["way"].startswith("onnxtrain") else PEER for row in rows]
    places = range(len(rows))
    axes.barh(places, times, height=0.42, color=colours)
    for place, row, ms in zip(places, rows, times, strict=True):
        axes.text(0, place - 0.27, row["way"], va="bottom", fontsize=8.5)
        note = f" {page.short(row['ms'])} ms, {page.short(row['reserved GB'])} GB"
        axes.text(ms, place, note, va="center", fontsize=8.5)
    axes.set_xlim(0, 1.75 * max(times))
    axes.set_ylim(most - 0.6, -0.8)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.grid(axis="y", visible=False)


def curve(axes: Axes, rows: list[Row], x: str, y: str, colour: str, label: str) -> None:
    xs, ys = [float(row[x]) for row in rows], [float(row[y]) for row in rows]
    axes.plot(xs, ys, "o-", color=colour, ms=4, lw=1.8, label=label)


def proportional(axes: Axes, rows: list[Row], x: str, y: str) -> None:
    """A line through the last point along which twice the size costs twice the time."""
    xs, last = [float(row[x]) for row in rows], float(rows[-1][y])
    axes.plot(xs, [last * v / xs[-1] for v in xs], ":", color=INK, lw=1, label="in proportion")


def doubly_logarithmic(axes: Axes, rows: list[Row], x: str) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks([float(row[x]) for row in rows])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(plain_numbers))


def scaling(rows: list[Row]) -> Figure:
    """A panel for each size that was varied, both axes logarithmic."""
    groups = page.by(rows, "varied")
    figure = Figure(figsize=(10, 6.2 if len(groups) > 2 else 3.4), layout="constrained")
    panels = figure.subplots(-(-len(groups) // 2), min(2, len(groups)), squeeze=False, sharey=True)
    for axes, (name, found) in zip(panels.flat, groups.items(), strict=False):
        proportional(axes, found, "value", "ms")
        curve(axes, found, "value", "torch ms", PEER, "torch eager autocast")
        curve(axes, found, "value", "ms", OURS, "onnxtrain bf16")
        doubly_logarithmic(axes, found, "value")
        axes.set_title(name)
        axes.set_xlabel(UNITS[name])
    times = [float(row[column]) for row in rows for column in ("ms", "torch ms")]
    panels[0, 0].set_ylim(min(times) / 1.5, 1.5 * max(times))
    for axes in panels[:, 0]:
        axes.set_ylabel("ms for a step")
    for axes in list(panels.flat)[len(groups) :]:
        axes.remove()
    handles = panels[0, 0].get_legend_handles_labels()[0]
    figure.legend(handles=handles[::-1], loc="outside lower center", ncols=3, frameon=False)
    titled(figure, "Time of a training step as one size grows", rows)
    return figure


def curves(rows: list[Row]) -> Figure:
    """A panel for each model with the losses of all ways, ours the broad line behind."""
    groups = page.by(rows, "model")
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    panels = figure.subplots(1, len(groups), squeeze=False)[0]
    looks = [(OURS, 4.0, "-"), (INK, 1.2, "-"), (TYPES["float32"], 1.2, ":")]
    for axes, (name, found) in zip(panels, groups.items(), strict=True):
        starts = page.by(found, "start").values()
        for way, (colour, width, dashes) in zip(page.CURVES, looks, strict=True):
            for number, one in enumerate(starts):
                steps, losses = ([float(row[key]) for row in one] for key in ("step", way))
                label = way if number == 0 else None
                axes.plot(steps, losses, dashes, color=colour, lw=width, label=label)
        axes.set_title(NAMES.get(name, name))
        axes.set_xlabel("step")
    panels[0].set_ylabel("loss")
    handles = panels[0].get_legend_handles_labels()[0]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    titled(figure, "Losses over the same batches", rows)
    return figure


def planning(rows: list[Row]) -> Figure:
    figure = Figure(figsize=(6, 3.8), layout="constrained")
    axes = figure.subplots()
    proportional(axes, rows, "nodes", "trainer s")
    for column, colour in [
        ("prepare s", TYPES["float16"]),
        ("gradient s", PEER),
        ("session s", TYPES["float32"]),
        ("trainer s", OURS),
    ]:
        label = "whole Trainer" if column == "trainer s" else column.removesuffix(" s")
        curve(axes, rows, "nodes", column, colour, label)
    doubly_logarithmic(axes, rows, "nodes")
    axes.set_xlabel("nodes of the model")
    axes.set_ylabel("seconds")
    axes.legend(frameon=False, loc="lower right")
    titled(figure, "Time until a model can be trained", rows)
    return figure


DRAWN: dict[str, tuple[Callable[[], list[Row]], Callable[[list[Row]], Figure]]] = {
    "kernels.png": (page.kernels, kernels),
    "models.png": (page.models, models),
    "curves.png": (page.curves, curves),
    "scaling.png": (page.scaling, scaling),
    "planning.png": (page.planning, planning),
}


def draw(folder: pathlib.Path) -> list[pathlib.Path]:
    """Every picture that there are figures for."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    with matplotlib.rc_context(STYLE):
        for name, (rows_of, drawn) in DRAWN.items():
            rows = rows_of()
            if rows:
                drawn(rows).savefig(folder / name, dpi=150, metadata={"Software": None})
                written.append(folder / name)
            else:
                print(f"no figures for {name}")
    return written


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--folder", type=pathlib.Path, default=page.PAGE.parent / "images")
    options = arguments.parse_args()
    for path in draw(options.folder):
        print(path)
    page.write()
    print(page.PAGE)


if __name__ == "__main__":
    main()
