"""Sizes of what is reshaped or expanded, where they are products: ONNX's inference gives up."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from onnxtrain.errors import GraphError
from onnxtrain.graph.inference.declared import is_named
from onnxtrain.graph.inference.products import (
    Product,
    Products,
    multiplied,
    product_of,
    products_of,
)
from onnxtrain.graph.walk import bodies_of
from onnxtrain.types import ONNX

_REST = Product(-1)
"""Asks Reshape for the size that is left."""
_SAME = Product(0)
"""Asks Reshape for the size that was there."""

InferNode = Callable[[ir.Node, dict[str, int]], None]


def complete_reshapes(model: ir.Model, infer_node: InferNode) -> None:
    """Write sizes that follow from products into a model, and what follows from them, in place.

    [b, h, t, d] as [b·h, -1, d] has t rows, whatever b, h and t are. Bodies are left alone.
    """
    changed: set[ir.Value | None] = set()
    for node in model.graph:
        if node.domain == ONNX and node.op_type in _SHAPED:
            value = node.outputs[0]
            if value.shape is not None and not _is_settled(value):
                old, value.shape = value.shape, _finer(value.shape, _SHAPED[node.op_type](node))
                changed.update([value] if value.shape != old else [])
        elif any([value in changed for value in node.inputs]):
            changed.update(refined(node, model.graph.opset_imports, infer_node))


def refined(node: ir.Node, imports: dict[str, int], infer_node: InferNode) -> list[ir.Value]:
    """Infer a node again, of whose inputs more is known by now; gives the outputs with news.

    Bodies are left alone, and nothing is news if a declared size was wrong.
    """
    if bodies_of(node) or all(map(_is_settled, node.outputs)):
        return []
    before = [(value, value.type, value.shape) for value in node.outputs]
    try:
        infer_node(node, imports)
        found = [value.shape for value in node.outputs]
    except GraphError:
        found = [None] * len(before)
    for (value, type_, shape), new in zip(before, found, strict=True):
        value.type, value.shape = type_ or value.type, _finer(shape, new)
    return [value for value, _, shape in before if value.shape != shape]


def _is_settled(value: ir.Value) -> bool:
    """Whether there is nothing to be found out about a shape, or there is no value."""
    if not value.name:
        return True
    return value.shape is not None and all(map(is_named, value.shape))


def _finer(old: ir.Shape | None, new: ir.Shape | None) -> ir.Shape | None:
    """A shape with the sizes of another where only that one knows them."""
    if old is None:
        return new
    if new is None or len(old) != len(new):
        return old
    pairs = zip(old, new, strict=True)
    dims = [b if not is_named(a) and product_of(b) is not None else a for a, b in pairs]
    return old if dims == list(old) else ir.Shape(dims)


def _reshaped(node: ir.Node) -> ir.Shape | None:
    """The shape that a Reshape gives, as far as products tell."""
    x, shape = [*node.inputs, None][:2]
    wanted = products_of(shape, fed=True)
    if x is None or x.shape is None or wanted is None:
        return None
    have = [product_of(dim) for dim in x.shape]
    if not node.attributes.get_int("allowzero", 0):
        wanted = [_kept(have, axis) if one == _SAME else one for axis, one in enumerate(wanted)]
    if wanted.count(_REST) == 1:
        rest = _rest(have, wanted)
        wanted = [rest if one == _REST else one for one in wanted]
    return ir.Shape([None if one is None or one.number < 0 else one.dim for one in wanted])


def _kept(have: Products, axis: int) -> Product | None:
    return have[axis] if axis < len(have) else None


def _rest(have: Products, wanted: Products) -> Product | None:
    """The size that is left for the one axis that asks for it."""
    whole, taken = multiplied(have), multiplied([one for one in wanted if one != _REST])
    return None if whole is None or taken is None else whole.over(taken)


def _expanded(node: ir.Node) -> ir.Shape | None:
    """The shape that an Expand gives, as far as products tell."""
    x, shape = node.inputs
    wanted = products_of(shape, fed=True)
    if x is None or x.shape is None or wanted is None:
        return None
    have = [product_of(dim) for dim in x.shape]
    size = max(len(have), len(wanted))
    pairs = zip(_led(have, size), _led(wanted, size), strict=True)
    sizes = [_broadcast(a, b) for a, b in pairs]
    return ir.Shape([None if one is None or one.number < 0 else one.dim for one in sizes])


def _led(sizes: Products, size: int) -> Products:
    """Sizes with ones in front."""
    return [*[Product(1)] * (size - len(sizes)), *sizes]


def _broadcast(a: Product | None, b: Product | None) -> Product | None:
    """The size that two are broadcast to, None if it is not known."""
    if a == Product(1) or a == b:
        return b
    if b == Product(1):
        return a
    fixed = [one for one in (a, b) if one is not None and not one.names]
    return fixed[0] if fixed else None


_SHAPED = {"Expand": _expanded, "Reshape": _reshaped}
"""Operators that are told the shape of their result, and what tells it here."""
