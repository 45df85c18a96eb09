"""Sparse tensors of a file as dense ones, which is how onnxruntime reads them too."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import numpy_helper

from onnxtrain.graph.bodies import proto_subgraphs

Holder = onnx.GraphProto | onnx.FunctionProto


def dense(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model itself if nothing in it is sparse, else a copy with dense tensors."""
    if not any(_is_sparse(holder) for holder in _holders(proto)):
        return proto
    copied = onnx.ModelProto()
    copied.CopyFrom(proto)
    for holder in _holders(copied):
        if isinstance(holder, onnx.GraphProto):
            holder.initializer.extend([_filled(one) for one in holder.sparse_initializer])
            holder.ClearField("sparse_initializer")
        for attribute in _sparse_constants(holder):
            tensor = _filled(attribute.sparse_tensor)
            attribute.ClearField("sparse_tensor")
            attribute.name, attribute.type = "value", onnx.AttributeProto.TENSOR
            attribute.t.CopyFrom(tensor)
    return copied


def _holders(proto: onnx.ModelProto) -> list[Holder]:
    """All that has nodes: the graph, the functions and the bodies inside."""
    found: list[Holder] = [proto.graph, *proto.functions]
    return [*found, *(body for top in found for _, body in proto_subgraphs(top))]


def _is_sparse(holder: Holder) -> bool:
    in_graph = isinstance(holder, onnx.GraphProto) and bool(holder.sparse_initializer)
    return in_graph or next(_sparse_constants(holder), None) is not None


def _sparse_constants(holder: Holder) -> Iterator[onnx.AttributeProto]:
    for node in holder.node:
        if node.op_type == "Constant":
            yield from (a for a in node.attribute if a.name == "sparse_value")


def _filled(sparse: onnx.SparseTensorProto) -> onnx.TensorProto:
    """Values at their indices, which count through the flat tensor or have one for each axis."""
    values, indices = numpy_helper.to_array(sparse.values), numpy_helper.to_array(sparse.indices)
    full = np.zeros(tuple(sparse.dims), values.dtype)
    places = np.unravel_index(indices, full.shape) if indices.ndim == 1 else tuple(indices.T)
    full[places] = values
    return numpy_helper.from_array(full, sparse.values.name)
