"""Differentiate models written in ONNX's text form, and look at what was emitted or run it."""

from typing import Any

import numpy as np
import onnx_ir as ir

from graph.text import model
from onnxtrain.gradients.engine import backward, can_carry_gradient
from onnxtrain.graph.prepare import prepare
from onnxtrain.runtime.session import InferenceSession

STEP = 2.0**-17
"""Of a central difference in double."""


def differentiated(text: str | ir.Model, *xs: str, opset: int = 21) -> ir.Model:
    """A model with the gradients of xs as further outputs.

    The incoming gradient of an output ``y`` is an input ``d_y``; xs are all inputs unless given.
    """
    of = prepare(model(text, opset, com_microsoft=1) if isinstance(text, str) else text)
    graph = of.graph
    wanted = [v for v in graph.inputs if (v.name in xs if xs else can_carry_gradient(v))]
    seeds = {
        y: ir.Value(name=f"d_{y.name}", type=y.type, shape=y.shape)
        for y in graph.outputs
        if can_carry_gradient(y)
    }
    graph.inputs.extend(seeds.values())
    graph.outputs.extend(backward(graph, wanted, seeds).values())
    return of


def emitted(text: str, *xs: str, opset: int = 21) -> list[str]:
    """The nodes of the backward pass: ``ms.ReluGrad(d_y, y) -> x_grad``."""
    before = prepare(model(text, opset, com_microsoft=1)).graph
    count = len(list(before))
    return [_shown(node) for node in list(differentiated(text, *xs, opset=opset).graph)[count:]]


def _shown(node: ir.Node) -> str:
    prefix = "ms." if node.domain == "com.microsoft" else ""
    inputs = ", ".join("" if v is None else str(v.name) for v in node.inputs)
    outputs = ", ".join(str(v.name) for v in node.outputs)
    return f"{prefix}{node.op_type}({inputs}) -> {outputs}"


def agrees_with_differences(
    text: str, *xs: str, opset: int = 21, rtol: float = 1e-7, **feeds: Any
) -> dict[str, Any]:
    """Compare the gradients of a model in double with central differences; gives what was run.

    Feeds are the model's inputs, and ``d_y`` for each output ``y``.
    """
    found = run(differentiated(text, *xs, opset=opset), **feeds)
    forward = InferenceSession(ir.to_proto(prepare(model(text, opset, com_microsoft=1))))
    arrays = {name: np.asarray(value) for name, value in feeds.items()}
    inputs = {name: value for name, value in arrays.items() if not name.startswith("d_")}
    outputs = [output.name for output in forward.get_outputs()]

    def weighed(name: str, index: tuple[int, ...], step: float) -> float:
        moved = inputs[name].copy()
        moved[index] += step
        ys = forward.run(None, {**inputs, name: moved})
        pairs = zip(outputs, ys, strict=True)
        return sum(float((arrays[f"d_{y}"] * value).sum()) for y, value in pairs)

    for name in xs or [n for n, value in inputs.items() if value.dtype.kind == "f"]:
        slopes = np.zeros_like(inputs[name])
        for index in np.ndindex(slopes.shape):
            ends = weighed(name, index, STEP), weighed(name, index, -STEP)
            slopes[index] = (ends[0] - ends[1]) / (2 * STEP)
        ours = found.get(f"{name}_grad", np.zeros_like(slopes))
        np.testing.assert_allclose(ours, slopes, rtol=rtol, atol=1e-9)
    return found


def run(of: ir.Model, **feeds: Any) -> dict[str, Any]:
    """The outputs of a model by name."""
    session = InferenceSession(ir.to_proto(of))
    names = [output.name for output in session.get_outputs()]
    arrays = {name: np.asarray(value) for name, value in feeds.items()}
    return dict(zip(names, session.run(None, arrays), strict=True))
