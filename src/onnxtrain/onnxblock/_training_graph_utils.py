"""Gradients of a model in two steps, for programs that do by themselves what TrainingBlock does.

As in onnxruntime-training, where the module has an underscore too: first a model that gives the
gradients out, which may then be edited, and then accumulation, which makes a training model of it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import onnx
from onnx import helper

from onnxtrain.errors import OptionError, ParameterError
from onnxtrain.graph.names import listed, nearest
from onnxtrain.graph.phase import BACKWARD_DOC
from onnxtrain.onnxblock.onnxblock import in_order
from onnxtrain.transforms.protos import build_training_models
from onnxtrain.transforms.training_graph import BUFFER_SUFFIX, FLAG_SUFFIX, RESET_INPUT
from onnxtrain.types import MS

__all__ = ["build_gradient_accumulation_graph", "build_gradient_graph", "get_model_parameters"]

_GRADIENT = "_grad"
_ACCUMULATOR = "InPlaceAccumulatorV2"


def get_model_parameters(
    model: onnx.ModelProto, requires_grad: Collection[str], frozen_params: Collection[str]
) -> tuple[list[onnx.TensorProto], list[onnx.TensorProto]]:
    """The initializers to train and those to freeze, in their order; names without one are none."""
    tensors = model.graph.initializer
    trained = [tensor for tensor in tensors if tensor.name in requires_grad]
    return trained, [tensor for tensor in tensors if tensor.name in frozen_params]


def build_gradient_graph(
    model: onnx.ModelProto,
    requires_grad: Collection[str],
    frozen_params: Collection[str],
    output_names: Sequence[str] | str,
    custom_op_library: str | None = None,
) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """A model that also gives ``<name>_grad`` of every name out, and one for evaluation.

    Args:
        model: The model with the loss in it; its parameters become inputs, in place.
        requires_grad: What gets a gradient.
        frozen_params: Initializers that become inputs and get none.
        output_names: The outputs, the loss first.
        custom_op_library: Not available; operators of your own are registered in Python.
    """
    if custom_op_library is not None:
        raise OptionError("custom_op_library is not available; register kernels with @kernel")
    outputs = [output_names] if isinstance(output_names, str) else list(output_names)
    training, evaluation = build_training_models(
        model,
        trainable=in_order(model, requires_grad),
        frozen=in_order(model, frozen_params),
        loss_output=outputs[0],
        output_names=outputs,
    )
    moved = {*requires_grad, *frozen_params} or {t.name for t in model.graph.initializer}
    _initializers_to_inputs(model.graph, moved)
    _give_gradients_out(training.graph)
    return training, evaluation


def build_gradient_accumulation_graph(
    grad_model: onnx.ModelProto, requires_grad: Collection[str]
) -> None:
    """Let a model add the gradients that it gives out to buffers, in place.

    Raises:
        ParameterError: if it does not give the gradient of a name out.
    """
    graph = grad_model.graph
    given = {value.name: value for value in graph.output}
    if missing := [name for name in requires_grad if name + _GRADIENT not in given]:
        have = [n.removesuffix(_GRADIENT) for n in given if n.endswith(_GRADIENT)]
        raise ParameterError(
            f"the model gives no gradient of {listed(map(repr, missing))} out\n"
            f"  have  {nearest(missing, have)}"
        )
    wanted = {name + _GRADIENT for name in requires_grad}
    outputs = list(graph.output)
    del graph.output[:]
    for index, value in enumerate(outputs):
        graph.output.append(_accumulated(graph, index, value) if value.name in wanted else value)
    graph.input.append(_switch(RESET_INPUT))
    _import(grad_model)


def _accumulated(
    graph: onnx.GraphProto, index: int, gradient: onnx.ValueInfoProto
) -> onnx.ValueInfoProto:
    """Add a gradient to a buffer; gives the output that says so."""
    name = gradient.name.removesuffix(_GRADIENT)
    buffer = onnx.ValueInfoProto(name=name + BUFFER_SUFFIX, type=gradient.type)
    graph.input.append(buffer)
    inputs, flag = [buffer.name, gradient.name, RESET_INPUT], _switch(name + FLAG_SUFFIX)
    node = helper.make_node(
        _ACCUMULATOR, inputs, [flag.name], f"GradientAccumulator{index}", BACKWARD_DOC, MS
    )
    graph.node.append(node)
    return flag


def _give_gradients_out(graph: onnx.GraphProto) -> None:
    """Take accumulation off a training graph: its outputs become the gradients."""
    types = {value.name: value.type for value in graph.input}
    nodes = [node for node in graph.node if (node.domain, node.op_type) == (MS, _ACCUMULATOR)]
    for node in nodes:
        name = node.input[0].removesuffix(BUFFER_SUFFIX)
        graph.node.remove(node)
        if node.input[1] != name + _GRADIENT:  # one that was read before its cast
            dtype = types[name].tensor_type.elem_type
            cast = helper.make_node("Cast", [node.input[1]], [name + _GRADIENT], to=dtype)
            cast.doc_string = BACKWARD_DOC
            graph.node.append(cast)
        for output in graph.output:
            if output.name == node.output[0]:
                output.name = name + _GRADIENT
                output.type.CopyFrom(types[node.input[0]])
    names = {RESET_INPUT, *(node.input[0] for node in nodes)}
    kept = [value for value in graph.input if value.name not in names]
    del graph.input[:]
    graph.input.extend(kept)


def _initializers_to_inputs(graph: onnx.GraphProto, names: Collection[str]) -> None:
    """Turn initializers into the last inputs, without their values."""
    moved = [tensor for tensor in graph.initializer if tensor.name in names]
    kept = [value for value in graph.input if value.name not in {t.name for t in moved}]
    del graph.input[:]
    graph.input.extend(kept)
    for tensor in moved:
        info = helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
        graph.input.append(info)
        graph.initializer.remove(tensor)


def _switch(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, onnx.TensorProto.BOOL, [1])


def _import(model: onnx.ModelProto) -> None:
    """See to it that the model may use the reference's operators."""
    if not any(opset.domain == MS for opset in model.opset_import):
        model.opset_import.append(helper.make_opsetid(MS, 1))
