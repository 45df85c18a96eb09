"""Arguments of an autograd function, put together from a node's tensors and its constants."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from onnxtrain.kernels.interop.registry import registered_object

CONVERT: dict[str, Callable[[Any], Any]] = {
    "bool": bool,
    "int": int,
    "float": float,
    "pointer": registered_object,
}
TENSOR, CONSTANT = "d", "c"
"""Marks of a convention: what an argument of the function is."""


def put_together(
    convention: str, tensors: Sequence[Any], constants: Mapping[str, Sequence[Any]]
) -> list[Any]:
    """The arguments in order: constants at their positions, tensors at the others.

    Args:
        convention: A ``d`` for each tensor argument, a ``c`` for each constant.
        tensors: The tensors in order.
        constants: The attributes ``input_<kind>_scalars``, ``input_<kind>_scalar_positions``,
            ``input_<kind>_tuples``, ``..._tuple_positions`` and ``..._tuple_begins``.

    Raises:
        ValueError: if the convention, the tensors and the constants contradict each other.
    """
    placed: dict[int, Any] = {}
    known: set[str] = set()
    for kind, convert in CONVERT.items():
        names = [f"input_{kind}_scalars", f"input_{kind}_scalar_positions"]
        values, positions = (constants.get(name, ()) for name in names)
        _check_pairs(names, values, positions)
        placed.update(zip(positions, map(convert, values), strict=True))
        known.update(names)
        names = [f"input_{kind}_tuple{end}" for end in ("s", "_positions", "_begins")]
        values, positions, begins = (constants.get(name, ()) for name in names)
        _check_pairs(names[1:], positions, begins)
        ends = itertools.pairwise([*begins, len(values)])
        tuples = [tuple(map(convert, values[begin:end])) for begin, end in ends]
        placed.update(zip(positions, tuples, strict=True))
        known.update(names)
    if unknown := sorted(constants.keys() - known):
        raise ValueError(f"attribute '{unknown[0]}' is unknown")
    return _filled(convention, tensors, placed)


def _check_pairs(names: Sequence[str], first: Sequence[Any], second: Sequence[Any]) -> None:
    if len(first) != len(second):
        raise ValueError(f"{names[0]} has {len(first)} entries, {names[1]} has {len(second)}")


def _filled(convention: str, tensors: Sequence[Any], placed: Mapping[int, Any]) -> list[Any]:
    open_ = [index for index in range(len(convention)) if index not in placed]
    wanted = [index for index, mark in enumerate(convention) if mark == TENSOR]
    if set(convention) - {TENSOR, CONSTANT} or open_ != wanted or len(open_) != len(tensors):
        raise ValueError(
            f"input_convention '{convention}' does not fit {len(tensors)} tensors and constants "
            f"at positions {sorted(placed)}"
        )
    given = iter(tensors)
    return [placed[i] if i in placed else next(given) for i in range(len(convention))]
