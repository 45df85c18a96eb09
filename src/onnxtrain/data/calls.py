"""Data from a Python function of the user, named as ``module:function``."""

from __future__ import annotations

import importlib
import itertools
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from onnxtrain.data.arrays import Array, Arrays, Slot
from onnxtrain.errors import FeedError

_CALL = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_ASKED_FOR: set[str] = set()
"""Modules that users have named."""


def is_call(text: str) -> bool:
    """Whether a text has the form ``module:function``."""
    return _CALL.fullmatch(text) is not None


def find(text: str) -> Callable[..., Any]:
    """The function that a text names; modules are also looked for in the working folder.

    Raises:
        FeedError: if there is none.
    """
    name, _, path = text.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    _ASKED_FOR.add(name)
    try:
        found: Any = importlib.import_module(name)
    except SyntaxError as error:
        raise FeedError(f"module '{name}' of '{text}' cannot be imported: {error}") from error
    except ModuleNotFoundError as error:
        if error.name is None or not name.startswith(error.name):
            raise FeedError(f"module '{name}' of '{text}' cannot be imported: {error}") from error
        raise FeedError(
            f"there is no module '{name}' for '{text}'\n"
            f"  write {name.replace('.', '/')}.py in this folder, or install it"
        ) from None
    for part in path.split("."):
        if not hasattr(found, part):
            have = [n for n, v in vars(found).items() if callable(v) and not n.startswith("_")]
            raise FeedError(
                f"module '{name}' has no '{path}'\n  have  {', '.join(have[:12]) or 'nothing'}"
            )
        found = getattr(found, part)
    if not callable(found):
        raise FeedError(f"'{text}' is a {type(found).__name__}, not a function")
    function: Callable[..., Any] = found
    return function


def place_of(error: BaseException) -> str | None:
    """Where an error left a module that a user has named; none if it comes from elsewhere."""
    frames = list(traceback.walk_tb(error.__traceback__))
    own = [
        i for i, (frame, _) in enumerate(frames) if frame.f_globals.get("__name__") in _ASKED_FOR
    ]
    if not own:
        return None
    found = traceback.extract_tb(error.__traceback__)[own[-1]]
    return f"{os.path.relpath(found.filename)}:{found.lineno}, in {found.name}:  {found.line}"


def read(text: str, slots: Sequence[Slot]) -> Arrays:
    """Call a function and keep what it gives.

    It gives arrays by name, a tuple of arrays in the order of the slots, a torch Dataset, or
    something to iterate over that gives dicts or tuples, each for one sample or for a batch.

    Raises:
        FeedError: if it gives something else, or nothing.
    """
    given = find(text)()
    if isinstance(given, Mapping):
        return Arrays({str(k): _array(v) for k, v in given.items()}, False, text)
    if isinstance(given, tuple) and given and all(hasattr(v, "shape") for v in given):
        return Arrays(_named(text, given, slots), False, text)
    items = [_named(text, item, slots) for item in _iterated(text, given)]
    if not items:
        raise FeedError(f"'{text}' gave no data")
    join = np.concatenate if _are_batches(items[0], slots) else np.stack
    try:
        values = {name: join([item[name] for item in items]) for name in items[0]}
    except KeyError as error:
        raise FeedError(f"'{text}' gave {error} at first, and not every time") from None
    except ValueError as error:
        raise FeedError(f"what '{text}' gave does not fit together: {error}") from error
    return Arrays(values, False, text)


def _iterated(text: str, given: Any) -> Iterable[Any]:
    """The items of a Dataset, whose end its length tells, or of anything iterable."""
    if hasattr(given, "__getitem__") and hasattr(given, "__len__"):
        return (given[i] for i in range(len(given)))
    if isinstance(given, Iterable):
        return given
    raise FeedError(
        f"'{text}' gave a {type(given).__name__}\n"
        "  give a dict of arrays, a torch Dataset, or yield dicts or tuples"
    )


def _named(text: str, item: Any, slots: Sequence[Slot]) -> dict[str, Array]:
    """The arrays of an item by name; a tuple has them in the order of the slots."""
    if isinstance(item, Mapping):
        return {str(name): _array(value) for name, value in item.items()}
    if not isinstance(item, (tuple, list)):
        item = (item,)
    if len(item) != len(slots):
        raise FeedError(
            f"'{text}' gave {len(item)} values at a time, the model takes {len(slots)}\n"
            f"  give  ({', '.join(slot.name for slot in slots)}), or a dict with these names"
        )
    return {slot.name: _array(value) for slot, value in zip(slots, item, strict=True)}


def _are_batches(item: Mapping[str, Array], slots: Sequence[Slot]) -> bool:
    """Whether the arrays have an axis for samples, as the slots have."""
    ranks = {slot.name: len(slot.shape) for slot in slots if slot.shape is not None}
    both = [(array.ndim, ranks[name]) for name, array in item.items() if name in ranks]
    if both:
        return all(have >= want for have, want in both)
    return all(array.ndim for array in itertools.islice(item.values(), 1))


def _array(value: Any) -> Array:
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    return np.asarray(value)
