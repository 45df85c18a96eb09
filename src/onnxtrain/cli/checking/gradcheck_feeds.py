"""What a checked model is fed: arrays of a file, and numbers made up for the rest."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from onnxtrain.cli.checking.checked_model import Array, CheckedModel
from onnxtrain.data import read
from onnxtrain.data.arrays import LABELS
from onnxtrain.errors import FeedError
from onnxtrain.runtime.session import InferenceSession
from onnxtrain.testing.drawing import draw, draw_feeds
from onnxtrain.types import TEXT, type_string

_WORDS = "OSUcmM"
"""Kinds of arrays whose values are no numbers as models have them."""


def feeds_for(
    made: CheckedModel, path: pathlib.Path | None, rows: int | None, size: int | None, seed: int
) -> dict[str, Array]:
    """Values of all inputs, the parameters among them.

    Args:
        made: The model.
        path: File of arrays, or None.
        rows: How many rows of each array are taken; None for all.
        size: Size of free dimensions of inputs that are made up; None tries some that fit.
        seed: Seed of made-up numbers.

    Raises:
        FeedError: if an array fits no input, or no made-up inputs fit the model.
    """
    given = {} if path is None else _given(_arrays(path), rows, made.data, path)
    known = {**made.parameters, **given}
    missing = [value for name, value in made.data.items() if name not in given]
    if size is not None:
        rng, sizes = np.random.default_rng(seed), size
        return known | {str(v.name): draw(v, lambda _: sizes, rng) for v in missing}
    for value in missing:
        draw(value, lambda _: 1, np.random.default_rng(seed))
    session = InferenceSession(made.model)
    return draw_feeds(made.model, lambda feeds: session.run(None, feeds), seed=seed, given=known)


def _arrays(path: pathlib.Path) -> dict[str, Array]:
    return {name: np.asarray(array) for name, array in read(path).values.items()}


def _given(
    arrays: Mapping[str, Array],
    rows: int | None,
    inputs: Mapping[str, ir.Value],
    path: pathlib.Path,
) -> dict[str, Array]:
    """Arrays by input; targets, which a file for ``fit`` has as well, are left out."""
    arrays = {n: array for n, array in arrays.items() if n in inputs or n not in LABELS}
    if unknown := sorted(arrays.keys() - inputs.keys()):
        raise FeedError(
            f"the model has no input '{unknown[0]}' for the array of '{path}'\n"
            f"  inputs  {', '.join(inputs) or 'none'}"
        )
    return {name: _fitting(inputs[name], array[:rows]) for name, array in arrays.items()}


def _fitting(value: ir.Value, array: Array) -> Array:
    """An array in the type of an input; numbers with a fraction are not taken for whole ones."""
    if value.dtype is None or not isinstance(value.type, ir.TensorType):
        raise FeedError(
            f"input '{value.name}' is {type_string(value.type)}; it cannot be fed from a file"
        )
    if array.dtype.kind in _WORDS and value.dtype not in TEXT:
        raise FeedError(
            f"input '{value.name}' is {type_string(value.type)}, its array in the file has type "
            f"{array.dtype}\n  replace what is no number by numbers"
        )
    made = array.astype(value.dtype.numpy())
    if made.dtype.kind != "f" and not np.array_equal(made, array):
        raise FeedError(f"input '{value.name}' is {type_string(value.type)}, not {array.dtype}")
    return made
