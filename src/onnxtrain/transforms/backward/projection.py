"""The projection to scores, its loss and all of its gradients in one operator.

Scores and their gradient, the largest tensors of a language model's step, then never exist whole.
"""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from onnxtrain.graph.edit import (
    collected_names,
    detach,
    remove_dead,
    take_over,
    unique_name,
)
from onnxtrain.transforms.fusion.reading import rank
from onnxtrain.types import MS, ONNX, OWN

LEAST = 1024
"""Classes from which on it is worth it: fewer scores are small beside the rest of a model."""
_SHAPES = ("Flatten", "Reshape")
_OURS = ("CrossEntropyWithGrad", "FusedMatMul")
"""Operators of other domains that are dead if nobody reads them."""
_PRODUCTS = {(ONNX, "MatMul"), (ONNX, "Gemm"), (MS, "FusedMatMul")}


@dataclasses.dataclass
class _Found:
    """A product, and what is computed from the gradient of its result."""

    product: ir.Node
    bias: ir.Value | None
    loss: ir.Node
    d_x: list[ir.Value] = dataclasses.field(default_factory=list)
    d_w: list[tuple[ir.Value, bool]] = dataclasses.field(default_factory=list)
    d_bias: list[ir.Value] = dataclasses.field(default_factory=list)

    @property
    def x(self) -> ir.Value:
        return _need(self.product.inputs[0])

    @property
    def w(self) -> ir.Value:
        return _need(self.product.inputs[1])

    def gradients(self) -> list[ir.Node]:
        """The nodes that compute the gradients."""
        values = [*self.d_x, *(value for value, _ in self.d_w), *self.d_bias]
        return [node for value in values if (node := value.producer()) is not None]


def join_projections(model: ir.Model) -> int:
    """Join every loss whose scores are a product that nobody else reads; gives their number."""
    graph = model.graph
    count, replaced = 0, list[ir.Node]()
    with collected_names(graph):
        for node in list(graph):
            if (node.domain, node.op_type) == (OWN, "CrossEntropyWithGrad"):
                found = _found(node)
                if found is not None:
                    _join(graph, found)
                    replaced += detach(*found.gradients())
                    count += 1
    if count:
        graph.remove(replaced, safe=True)
        remove_dead(graph, keep=lambda node: node.domain != ONNX and node.op_type not in _OURS)
    return count


def _found(loss: ir.Node) -> _Found | None:
    """The product behind a loss, if every use of its scores is one that the joined one covers."""
    if loss.attributes.get_string("reduction") == "none":
        return None
    scores, bias = _behind_shapes(loss.inputs[0]), None
    node = None if scores is None else scores.producer()
    if node is not None and (node.domain, node.op_type) == (ONNX, "Add"):
        scores, bias = _with_bias(node)
        node = None if scores is None else scores.producer()
    if scores is None or node is None or (node.domain, node.op_type) not in _PRODUCTS:
        return None
    if not _is_plain(node) or not _alone(scores) or not _many_classes(scores):
        return None
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        if bias is not None or rank(node.inputs[2]) != 1:
            return None
        bias = node.inputs[2]
    found = _Found(node, bias, loss)
    return found if _uses(found) else None


def _many_classes(scores: ir.Value) -> bool:
    classes = scores.shape[-1] if scores.shape is not None and len(scores.shape) else None
    return isinstance(classes, int) and classes >= LEAST


def _behind_shapes(value: ir.Value | None) -> ir.Value | None:
    """What a value is in another shape, if only the way there reads it."""
    while value is not None and _alone(value):
        node = value.producer()
        if node is None or node.domain != ONNX or node.op_type not in _SHAPES:
            return value
        value = node.inputs[0]
    return None


def _with_bias(node: ir.Node) -> tuple[ir.Value | None, ir.Value | None]:
    """The product and the vector that a node adds."""
    for product, bias in (node.inputs, tuple(reversed(node.inputs))):
        if bias is not None and product is not None and rank(bias) == 1 and _alone(product):
            return _behind_shapes(product), bias
    return None, None


def _alone(value: ir.Value) -> bool:
    return len(value.uses()) == 1 and not value.is_graph_output()


def _is_plain(node: ir.Node) -> bool:
    """Whether a product has no factor, and transposes its second operand at most."""
    ones = all(_attribute(node, name, 1.0) == 1.0 for name in ("alpha", "beta"))
    turned = any(_attribute(node, name, 0) for name in ("transA", "transBatchA", "transBatchB"))
    return ones and not turned and rank(node.inputs[1]) == 2


def _attribute(node: ir.Node, name: str, default: float) -> float:
    attribute = node.attributes.get(name)
    return default if attribute is None else float(attribute.value)


def _uses(found: _Found) -> bool:
    """Whether all that reads the gradient of the scores is a gradient of x, w or the bias."""
    pending = [found.loss.outputs[0]]
    while pending:
        value = pending.pop()
        if value.is_graph_output():
            return False
        for use in value.uses():
            node = use.node
            if node.domain == ONNX and node.op_type in _SHAPES and use.idx == 0:
                pending.append(node.outputs[0])
            elif not _role(found, node, use.idx):
                return False
    same = all(value.shape == found.x.shape for value in found.d_x)
    return same and len(found.d_w) <= 1 and len(found.d_x) <= 1 and len(found.d_bias) <= 1


def _role(found: _Found, node: ir.Node, position: int) -> bool:
    """Note what a node computes from the gradient of the scores; False if that is not known."""
    kind, output = (node.domain, node.op_type), node.outputs[0]
    if kind == (ONNX, "ReduceSum") and position == 0 and found.bias is not None:
        found.d_bias.append(output)
        return found.bias.shape is not None and output.shape == found.bias.shape
    if kind not in _PRODUCTS or (len(node.inputs) > 2 and node.inputs[2] is not None):
        return False
    if _attribute(node, "alpha", 1.0) != 1.0 or _attribute(node, "transBatchA", 0):
        return False
    turned = [bool(_attribute(node, name, 0)) for name in ("transA", "transB")]
    other = _need(node.inputs[1 - position])
    w_turned = bool(_attribute(found.product, "transB", 0))
    if other is found.w and position == 0:
        found.d_x.append(output)
        return turned == [False, not w_turned]
    if _same_rows(other, found.x) and turned == [True, False] and rank(output) == 2:
        found.d_w.append((output, position == 0))
        return True
    return False


def _same_rows(value: ir.Value, x: ir.Value) -> bool:
    """Whether a value is x, or x in another shape with the same rows."""
    for one in (value, x):
        if one.shape is None or x.shape is None or one.shape[-1] != x.shape[-1]:
            return False
    return _origin(value) is _origin(x)


def _origin(value: ir.Value) -> ir.Value:
    node = value.producer()
    while node is not None and node.domain == ONNX and node.op_type in _SHAPES:
        value = _need(node.inputs[0])
        node = value.producer()
    return value


def _join(graph: ir.Graph, found: _Found) -> None:
    loss = found.loss
    turned = bool(_attribute(found.product, "transB", 0))
    w = found.w if turned else _transposed(graph, found.w, loss)
    joined = ir.node(
        "LinearCrossEntropyWithGrad",
        [found.x, w, loss.inputs[1], loss.inputs[2], found.bias, *loss.inputs[3:4]],
        loss.attributes,
        domain=OWN,
        num_outputs=4,
        name=f"{loss.name}_Linear",
    )
    graph.insert_before(loss, joined)
    given = [loss.outputs[1], *found.d_x[:1]]
    for new, old in zip(joined.outputs[:2], given, strict=False):
        take_over(old, new)
    _fill(graph, joined.outputs[1], found.x)
    _fill(graph, joined.outputs[2], w)
    for old, rows_are_classes in found.d_w:
        new = joined.outputs[2]
        take_over(old, new if rows_are_classes else _transposed(graph, new, loss))
    for old in found.d_bias:
        take_over(old, joined.outputs[3])
    if found.bias is not None:
        _fill(graph, joined.outputs[3], found.bias)
    else:
        joined.outputs[3].name = ""


def _fill(graph: ir.Graph, value: ir.Value, like: ir.Value) -> None:
    """Type and name of an output that may have none yet."""
    value.type, value.shape = value.type or like.type, value.shape or like.shape
    value.name = value.name or unique_name(graph, f"{like.name}_grad_joined")


def _transposed(graph: ir.Graph, value: ir.Value, before: ir.Node) -> ir.Value:
    """A matrix transposed; what it was before that, if it is transposed already."""
    node = value.producer()
    if node is not None and (node.domain, node.op_type) == (ONNX, "Transpose"):
        return _need(node.inputs[0])
    turned = ir.node("Transpose", [value], {"perm": [1, 0]}, name=f"{value.name}_Transpose")
    turned.outputs[0].name = unique_name(graph, f"{value.name}_turned")
    turned.outputs[0].type = value.type
    if value.shape is not None:
        turned.outputs[0].shape = ir.Shape(list(reversed(list(value.shape))))
    graph.insert_before(before, turned)
    return turned.outputs[0]


def _need(value: ir.Value | None) -> ir.Value:
    assert value is not None
    return value
