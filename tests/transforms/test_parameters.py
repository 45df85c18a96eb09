"""Which tensors are weights: the decisions of ``auto``, their reasons, names and patterns."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from onnxtrain.errors import ParameterError
from onnxtrain.graph.prepare import prepare
from onnxtrain.transforms.weights.parameters import Decision, decide, lift_weights
from onnxtrain.transforms.weights.unreached import settle
from onnxtrain.transforms.write_back import weight_names
from training.small import mlp, model_of, normal
from transforms.deciding import WEIGHT, decision_on_c, decisions


def test_weights_of_layers_are_trained():
    found = decide(prepare(ir.from_proto(mlp())))
    assert [d.name for d in found if d.trained] == [
        "fc1.weight",
        "fc1.bias",
        "fc2.weight",
        "fc2.bias",
    ]
    assert all(d.reason == "weight" for d in found)
    assert [d.elements for d in found] == [20, 5, 15, 3]


def test_statistics_of_batch_norm_are_told_apart():
    ones = np.ones(3, np.float32)
    found = decisions(
        """(float[N,4] x) => (float[N,3] y) {
            m = MatMul(x, w) y = BatchNormalization(m, scale, shift, mean, var)
        }""",
        {**WEIGHT, "scale": ones, "shift": ones, "mean": ones, "var": ones},
    )
    assert [n for n, d in found.items() if d.trained] == ["w", "scale", "shift"]
    assert found["mean"].reason == "running mean of BatchNormalization"
    assert found["var"].reason == "running variance of BatchNormalization"
    assert [n for n, d in found.items() if d.statistic] == ["mean", "var"]


SPREAD = "s = Shape<start=1>(w) e = Expand(c, s) y = Gemm(x, w, e)"
"""A bias of zeros, as it is written for a layer that has none."""


@pytest.mark.parametrize(
    ("line", "value", "expected"),
    [
        ("y = Clip(m, c)", np.float32(0), "lower bound of Clip"),
        ("y = Clip(m, , c)", np.float32(0), "upper bound of Clip"),
        ("y = Dropout(m, c)", np.float32(0.5), "ratio of Dropout"),
        ("y = Pow(m, c)", np.float32(2), "exponent of Pow"),
        ("y = Mul(m, c)", np.float32(2), "single number in ai.onnx::Mul"),
        ("y = Div(m, c)", np.ones((1, 1), np.float32), "single number in ai.onnx::Div"),
        ("y = Add(m, c)", np.float32(1e-5), "single number in ai.onnx::Add"),
        ("y = Gemm(x, w, c)", np.float32(1), "single number in ai.onnx::Gemm"),
        (SPREAD, np.float32(0), "single number"),
        ("y = Add(m, c)", np.array([0, -np.inf, 0], np.float32), "mask: it holds infinities"),
        ("y = Add(m, c)", np.array([0, -1e9, 0], np.float32), "mask: it holds infinities"),
        ("t = Trilu(c) y = Add(m, t)", np.full((3, 3), -3e38, np.float32), "mask: it holds"),
        ("f = Floor(m) y = Mul(f, c)", np.zeros((0, 3), np.float32), "has no elements"),
        ("d = Shape(c) f = Cast<to=1>(d) y = Add(m, f)", normal(1, 2, 3), "no differentiable"),
    ],
)
def test_constants_are_not_trained(line, value, expected):
    decision = decision_on_c(line, value)
    assert not decision.trained and decision.reason.startswith(expected)


STATE = """s = Shape<end=1>(m) d = Concat<axis=0>(one, s, four) h = Expand(c, d)
    sequence = Unsqueeze(m, zero) states, last = RNN<hidden_size=4>(sequence, f, r, , , h)
    flat = Squeeze(last, zero) y = Slice(flat, zero, three, one)"""
"""Something is made of an initial state before an RNN begins with it."""
LAYERS = {
    "zero": np.array([0]),
    "one": np.array([1]),
    "three": np.array([3]),
    "four": np.array([4]),
    "f": normal(1, 4, 3),
    "r": normal(1, 4, 4),
}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (STATE, "initial state of RNN"),
        ('i = Cast<to=7>(m) y = ScatterElements<reduction="add">(c, i, m)', "zeros in the place"),
        ("g = Gemm(c, f_of_3) y = Add(m, g)", "zeros in the place of data of ai.onnx::Gemm"),
    ],
    ids=["state", "sums", "data"],
)
def test_zeros_that_something_begins_with_are_not_trained(line, expected):
    more = {**LAYERS, "f_of_3": normal(4, 3)}
    start = np.zeros((1, 1, 4) if line is STATE else (3, 4), np.float32)
    start = start[:, :3] if "Scatter" in line else start
    decision = decision_on_c(line, start, **more)
    assert not decision.trained and decision.reason.startswith(expected)
    learned = decision_on_c(line, normal(*start.shape), **more)
    assert learned.trained


def test_a_setting_is_one_too_if_it_is_put_together_first():
    line = """n = Unsqueeze(m, zero) all = Concat<axis=0>(c, two) r = Resize(n, , all)
        y = ReduceSum<keepdims=0>(r, zero)"""
    two = np.array([2], np.float32)
    decision = decision_on_c(line, np.array([1, 1], np.float32), two=two, zero=np.array([0]))
    assert decision.reason == "scales of Resize"


def test_ones_that_become_a_mask_are_not_trained():
    line = """s = Reshape(c, shape) k = Sub(one_f, s) masked = Mul(k, low) y = Add(m, masked)"""
    more = {"shape": np.array([1, 3]), "one_f": np.float32(1)}
    ones = np.ones(3, np.float32)
    for low in (-3e38, -1e4):
        huge = decision_on_c(line, ones, low=np.float32(low), **more)
        assert huge.reason == "mask: it is multiplied by a huge number"
    assert decision_on_c(line, ones, low=np.float32(-2), **more).trained
    assert decision_on_c(line, normal(3), low=np.float32(-3e38), **more).trained


def test_tables_of_cosines_and_sines_are_not_trained():
    body = """(float[N,5,4] x) => (float[N,5,4] y) {
        m = MatMul(x, w) a = Mul(m, c) n = Neg(m) b = Mul(n, s) y = Add(a, b)
    }"""
    angles = np.outer(np.arange(5), [1, 0.1, 1, 0.1]).astype(np.float32)
    turned = {"w": normal(4, 4), "c": 1.2 * np.cos(angles), "s": 1.2 * np.sin(angles)}
    found = decisions(body, {k: v.astype(np.float32) for k, v in turned.items()})
    assert {name for name, one in found.items() if one.trained} == {"w"}
    assert found["s"].reason == "cosines or sines of positions"
    weights = {"w": normal(4, 4), "c": normal(5, 4), "s": normal(5, 4, seed=1)}
    assert all(one.trained for one in decisions(body, weights).values())


def test_what_normalises_groups_is_not_trained_but_what_scales_channels_is():
    body = """(float[N,4,5] x) => (float[N,4,5] y) {
        groups = Reshape(x, by_two) n = InstanceNormalization(groups, ones, zeros)
        back = Reshape(n, by_four) scaled = Mul(back, scale) y = Add(scaled, bias)
    }"""
    norm = {"ones": np.ones(2, np.float32), "zeros": np.zeros(2, np.float32)}
    shapes = {"by_two": np.array([0, 2, -1]), "by_four": np.array([0, 4, -1])}
    affine = {"scale": np.ones((4, 1), np.float32), "bias": np.zeros((4, 1), np.float32)}
    found = decisions(body, {**norm, **shapes, **affine})
    assert {name for name, one in found.items() if one.trained} == {"scale", "bias"}
    direct = (
        """(float[N,2,5] x) => (float[N,2,5] y) { y = InstanceNormalization(x, ones, zeros) }"""
    )
    assert all(one.trained for one in decisions(direct, norm).values())


def test_a_mask_of_half_precision_is_recognised():
    body = "(float16[N,3] x) => (float16[N,3] y) { m = MatMul(x, w) y = Add(m, c) }"
    low = np.array([0, -65504, 0], np.float16)
    found = decisions(body, {"w": normal(3, 3, dtype=np.float16), "c": low})
    assert found["c"].reason.startswith("mask")


def test_whole_numbers_are_not_considered():
    found = decisions(
        """(float[N,4] x) => (float[M,K] y) {
            m = MatMul(x, w) y = Reshape(m, shape)
        }""",
        {**WEIGHT, "shape": np.array([-1, 6])},
    )
    assert list(found) == ["w"]


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("y = Add(m, c)", normal(3)),
        ("y = Mul(m, c)", normal(3)),
        ("y = Add(m, c)", np.array([0.5], np.float32)),
        ("y = PRelu(m, c)", np.array([0.25], np.float32)),
        ("i = Cast<to=7>(m) g = Gather(c, i) y = ReduceSum<keepdims=0>(g, two)", normal(9, 1)),
    ],
    ids=["bias", "scale", "bias of one element", "slope of one element", "embedding"],
)
def test_parameters_of_one_element_and_more(line, value):
    assert decision_on_c(line, value, two=np.array([2])).trained


THREE = np.full((1, 1), 3, np.float32)


@pytest.mark.parametrize(
    ("name", "features", "trained"),
    [
        ("hard_sigmoid/add/y:0", 3, False),
        ("hard_sigmoid/add/y:0", 1, True),
        ("layer.shift", 3, True),
    ],
)
def test_a_number_that_a_converter_has_spread_is_no_bias_of_several_features(
    name, features, trained
):
    body = f'(float[N,4] x) => (float[N,{features}] y) {{ m = MatMul(x, w) y = Add(m, "{name}") }}'
    assert decisions(body, {"w": normal(4, features), name: THREE})[name].trained == trained


def test_the_same_behind_a_convolution():
    body = """(float[N,2,5] x) => (float[N,3,3] y) {
        m = Conv(x, w) y = Add(m, "add/y:0")
    }"""
    found = decisions(body, {"w": normal(3, 2, 3), "add/y:0": THREE[None]})
    assert found["add/y:0"].reason == "single number in ai.onnx::Add"


def test_a_single_number_that_was_a_variable_of_tensorflow_is_trained():
    body = """(float[N,4] x) => (float[N,3] y) {
        m = MatMul(x, w) e = Add("bn/ReadVariableOp:0", tiny) r = Sqrt(e) d = Div(m, r)
        y = Mul(d, "attention/Mul/ReadVariableOp:0")
    }"""
    one = np.float32(1)
    names = ("attention/Mul/ReadVariableOp:0", "bn/ReadVariableOp:0", "tiny")
    found = decisions(body, {**WEIGHT, **dict.fromkeys(names, one)})
    assert [name for name, one in found.items() if one.trained] == ["w", names[0]]


def test_a_tensor_that_is_a_weight_somewhere_is_a_weight():
    body = "(float[N,1] x) => (float[N,1] y) { m = Mul(x, c) y = MatMul(m, c) }"
    assert decisions(body, {"c": np.ones((1, 1), np.float32)})["c"].trained


def test_weights_in_constant_nodes_are_weights():
    found = decisions(
        """(float[N,4] x) => (float[N,3] y) {
            b = Constant<value_floats=[0.5, 1.5, 2.5]>() m = MatMul(x, w) y = Add(m, b)
        }""",
        WEIGHT,
    )
    assert found["b"].trained and found["b"].elements == 3


TWO = "(float[N,4] x) => (float[N,3] y, float[N,3] z) { y = MatMul(x, w) z = MatMul(x, v) }"
BOTH = {"w": normal(4, 3), "v": normal(4, 3, seed=1)}


def test_weights_inside_functions_are_weights():
    model = model_of("(float[N,4] x) => (float[N,3] y) { m = MatMul(x, w) y = Neg(m) }", WEIGHT)
    constant = helper.make_node("Constant", [], ["k"], value_floats=[1.0, 2.0, 3.0])
    shift = helper.make_node("Add", ["a", "k"], ["b"])
    function = helper.make_function(
        "own", "Shift", ["a"], ["b"], [constant, shift], [helper.make_opsetid("", 17)]
    )
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("own", 1))
    model.graph.node[1].CopyFrom(helper.make_node("Shift", ["m"], ["y"], domain="own"))
    onnx.checker.check_model(model)
    original = ir.from_proto(model)
    known = weight_names(original)
    working = prepare(lift_weights(original))
    assert {d.name for d in decide(working, known=known) if d.trained} == {"w", "k"}


def test_what_the_file_has_no_tensor_for_is_not_trained_since_it_could_not_be_saved():
    working = prepare(ir.from_proto(model_of(TWO, BOTH)))
    (other,) = (d for d in decide(working, known={"w"}) if d.name == "v")
    assert (other.trained, other.reason) == (False, "is no tensor of its own in the file")
    with pytest.raises(ParameterError, match="no tensor of its own"):
        decide(working, ["v"], known={"w"})


def test_only_outputs_of_the_loss_count():
    found = decisions(TWO, BOTH, outputs=["y"])
    assert found["w"].trained and not found["v"].trained
    assert found["v"].reason == "no differentiable path to the loss"
    assert all(d.trained for d in decisions(TWO, BOTH).values())


def test_names_and_patterns():
    found = decisions(TWO, BOTH, wanted=["v"])
    assert (found["v"].trained, found["v"].reason) == (True, "asked for")
    assert (found["w"].trained, found["w"].reason) == (False, "not asked for")
    assert all(d.trained for d in decisions(TWO, BOTH, wanted="[vw]").values())


def test_patterns_pick_weights_and_names_pick_anything_that_could_train():
    body = "(float[N,4] x) => (float[N,3] y) { m = MatMul(x, a_w) y = Mul(m, a_s) }"
    weights = {"a_w": normal(4, 3), "a_s": np.float32(2)}
    by_pattern = decisions(body, weights, wanted="a_*")
    assert by_pattern["a_w"].trained and not by_pattern["a_s"].trained
    assert by_pattern["a_s"].reason == "single number in ai.onnx::Mul"
    by_name = decisions(body, weights, wanted=["a_s"])
    assert by_name["a_s"].trained and not by_name["a_w"].trained


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (["u"], "no parameter matches 'u'\n  have  w, v"),
        (["w", "q*"], r"no parameter matches 'q\*'"),
        ([], "list of trainable parameters is empty"),
    ],
)
def test_names_that_match_nothing(wanted, message):
    with pytest.raises(ParameterError, match=message):
        decisions(TWO, BOTH, wanted=wanted)


def test_names_of_what_cannot_be_trained():
    body = """(float[N,4] x) => (float[N,3] y) {
        m = MatMul(x, w) n = BatchNormalization(m, s, s, mean, mean)
        k = Mul(n, half) y = Reshape(k, shape)
    }"""
    ones = np.ones(3, np.float32)
    weights = {
        **WEIGHT,
        "s": ones,
        "mean": ones,
        "half": np.float32(0.5),
        "shape": np.array([-1, 3]),
    }
    for wanted, message in [
        ("mean", "cannot train 'mean': running mean of BatchNormalization"),
        ("shape", "cannot train 'shape': it is int64, not floating point"),
        ("ha*", "no weight matches 'ha\\*', only constants do\n  'half': single number in"),
    ]:
        with pytest.raises(ParameterError, match=message):
            decisions(body, weights, wanted=wanted)


def test_a_model_without_weights():
    with pytest.raises(ParameterError, match="no weight that could be trained\n  'c': single"):
        decisions("(float[N] x) => (float[N] y) { y = Mul(x, c) }", {"c": np.float32(2)})


def test_names_are_shortened_in_messages():
    weights = {f"w{i}": normal(3) for i in range(30)}
    lines = " ".join(f"t{i + 1} = Add(t{i}, w{i})" for i in range(30))
    body = f"(float[3] x) => (float[3] t30) {{ t0 = Neg(x) {lines} }}"
    with pytest.raises(ParameterError, match="and 22 more"):
        decisions(body, weights, wanted=["u"])


def test_decisions_are_settled_by_the_gradients():
    first = [Decision("a", True, "weight", 1), Decision("b", False, "not asked for", 1)]
    a, b = settle(first, [])
    assert (a.trained, a.reason) == (False, "no differentiable path to the loss")
    assert b == first[1]
    assert settle(first, ["a"]) == first


def test_a_weight_that_is_quantized_and_back_is_trained():
    of = model_of(
        """(float[N,2] x) => (float[N,2] y)
          <float[2,2] w = {1.0, 0.5, -0.5, 1.0}, float s = {0.1}, int8 z = {0}> {
            q = QuantizeLinear(w, s, z)  r = DequantizeLinear(q, s, z)  y = MatMul(x, r)
        }"""
    )
    found = {d.name: d for d in decide(prepare(ir.from_proto(of)))}
    assert found["w"].trained and found["s"].reason == "quantiser scale"


def test_a_mask_that_rules_nothing_out_is_no_weight():
    found = decision_on_c("s = Add(m, c) y = Softmax(s)", np.zeros((1, 3), np.float32))
    assert found.reason == "mask: zeros that are added to the scores of a Softmax"
    assert decision_on_c("s = Add(m, c) y = Softmax(s)", np.zeros(3, np.float32)).trained
    assert decision_on_c("s = Add(m, c) y = Tanh(s)", np.zeros((1, 3), np.float32)).trained


def test_the_mask_of_windowed_attention_is_no_weight():
    body = """(float[1,4,2] x, int32[1,4] g) => (float[1,4,2] y) {
        y = com.microsoft.LongformerAttention<num_heads=1, window=1>(x, w, b, c, w, b, g)
    }"""
    weights = {"w": normal(2, 6), "b": normal(6), "c": np.zeros((1, 4), np.float32)}
    found = decisions(body, weights, imports=', "com.microsoft": 1')
    assert [name for name, one in found.items() if one.trained] == ["w", "b"]
    assert found["c"].reason == "mask of LongformerAttention"
