"""Accumulations that may hand their gradients over, and clipping as a factor of the update."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from onnxtrain.graph.loading.load import load_model
from onnxtrain.graph.prepare import prepare
from onnxtrain.transforms.backward.accumulation import HAND_OVER_INPUT, hand_over_gradients
from onnxtrain.transforms.backward.clipping import fold_clipping, reads_only

STEP = """
    <ir_version: 10, opset_import: ["" : 20, "com.microsoft" : 1]>
    step (float[3] x, float[3] w, float[3] buffer, bool[1] lazy_reset_grad)
      => (float loss, bool[1] flag)
    {
        y = Mul(x, w) loss = ReduceSum<keepdims=0>(y) g = Identity(x)
        flag = com.microsoft.InPlaceAccumulatorV2(%s)
    }
"""
UPDATE = """
    <ir_version: 10, opset_import: ["" : 20, "com.microsoft" : 1]>
    update (float[1] lr, int64[1] step, seq(float[N]) params, seq(float[N]) gradients,
            seq(float[N]) m, seq(float[N]) v) => (bool[1] done)
    { c = com.microsoft.InplaceClipGradNorm<max_norm = 2.0>(gradients) %s }
"""
ADAM = "done = com.microsoft.AdamWOptimizer(lr, step, params, c, m, v)"
SGD = "done = com.microsoft.SGDOptimizerV2(lr, params, c)"


def parsed(text: str) -> ir.Model:
    return prepare(load_model(onnx.parser.parse_model(text)))


def step_of(inputs: str) -> ir.Model:
    """A step whose buffer has the name that buffers have, which the parser cannot read."""
    model = parsed(STEP % inputs)
    next(v for v in model.graph.inputs if v.name == "buffer").name = "w_grad.accumulation.buffer"
    return model


def test_a_gradient_takes_the_place_of_the_flag() -> None:
    model = step_of("buffer, g, lazy_reset_grad")
    assert hand_over_gradients(model) == 1
    assert [v.name for v in model.graph.outputs] == ["loss", "w_grad.handed_over"]
    assert model.graph.inputs[-1].name == HAND_OVER_INPUT
    assert hand_over_gradients(model) == 0


@pytest.mark.parametrize("inputs", ["buffer, g", "w, g, lazy_reset_grad"])
def test_other_accumulations_stay(inputs: str) -> None:
    assert hand_over_gradients(step_of(inputs)) == 0


def test_a_step_that_has_an_input_of_that_name_stays() -> None:
    model = step_of("buffer, g, lazy_reset_grad")
    model.graph.inputs[0].name = HAND_OVER_INPUT
    assert hand_over_gradients(model) == 0


@pytest.mark.parametrize("update", [ADAM, SGD])
def test_clipping_becomes_a_factor(update: str) -> None:
    model = parsed(UPDATE % update)
    assert not reads_only(model)
    assert fold_clipping(model) == 1
    clip, last = model.graph
    assert clip.op_type == "ClipFactor"
    assert clip.attributes["max_norm"].as_float() == 2.0
    assert last.inputs[-1] is clip.outputs[0]
    assert reads_only(model)


@pytest.mark.parametrize(
    "more",
    [
        f"{ADAM} i = Constant<value_int = 0>() e = SequenceAt(c, i)",
        "i = Constant<value_int = 0>() e = SequenceAt(c, i) s = SequenceConstruct(e) "
        "done = com.microsoft.SGDOptimizerV2(lr, params, s)",
    ],
)
def test_clipped_gradients_that_others_read_stay(more: str) -> None:
    model = parsed(UPDATE % more)
    assert fold_clipping(model) == 0
    assert not reads_only(model)
