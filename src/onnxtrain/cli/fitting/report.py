"""The page about a run: curves, times, memory, parameters, settings and versions in one file."""

from __future__ import annotations

import dataclasses
import html
import math
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from onnxtrain.cli.fitting.charts import COLOURS, FAINT, Points, chart, is_steep
from onnxtrain.cli.fitting.metrics import shown
from onnxtrain.errors import OnnxTrainError
from onnxtrain.files.atomic import atomic_write

if TYPE_CHECKING:
    from onnxtrain.cli.fitting.asked import Run
    from onnxtrain.cli.fitting.loop import Loop
    from onnxtrain.cli.fitting.recording import History

STYLE = """
body{font:15px/1.45 system-ui,sans-serif;margin:2em auto;max-width:1120px;padding:0 1em;color:#222}
h1{font-size:1.5em;margin-bottom:.1em}h2{font-size:1.1em;margin-top:2em}
p.note{color:#666;margin-top:.2em}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(440px,100%),1fr));gap:1em}
svg{width:100%;height:auto;border:1px solid #e3e3e3;border-radius:6px;background:#fff}
svg text{font:11px system-ui,sans-serif;fill:#555}svg .title{font-size:13px;fill:#222}
svg .end{text-anchor:end}svg .mid{text-anchor:middle}svg .grid{stroke:#eee}
svg .mark{stroke:#999;stroke-dasharray:3 3}svg .legend tspan{font-weight:600}
.scroll{overflow-x:auto}
table{border-collapse:collapse;min-width:28em}td,th{padding:.25em .9em;text-align:left}
th{border-bottom:1px solid #bbb;font-weight:600}tr:nth-child(even) td{background:#f7f7f7}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
td.wide{min-width:13em}
.bar{display:inline-block;height:.7em;background:#2f6fb0;border-radius:2px}
"""
SLOWEST = 15
LISTED = 200
"""Parameters that are listed one by one."""


def write(path: pathlib.Path, asked: Run, loop: Loop) -> None:
    """Write the page about a finished run, whose model has been written.

    Raises:
        SaveError: if it cannot be written.
    """
    title = f"{asked.model.name} trained on {asked.data}"
    sections = [
        _result(asked, loop),
        _section("Curves", f'<div class="charts">{"".join(_curves(loop))}</div>'),
        _section("Slowest operators", _operators(loop)),
        _section("Memory over the step", _memory(loop)),
        _section("Parameters that changed", _parameters(asked)),
        _section("Settings", _table(("option", "value"), _settings(asked))),
        _section("Versions", _table(("what", "version"), _versions())),
    ]
    page = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{_safe(title)}'
        f"</title><style>{STYLE}</style></head><body><h1>{_safe(title)}</h1>"
        f"{''.join(sections)}</body></html>\n"
    )
    atomic_write(path, page.encode(errors="backslashreplace"))


def _safe(text: object) -> str:
    return html.escape(str(text))


def _section(title: str, body: str) -> str:
    return f"<h2>{title}</h2>{body}"


def _table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], right: Sequence[str] = ()
) -> str:
    """A table; numbers stand on the right, bars in a column of their own."""
    marks = [' class="n"' if name in right else "" if name else ' class="wide"' for name in columns]
    head = "".join(f"<th{m}>{_safe(n)}</th>" for m, n in zip(marks, columns, strict=True))
    body = ""
    for row in rows:
        cells = zip(marks, row, strict=True)
        body += "<tr>" + "".join(f"<td{m}>{_cell(c)}</td>" for m, c in cells) + "</tr>"
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'


@dataclasses.dataclass(frozen=True)
class _Bar:
    """A share from 0 to 1, drawn."""

    share: float


def _cell(value: object) -> str:
    if isinstance(value, _Bar):
        return f'<span class="bar" style="width:{12 * value.share:.2f}em"></span>'
    return _safe(value)


def _result(asked: Run, loop: Loop) -> str:
    order = loop.batches.order
    trained = [d for d in loop.trainer.decisions if d.trained]
    text = (
        f"{loop.position:,} of {loop.total:,} updates of {order.batch_size} samples, "
        f"{order.samples:,} samples; {len(trained)} tensors with "
        f"{sum(d.elements for d in trained):,} elements trained on {loop.trainer.device}; "
        f"written to {asked.out}"
    )
    if loop.best is not None and loop.watch is not None:
        text += f", as they were after step {loop.watch.step:,}"
    return f'<p class="note">{_safe(text)}</p>{_figures(loop)}'


def _figures(loop: Loop) -> str:
    """The figures of the last judgement, and beside them those of the best one."""
    judged = loop.history.judged
    if not judged:
        return ""
    picked = [(f"after step {judged[-1]['step']:,}", judged[-1])]
    best = _best(loop)
    picked += [(f"best: after step {best:,}", e) for e in judged if e["step"] == best]
    names = [name for name, value in judged[-1].items() if isinstance(value, float)]
    told = [shown({n: e[n] for n in names if n in e}) for _, e in picked]
    rows = [(_called(name), *(one.get(name, "") for one in told)) for name in names]
    columns = ("figure", *(title for title, _ in picked))
    return _table(columns, rows, right=columns[1:])


def _best(loop: Loop) -> int | None:
    """The update with the best figures; None if nothing was compared."""
    return loop.watch.step if loop.watch is not None and loop.watch.best is not None else None


def _called(name: str) -> str:
    """``val_loss`` as readers say it."""
    if name.startswith("val_"):
        return f"validation {name.removeprefix('val_')}"
    return {"mean_loss": "training loss, mean"}.get(name, name)


def curves(history: History) -> dict[str, dict[str, Points]]:
    """Series of points by chart and name."""
    steps = [(e["step"], e["loss"]) for e in history.steps]
    means = [(e["step"], e["mean_loss"]) for e in history.judged]
    charts: dict[str, dict[str, Points]] = {"loss": {"update": steps, "mean": means}}
    names = [name for entry in history.judged[:1] for name in entry if name.startswith("val_")]
    for name in names:
        points = [(e["step"], e[name]) for e in history.judged if name in e]
        figure = name.removeprefix("val_")
        charts.setdefault(figure, {})["validation"] = points
    charts["learning rate"] = {"rate": [(e["step"], e["lr"]) for e in history.steps]}
    return charts


def _curves(loop: Loop) -> list[str]:
    best = _best(loop)
    return [chart(title, series, mark=best) for title, series in curves(loop.history).items()]


def _operators(loop: Loop) -> str:
    batch = _sample(loop)
    try:
        totals = loop.trainer.profile(batch).totals()
    except OnnxTrainError as error:
        return f'<p class="note">{_safe(error)}</p>'
    whole = sum(totals.values()) or 1.0
    rows = [
        (op, f"{micros / 3e3:.3f}", f"{micros / whole:.1%}", _Bar(micros / whole))
        for op, micros in list(totals.items())[:SLOWEST]
    ]
    columns = ("operator", "ms a step", "share", "")
    note = '<p class="note">forward and backward, mean of three steps with a clock at each node</p>'
    return note + _table(columns, rows, right=("ms a step", "share"))


def _sample(loop: Loop) -> dict[str, Any]:
    batch = loop.batches.at(0)
    return {name: array[: loop.size] for name, array in batch.items()}


def _memory(loop: Loop) -> str:
    from onnxtrain.cli.memory import over_the_step

    held, unknown = over_the_step(loop.trainer, _sample(loop))
    node, peak = max(held, key=lambda item: item[1])
    points = [(index + 1, size / 2**20) for index, (_, size) in enumerate(held)]
    note = (
        f"peak {peak / 2**20:,.2f} MiB after node {node}; parameters and gradients are included, "
        "the state of the optimizer is not"
    )
    if unknown:
        note += f", nor are {len(unknown)} tensors whose size is known only while they run"
    drawn = chart("MiB alive after each node", {"MiB": points}, "node")
    return f'<p class="note">{_safe(note)}</p><div class="charts">{drawn}</div>'


def _parameters(asked: Run) -> str:
    from onnxtrain.cli.changes import compare
    from onnxtrain.cli.fitting.adapters import targets
    from onnxtrain.graph.loading.load import load_model

    if len(targets(asked.out)) > 1:
        return '<p class="note">adapters alone; the weights of the model are as they were</p>'
    moved = compare(load_model(asked.model), load_model(asked.out)).moved
    rows = [
        (
            m.name,
            list(m.shape),
            f"{m.before:.4g}",
            f"{m.distance:.4g}",
            f"{m.relative:.2%}" if m.before else "was zero",
        )
        for m in moved[:LISTED]
    ]
    columns = ("name", "shape", "norm before", "norm of the change", "relative")
    more = f'<p class="note">and {len(moved) - LISTED} more</p>' if len(moved) > LISTED else ""
    return _table(columns, rows, right=columns[2:]) + more


def _settings(asked: Run) -> list[tuple[str, str]]:
    fields = [(f.name, getattr(asked, f.name)) for f in dataclasses.fields(asked)]
    return [
        (name.replace("_", "-"), _shown(value))
        for name, value in fields
        if value is not None and value is not False and value not in ([], {})
    ]


def _shown(value: object) -> str:
    """A value as one would type it."""
    if isinstance(value, dict):
        return ", ".join(f"{key}={item}" for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return str(value)


def _versions() -> list[tuple[str, str]]:
    from onnxtrain.cli.env import facts

    return [(name, value) for name, value in facts().items() if value != "not installed"]


def draw(path: pathlib.Path, loop: Loop) -> None:
    """Write a picture of the curves of a run.

    Raises:
        OnnxTrainError: if matplotlib is not installed or does not know the kind of file.
    """
    try:
        import matplotlib
    except ImportError:
        raise OnnxTrainError(
            f"cannot draw '{path}': matplotlib is not installed\n  pip install 'onnxtrain[demo]'"
        ) from None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    charts, best = curves(loop.history), _best(loop)
    across = len(charts) if len(charts) <= 3 else 2
    down = -(-len(charts) // across)
    figure, axes = plt.subplots(
        down, across, figsize=(4.8 * across, 3.4 * down), layout="constrained", squeeze=False
    )
    for place in axes.flat[len(charts) :]:
        place.remove()
    for place, (title, series) in zip(axes.flat, charts.items(), strict=False):
        _plot(place, title, series, best)
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise OnnxTrainError(f"cannot draw '{path}': {error}") from error
    finally:
        plt.close(figure)


def _plot(place: Any, title: str, series: Mapping[str, Points], best: int | None) -> None:
    """One chart, drawn as on the page."""
    for index, (name, points) in enumerate(series.items()):
        faint = {"alpha": 0.45, "linewidth": 1} if name in FAINT else {"marker": "."}
        if len(points) > 30:
            faint.pop("marker", None)
        xs, ys = [x for x, _ in points], [y for _, y in points]
        place.plot(xs, ys, label=name, color=COLOURS[index % len(COLOURS)], **faint)
    values = [y for points in series.values() for _, y in points if math.isfinite(y)]
    if values and is_steep(title, values):
        place.set_yscale("log")
    if best is not None:
        place.axvline(best, color="#999999", linestyle="--", linewidth=1, label="best")
    place.set(title=title, xlabel="step")
    place.set_xlim(left=0)
    place.grid(alpha=0.3)
    if len(series) > 1:
        place.legend()
