"""The newest figures of the results, chosen for tables and pictures."""

from __future__ import annotations

from collections.abc import Iterable

Row = dict[str, str]


def last_of_each(rows: Iterable[Row], *key: str) -> list[Row]:
    """The last row of each key, in the order in which the keys came first."""
    return list({tuple(row[name] for name in key): row for row in rows}.values())


def last_runs(rows: Iterable[Row], group: str, way: str) -> list[Row]:
    """The rows of each group's last run that had a peer.

    Ways are only comparable within a run, and a run begins where a way comes again.
    """
    runs: dict[str, list[dict[str, Row]]] = {}
    for row in rows:
        known = runs.setdefault(row[group], [{}])
        if row[way] in known[-1]:
            known.append({})
        known[-1][row[way]] = row
    chosen = [[run for run in found if len(run) > 1][-1:] for found in runs.values()]
    return [row for found in chosen for run in found for row in run.values()]


def on_gpu(rows: Iterable[Row]) -> list[Row]:
    """The rows of the GPU that was measured last."""
    found = [row for row in rows if not row["device"].startswith("CPU")]
    return [row for row in found if row["device"] == found[-1]["device"]]


def on_cpu(rows: Iterable[Row]) -> list[Row]:
    """The rows of CPUs."""
    return [row for row in rows if row["device"].startswith("CPU")]


def where_and_when(rows: list[Row]) -> str:
    """Machine, days and version of torch behind some rows, for a caption."""
    days = sorted({row["date"] for row in rows})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    versions = ", ".join(sorted({row["torch"] for row in rows}))
    return f"{rows[-1]['device']}, {when}, torch {versions}"


def times(row: Row, of: str) -> float:
    """How many times as fast as its peers an operator is, in recorded steps if that is known."""
    return float(row.get(f"times {of} recorded") or row[f"times {of}"])
