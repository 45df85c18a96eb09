"""Gradients in training models of the reference, found by their names.

``t_grad``, or each of ``t_grad_0``, ``t_grad_1``, ... that are added up, is a gradient of ``t`` and
has its shape.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping

import onnx_ir as ir

from onnxtrain.graph.inference.declared import UNTOLD
from onnxtrain.graph.prepare import complete
from onnxtrain.transforms.training_graph import BUFFER_SUFFIX

_GRADIENT = re.compile(r"(?P<of>.+)_grad(_\d+)?", re.DOTALL)


def forward_values(graph: ir.Graph, backward: Collection[ir.Node]) -> dict[str, ir.Value]:
    """What may have a gradient by name."""
    later = set(backward)
    values = [*graph.inputs, *(v for node in graph if node not in later for v in node.outputs)]
    return {str(value.name): value for value in values if value.name}


def owner(grad: ir.Value, forward: Mapping[str, ir.Value]) -> ir.Value | None:
    """What a value is the gradient of, None if it is none."""
    found = _GRADIENT.fullmatch(grad.name or "")
    return None if found is None else forward.get(found["of"])


def infer_behind(model: ir.Model, values: Iterable[ir.Value]) -> None:
    """Infer the shapes again that follow from values."""
    for node in _reached(values):
        if node.op_type not in UNTOLD:
            for value in node.outputs:
                value.shape = None
    complete(model)


def trained_by(gradients: Iterable[ir.Value]) -> list[str]:
    """Names of the parameters to whose buffers gradients lead."""
    read = [str(v.name) for node in _reached(gradients) for v in node.inputs if v is not None]
    return sorted({n.removesuffix(BUFFER_SUFFIX) for n in read if n.endswith(BUFFER_SUFFIX)})


def _reached(values: Iterable[ir.Value]) -> Iterator[ir.Node]:
    """The nodes to which values lead."""
    seen: set[ir.Node] = set()
    left = [reader for value in values for reader in value.consumers()]
    while left:
        node = left.pop()
        if node not in seen:
            seen.add(node)
            yield node
            left += [reader for value in node.outputs for reader in value.consumers()]
