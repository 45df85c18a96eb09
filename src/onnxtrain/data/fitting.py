"""An array in the type and the shape of the input that takes it; nothing is lost on the way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from onnxtrain.data.arrays import Array, Samples, Slot, flag
from onnxtrain.data.lazy import Rows, parts
from onnxtrain.errors import FeedError

Classes = dict[str, list[str]]
"""Words that stand for classes, in the order of the classes, by slot."""
NO_FEATURES = ("id", "index", "idx", "row", "column_1", "unnamed: 0", "uid", "uuid", "number")
"""Names of columns that count rows, in small letters."""


def fit(slot: Slot, array: Samples, columns: Sequence[str], classes: Classes) -> Samples:
    """The array for a slot.

    Args:
        slot: What is to be fed.
        array: What was found for it.
        columns: Names of the columns that the array was joined from; empty for a whole array.
        classes: What words mean; new words are added.

    Raises:
        FeedError: if it does not fit.
    """
    if array.ndim == 0:
        raise FeedError(
            f"the array for '{slot.name}' is a single number; its first axis must count samples\n"
            f"  name another array with --map {slot.name}=ARRAY"
        )
    if array.dtype.kind == "U" and slot.dtype.kind in "iu" and _wants_more(slot, array):
        raise FeedError(_text_for_tokens(slot, array))
    if array.dtype.kind == "U" and (slot.dtype.kind in "iu" or slot.words):
        array = _numbered(slot, array, classes)
    array = _reshaped(slot, _cast(slot, array, columns), columns)
    return array if isinstance(array, Rows) else np.ascontiguousarray(array)


def _numbered(slot: Slot, words: Samples, classes: Classes) -> Samples:
    """The number of each word's class."""
    seen = np.unique(np.concatenate([np.unique(part) for part in parts(words)]))
    known = classes.setdefault(slot.name, [str(word) for word in seen])
    if slot.words and len(known) > slot.words:
        raise FeedError(
            f"'{slot.name}' takes {slot.words} words, one for no and one for yes, the data has "
            f"{len(known)}: {', '.join(known[:6])}\n"
            f"  a model with {len(known)} scores for a sample learns them with --loss cross_entropy"
        )
    if unknown := sorted(set(seen.tolist()) - set(known)):
        raise FeedError(
            f"'{unknown[0]}' is no class of '{slot.name}'\n  classes  {', '.join(known)}"
        )
    numbers = np.argsort(known)
    ordered = np.array(known)[numbers]
    if isinstance(words, Rows):
        return words.changed(
            lambda part: numbers[np.searchsorted(ordered, part)], words.shape, numbers.dtype
        )
    return numbers[np.searchsorted(ordered, words)]


def _wants_more(slot: Slot, array: Samples) -> bool:
    """Whether a slot wants several values where an array has one."""
    return not slot.aliases and any(size != 1 for size in (slot.shape or ())[array.ndim :])


def _text_for_tokens(slot: Slot, array: Samples) -> str:
    return (
        f"the array for '{slot.name}' has text, say '{array[:1].ravel()[0]}', the model wants "
        f"{len(slot.shape or ()) - 1} axes of numbers for a sample\n"
        "  turn the text into numbers first, as the model's tokenizer does, all of one length"
    )


def _cast(slot: Slot, array: Samples, columns: Sequence[str]) -> Samples:
    if array.dtype == slot.dtype:
        return array
    if array.dtype.kind not in "biufV" or array.dtype.names is not None:
        raise FeedError(_no_numbers(slot, array, columns))
    if slot.dtype.kind in "iub":
        for part in parts(array):
            cast = _cast_part(slot, part)
            if not np.array_equal(cast.astype(part.dtype), part) or np.any(
                (cast < 0) != (part < 0)
            ):
                raise FeedError(_no_whole_numbers(slot, part, columns))
    elif _may_overflow(array.dtype, slot.dtype):
        for part in parts(array):
            lost = np.isinf(_cast_part(slot, part)) & np.isfinite(part)
            if lost.any():
                raise FeedError(_too_large(slot, part[lost], columns))
    if isinstance(array, Rows):
        return array.changed(lambda part: _cast_part(slot, part), array.shape, slot.dtype)
    return _cast_part(slot, array)


def _may_overflow(have: np.dtype[Any], want: np.dtype[Any]) -> bool:
    """Whether a number of one type can be too large for another one, of floating point."""
    if have.kind not in "iuf" or want.kind != "f":
        return False
    largest = np.finfo(have).max if have.kind == "f" else np.iinfo(have).max
    return float(largest) > float(np.finfo(want).max)


def _cast_part(slot: Slot, part: Array) -> Array:
    with np.errstate(invalid="ignore", over="ignore"):
        return part.astype(slot.dtype)


def _no_numbers(slot: Slot, array: Samples, columns: Sequence[str]) -> str:
    kind = "words" if array.dtype.kind == "U" else f"type {array.dtype}"
    if columns:
        cure = (
            f"leave out the column with {flag('--ignore', columns[0])}, or replace the words by "
            "numbers"
        )
    else:
        cure = f"replace them by numbers, or name another array with --map {slot.name}=ARRAY"
    if slot.aliases and array.dtype.kind == "U":
        cure = "words are classes, which  --loss cross_entropy  learns, or two of them  --loss bce"
    shown = f", say '{array[:1].ravel()[0]}'" if array.dtype.kind == "U" else ""
    return (
        f"the array for '{slot.name}' has {kind}, not numbers{shown}\n"
        f"  the model takes {slot.dtype}: {cure}"
    )


def _too_large(slot: Slot, lost: Array, columns: Sequence[str]) -> str:
    source = f"column '{columns[0]}'" if len(columns) == 1 else "the array"
    return (
        f"{source} for '{slot.name}' has {lost[0]:g}, which {slot.dtype} cannot hold\n"
        f"  scale the numbers, or name another array with --map {slot.name}=ARRAY"
    )


def _no_whole_numbers(slot: Slot, part: Array, columns: Sequence[str]) -> str:
    source = f"column '{columns[0]}'" if len(columns) == 1 else "the array"
    text = (
        f"{source} for '{slot.name}' has values that are no {slot.dtype}\n"
        f"  it is {part.dtype}, from {part.min()} to {part.max()}\n"
        f"  if that is not what '{slot.name}' should get, name the right array with "
        f"--map {slot.name}=ARRAY"
    )
    if slot.aliases:
        text += "\n  classes are whole numbers; to learn other numbers use --loss mse"
    return text


def _reshaped(slot: Slot, array: Samples, columns: Sequence[str]) -> Samples:
    """Give every sample the slot's shape, if that only regroups its elements."""
    if slot.shape is None:
        return array
    want, have = slot.shape[1:], tuple(array.shape[1:])
    if len(want) == len(have) and all(w in (None, h) for w, h in zip(want, have, strict=True)):
        return array
    known = [size for size in want if size is not None]
    moved = _other_layout(want, have)
    same = int(np.prod(have, dtype=np.int64)) == int(np.prod(known, dtype=np.int64))
    if not moved and len(known) == len(want) and same:
        if isinstance(array, Rows):
            return array.changed(
                lambda part: part.reshape(len(part), *known), (len(array), *known), array.dtype
            )
        return array.reshape(len(array), *known)
    shown = ", ".join("?" if size is None else str(size) for size in want)
    raise FeedError(
        f"the array for '{slot.name}' has samples of shape {list(have)}, the model wants "
        f"[{shown}]\n  " + (moved or _shape_cure(slot, want, have, columns))
    )


def _shape_cure(
    slot: Slot, want: Sequence[int | None], have: Sequence[int], columns: Sequence[str]
) -> str:
    """What to type where samples have another size."""
    if slot.aliases and len(have) == 1 and (not want or None in want):
        return (
            "classes are one number a sample: save array.argmax(axis=1), or use --loss mse to "
            f"learn {have[0]} numbers"
        )
    if slot.aliases and not have and len(want) == 1 and want[0] is not None:
        return (
            f"the model gives {want[0]} numbers a sample: for classes 0 to {want[0] - 1} use "
            f"--loss cross_entropy, otherwise give {want[0]} columns {slot.name}_0 to "
            f"{slot.name}_{want[0] - 1}"
        )
    if len(columns) > 1 and len(want) == 1 and want[0] is not None:
        return _column_cure(slot, want[0], columns)
    if len(columns) > 1 and len(want) == 3:
        return (
            "the model takes images: give a folder with one folder a class, or an .npz file with "
            f"an array '{slot.name}'"
        )
    if len(want) > len(have):
        sizes = ", ".join("length" if size is None else str(size) for size in want)
        return (
            f"give an .npz file with an array '{slot.name}' of shape (samples, {sizes}), or lists "
            "in a .jsonl file"
        )
    return f"if it is meant for another input, say so with --map {slot.name}=ARRAY"


def _column_cure(slot: Slot, want: int, columns: Sequence[str]) -> str:
    some = ", ".join(columns[:12]) + (", ..." if len(columns) > 12 else "")
    if len(columns) < want:
        return (
            f"it is made of the {len(columns)} columns  {some}\n"
            f"  add {want - len(columns)} to the file, or take a model with {len(columns)} inputs"
        )
    extra = [name for name in columns if name.lower() in NO_FEATURES] or [columns[-1]]
    extra = extra[: len(columns) - want]
    listed = ",".join([name for name in columns if name not in extra][:want])
    return (
        f"it is made of the {len(columns)} columns  {some}\n"
        f"  leave out {len(columns) - want} with  {' '.join(flag('--ignore', n) for n in extra)}  "
        f"or name {want} with  {flag('--map', f'{slot.name}={listed}')}"
    )


def _other_layout(want: Sequence[int | None], have: Sequence[int]) -> str:
    """The cure where the axes only stand in another order, nothing where they do not."""
    if len(have) == len(want) == 3 and None not in want:
        for order in ((2, 0, 1), (1, 2, 0)):
            if tuple(have[i] for i in order) == tuple(want):
                axes = (0, *(i + 1 for i in order))
                return f"the axes stand in another order: save array.transpose{axes}"
    return ""
