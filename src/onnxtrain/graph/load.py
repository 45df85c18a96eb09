"""From whatever a user has (path, bytes, proto, onnx-ir model) to an onnx-ir model, or an error."""

from __future__ import annotations

import dataclasses
import os
import pathlib

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError

from onnxtrain.errors import ModelError
from onnxtrain.graph import maps
from onnxtrain.graph.bodies import proto_subgraphs
from onnxtrain.graph.order import ordered

ModelLike = str | os.PathLike[str] | bytes | onnx.ModelProto | ir.Model


@dataclasses.dataclass(frozen=True)
class Source:
    """A model, and what it was read from.

    Attributes:
        model: The model.
        proto: Its protobuf; None if it was given as an onnx-ir model.
        folder: Where its external data lies; None if it was not given by its path.
    """

    model: ir.Model
    proto: onnx.ModelProto | None = None
    folder: pathlib.Path | None = None


def load_model(source: ModelLike, *, own: bool = False) -> ir.Model:
    """Load a model; external data stays on disk until it is read.

    Args:
        source: Where the model is.
        own: Whether an onnx-ir model is copied, for callers that change it.

    Raises:
        ModelError: if it is not a usable ONNX model.
    """
    if isinstance(source, ir.Model):
        return source.clone() if own else source
    return load_source(source).model


def load_source(source: ModelLike) -> Source:
    """Load a model and keep what it was read from, for callers that write it back.

    Raises:
        ModelError: if it is not a usable ONNX model.
    """
    if isinstance(source, ir.Model):
        return Source(source.clone())
    if isinstance(source, onnx.ModelProto):
        return _from_proto(source, "the given ModelProto", folder=None)
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _from_proto(_parse(bytes(source), "the given bytes"), "the given bytes", folder=None)
    if isinstance(source, (str, os.PathLike)):
        path = pathlib.Path(source)
        return _from_proto(_parse(_read(path), f"'{path}'"), f"'{path}'", folder=path.parent)
    raise ModelError(
        f"cannot take a {type(source).__name__} for a model\n"
        "  give a path, bytes, an onnx.ModelProto or an onnx_ir.Model"
    )


def _read(path: pathlib.Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ModelError(f"there is no file '{path}'") from None
    except OSError as error:
        raise ModelError(f"cannot read '{path}': {error.strerror or error}") from error


def _parse(data: bytes, what: str) -> onnx.ModelProto:
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError:
        raise ModelError(f"{what} is not an ONNX model, or it is truncated") from None
    return proto


def _from_proto(proto: onnx.ModelProto, what: str, folder: pathlib.Path | None) -> Source:
    if not proto.ir_version or not proto.HasField("graph") or not proto.opset_import:
        raise ModelError(
            f"{what} is not an ONNX model: it has no "
            + ("IR version" if not proto.ir_version else "graph or no opset import")
        )
    _refuse_sparse(proto, what)
    try:
        model = ordered(maps.read(proto))
    except Exception as error:
        raise ModelError(f"{what} is not a valid ONNX model: {error}") from error
    for tensor in _external_tensors(model):
        _place_external(tensor, what, folder)
    _name_apart(model)
    return Source(model, proto, folder)


def _refuse_sparse(proto: onnx.ModelProto, what: str) -> None:
    for graph in (proto.graph, *(body for _, body in proto_subgraphs(proto.graph))):
        kinds = {a.name for node in graph.node for a in node.attribute}
        if graph.sparse_initializer or "sparse_value" in kinds:
            raise ModelError(
                f"{what} holds sparse tensors, which cannot be read\n"
                "  write them as dense ones, with onnx.helper.make_tensor"
            )


def _name_apart(model: ir.Model) -> None:
    """Give tensors names of their own, so that renaming one leaves the protobuf as it is."""
    for graph in (*model.graphs(), *(f.graph for f in model.functions.values())):
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.serde.TensorProtoTensor):
                value.const_value = _apart(value.const_value)
        for node in graph:
            for key, attribute in node.attributes.items():
                if isinstance(attribute.value, ir.serde.TensorProtoTensor):
                    tensor = _apart(attribute.value)
                    node.attributes[key] = ir.AttrTensor(key, tensor, attribute.doc_string)


def _apart(tensor: ir.serde.TensorProtoTensor) -> ir.LazyTensor:
    return ir.LazyTensor(
        lambda: tensor,
        tensor.dtype,
        tensor.shape,
        name=tensor.name,
        doc_string=tensor.doc_string,
        metadata_props=dict(tensor.metadata_props),
    )


def _external_tensors(model: ir.Model) -> list[ir.ExternalTensor]:
    found = []
    for graph in model.graphs():
        found += [
            v.const_value
            for v in graph.initializers.values()
            if isinstance(v.const_value, ir.ExternalTensor)
        ]
        for node in graph:
            found += [
                a.value
                for a in node.attributes.values()
                if a.type == ir.AttributeType.TENSOR and isinstance(a.value, ir.ExternalTensor)
            ]
    return found


def _place_external(tensor: ir.ExternalTensor, what: str, folder: pathlib.Path | None) -> None:
    """Tie external data to the model's folder, and refuse what lies outside of it."""
    location = os.fspath(tensor.location)
    if folder is None:
        raise ModelError(
            f"{what} keeps tensor '{tensor.name}' in the file '{location}', "
            "but without a path there is no folder to look in\n  load the model from its path"
        )
    root = folder.resolve()
    target = (root / location).resolve()
    if pathlib.PurePath(location).is_absolute() or not target.is_relative_to(root):
        raise ModelError(
            f"{what}: external data of tensor '{tensor.name}' is outside the model's folder: "
            f"'{location}'\n  move the data file beside the model and load it again"
        )
    if not target.is_file():
        raise ModelError(f"{what}: external data file '{location}' is missing from '{folder}'")
    end = (tensor.offset or 0) + (tensor.length or tensor.nbytes)
    if target.stat().st_size < end:
        raise ModelError(
            f"{what}: external data file '{location}' is truncated: tensor '{tensor.name}' "
            f"ends at byte {end}, the file at {target.stat().st_size}"
        )
    tensor.base_dir = os.fspath(root)
