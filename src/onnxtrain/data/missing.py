"""Samples without a value: refused, left out, or fed as they are."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from onnxtrain.data.arrays import Arrays, Samples, flag
from onnxtrain.data.lazy import parts, taken
from onnxtrain.errors import FeedError


def complete(data: Arrays, policy: str = "refuse") -> Arrays:
    """The samples that have a value in every array.

    Args:
        data: The arrays; NaN and empty text are no values, nor are infinities in a table.
        policy: What happens if there are others: ``refuse``, ``drop`` or ``keep`` them.

    Raises:
        FeedError: if there are others and they are refused, or if nothing is left.
    """
    if policy == "keep":
        return data
    found = {name: _gaps(array, data.tabular) for name, array in data.values.items()}
    gaps = {name: rows for name, rows in found.items() if rows is not None and rows.any()}
    if not gaps:
        return data
    lengths = {len(array) for array in data.values.values()}
    if policy == "refuse" or len(lengths) > 1:
        _refuse(data, gaps)
    left = np.flatnonzero(~np.any(list(gaps.values()), axis=0))
    if not left.size:
        raise FeedError(
            f"every sample of '{data.source}' lacks a value\n"
            f"  leave out an array with  {flag('--ignore', next(iter(gaps)))}"
        )
    values = {name: taken(array, left) for name, array in data.values.items()}
    return dataclasses.replace(data, values=values)


def _gaps(array: Samples, tabular: bool) -> npt.NDArray[np.bool_] | None:
    """Which samples lack a value; None if the array cannot say.

    An infinite number is no value of a table; arrays may be masks, which have such numbers.
    """
    if array.dtype.kind not in "fU" or array.ndim == 0 or getattr(array, "identity", None):
        return None
    found = []
    for part in parts(array):
        if part.dtype.kind == "U":
            empty = part == ""
        else:
            empty = ~np.isfinite(part) if tabular else np.isnan(part)
        found.append(empty.any(axis=tuple(range(1, empty.ndim))))
    return np.concatenate(found) if found else None


def _refuse(data: Arrays, gaps: dict[str, npt.NDArray[np.bool_]]) -> None:
    name = min(gaps, key=lambda one: int(gaps[one].argmax()))
    count = max(int(rows.sum()) for rows in gaps.values())
    first = int(gaps[name].argmax())
    sample = data.values[name][first : first + 1]
    what = "finite value" if sample.dtype.kind == "f" and np.isinf(sample).any() else "value"
    place = f"column '{name}'" if data.tabular else f"array '{name}'"
    raise FeedError(
        f"'{data.source}' has no {what} in {place} of sample {first + 1}; at least {count} of "
        f"{len(gaps[name])} samples lack one\n"
        "  add  --missing drop  to leave such samples out, fill them in the file, or leave out the "
        f"{'column' if data.tabular else 'array'} with  {flag('--ignore', name)}\n"
        "  a model that knows NaN gets it with  --missing keep"
    )
