"""The training graph keeps the contract of the reference: names, order, accumulation."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx.helper import make_node, make_tensor_value_info

from onnxtrain.errors import GraphError, LossError, NoGradientError, ParameterError
from onnxtrain.graph.phase import Phase, nodes_in
from onnxtrain.graph.prepare import prepare
from onnxtrain.transforms.training_graph import (
    build_models,
    build_split_model,
    initializers_as_constants,
    parameters_to_inputs,
    set_outputs,
)
from training.small import mlp, model_of, normal


def with_loss() -> ir.Model:
    """The MLP with a cross entropy behind it."""
    proto = mlp()
    proto.graph.input.append(make_tensor_value_info("labels", 7, ["N"]))
    proto.graph.node.append(make_node("SoftmaxCrossEntropyLoss", ["y", "labels"], ["loss"]))
    proto.graph.output.insert(0, make_tensor_value_info("loss", 1, []))
    return ir.from_proto(proto)


def parsed(text: str, weights=None, **options) -> ir.Model:
    return prepare(ir.from_proto(model_of(text, weights, **options)))


def names(values) -> list[str]:
    return [str(value.name) for value in values]


def test_inputs_and_outputs_are_in_the_order_of_the_reference():
    model = with_loss()
    parameters_to_inputs(model, {"fc1.weight", "fc2.weight", "fc1.bias", "fc2.bias"})
    made = build_models(model, trainable=["fc1.weight", "fc2.weight"], outputs=["loss", "y"])
    assert names(made.training.graph.inputs) == [
        "x",
        "labels",
        "fc1.weight",
        "fc1.bias",
        "fc2.weight",
        "fc2.bias",
        "fc1.weight_grad.accumulation.buffer",
        "fc2.weight_grad.accumulation.buffer",
        "lazy_reset_grad",
    ]
    assert names(made.training.graph.outputs) == [
        "loss",
        "y",
        "fc1.weight_grad.accumulation.out",
        "fc2.weight_grad.accumulation.out",
    ]
    assert made.trained == ["fc1.weight", "fc2.weight"]
    flag = made.training.graph.outputs[-1]
    assert (flag.dtype, list(flag.shape)) == (ir.DataType.BOOL, [1])
    reset = made.training.graph.inputs[-1]
    assert (reset.dtype, list(reset.shape)) == (ir.DataType.BOOL, [1])


def test_each_gradient_is_accumulated_once_behind_its_producer():
    model = with_loss()
    parameters_to_inputs(model, {"fc1.weight", "fc2.weight"})
    graph = build_models(
        model, trainable=["fc1.weight", "fc2.weight"], outputs=["loss"]
    ).training.graph
    found = [n for n in graph if n.op_type == "InPlaceAccumulatorV2"]
    assert {n.name for n in found} == {"GradientAccumulator1", "GradientAccumulator2"}
    for node in found:
        buffer, grad, reset = names(node.inputs)
        parameter = grad.removesuffix("_grad")
        assert buffer == f"{parameter}_grad.accumulation.buffer" and reset == "lazy_reset_grad"
        assert node.predecessors()[0].name == list(graph)[list(graph).index(node) - 1].name


def test_the_evaluation_model_is_the_forward_model():
    model = with_loss()
    parameters_to_inputs(model, set(model.graph.initializers))
    made = build_models(model, trainable=["fc1.bias"], outputs=["loss", "y"])
    graph = made.evaluation.graph
    assert [n.op_type for n in graph] == ["Gemm", "Relu", "Gemm", "SoftmaxCrossEntropyLoss"]
    assert names(graph.outputs) == ["loss", "y"]
    assert names(graph.inputs) == [
        "x",
        "labels",
        "fc1.weight",
        "fc1.bias",
        "fc2.weight",
        "fc2.bias",
    ]


def test_a_weight_that_is_used_twice_has_one_summed_gradient():
    model = parsed(
        """(float[3,3] x) => (float l) {
            h = MatMul(x, w) t = Tanh(h) y = MatMul(t, w) l = ReduceSum<keepdims=0>(y)
        }""",
        {"w": normal(3, 3)},
    )
    parameters_to_inputs(model, {"w"})
    graph = build_models(model, trainable=["w"], outputs=["l"]).training.graph
    (total,) = (n for n in graph if n.name == "AccumulateGrad_w_grad")
    assert total.op_type == "Sum" and names(total.inputs) == ["w_grad_0", "w_grad_1"]
    assert names(total.outputs) == ["w_grad"]


def test_nothing_to_train_gives_a_plain_model_with_the_switch():
    plain = [node.op_type for node in with_loss().graph]
    made = build_models(with_loss(), trainable=[], outputs=["loss"])
    assert names(made.training.graph.inputs) == ["x", "labels", "lazy_reset_grad"]
    assert [node.op_type for node in made.training.graph] == plain
    assert names(made.training.graph.outputs) == ["loss"]
    assert made.trained == []


def test_parameters_become_inputs_without_values():
    model = ir.from_proto(mlp())
    parameters_to_inputs(model, {"fc2.bias", "fc1.weight"})
    assert names(model.graph.inputs) == ["x", "fc1.weight", "fc2.bias"]
    assert list(model.graph.initializers) == ["fc1.bias", "fc2.weight"]
    weight = model.graph.inputs[1]
    assert weight.const_value is None
    assert (weight.dtype, list(weight.shape)) == (ir.DataType.FLOAT, [5, 4])


def test_parameters_that_are_inputs_already_move_to_the_end():
    proto = mlp()
    proto.graph.input.insert(0, make_tensor_value_info("fc1.bias", 1, [5]))
    model = ir.from_proto(proto)
    parameters_to_inputs(model, {"fc1.bias"})
    assert names(model.graph.inputs) == ["x", "fc1.bias"]


def test_unknown_parameters_are_refused_by_name():
    with pytest.raises(ParameterError, match=r"no parameter 'fc3'\n  have  fc1\.weight"):
        parameters_to_inputs(ir.from_proto(mlp()), {"fc3"})
    with pytest.raises(ParameterError, match="no parameter 'fc3'"):
        build_models(with_loss(), trainable=["fc3"], outputs=["loss"])


def test_initializers_are_taken_off_the_inputs():
    proto = mlp()
    proto.ir_version = 3
    proto.graph.input.insert(0, make_tensor_value_info("fc1.bias", 1, [5]))
    model = initializers_as_constants(ir.from_proto(proto))
    assert names(model.graph.inputs) == ["x"] and model.ir_version == 4
    assert "fc1.bias" in model.graph.initializers


TWO_HEADS = """(float[N,4] x) => (float l, float[N,4] other) {
    h = Mul(x, w)
    l = ReduceSum<keepdims=0>(h)
    n = BatchNormalization(x, s, s, m, m)
    other = Mul(n, v)
}"""


def two_heads() -> ir.Model:
    weights = {"w": normal(4), "v": normal(4), "s": normal(4), "m": np.ones(4, np.float32)}
    model = parsed(TWO_HEADS, weights)
    parameters_to_inputs(model, set(weights))
    return model


def test_what_the_outputs_do_not_need_is_removed():
    graph = build_models(two_heads(), trainable=["w"], outputs=["l"]).training.graph
    assert "BatchNormInternal" not in {n.op_type for n in graph}


def test_statistics_move_although_nobody_reads_them():
    graph = build_models(two_heads(), trainable=["w"], outputs=["l", "other"]).training.graph
    assert "BatchNormInternal" in {n.op_type for n in graph}


def test_a_parameter_without_influence_is_refused_or_left_out():
    with pytest.raises(ParameterError, match="does not depend on 'v' in a differentiable way"):
        build_models(two_heads(), trainable=["w", "v"], outputs=["l"])
    made = build_models(two_heads(), trainable=["w", "v"], outputs=["l"], optional={"v", "w"})
    assert made.trained == ["w"]
    assert "v_grad.accumulation.buffer" not in names(made.training.graph.inputs)
    with pytest.raises(ParameterError, match="does not depend on 'v'"):
        build_models(two_heads(), trainable=["v"], outputs=["l"], optional={"v"})


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("h", r"loss 'h' must be a scalar, its shape is \['N', '4'\]"),
        ("k", "loss 'k' is not a floating point tensor"),
    ],
)
def test_the_loss_is_a_floating_point_scalar(output, message):
    model = parsed(
        "(float[N,4] x) => (float[N,4] h, int64 k) { h = Mul(x, w) k = Size(h) }",
        {"w": normal(4)},
    )
    parameters_to_inputs(model, {"w"})
    with pytest.raises(LossError, match=message):
        build_models(model, trainable=["w"], outputs=[output])


def test_a_loss_of_one_element_may_have_axes():
    model = parsed(
        "(float[N,4] x) => (float[1,1] l) { h = Mul(x, w) l = ReduceSum<keepdims=1>(h) }",
        {"w": normal(4)},
    )
    parameters_to_inputs(model, {"w"})
    assert build_models(model, trainable=["w"], outputs=["l"]).trained == ["w"]


def test_the_pool_of_an_old_opset_is_differentiated_by_known_operators():
    model = parsed(
        """(float[2,1,4,4] x) => (float l) {
            h = Mul(x, w) p = MaxPool<kernel_shape=[2,2]>(h) l = ReduceSum<keepdims=0>(p)
        }""",
        {"w": normal(2, 1, 4, 4)},
        opset=7,
    )
    parameters_to_inputs(model, {"w"})
    graph = build_models(model, trainable=["w"], outputs=["l"]).training.graph
    assert {node.domain for node in graph} <= {"", "com.microsoft"}


def test_unknown_outputs_are_refused_by_name():
    with pytest.raises(GraphError, match="no value 'z' to return\n  outputs  y"):
        set_outputs(ir.from_proto(mlp()).graph, ["z"])


def test_an_operator_without_a_rule_is_named():
    model = parsed(
        """(float[N,4] x) => (float l) {
            h = Mul(x, w) c = own.Custom(h) l = ReduceSum<keepdims=0>(c)
        }""",
        {"w": normal(4)},
        imports=', "own": 1',
    )
    custom = next(n for n in model.graph if n.op_type == "Custom")
    custom.outputs[0].type, custom.outputs[0].shape = custom.inputs[0].type, custom.inputs[0].shape
    for value in (model.graph.outputs[0],):
        value.type, value.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape([])
    parameters_to_inputs(model, {"w"})
    with pytest.raises(NoGradientError, match=r"no gradient rule for own::Custom"):
        build_models(model, trainable=["w"], outputs=["l"])


SEVERAL = """(float[N,4] x) => (float[N,4] a, float[N,4] b, int64[N] best) {
    a = Mul(x, w) b = Tanh(a) best = ArgMax<axis=1, keepdims=0>(b)
}"""


def test_a_split_model_hands_its_outputs_out_in_the_middle():
    model = parsed(SEVERAL, {"w": normal(4)})
    parameters_to_inputs(model, {"w"})
    made = build_split_model(model, trainable=["w"], outputs=["a", "b", "best"])
    graph = made.training.graph
    (middle,) = (n for n in graph if n.op_type == "YieldOp")
    assert names(middle.inputs) == ["a", "b", "best"] and len(middle.outputs) == 3
    assert names(graph.outputs) == ["w_grad.accumulation.out"]
    assert names(made.evaluation.graph.outputs) == ["a", "b", "best"]
    assert not middle.outputs[2].uses()
    assert middle.outputs[0].uses() and middle.outputs[1].uses()


def test_a_split_model_leaves_names_of_the_model_to_the_model():
    text = "(float[N,4] x) => (float[N,3] y) { y_grad = Relu(x) y = MatMul(y_grad, w) }"
    model = parsed(text, {"w": normal(4, 3)})
    parameters_to_inputs(model, {"w"})
    training = build_split_model(model, trainable=["w"], outputs=["y"]).training
    (handed,) = [node for node in training.graph if node.op_type == "YieldOp"]
    assert names(handed.outputs) == ["y_grad_external"]
    made = [str(v.name) for node in training.graph for v in node.outputs if v.name]
    assert len(made) == len(set(made))


def test_all_but_the_forward_pass_is_marked():
    model = with_loss()
    parameters_to_inputs(model, {"fc1.weight"})
    graph = build_models(model, trainable=["fc1.weight"], outputs=["loss"]).training.graph
    forward = ["Gemm", "Relu", "Gemm", "SoftmaxCrossEntropyLoss"]
    assert [node.op_type for node in nodes_in(graph, Phase.FORWARD)] == forward
    added = [node.op_type for node in nodes_in(graph, Phase.BACKWARD)]
    assert added.count("InPlaceAccumulatorV2") == 1 and len(added) > 3


def test_a_split_model_hands_out_tensors_only():
    model = parsed(
        "(float[N,4] x) => (seq(float[N,4]) s) { h = Mul(x, w) s = SequenceConstruct(h) }",
        {"w": normal(4)},
    )
    parameters_to_inputs(model, {"w"})
    with pytest.raises(LossError, match=r"output 's' is seq\(tensor\(float\)\)"):
        build_split_model(model, trainable=["w"], outputs=["s"])


@pytest.mark.parametrize("end", ["z", "y"], ids=["only path", "one of two paths"])
def test_a_branch_that_reads_a_value_from_outside_is_differentiated(end):
    model = parsed(
        """(float[N,4] x, bool c) => (float[N,4] z, float[N,4] y) {
            h = Mul(x, w)
            z = If(c) <
                then_branch = a () => (float[N,4] p) { p = Add(h, h) },
                else_branch = b () => (float[N,4] q) { q = Neg(h) }
            >
            y = Add(z, h)
        }""",
        {"w": normal(4)},
    )
    parameters_to_inputs(model, {"w"})
    made = build_split_model(model, trainable=["w"], outputs=[end])
    assert made.trained == ["w"]
    branches = [node for node in made.training.graph if node.op_type == "If"]
    assert len(branches) == 2
    assert names(branches[1].outputs) == ["h_grad" if end == "z" else "h_grad_1"]
