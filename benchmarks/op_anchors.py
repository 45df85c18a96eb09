"""The rows of `ops` by which releases are compared, and what their geometric mean is."""

from __future__ import annotations

import math
from typing import Any

SOFTMAX = [
    "(192, 1024, 1024) axis -1",
    "(32, 1024, 4096) axis 1",
    "(65536, 128) axis -1",
    "(512, 131072) axis -1",
]
ANCHORS = {
    "SoftmaxGrad": SOFTMAX,
    "LogSoftmaxGrad": SOFTMAX,
    "LayerNormalizationGrad": ["(16384, 4096)", "(65536, 768)"],
    "CrossEntropy+Grad fused": ["(8192, 50304)", "(4096, 128256)"],
    "GatherGrad": ["V50304 D768 T16384"],
    "GatherElementsGrad": ["(8192, 50304) k64", "(4096, 4096) k4096"],
    "AdamW": ["124M parameters"],
    "InplaceClipGradNorm": ["124M parameters"],
    "ConcatTraining": [
        f"{parts} axis {axis}"
        for parts in ("8 x (4096, 2048)", "32 x (4096, 1024)", "64 x (1024, 1024)")
        for axis in (0, 1)
    ],
}
"""Shapes of each operator, in both types if it has both."""
HANDED_OVER = "ConcatTraining", "axis 0"
"""What torch serves, and cannot be faster than torch: an operator, and how its shapes end."""


def geometric_mean(numbers: list[float]) -> float:
    return math.exp(sum(map(math.log, numbers)) / len(numbers))


def anchors(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of the rows that are anchors."""
    return [row for row in rows if row["shape"] in ANCHORS.get(row["operator"], [])]


def summary(rows: list[dict[str, Any]], column: str) -> str:
    """Geometric means of a column over the anchors, with and without those handed to torch."""
    every = [row for row in anchors(rows) if row[column]]
    operator, ending = HANDED_OVER
    own = [row for row in every if row["operator"] != operator or not row["shape"].endswith(ending)]
    if not own:
        return ""
    whole, alone = (geometric_mean([float(row[column]) for row in part]) for part in (every, own))
    return (
        f"anchors: {whole:.2f} times over {len(every)} rows, "
        f"{alone:.2f} times over the {len(own)} that torch does not serve"
    )


def at_copies(rows: list[dict[str, Any]], column: str) -> float | None:
    """What a geometric mean over the anchors would be if none took longer than a copy."""
    found = [row for row in anchors(rows) if row.get(column) and row.get("copy ms")]
    ratios = [
        float(row[column]) * max(1.0, float(row["ms"]) / float(row["copy ms"])) for row in found
    ]
    return geometric_mean(ratios) if ratios else None
