"""Which array feeds which input, in the input's own type and shape."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from onnxtrain.data.read import Array, Arrays
from onnxtrain.errors import FeedError

LABELS = ("labels", "label", "target", "targets", "y")
"""Names under which data files keep what a model should answer."""


@dataclasses.dataclass(frozen=True)
class Slot:
    """An input that wants an array.

    Attributes:
        name: Name of the input.
        dtype: Its element type.
        shape: Its dimensions, the batch first; None where a dimension is free.
        aliases: Other names that an array for it may have.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...] | None = None
    aliases: tuple[str, ...] = ()


def bind(
    data: Arrays, slots: Sequence[Slot], chosen: Mapping[str, str] | None = None
) -> dict[str, Array]:
    """An array for every slot.

    An array is found by the user's choice, by the slot's name, by its aliases, from numbered
    columns (``x_0``, ``x_1``), or because one slot and one array (or only columns) are left.

    Args:
        data: The arrays.
        slots: What must be fed.
        chosen: Names of arrays by names of slots, where the user says so.

    Raises:
        FeedError: if a slot stays empty, or an array fits neither its type nor its shape.
    """
    chosen = dict(chosen or {})
    if unknown := sorted(chosen.keys() - {slot.name for slot in slots}):
        raise FeedError(
            f"the model has no input {unknown[0]!r}\n"
            f"  inputs  {', '.join(slot.name for slot in slots)}"
        )
    left = dict(data.values)
    found: dict[str, Array] = {}
    for slot in slots:
        array = _named(slot, left, chosen.get(slot.name), data)
        if array is not None:
            found[slot.name] = array
    empty = [slot for slot in slots if slot.name not in found]
    if len(empty) == 1 and (array := _rest(left, data.tabular)) is not None:
        found[empty[0].name] = array
        empty = []
    if empty:
        _explain(empty, data, left)
    fitted = {slot.name: _fit(slot, found[slot.name]) for slot in slots}
    _check_lengths(fitted, data)
    return fitted


def _named(slot: Slot, left: dict[str, Array], chosen: str | None, data: Arrays) -> Array | None:
    """The array that goes by the slot's name, taken out of those left."""
    if chosen is not None:
        array = _take(chosen, left, data.tabular)
        if array is None:
            raise FeedError(
                f"there is no array {chosen!r} for input '{slot.name}' in '{data.source}'\n"
                f"  have  {', '.join(data.values)}"
            )
        return array
    for name in (slot.name, *slot.aliases):
        array = _take(name, left, data.tabular)
        if array is not None:
            return array
    return None


def _take(name: str, left: dict[str, Array], tabular: bool) -> Array | None:
    if name in left:
        return left.pop(name)
    if not tabular:
        return None
    numbered = {
        int(match[1]): column
        for column in left
        if (match := re.fullmatch(re.escape(name) + r"[_.\[]?(\d+)\]?", column))
    }
    if not numbered:
        return None
    return np.stack([left.pop(numbered[i]) for i in sorted(numbered)], axis=1)


def _rest(left: dict[str, Array], tabular: bool) -> Array | None:
    """All that nobody named, if it can only be meant for the one slot that is empty."""
    if tabular and left:
        return np.stack(list(left.values()), axis=1)
    return next(iter(left.values())) if len(left) == 1 else None


def _explain(empty: Sequence[Slot], data: Arrays, left: Mapping[str, Array]) -> None:
    wanted = ", ".join(repr(slot.name) for slot in empty)
    raise FeedError(
        f"no data for {wanted} in '{data.source}'\n"
        f"  have     {', '.join(data.values) or 'nothing'}\n"
        f"  not used {', '.join(left) or 'nothing'}\n"
        f"  name the array like the input, or say which one with --map {empty[0].name}=ARRAY"
    )


def _fit(slot: Slot, array: Array) -> Array:
    """The array in the slot's type and shape; nothing is lost on the way."""
    if array.ndim == 0:
        raise FeedError(
            f"the array for '{slot.name}' is a single number; its first axis must count samples"
        )
    return np.ascontiguousarray(_reshaped(slot, _cast(slot, array)))


def _cast(slot: Slot, array: Array) -> Array:
    if array.dtype == slot.dtype:
        return array
    if array.dtype.kind not in "biuf" and array.dtype.kind != "V":
        raise FeedError(f"the array for '{slot.name}' has type {array.dtype}, not numbers")
    with np.errstate(invalid="ignore", over="ignore"):
        cast = array.astype(slot.dtype)
    if slot.dtype.kind in "iub" and not np.array_equal(cast.astype(array.dtype), array):
        raise FeedError(
            f"the array for '{slot.name}' has values that are no {slot.dtype}\n"
            f"  it is {array.dtype}, from {array.min()} to {array.max()}"
        )
    return cast


def _reshaped(slot: Slot, array: Array) -> Array:
    """Give every sample the slot's shape, if that only regroups its elements."""
    if slot.shape is None:
        return array
    wanted = slot.shape[1:]
    have = array.shape[1:]
    fits = len(wanted) == len(have) and all(
        want is None or want == size for want, size in zip(wanted, have, strict=True)
    )
    if fits:
        return array
    size = int(np.prod(have, dtype=np.int64))
    free = [i for i, want in enumerate(wanted) if want is None]
    known = int(np.prod([want for want in wanted if want is not None], dtype=np.int64))
    if not free and known == size:
        return array.reshape(len(array), *[want for want in wanted if want is not None])
    shown = ", ".join("?" if want is None else str(want) for want in wanted)
    raise FeedError(
        f"the array for '{slot.name}' has samples of shape {list(have)}, the model wants [{shown}]"
    )


def _check_lengths(arrays: Mapping[str, Array], data: Arrays) -> None:
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1 or 0 in lengths.values():
        shown = ", ".join(f"{name}: {count}" for name, count in lengths.items())
        raise FeedError(
            f"the arrays of '{data.source}' must all have the same number of samples, "
            f"at least one\n  have  {shown}"
        )
