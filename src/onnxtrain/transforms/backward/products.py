"""The transpose of a product, computed as a product: (a·b)ᵀ = bᵀ·aᵀ.

Gradients of weights that a model transposes before it multiplies by them arrive so. The product
then has the weight's own layout, and nothing that reads it goes through memory column by column.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxtrain.graph.edit import detach, take_over
from onnxtrain.types import ONNX


def turn_products(model: ir.Model) -> int:
    """Turn every Gemm that only a Transpose reads; gives their number."""
    graph = model.graph
    found = [node for node in graph if _is(node, "Transpose") and _turns(node)]
    replaced = [old for node in found for old in _turn(graph, node)]
    graph.remove(replaced, safe=True)
    return len(found)


def _is(node: ir.Node | None, op_type: str) -> bool:
    return node is not None and (node.domain, node.op_type) == (ONNX, op_type)


def _turns(node: ir.Node) -> bool:
    """Whether a Transpose swaps the two axes of a product that nobody else reads."""
    value = node.inputs[0]
    product = None if value is None else value.producer()
    if value is None or product is None or not _is(product, "Gemm"):
        return False
    perm = node.attributes.get("perm")
    swaps = perm is None or list(perm.as_ints()) == [1, 0]
    alone = len(value.uses()) == 1 and not value.is_graph_output()
    summand = product.inputs[2] if len(product.inputs) > 2 else None
    return swaps and alone and summand is None and product.graph is node.graph


def _turn(graph: ir.Graph, node: ir.Node) -> tuple[ir.Node, ...]:
    """Put a turned product in the place of a product and its Transpose, which are to go."""
    product = node.inputs[0].producer()  # type: ignore[union-attr]
    assert product is not None
    left, right = product.inputs[:2]
    flags = {name: _flag(product, name) for name in ("transA", "transB")}
    kept = {k: v for k, v in product.attributes.items() if k not in flags}
    turned = ir.node(
        "Gemm",
        [right, left],
        {"transA": int(not flags["transB"]), "transB": int(not flags["transA"])},
        name=f"{product.name}_Turned",
    )
    turned.attributes.update(kept)
    graph.insert_before(product, turned)
    take_over(node.outputs[0], turned.outputs[0])
    return detach(node, product)


def _flag(node: ir.Node, name: str) -> bool:
    attribute = node.attributes.get(name)
    return attribute is not None and bool(attribute.as_int())
