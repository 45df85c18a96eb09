"""The scores of attention: a product of queries and keys, scaled, with masks, before Softmax."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from onnxtrain.graph.bindings import same_dim
from onnxtrain.transforms.fusion.pattern import Refusal
from onnxtrain.transforms.fusion.reading import (
    changes_precision,
    factor_of,
    is_op,
    number,
    pairs,
    rank,
)
from onnxtrain.transforms.fusion.regrouped import is_together, regroups

CLOSED = -1e4
"""What is at most this is as good as -inf beside scores."""
_MOVES = ("Concat", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")


@dataclasses.dataclass(frozen=True)
class Added:
    """A mask that is added to the scores.

    Attributes:
        value: The mask.
        together: Whether it has one axis for samples and heads; None if only a run can tell.
    """

    value: ir.Value
    together: bool | None = False


@dataclasses.dataclass(frozen=True)
class Chosen:
    """A mask that replaces scores by a number.

    Attributes:
        condition: What chooses.
        opens: Whether it is true where the scores stay.
        closed: The number.
        together: Whether it has one axis for samples and heads; None if only a run can tell.
    """

    condition: ir.Value
    opens: bool
    closed: float
    together: bool | None = False

    def adds(self, condition: float) -> float:
        """What it comes to if it were added, where the condition is true or false."""
        return 0.0 if bool(condition) == self.opens else self.closed


Mask = Added | Chosen


@dataclasses.dataclass(frozen=True)
class Scores:
    """What Softmax is of.

    Attributes:
        product: The MatMul of queries and keys.
        scale: What it is multiplied by.
        masks: What is added, or chosen between, in the order of the nodes.
        nodes: All nodes, the product among them, in order of use.
    """

    product: ir.Node
    scale: float
    masks: tuple[Mask, ...]
    nodes: tuple[ir.Node, ...]


def read(value: ir.Value | None) -> Scores | None:
    """Scores, None if there is no product.

    Raises:
        Refusal: if the product is there but other things happen to it.
    """
    node = None if value is None else value.producer()
    if node is None:
        return None
    if is_op(node, "MatMul"):
        return Scores(node, 1.0, (), (node,))
    if changes_precision(node) or regroups(node):
        found = read(node.inputs[0])
        return None if found is None else _longer(found, node)
    scaled = factor_of(node)
    if scaled is not None:
        found = read(scaled[0])
        return None if found is None else _scaled(found, node, scaled[1])
    if is_op(node, "Add"):
        return _added(node)
    if is_op(node, "Where"):
        return _chosen(node)
    if is_op(node, *_MOVES) and _reaches(node):
        raise Refusal(f"{node.op_type} '{node.name}' stands between the product and Softmax")
    return None


def _longer(found: Scores, node: ir.Node, mask: Mask | None = None) -> Scores:
    masks = found.masks if mask is None else (*found.masks, mask)
    return dataclasses.replace(found, masks=masks, nodes=(*found.nodes, node))


def _scaled(found: Scores, node: ir.Node, factor: float) -> Scores:
    if found.masks:
        raise Refusal(f"'{node.name}' ({node.op_type}) scales the mask as well")
    return dataclasses.replace(_longer(found, node), scale=found.scale * factor)


def _added(node: ir.Node) -> Scores | None:
    reason = None
    for scores, mask in pairs(node):
        try:
            found = read(scores)
        except Refusal as refusal:
            reason = refusal
            continue
        if found is not None and is_attention(found.product):
            _refuse_growth(scores, node)
            return _longer(found, node, Added(mask, is_together(mask, scores)))
    if reason is not None:
        raise reason
    return None


def _chosen(node: ir.Node) -> Scores | None:
    condition, yes, no = node.inputs
    assert condition is not None
    for scores, other, opens in ((yes, no, True), (no, yes, False)):
        found = read(scores)
        if found is None or scores is None:
            continue
        closed = number(other)
        if closed is None or closed > CLOSED:
            raise Refusal(f"'{node.name}' (Where) does not close scores by a large negative number")
        _refuse_growth(scores, node)
        together = is_together(condition, scores)
        return _longer(found, node, Chosen(condition, opens, closed, together))
    return None


def is_attention(product: ir.Node) -> bool:
    """Whether a product is one of matrices for each sample, and not one of data and a weight."""
    return all((rank(value) or 0) > 2 for value in product.inputs)


def _refuse_growth(scores: ir.Value, node: ir.Node) -> None:
    """A mask must not have more rows, columns, heads or samples than the scores."""
    result = node.outputs[0]
    if scores.shape is None or result.shape is None:
        raise Refusal(f"the rank of what '{node.name}' ({node.op_type}) masks is not known")
    sizes = zip(scores.shape, result.shape, strict=False)
    grown = any(isinstance(have, int) and not same_dim(have, gets) for have, gets in sizes)
    if grown or len(scores.shape) != len(result.shape):
        raise Refusal(f"the mask of '{node.name}' ({node.op_type}) is larger than the scores")


def _reaches(node: ir.Node, steps: int = 6) -> bool:
    """Whether a product of matrices for each sample is close above a node."""
    for _ in range(steps):
        above = None if not node.inputs else node.inputs[0]
        maker = None if above is None else above.producer()
        if maker is None:
            return False
        if is_op(maker, "MatMul"):
            return is_attention(maker)
        node = maker
    return False
