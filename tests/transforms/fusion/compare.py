"""Models from text, fused, and their results and gradients before and after."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onnxtrain import InferenceSession
from onnxtrain.gradients import build_gradient_graph
from onnxtrain.graph.prepare import prepare
from onnxtrain.transforms.fusion import Report, fuse
from training.small import model_of

Arrays = Mapping[str, np.ndarray]


@dataclasses.dataclass
class Result:
    """A model before and after fusion."""

    before: onnx.ModelProto
    after: onnx.ModelProto
    report: Report

    @property
    def ops(self) -> list[str]:
        return [node.op_type for node in self.after.graph.node]

    def node(self, op_type: str) -> ir.Node:
        (found,) = (n for n in ir.from_proto(self.after).graph if n.op_type == op_type)
        return found

    def reasons(self) -> list[str]:
        return [missed.reason for missed in self.report.missed]


def fused(
    body: str,
    weights: Arrays | None = None,
    *,
    trained: Sequence[str] = (),
    opset: int = 20,
    imports: str = "",
) -> Result:
    """A model in ONNX's text form, fused; ``y`` is its output."""
    before = model_of(body, weights, opset=opset, ir_version=9, imports=imports)
    return fused_model(before, trained)


def fused_model(before: onnx.ModelProto, trained: Sequence[str] = ()) -> Result:
    model = prepare(ir.from_proto(before))
    report = fuse(model, trained=trained)
    return Result(before, ir.to_proto(model), report)


def run(model: onnx.ModelProto, feeds: Arrays) -> list[Any]:
    return InferenceSession(model).run(None, feeds)


def same(result: Result, feeds: Arrays, xs: Sequence[str], tolerance: float = 1e-12) -> None:
    """Results, and gradients with random weights on the outputs, agree before and after."""
    ys = [value.name for value in result.before.graph.output]
    seeds = {
        f"{name}_grad": np.random.default_rng(7).normal(size=np.shape(value)).astype(value.dtype)
        for name, value in zip(ys, run(result.before, feeds), strict=True)
    }
    old, new = (
        run(build_gradient_graph(model, xs, ys), {**feeds, **seeds})
        for model in (result.before, result.after)
    )
    assert len(old) == len(ys) + len(xs)
    for one, other in zip(old, new, strict=True):
        np.testing.assert_allclose(other, one, rtol=tolerance, atol=tolerance)
