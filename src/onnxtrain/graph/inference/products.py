"""Which sizes whole numbers are that a graph computes from shapes: numbers, names and products."""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
import operator
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnxtrain.types import ONNX

Dim = int | ir.SymbolicDim
_HANDED_ON = ("Cast", "CastLike", "Identity", "Reshape", "Squeeze", "Unsqueeze")
"""Operators that leave a single number what it is."""
_KEPT = ("Cast", "CastLike", "Identity")
"""Those that leave several what they are."""


@dataclasses.dataclass(frozen=True)
class Product:
    """A number times sizes that have names.

    Attributes:
        number: The number.
        names: The names, in order of the alphabet.
    """

    number: int
    names: tuple[str, ...] = ()

    def __mul__(self, other: Product) -> Product:
        return Product(self.number * other.number, tuple(sorted((*self.names, *other.names))))

    def over(self, other: Product) -> Product | None:
        """This by another, None if it need not come out even."""
        left = collections.Counter(self.names)
        left.subtract(other.names)
        if other.number == 0 or self.number % other.number or any(n < 0 for n in left.values()):
            return None
        return Product(self.number // other.number, tuple(sorted(left.elements())))

    def larger(self, other: Product) -> Product | None:
        """The larger one of two, None if names do not tell which it is."""
        if self.names != other.names:
            return None
        return max(self, other, key=lambda one: one.number)

    @property
    def dim(self) -> Dim | None:
        """The size as shapes hold it, None if they cannot; torch's exporter writes 4*b as well."""
        if not self.names:
            return self.number
        if self.number < 1 or len(set(self.names)) < len(self.names):
            return None
        number = [] if self.number == 1 else [str(self.number)]
        return ir.SymbolicDim("*".join([*number, *self.names]))


Products = Sequence[Product | None]


def multiplied(sizes: Products) -> Product | None:
    """All sizes multiplied, None if one is not known."""
    known = [one for one in sizes if one is not None]
    return functools.reduce(operator.mul, known, Product(1)) if len(known) == len(sizes) else None


def product_of(dim: Dim) -> Product | None:
    """A size of a shape; None if nothing is known of it."""
    if isinstance(dim, int):
        return Product(dim)
    if not dim.value:
        return None
    factors = dim.value.split("*")
    if not all(map(_is_factor, factors)):
        return Product(1, (dim.value,))
    numbers = [int(one) for one in factors if one.isdecimal()]
    return Product(math.prod(numbers), tuple(sorted(f for f in factors if not f.isdecimal())))


def _is_factor(text: str) -> bool:
    return text.isidentifier() or text.isdecimal()


def products_of(value: ir.Value | None, *, fed: bool = False) -> Products | None:
    """What a vector (or a number) of whole numbers holds, as far as known.

    Args:
        value: The vector.
        fed: Whether an input that has a value may be given another one.
    """
    if value is None or (fed and value.is_graph_input()):
        return None
    if value.const_value is not None:
        return _of_constant(value.const_value)
    node = value.producer()
    if node is None or node.domain != ONNX or not node.inputs:
        return None
    if node.op_type == "Shape":
        return _of_shape(node)
    if node.op_type in ("Concat", "Div", "Max", "Mul"):
        parts = [products_of(part, fed=fed) for part in node.inputs]
        known = [part for part in parts if part is not None]
        return _put_together(node.op_type, known) if len(known) == len(parts) else None
    found = products_of(node.inputs[0], fed=fed)
    if found is None:
        return None
    if node.op_type in _HANDED_ON:
        return found if len(found) == 1 or node.op_type in _KEPT else None
    if node.op_type == "ReduceProd":
        return [multiplied(found)]
    if node.op_type == "Gather":
        return _picked(found, integers(node.inputs[1]))
    return _sliced(node, found) if node.op_type == "Slice" else None


def integers(value: ir.Value | None) -> list[int] | None:
    """The whole numbers that a constant holds."""
    if value is None or value.const_value is None:
        return None
    data = value.const_value.numpy()
    return [int(n) for n in data.ravel()] if np.issubdtype(data.dtype, np.integer) else None


def _of_constant(tensor: ir.TensorProtocol) -> Products | None:
    if len(tensor.shape) > 1 or not np.issubdtype(tensor.dtype.numpy(), np.integer):
        return None
    return [Product(int(n)) for n in tensor.numpy().ravel()]


def _of_shape(node: ir.Node) -> Products | None:
    x = node.inputs[0]
    if x is None or x.shape is None:
        return None
    dims, numbers = list(x.shape), node.attributes
    kept = dims[numbers.get_int("start", 0) : numbers.get_int("end", len(dims))]
    return [product_of(dim) for dim in kept]


def _put_together(op_type: str, parts: Sequence[Products]) -> Products | None:
    """Vectors one behind the other, or their products or quotients one by one."""
    if op_type == "Concat":
        return [one for part in parts for one in part]
    size = max(map(len, parts))
    if len(parts) != 2:
        return parts[0] if len(parts) == 1 else None
    a, b = ([*part] * (size if len(part) == 1 else 1) for part in parts)
    if len(a) != len(b):
        return None
    combine = {"Div": Product.over, "Max": Product.larger, "Mul": Product.__mul__}[op_type]
    pairs = zip(a, b, strict=True)
    return [None if x is None or y is None else combine(x, y) for x, y in pairs]


def _picked(found: Products, places: Sequence[int] | None) -> Products | None:
    if places is None:
        return None
    size = len(found)
    return [found[place] if -size <= place < size else None for place in places]


def _sliced(node: ir.Node, found: Products) -> Products | None:
    given = [*node.inputs, *[None] * 4]
    start, end = integers(given[1]), integers(given[2])
    steps = [1] if given[4] is None else integers(given[4])
    if start is None or end is None or steps != [1]:
        return None
    return found[start[0] : end[0]]
