"""The model of a row: one node, run through the whole runtime."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import torch

from onnxtrain.graph.inference.infer import infer
from onnxtrain.kernels.dtypes import array_of, from_torch, to_torch
from onnxtrain.kernels.registry import KernelRegistry
from onnxtrain.runtime import copies
from onnxtrain.runtime.options import SessionOptions
from onnxtrain.runtime.session import InferenceSession
from onnxtrain.testing.case import Case
from onnxtrain.testing.table import opsets, schema_of
from onnxtrain.types import CPU, CUDA, DataType

Value = torch.Tensor | list[torch.Tensor] | None
PROVIDERS = {"cpu": CPU.value, "cuda": CUDA.value}


def draw(case: Case, dtype: DataType, seed: int = 0) -> list[Value]:
    """Inputs of a row, rounded to the type under test (or to their own fixed types)."""
    drawn = case.draw(seed)
    return [
        value if item is None or is_text(value) else rounded(value, to_torch(item.dtype or dtype))
        for item, value in zip(case.inputs, drawn, strict=True)
    ]


def is_text(value: Any) -> bool:
    """Whether a value is a tensor of strings, which is a numpy array."""
    return isinstance(value, np.ndarray)


def rounded(value: Any, dtype: torch.dtype) -> Any:
    """A tensor, or each tensor of a list, in another element type; whole numbers wrap around."""
    if isinstance(value, (list, tuple)):
        return [rounded(item, dtype) for item in value]
    if value.dtype.is_floating_point and not dtype.is_floating_point and dtype != torch.bool:
        value = value.to(torch.int64)
    return value.to(dtype)


def input_name(case: Case, index: int) -> str:
    """Name of an input in the model of a row."""
    formals = schema_of(case).inputs
    name = formals[min(index, len(formals) - 1)].name
    return name if index < len(formals) - 1 else f"{name}_{index}"


def named(case: Case) -> list[int]:
    """Indices of the outputs that the node really has, in the order of the model's outputs."""
    return [index for index in range(case.outputs) if index not in case.empty]


def feeds_of(case: Case, inputs: Sequence[Value]) -> dict[str, Any]:
    """What the model of a row is fed: the inputs that are neither absent nor constant."""
    return {
        input_name(case, index): value
        for index, (item, value) in enumerate(zip(case.inputs, inputs, strict=True))
        if item is not None and not item.constant
    }


def one_node_model(case: Case, inputs: Sequence[Value]) -> onnx.ModelProto:
    """A model of one node whose inputs have the types of the given values.

    Constant inputs become initializers; the outputs have the types that inference finds.
    """
    return ir.serde.serialize_model(_model(case, inputs))


class _Last:
    """The model that was asked for last, and what it was made of: tests ask several times."""

    made_of: tuple[Any, ...] = ()
    model: ir.Model | None = None


def _model(case: Case, inputs: Sequence[Value]) -> ir.Model:
    """The typed model of a row, which nobody changes."""
    made_of = (case, *inputs)
    same = len(made_of) == len(_Last.made_of) and all(map(operator.is_, made_of, _Last.made_of))
    if _Last.model is None or not same:
        _Last.model, _Last.made_of = _made(case, inputs), made_of
    return _Last.model


def _made(case: Case, inputs: Sequence[Value]) -> ir.Model:
    values: list[ir.Value | None] = []
    for index, (item, value) in enumerate(zip(case.inputs, inputs, strict=True)):
        constant = item is not None and item.constant
        values.append(
            None if value is None else typed_value(input_name(case, index), value, constant)
        )
    node = ir.Node(
        case.domain,
        case.op,
        values,
        [attribute(case, name, value) for name, value in case.attributes.items()],
        num_outputs=case.outputs,
        name="node",
    )
    for index, output in enumerate(node.outputs):
        output.name = f"y{index}" if index in named(case) else ""
    graph = ir.Graph(
        [v for v in values if v is not None and v.const_value is None],
        [output for output in node.outputs if output.name],
        nodes=[node],
        initializers=[v for v in values if v is not None and v.const_value is not None],
        opset_imports=opsets(case),
        name=case.op,
    )
    return infer(ir.Model(graph, ir_version=onnx.IR_VERSION))


def typed_value(name: str, value: Any, constant: bool) -> ir.Value:
    """A graph value with the type and shape of a tensor (or of a list of tensors)."""
    if isinstance(value, list):
        element = from_torch(value[0].dtype if value else torch.float32)
        return ir.Value(name=name, type=ir.SequenceType(ir.TensorType(element)))
    if isinstance(value, np.ndarray):
        strings = ir.StringTensor(np.char.encode(value.astype(str)), name=name)
        return ir.Value(
            name=name,
            type=ir.TensorType(DataType.STRING),
            shape=ir.Shape(value.shape),
            const_value=strings if constant else None,
        )
    content = ir.tensor(array_of(value), name=name) if constant else None
    return ir.Value(
        name=name,
        type=ir.TensorType(from_torch(value.dtype)),
        shape=ir.Shape(value.shape),
        const_value=content,
    )


def attribute(case: Case, name: str, value: Any) -> ir.Attr:
    """An attribute of a row in the type that the schema declares."""
    declared = schema_of(case).attributes.get(name)
    if isinstance(value, torch.Tensor):
        value = array_of(value)
    if isinstance(value, np.ndarray):
        return ir.AttrTensor(name, ir.tensor(value))
    if declared is None or isinstance(value, ir.Graph):
        return ir.convenience.convert_attribute(name, value)
    kind = ir.AttributeType[declared.type.name]  # type: ignore[attr-defined]
    if kind == ir.AttributeType.FLOAT:
        value = float(value)
    elif kind == ir.AttributeType.INT:
        value = int(value)
    elif kind in (ir.AttributeType.INTS, ir.AttributeType.FLOATS, ir.AttributeType.STRINGS):
        value = tuple(value)
    return ir.Attr(name, kind, value)


def declared_types(case: Case, inputs: Sequence[Value]) -> list[torch.dtype | None]:
    """Element types that a row's outputs must have, None where inference cannot tell."""
    found = []
    for value in _model(case, inputs).graph.outputs:
        dtype = value.dtype or DataType.UNDEFINED
        untyped = dtype in (DataType.UNDEFINED, DataType.STRING)
        found.append(None if untyped else to_torch(dtype))
    return found


def on_device(value: Any, device: str) -> Any:
    """A copy of a tensor, or of each tensor of a list, on a device."""
    if isinstance(value, list):
        return [on_device(item, device) for item in value]
    return value.clone().to(device) if isinstance(value, torch.Tensor) else value


def provider_on(device: str) -> tuple[str, dict[str, str]]:
    """The provider of ``cpu``, ``cuda`` or ``cuda:1``, with its options."""
    kind, _, index = device.partition(":")
    return PROVIDERS[kind], {"device_id": index} if index else {}


def run_model(
    model: onnx.ModelProto,
    feeds: dict[str, Any],
    device: str = "cpu",
    *,
    registry: KernelRegistry | None = None,
    reuse: bool = True,
    deterministic: bool = False,
) -> list[Any]:
    """Outputs of a model on copies of the feeds."""
    options = SessionOptions(seed=0, reuse_storage=reuse, use_deterministic_compute=deterministic)
    session = InferenceSession(model, options, [provider_on(device)], registry=registry)
    return session.run_torch(None, {k: on_device(v, device) for k, v in feeds.items()})


def evaluate(
    case: Case,
    inputs: Sequence[Value],
    device: str = "cpu",
    registry: KernelRegistry | None = None,
) -> list[Any]:
    """Outputs of a row (those that are named) as the runtime computes them."""
    model = one_node_model(case, inputs)
    return run_model(model, feeds_of(case, inputs), device, registry=registry)


def with_fresh_inputs(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same model with a copy of each fed input, whose storage an output may take over."""
    loaded = ir.from_proto(model)
    graph = loaded.graph
    copy = copies.declared(copies.copy)
    graph.opset_imports[copy.domain] = 1
    first = graph[0]
    for value in list(graph.inputs):
        node = ir.node(copy.op, [value], domain=copy.domain, name=f"copy_{value.name}")
        fresh = node.outputs[0]
        fresh.name, fresh.type, fresh.shape = f"{value.name}_copy", value.type, value.shape
        value.replace_all_uses_with(fresh)
        node.replace_input_with(0, value)
        graph.insert_before(first, node)
    return ir.serde.serialize_model(loaded)
