"""Sums of products and other gradients: each product is added to what is there as it is made.

A value that several linear layers read gets the sum of a product for each of them.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import onnx_ir as ir

from onnxtrain.graph.edit import collected_names, detach, take_over, unique_name
from onnxtrain.types import FLOATS, MS, ONNX

Sizes = tuple[int, ...]
_ROWS = {(ONNX, "MatMul"), (MS, "FusedMatMul")}
"""Products of rows, in however many axes these are, and a matrix."""


@dataclasses.dataclass
class _Terms:
    """What a sum adds up: products, other values, and the nodes between those and the sum."""

    products: list[ir.Node] = dataclasses.field(default_factory=list)
    others: list[ir.Value] = dataclasses.field(default_factory=list)
    between: list[ir.Node] = dataclasses.field(default_factory=list)


def add_products(model: ir.Model) -> int:
    """Let products add themselves to the other terms of their sum; gives the number of sums."""
    graph = model.graph
    count, replaced = 0, list[ir.Node]()
    with collected_names(graph):
        for node in reversed(list(graph)):
            if _is_sum(node):
                terms = _Terms()
                _collect(node, terms)
                if _pays(terms):
                    _add(graph, node, terms)
                    replaced += detach(*terms.between, *terms.products)
                    count += 1
    graph.remove(replaced, safe=True)
    return count


def _is_sum(node: ir.Node) -> bool:
    """Whether a node adds values of one known shape; one that is detached does not."""
    if node.domain != ONNX or node.op_type not in ("Sum", "Add"):
        return False
    sizes = _sizes(node.outputs[0])
    return sizes is not None and all(v is not None and _sizes(v) == sizes for v in node.inputs)


def _sizes(value: ir.Value | None) -> Sizes | None:
    if value is None or value.shape is None:
        return None
    dims = tuple(dim for dim in value.shape if isinstance(dim, int))
    return dims if len(dims) == len(value.shape) else None


def _collect(node: ir.Node, terms: _Terms) -> None:
    """Note the terms of a sum, through sums and other shapes that only it reads."""
    terms.between.append(node)
    for value in node.inputs if _is_sum(node) else node.inputs[:1]:
        assert value is not None
        producer = value.producer()
        alone = len(value.uses()) == 1 and not value.is_graph_output()
        if producer is None or not alone or producer.graph is not node.graph:
            terms.others.append(value)
        elif _is_sum(producer) or (producer.domain, producer.op_type) == (ONNX, "Reshape"):
            _collect(producer, terms)
        elif _is_product(producer):
            terms.products.append(producer)
        else:
            terms.others.append(value)


def _is_product(node: ir.Node) -> bool:
    """Whether a node is a product of two matrices to which nothing is added yet."""
    if _sizes(node.outputs[0]) is None:
        return False
    if (node.domain, node.op_type) in _ROWS:
        return _is_of_rows(node)
    if (node.domain, node.op_type) != (ONNX, "Gemm"):
        return False
    return len(node.inputs) < 3 or node.inputs[2] is None


def _is_of_rows(node: ir.Node) -> bool:
    """Whether all rows of the left operand are multiplied by the one matrix that the right one is.

    Both sizes are known, and the left operand is not transposed.
    """
    left, right = (_sizes(value) for value in node.inputs)
    if left is None or right is None or len(left) < 2 or len(right) != 2:
        return False
    turned = any(node.attributes.get_int(f"trans{name}", 0) for name in ("A", "BatchA", "BatchB"))
    return node.outputs[0].dtype in FLOATS and not turned


def _rows(value: ir.Value) -> Sizes | None:
    """The shape of a value as a matrix."""
    sizes = _sizes(value)
    return None if sizes is None else (math.prod(sizes[:-1]), sizes[-1])


def _pays(terms: _Terms) -> bool:
    """Whether a product saves a pass over memory: it has one other value, or another product."""
    shapes = {_rows(product.outputs[0]) for product in terms.products}
    known = all(_sizes(value) is not None for value in terms.others)
    return len(shapes) == 1 and known and len(terms.products) + len(terms.others) > 1


def _add(graph: ir.Graph, total: ir.Node, terms: _Terms) -> None:
    """Put the products where the sum was, each with what is before it as its third operand."""
    shape = _rows(terms.products[0].outputs[0])
    assert shape is not None
    flat = [_reshaped(graph, value, shape, total) for value in terms.others]
    base = flat[0] if len(flat) == 1 else None
    if len(flat) > 1:
        base = _before(graph, ir.node("Sum", flat, name=f"{total.name}_Others"), flat[0], total)
    for product in terms.products:
        kept = ("alpha", "transA", "transB")
        given = {k: v for k, v in product.attributes.items() if k in kept}
        left, right = product.inputs[:2]
        assert left is not None
        if (rows := _rows(left)) is not None:
            left = _reshaped(graph, left, rows, total)
        inputs = [left, right, *([] if base is None else [base])]
        node = ir.node("Gemm", inputs, given, name=f"{product.name}_Added")
        base = _before(graph, node, product.outputs[0], total)
        base.shape = ir.Shape(shape)
    assert base is not None
    sizes = _sizes(total.outputs[0])
    assert sizes is not None
    result = _reshaped(graph, base, sizes, total)
    take_over(total.outputs[0], result)


def _reshaped(graph: ir.Graph, value: ir.Value, shape: Sizes, before: ir.Node) -> ir.Value:
    """A value in a shape."""
    if _sizes(value) == shape:
        return value
    name = unique_name(graph, f"{value.name}_shape")
    sizes = ir.tensor(np.asarray(shape, np.int64), name=name)
    constant = ir.Value(
        name=name, type=ir.TensorType(sizes.dtype), shape=ir.Shape([len(shape)]), const_value=sizes
    )
    graph.register_initializer(constant)
    node = ir.node("Reshape", [value, constant], name=f"{before.name}_{name}")
    found = _before(graph, node, value, before)
    found.shape = ir.Shape(shape)
    return found


def _before(graph: ir.Graph, node: ir.Node, like: ir.Value, before: ir.Node) -> ir.Value:
    """The output of a new node in front of another, typed like a value."""
    graph.insert_before(before, node)
    found = node.outputs[0]
    found.name = unique_name(graph, f"{like.name}_added")
    found.type, found.shape = like.type, like.shape
    return found
