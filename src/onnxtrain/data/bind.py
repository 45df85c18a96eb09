"""Which array feeds which input."""

from __future__ import annotations

import dataclasses
import difflib
import fnmatch
import math
import re
from collections.abc import Iterable, Mapping, Sequence

from onnxtrain.data.arrays import LABELS, Arrays, Samples, Slot, flag
from onnxtrain.data.fitting import Classes, fit
from onnxtrain.data.lazy import beside
from onnxtrain.errors import FeedError


@dataclasses.dataclass(frozen=True)
class Found:
    """An array for a slot, and the columns that it was joined from, if it was."""

    array: Samples
    columns: tuple[str, ...] = ()


def bind(
    data: Arrays,
    slots: Sequence[Slot],
    chosen: Mapping[str, str] | None = None,
    classes: Classes | None = None,
) -> dict[str, Samples]:
    """An array for every slot.

    An array is found by the user's choice, by the slot's name, by its aliases, from numbered
    columns (``x_0``, ``x_1``), or because one slot and one array (or only columns) are left.

    Args:
        data: The arrays.
        slots: What must be fed.
        chosen: Names of arrays by names of slots, where the user says so; of a table also several
            columns, as ``a,b,c``, and patterns such as ``f*``.
        classes: What words mean. Words of a slot that is not in it are numbered in alphabetical
            order and added, so that other data can be read in the same way.

    Raises:
        FeedError: if a slot stays empty, or an array fits neither its type nor its shape.
    """
    chosen = _by_slot(chosen or {}, slots)
    if unknown := sorted(chosen.keys() - {slot.name for slot in slots}):
        raise FeedError(
            f"the model has no input {unknown[0]!r}\n"
            f"  inputs  {', '.join(slot.name for slot in slots)}"
            + _meant(unknown[0], [slot.name for slot in slots], "--map ", "=ARRAY")
        )
    left = dict(data.values)
    found = {name: _chosen(name, array, data, left) for name, array in chosen.items()}
    for slot in slots:
        if slot.name not in found and (named := _named(slot, data, left, chosen)) is not None:
            found[slot.name] = named
    empty = [slot for slot in slots if slot.name not in found]
    if len(empty) == 1 and (rest := _rest(left, data.tabular)) is not None:
        found[empty[0].name] = rest
        empty = []
    if empty:
        _explain(empty, data, left)
    words = {} if classes is None else classes
    fitted = {
        slot.name: fit(slot, found[slot.name].array, found[slot.name].columns, words)
        for slot in slots
    }
    _check_lengths(fitted, data)
    return fitted


def _by_slot(chosen: Mapping[str, str], slots: Sequence[Slot]) -> dict[str, str]:
    """Choices by name of the slot, where one may be called by another of its names."""
    names = {slot.name for slot in slots}
    others = {other: slot.name for slot in slots for other in slot.aliases if other not in names}
    return {others.get(name, name): array for name, array in chosen.items()}


def _meant(name: str, known: Iterable[str], before: str, behind: str = "") -> str:
    """A line with what was probably meant, if something is near enough."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"\n  did you mean  {before}{close[0]}{behind}" if close else ""


def _chosen(slot: str, name: str, data: Arrays, left: dict[str, Samples]) -> Found:
    """The array that the user names for a slot; one array may feed several slots."""
    listed = _listed(name, data)
    if listed:
        for one in listed:
            left.pop(one, None)
        return _joined({one: data.values[one] for one in listed})
    found = _take(name, dict(data.values), data.tabular)
    if found is None:
        raise FeedError(
            f"there is no array {name!r} for input '{slot}' in '{data.source}'\n"
            f"  have  {', '.join(data.values)}" + _meant(name, data.values, f"--map {slot}=")
        )
    _take(name, left, data.tabular)
    return found


def _listed(name: str, data: Arrays) -> list[str]:
    """The columns that ``a,b,f*`` names; none if it is no such list."""
    if name in data.values or not data.tabular or not set(name) & set(",*?"):
        return []
    listed: list[str] = []
    for part in (part.strip() for part in name.split(",")):
        matching = [c for c in data.values if c == part or fnmatch.fnmatchcase(c, part)]
        if not matching:
            raise FeedError(
                f"there is no column {part!r} in '{data.source}'\n"
                f"  have  {', '.join(data.values)}" + _meant(part, data.values, "")
            )
        listed += [column for column in matching if column not in listed]
    return listed


def _named(
    slot: Slot, data: Arrays, left: dict[str, Samples], chosen: Mapping[str, str]
) -> Found | None:
    """The array that has the name of a slot, or one of its aliases."""
    for name in (slot.name, *slot.aliases):
        among = dict(data.values) if name in chosen.values() else left
        found = _take(name, among, data.tabular)
        if found is not None:
            return found
    return None


def _take(name: str, left: dict[str, Samples], tabular: bool) -> Found | None:
    if name in left:
        return Found(left.pop(name), (name,) if tabular else ())
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


def _joined(columns: Mapping[str, Samples]) -> Found:
    """Columns side by side."""
    names = tuple(columns)
    if len(columns) == 1:
        (only,) = columns.values()
        if only.ndim == 1 and only.dtype.kind != "U":
            only = beside([only])
        return Found(only, names)
    if words := [name for name, column in columns.items() if column.dtype.kind == "U"]:
        raise FeedError(
            f"column '{words[0]}' has words, the model wants numbers\n"
            f"  leave it out with  {flag('--ignore', words[0])}\n"
            f"  or, if it is what the model should tell,  {flag('--map', f'labels={words[0]}')}"
        )
    if wide := [name for name, column in columns.items() if column.ndim > 1]:
        raise FeedError(
            f"column '{wide[0]}' has lists, and is not the only one that is left\n"
            "  say which column feeds which input with --map INPUT=COLUMN, or leave out others "
            "with --ignore COLUMN"
        )
    return Found(beside(list(columns.values())), names)


def _rest(left: dict[str, Samples], tabular: bool) -> Found | None:
    """All that nobody named, if it can only be meant for the one slot that is empty."""
    if tabular and left:
        return _joined(left)
    return Found(next(iter(left.values()))) if len(left) == 1 else None


def _explain(empty: Sequence[Slot], data: Arrays, left: Mapping[str, Samples]) -> None:
    """Say what is missing, and which array could be meant."""
    wanted = ", ".join(repr(slot.name) for slot in empty)
    targets = [slot for slot in empty if slot.aliases]
    what = "columns" if data.tabular else "arrays"
    called = f"; targets are found if they are called {', '.join(LABELS)}" if targets else ""
    raise FeedError(
        f"no data for {wanted} in '{data.source}'\n"
        f"  {what:8} {', '.join(data.values) or 'none'}\n"
        f"  not used {', '.join(left) or 'none'}\n"
        f"  say which one it is with  {_guess(empty, data, left)}{called}"
    )


def _guess(empty: Sequence[Slot], data: Arrays, left: Mapping[str, Samples]) -> str:
    """What to type for slots that found nothing: targets stand last, or are words."""
    targets = [slot for slot in empty if slot.aliases]
    words = [name for name, array in left.items() if array.dtype.kind == "U"]
    if targets and left:
        count = 1 if words else _width(targets[0])
        columns = (words or list(left))[-count:] if data.tabular else [(words or list(left))[-1]]
        return flag("--map", f"{targets[0].name}={','.join(columns)}")
    widths = [_width(slot) for slot in empty]
    names = list(left)
    if not data.tabular or sum(widths) > len(names):
        return flag("--map", f"{empty[0].name}={next(iter(left), 'ARRAY')}")
    guesses = []
    for slot, width in zip(empty, widths, strict=True):
        guesses.append(flag("--map", f"{slot.name}={','.join(names[:width])}"))
        names = names[width:]
    return " ".join(guesses)


def _width(slot: Slot) -> int:
    """Columns that a slot takes, as far as its shape tells."""
    sizes = slot.shape[1:] if slot.shape is not None else ()
    return max(1, math.prod(size or 1 for size in sizes))


def _check_lengths(arrays: Mapping[str, Samples], data: Arrays) -> None:
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1 or 0 in lengths.values():
        shown = ", ".join(f"{name}: {count}" for name, count in lengths.items())
        raise FeedError(
            f"the arrays of '{data.source}' must all have the same number of samples, "
            f"at least one\n  have  {shown}"
        )
