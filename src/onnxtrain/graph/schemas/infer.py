"""Rules that tables share: an output's type is an element type and a shape, each from somewhere."""

from __future__ import annotations

import math
from collections.abc import Callable

import onnx

from onnxtrain.graph.schemas.facts import UNKNOWN, Dim, Facts, Rule, Shape, tensor_type
from onnxtrain.types import DataType

MAX_RANK = 64
"""Longer shapes in a file are taken for damage, not believed."""
Elem = Callable[[Facts, int], int]
"""Element type of the output with the given index."""
Dims = Callable[[Facts, int], Shape | None]
"""Shape of the output with the given index, or None if its rank is unknown."""


def typed(elem: Elem, dims: Dims) -> Rule:
    """A tensor whose element type and shape come from different places."""

    def rule(facts: Facts, output: int) -> onnx.TypeProto | None:
        return tensor_type(elem(facts, output), dims(facts, output))

    return rule


def same_as(index: int) -> Rule:
    """The whole type of one input, sequences included."""
    return lambda facts, output: facts.type(index)


def same_as_each(offset: int = 0) -> Rule:
    """Output k has the type of input k + offset."""
    return lambda facts, output: facts.type(output + offset)


def of(index: int) -> Elem:
    """Element type of one input."""
    return lambda facts, output: facts.dtype(index)


def fixed(dtype: DataType) -> Elem:
    """Always the same element type."""
    return lambda facts, output: int(dtype)


def from_attribute(name: str, otherwise: Elem | None = None) -> Elem:
    """Element type named by an int attribute, else another one."""

    def elem(facts: Facts, output: int) -> int:
        dtype = facts.integer(name)
        if dtype is not None:
            return dtype
        return UNKNOWN if otherwise is None else otherwise(facts, output)

    return elem


def from_list(name: str, first: int = 0) -> Elem:
    """Element types listed in an attribute; its first entry belongs to output ``first``."""

    def elem(facts: Facts, output: int) -> int:
        dtypes = facts.integers(name)
        position = output - first
        return dtypes[position] if 0 <= position < len(dtypes) else UNKNOWN

    return elem


def shape_of(index: int) -> Dims:
    """Shape of one input."""
    return lambda facts, output: facts.shape(index)


def fixed_shape(*dims: Dim) -> Dims:
    """Always the same shape; a None stands for an unknown size."""
    return lambda facts, output: dims


def any_shape(facts: Facts, output: int) -> Shape | None:
    """Nothing is known, not even the rank."""
    return None


def given_by(index: int) -> Dims:
    """The shape is the content of an input; if that is unknown, its length is still the rank."""
    return lambda facts, output: content(facts, index)


def given_by_each(offset: int) -> Dims:
    """Shape of output k is the content of input k + offset."""
    return lambda facts, output: content(facts, output + offset)


def last_of(index: int) -> Rule:
    """A vector as long as the last axis of one input, of its type."""
    return typed(of(index), lambda facts, output: (at(facts.shape(index), -1),))


def flag(dims: Dims) -> Rule:
    """A tensor of truth values."""
    return typed(fixed(DataType.BOOL), dims)


SCALAR = fixed_shape()
SCALAR_FLAG = flag(SCALAR)


def content(facts: Facts, index: int) -> Shape | None:
    """Shape held by an input, its rank alone, or None."""
    numbers = facts.numbers(index)
    if numbers is not None:
        return numbers
    length = facts.shape(index)
    return of_rank(length[0]) if length is not None and len(length) == 1 else None


def of_rank(rank: Dim) -> Shape | None:
    """A shape of which the rank alone is known, or None if that is no sensible rank."""
    return (None,) * rank if isinstance(rank, int) and 0 <= rank <= MAX_RANK else None


def at(shape: Shape | None, axis: int) -> Dim:
    """One dimension, None if it does not exist or is unknown."""
    if shape is None or not -len(shape) <= axis < len(shape):
        return None
    return shape[axis]


def normalize(axis: int | None, rank: int) -> int | None:
    """An axis counted from the front, or None if there is no such axis."""
    if axis is None or not -rank <= axis < rank:
        return None
    return axis % rank


def times(dim: Dim, factor: int) -> Dim:
    """A multiple of a dimension; symbols have no arithmetic, so theirs is unknown."""
    return dim * factor if isinstance(dim, int) else None


def numel(shape: Shape | None) -> int | None:
    """Number of elements if every dimension is a number."""
    if shape is None:
        return None
    sizes = [dim for dim in shape if isinstance(dim, int)]
    return math.prod(sizes) if len(sizes) == len(shape) else None


def packed(index: int, per_word: int) -> Dims:
    """One dimension with a word for every ``per_word`` elements of an input."""

    def dims(facts: Facts, output: int) -> Shape:
        size = numel(facts.shape(index))
        return (None if size is None else -(-size // per_word),)

    return dims
