"""Free sizes of inputs that a file gives no name.

What a model computes then has sizes of which nothing is known. With names, inference tells which of
them are those of an input.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx
import onnx_ir as ir

from onnxtrain.graph.edit import fresh_name
from onnxtrain.graph.loading.load import load_model
from onnxtrain.graph.prepare import prepare


def name_sizes(model: ir.Model) -> bool:
    """Give each such size a name of its own, in place; whether there were any."""
    graph = model.graph
    fed = [value for value in graph.inputs if value.name not in graph.initializers]
    shaped = [v for v in fed if isinstance(v.type, ir.TensorType) and v.shape is not None]
    taken = _symbols(shaped)
    found = False
    for value in shaped:
        dims = list(value.shape or ())
        for axis, dim in enumerate(dims):
            if isinstance(dim, ir.SymbolicDim) and dim.value is None:
                dims[axis] = ir.SymbolicDim(fresh_name(f"{value.name}_{axis}", taken))
                found = True
        value.shape = ir.Shape(dims)
    return found


def _symbols(values: Iterable[ir.Value]) -> set[str]:
    """Names of the free sizes of values."""
    dims = [dim for value in values for dim in value.shape or ()]
    return {str(dim.value) for dim in dims if isinstance(dim, ir.SymbolicDim)}


def with_named_sizes(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of a model whose inputs and outputs have such names; itself if they all have some."""
    model = load_model(proto, own=True)
    if not name_sizes(model):
        return proto
    named = onnx.ModelProto()
    named.CopyFrom(proto)
    inputs = {str(value.name): value for value in model.graph.inputs}
    outputs = {str(value.name): value for value in prepare(model).graph.outputs}
    free = _symbols(inputs.values())
    for declared, known in ((named.graph.input, inputs), (named.graph.output, outputs)):
        for value in declared:
            if value.name in known and value.type.tensor_type.HasField("shape"):
                _name(value, known[value.name], free)
    return named


def _name(declared: onnx.ValueInfoProto, known: ir.Value, free: set[str]) -> None:
    """Write the names of sizes that are those of inputs where none is declared."""
    dims = declared.type.tensor_type.shape.dim
    if known.shape is None or len(known.shape) != len(dims):
        return
    for dim, size in zip(dims, known.shape, strict=True):
        if dim.WhichOneof("value") is None and not isinstance(size, int) and size.value in free:
            dim.dim_param = str(size.value)
