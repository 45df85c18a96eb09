"""Rows of operators that only move data, most of which torch serves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from onnxtrain.kernels.tensor.concat import concat_training
from op_row import BF16, F32, Row, draw, fitted

PARTS = [(8, 4096, 2048), (32, 4096, 1024), (64, 1024, 1024)]
"""How many matrices, and of which shape."""


def concat_rows(parts: Sequence[tuple[int, int, int]] = PARTS) -> Iterator[Row]:
    for count, rows, columns in parts:
        rows = fitted(rows, count * columns)[0]
        for dtype in (BF16, F32):
            given = [draw(rows, columns, dtype=dtype) for _ in range(count)]
            for axis in (0, 1):
                yield Row(
                    "ConcatTraining",
                    f"{count} x ({rows}, {columns}) axis {axis}",
                    dtype,
                    2 * sum(x.nbytes for x in given),
                    lambda given=given, axis=axis: concat_training(*given, axis=axis)[0],
                    {"torch": lambda given=given, axis=axis: torch.cat(given, axis)},
                    lambda given=given, axis=axis: torch.cat([x.double() for x in given], axis),
                )
