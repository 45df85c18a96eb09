"""Inputs, elements and results of optimizer graphs, which are sequences of tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx

from onnxtrain.onnxblock import edit
from onnxtrain.onnxblock.onnxblock import Parameters
from onnxtrain.onnxblock.values import find_value

SEQUENCES_SINCE = 11
"""The first opset with operators on sequences, which optimizers are written with."""
LEARNING_RATE = "learning_rate"
STEP = "step"
PARAMS = "params"
GRADIENTS = "gradients"
FIRST_MOMENTS = "first_order_moments"
SECOND_MOMENTS = "second_order_moments"
UPDATED = "updated_"
"""What the name of an output begins with that holds the new values of an input."""


def declare_inputs(model: onnx.ModelProto, parameters: Parameters, moments: Sequence[str]) -> int:
    """Add learning rate, step, parameters, gradients and moments as graph inputs, in this order.

    Returns:
        How many parameters are trained.
    """
    trainable, _ = parameters
    if not trainable:
        raise ValueError(
            "cannot write an optimizer graph: there is no trainable parameter\n"
            "  give (trainable, frozen) parameters, such as TrainingBlock.parameters()"
        )
    dtype = trainable[0].data_type
    tensor = onnx.helper.make_tensor_value_info
    sequence = onnx.helper.make_tensor_sequence_value_info
    model.graph.input.extend(
        [
            tensor(LEARNING_RATE, onnx.TensorProto.FLOAT, [1]),
            tensor(STEP, onnx.TensorProto.INT64, [1]),
            *(sequence(name, dtype, None) for name in (PARAMS, GRADIENTS, *moments)),
        ]
    )
    return len(trainable)


def elements(model: onnx.ModelProto, sequence: str, count: int) -> list[str]:
    """Names of the tensors of a sequence."""
    names = [edit.generate_name(f"{sequence}_element") for _ in range(count)]
    for index, name in enumerate(names):
        at = edit.add_constant(model, "position", index, onnx.TensorProto.INT64)
        edit.add_node(model, "SequenceAt", [sequence, at], [name])
    return names


def updated(model: onnx.ModelProto, new: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Collect new tensors in sequences that are named after the inputs they replace.

    Returns:
        Names of a flag that is true, and of the sequences.
    """
    flag = edit.generate_name("update_completed")
    edit.add_node(model, "Equal", [STEP, STEP], [flag])
    for name, tensors in new.items():
        edit.add_node(model, "SequenceConstruct", tensors, [f"{UPDATED}{name}"])
        declare_sequence(model, f"{UPDATED}{name}", name)
    return (flag, *(f"{UPDATED}{name}" for name in new))


def declare_flag(model: onnx.ModelProto, name: str) -> None:
    """Write down that a value is one truth value."""
    edit.declare(model, onnx.helper.make_tensor_value_info(name, onnx.TensorProto.BOOL, [1]))


def declare_sequence(model: onnx.ModelProto, name: str, like: str) -> None:
    """Give a sequence the type of another one, where that is known."""
    value = find_value(model, like)
    dtype: int = onnx.TensorProto.FLOAT
    if value is not None and value.type.HasField("sequence_type"):
        dtype = value.type.sequence_type.elem_type.tensor_type.elem_type
    edit.declare(model, onnx.helper.make_tensor_sequence_value_info(name, dtype, None))
