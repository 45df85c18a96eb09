"""x·σ(αx): SiLU for α = 1, and the approximation of Gelu for α = 1.702."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from onnxtrain.graph.builder import Ops
from onnxtrain.transforms.fusion.pattern import Match, Pattern, Refusal
from onnxtrain.transforms.fusion.polynomial import Reader
from onnxtrain.transforms.fusion.reading import only_reader, pairs
from onnxtrain.types import MS


def match(node: ir.Node) -> Match | None:
    """The product of a Sigmoid and of what that is of, but for a factor."""
    gate = node.outputs[0]
    readers = [reader for reader, _ in gate.uses() if reader.op_type == "Mul"]
    for product in readers:
        for a, x in pairs(product):
            if a is not gate:
                continue
            reader = Reader(x)
            found = reader.read(node.inputs[0])
            if found is None or found.keys() != {1}:
                continue
            if only_reader(gate, "Mul") is None:
                raise Refusal(f"'{gate.name}' is read by other nodes too")
            return Match((*reader.nodes, node, product), _emitter(x, found[1]))
    return None


def _emitter(x: ir.Value, alpha: float) -> Callable[[Ops], ir.Value]:
    return lambda op: op.QuickGelu(x, alpha=alpha, _domain=MS)


PATTERN = Pattern("Swish", frozenset({"Sigmoid"}), match)
