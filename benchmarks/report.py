"""Where and with what a figure was measured, and CSV files that keep it."""

from __future__ import annotations

import csv
import datetime
import importlib.metadata
import itertools
import pathlib
import platform
import sys
from typing import Any

import torch

RESULTS = pathlib.Path(__file__).parent / "results"


def conditions(on: str | None = None) -> dict[str, str]:
    """Machine and versions, as columns; a GPU is named unless the CPU was measured."""
    cuda = torch.cuda.is_available() and on != "cpu"
    return {
        "date": datetime.date.today().isoformat(),
        "device": torch.cuda.get_device_name() if cuda else f"CPU {platform.machine()}",
        "threads": str(torch.get_num_threads()),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": _version("triton"),
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def append(name: str, rows: list[dict[str, Any]], on: str | None = None) -> pathlib.Path:
    """Append rows to ``results/<name>.csv``, each with the conditions it was measured under.

    Columns that the file does not have yet are added behind its own.
    """
    path = RESULTS / f"{name}.csv"
    path.parent.mkdir(exist_ok=True)
    every = [*read(name), *({**conditions(on), **row} for row in rows)]
    with path.open("w", newline="") as file:
        columns = list(dict.fromkeys(itertools.chain.from_iterable(every)))
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(every)
    return path


def read(name: str) -> list[dict[str, str]]:
    """The rows of ``results/<name>.csv``, as text; none if there is no such file."""
    path = RESULTS / f"{name}.csv"
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def needs_gpu() -> None:
    """Stop where there is no GPU to measure on."""
    if not torch.cuda.is_available():
        sys.exit("there is no GPU to measure on")


def table(rows: list[dict[str, Any]]) -> str:
    """Rows as aligned text."""
    keys = list(rows[0])
    cells = [keys, *([_shown(row[key]) for key in keys] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(keys))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        for line in cells
    )


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
