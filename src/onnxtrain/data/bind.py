"""Which array feeds which input, in the input's own type and shape."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from onnxtrain.data.arrays import Array, Arrays, Slot
from onnxtrain.errors import FeedError

Classes = dict[str, list[str]]
"""Words that stand for classes, in the order of the classes, by slot."""


def bind(
    data: Arrays,
    slots: Sequence[Slot],
    chosen: Mapping[str, str] | None = None,
    classes: Classes | None = None,
) -> dict[str, Array]:
    """An array for every slot.

    An array is found by the user's choice, by the slot's name, by its aliases, from numbered
    columns (``x_0``, ``x_1``), or because one slot and one array (or only columns) are left.

    Args:
        data: The arrays.
        slots: What must be fed.
        chosen: Names of arrays by names of slots, where the user says so.
        classes: What words mean. Words of a slot that is not in it are numbered in alphabetical
            order and added, so that other data can be read in the same way.

    Raises:
        FeedError: if a slot stays empty, or an array fits neither its type nor its shape.
    """
    chosen = dict(chosen or {})
    if unknown := sorted(chosen.keys() - {slot.name for slot in slots}):
        raise FeedError(
            f"the model has no input {unknown[0]!r}\n"
            f"  inputs  {', '.join(slot.name for slot in slots)}"
            + _meant(unknown[0], [slot.name for slot in slots], "--map ", "=ARRAY")
        )
    left = dict(data.values)
    found = {name: _chosen(name, array, data, left) for name, array in chosen.items()}
    for slot in slots:
        if slot.name in found:
            continue
        for name in (slot.name, *slot.aliases):
            array = _take(
                name, dict(data.values) if name in chosen.values() else left, data.tabular
            )
            if array is not None:
                found[slot.name] = array
                break
    empty = [slot for slot in slots if slot.name not in found]
    if len(empty) == 1 and (array := _rest(left, data.tabular)) is not None:
        found[empty[0].name] = array
        empty = []
    if empty:
        _explain(empty, data, left)
    words = {} if classes is None else classes
    fitted = {slot.name: _fit(slot, found[slot.name], words) for slot in slots}
    _check_lengths(fitted, data)
    return fitted


def _meant(name: str, known: Iterable[str], before: str, behind: str = "") -> str:
    """A line with what was probably meant, if something is near enough."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"\n  did you mean  {before}{close[0]}{behind}" if close else ""


def _chosen(slot: str, name: str, data: Arrays, left: dict[str, Array]) -> Array:
    """The array that the user names for a slot; one array may feed several slots."""
    array = _take(name, dict(data.values), data.tabular)
    if array is None:
        raise FeedError(
            f"there is no array {name!r} for input '{slot}' in '{data.source}'\n"
            f"  have  {', '.join(data.values)}" + _meant(name, data.values, f"--map {slot}=")
        )
    _take(name, left, data.tabular)
    return array


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
    return _joined({numbered[i]: left.pop(numbered[i]) for i in sorted(numbered)})


def _joined(columns: Mapping[str, Array]) -> Array:
    """Columns side by side."""
    if len(columns) == 1:
        (only,) = columns.values()
        return only if only.ndim > 1 else only[:, None]
    if words := [name for name, column in columns.items() if column.dtype.kind == "U"]:
        raise FeedError(
            f"column '{words[0]}' has words, the model wants numbers\n"
            "  replace the words by numbers, or leave out the column"
        )
    if wide := [name for name, column in columns.items() if column.ndim > 1]:
        raise FeedError(
            f"column '{wide[0]}' has lists, and is not the only one that is left\n"
            "  say which column feeds which input with --map INPUT=COLUMN"
        )
    return np.stack(list(columns.values()), axis=1)


def _rest(left: dict[str, Array], tabular: bool) -> Array | None:
    """All that nobody named, if it can only be meant for the one slot that is empty."""
    if tabular and left:
        return _joined(left)
    return next(iter(left.values())) if len(left) == 1 else None


def _explain(empty: Sequence[Slot], data: Arrays, left: Mapping[str, Array]) -> None:
    wanted = ", ".join(repr(slot.name) for slot in empty)
    raise FeedError(
        f"no data for {wanted} in '{data.source}'\n"
        f"  have     {', '.join(data.values) or 'nothing'}\n"
        f"  not used {', '.join(left) or 'nothing'}\n"
        f"  name the array like the input, or say which one with "
        f"--map {empty[0].name}={next(iter(left), 'ARRAY')}"
    )


def _fit(slot: Slot, array: Array, classes: Classes) -> Array:
    """The array in the slot's type and shape; nothing is lost on the way."""
    if array.ndim == 0:
        raise FeedError(
            f"the array for '{slot.name}' is a single number; its first axis must count samples"
        )
    if array.dtype.kind == "U" and slot.dtype.kind in "iu":
        array = _numbered(slot, array, classes)
    return np.ascontiguousarray(_reshaped(slot, _cast(slot, array)))


def _numbered(slot: Slot, words: Array, classes: Classes) -> Array:
    """The number of each word's class."""
    known = classes.setdefault(slot.name, [str(word) for word in np.unique(words)])
    if unknown := sorted(set(words.ravel().tolist()) - set(known)):
        raise FeedError(
            f"'{unknown[0]}' is no class of '{slot.name}'\n  classes  {', '.join(known)}"
        )
    numbers = {word: number for number, word in enumerate(known)}
    return np.array([numbers[word] for word in words.ravel().tolist()]).reshape(words.shape)


def _cast(slot: Slot, array: Array) -> Array:
    if array.dtype == slot.dtype:
        return array
    if array.dtype.kind not in "biuf" and array.dtype.kind != "V":
        shown = "words" if array.dtype.kind == "U" else f"type {array.dtype}"
        raise FeedError(
            f"the array for '{slot.name}' has {shown}, not numbers\n"
            f"  the model takes {slot.dtype}: replace them by numbers"
        )
    with np.errstate(invalid="ignore", over="ignore"):
        cast = array.astype(slot.dtype)
    if slot.dtype.kind in "iub" and not np.array_equal(cast.astype(array.dtype), array):
        raise FeedError(
            f"the array for '{slot.name}' has values that are no {slot.dtype}\n"
            f"  it is {array.dtype}, from {array.min()} to {array.max()}\n"
            f"  if that is not what '{slot.name}' should get, name the right array with "
            f"--map {slot.name}=ARRAY"
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
    moved = _other_layout(wanted, have)
    if not moved and not free and known == size:
        return array.reshape(len(array), *[want for want in wanted if want is not None])
    shown = ", ".join("?" if want is None else str(want) for want in wanted)
    raise FeedError(
        f"the array for '{slot.name}' has samples of shape {list(have)}, the model wants [{shown}]"
        + (moved or f"\n  if it is meant for another input, say so with --map {slot.name}=ARRAY")
    )


def _other_layout(wanted: Sequence[int | None], have: Sequence[int]) -> str:
    """The cure where the axes only stand in another order, nothing where they do not."""
    if len(have) == len(wanted) == 3 and None not in wanted:
        for order in ((2, 0, 1), (1, 2, 0)):
            if tuple(have[i] for i in order) == tuple(wanted):
                axes = (0, *(i + 1 for i in order))
                return f"\n  the axes stand in another order: save array.transpose{axes}"
    return ""


def _check_lengths(arrays: Mapping[str, Array], data: Arrays) -> None:
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1 or 0 in lengths.values():
        shown = ", ".join(f"{name}: {count}" for name, count in lengths.items())
        raise FeedError(
            f"the arrays of '{data.source}' must all have the same number of samples, "
            f"at least one\n  have  {shown}"
        )
