from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxtrain import onnxblock
from onnxtrain.onnxblock import optim
from onnxtrain.onnxblock.optim.optim import AdamWOptimizer, SGDOptimizer

ADAMW_INPUTS = [
    "learning_rate",
    "step",
    "params",
    "gradients",
    "first_order_moments",
    "second_order_moments",
]
SGD_INPUTS = ADAMW_INPUTS[:-1]


def parameters(dtype: type = np.float32) -> Any:
    weight = numpy_helper.from_array(np.ones((3, 4), dtype), "w")
    bias = numpy_helper.from_array(np.ones(4, dtype), "b")
    return [weight, bias], []


def built(block: Any, dtype: type = np.float32) -> Any:
    with onnxblock.empty_base():
        block(parameters(dtype))
    return block.to_model_proto()


def attributes(node: Any) -> dict[str, Any]:
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


@pytest.mark.parametrize(
    ("dtype", "element_type"), [(np.float32, TensorProto.FLOAT), (np.float16, TensorProto.FLOAT16)]
)
@pytest.mark.parametrize(("block", "names"), [(optim.AdamW, ADAMW_INPUTS), (optim.SGD, SGD_INPUTS)])
def test_inputs_and_outputs(block: Any, names: list[str], dtype: type, element_type: int) -> None:
    model = built(block(), dtype)
    assert list(model.graph.input) == [
        helper.make_tensor_value_info("learning_rate", TensorProto.FLOAT, [1]),
        helper.make_tensor_value_info("step", TensorProto.INT64, [1]),
        *(helper.make_tensor_sequence_value_info(n, element_type, None) for n in names[2:]),
    ]
    (output,) = model.graph.output
    assert output == helper.make_tensor_value_info(output.name, TensorProto.BOOL, [1])
    assert not model.graph.value_info


def test_adamw_node() -> None:
    model = built(optim.AdamW())
    (node,) = model.graph.node
    assert (node.op_type, node.domain, list(node.input)) == (
        "AdamWOptimizer",
        "com.microsoft",
        ADAMW_INPUTS,
    )
    assert attributes(node) == {
        "alpha": np.float32(0.9),
        "beta": np.float32(0.999),
        "epsilon": np.float32(1e-6),
        "weight_decay": 0.0,
        "correct_bias": 1,
        "adam_mode": 1,
    }


def test_adamw_options() -> None:
    block = optim.AdamW(bias_correction=False, betas=(0.5, 0.75), eps=1, weight_decay=2)
    assert attributes(built(block).graph.node[0]) == {
        "alpha": 0.5,
        "beta": 0.75,
        "epsilon": 1.0,
        "weight_decay": 2.0,
        "correct_bias": 0,
        "adam_mode": 1,
    }


def test_sgd_node() -> None:
    (node,) = built(optim.SGD()).graph.node
    assert (node.op_type, node.domain) == ("SGDOptimizerV2", "com.microsoft")
    assert list(node.input) == ["learning_rate", "params", "gradients"]


@pytest.mark.parametrize("block", [optim.AdamW, optim.SGD])
def test_clipping_comes_first(block: Any) -> None:
    model = built(block(clip_grad=optim.ClipGradNorm(2)), np.float16)
    clip, step = model.graph.node
    assert (clip.op_type, clip.domain, list(clip.input)) == (
        "InplaceClipGradNorm",
        "com.microsoft",
        ["gradients"],
    )
    assert attributes(clip) == {"max_norm": 2.0}
    assert clip.output[0] in step.input
    assert "gradients" not in step.input
    (value,) = model.graph.value_info
    assert value == helper.make_tensor_sequence_value_info(
        clip.output[0], TensorProto.FLOAT16, None
    )


def test_opsets_follow_the_empty_model() -> None:
    block = optim.AdamW()
    with onnxblock.empty_base(17):
        block(parameters())
    model = block.to_model_proto()
    assert {o.domain: o.version for o in model.opset_import} == {"com.microsoft": 1, "": 17}


@pytest.mark.parametrize("block", [optim.AdamW, optim.SGD])
def test_no_trainable_parameter(block: Any) -> None:
    with onnxblock.empty_base(), pytest.raises(ValueError, match="no trainable parameter"):
        block()(([], []))


def test_custom_optimizer_of_low_level_blocks() -> None:
    class Mixed(onnxblock.ForwardBlock):
        def __init__(self) -> None:
            super().__init__()
            self.clip = optim.ClipGradNorm(1.0)
            self.adamw = AdamWOptimizer(weight_decay=0.1)
            self.sgd = SGDOptimizer()

        def build(self) -> tuple[str, str]:
            graph = self.base.graph
            graph.input.append(helper.make_tensor_value_info("lr", TensorProto.FLOAT, [1]))
            graph.input.append(helper.make_tensor_value_info("t", TensorProto.INT64, [1]))
            for name in ("p", "g", "m", "v"):
                graph.input.append(
                    helper.make_tensor_sequence_value_info(name, TensorProto.FLOAT, None)
                )
            clipped = self.clip("g")
            first = self.adamw("lr", "t", "p", clipped, "m", "v")
            return first, self.sgd("lr", params_name="p", gradients_name=clipped)

    block = Mixed()
    with onnxblock.empty_base():
        block()
    graph = block.to_model_proto().graph
    assert [n.op_type for n in graph.node] == [
        "InplaceClipGradNorm",
        "AdamWOptimizer",
        "SGDOptimizerV2",
    ]
    assert list(graph.node[2].input) == ["lr", "p", graph.node[0].output[0]]
    assert [o.name.split("::")[1] for o in graph.output] == [
        "adamw.updated_flag",
        "update_completed",
    ]
