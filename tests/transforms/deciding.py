"""Decisions on the tensors of small models, by name."""

from __future__ import annotations

import onnx_ir as ir

from onnxtrain.graph.prepare import prepare
from onnxtrain.transforms.weights.parameters import Decision, decide
from onnxtrain.transforms.write_back import weight_names
from training.small import model_of, normal


def decisions(body: str, weights, wanted="auto", outputs=None, **options) -> dict[str, Decision]:
    original = ir.from_proto(model_of(body, weights, **options))
    known = weight_names(original)
    found = decide(prepare(original), wanted, outputs, known=known)
    return {d.name: d for d in found}


WEIGHT = {"w": normal(4, 3)}


def decision_on_c(line: str, value, **weights) -> Decision:
    """The decision on tensor ``c`` in a line of a model whose weight is ``w``."""
    body = f"(float[N,4] x) => (float[N,3] y) {{ m = MatMul(x, w) {line} }}"
    return decisions(body, {**WEIGHT, "c": value, **weights})["c"]
