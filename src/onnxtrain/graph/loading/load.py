"""From whatever a user has (path, bytes, proto, onnx-ir model) to an onnx-ir model, or an error."""

from __future__ import annotations

import dataclasses
import math
import os
import pathlib
from collections.abc import Callable, Mapping

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError

from onnxtrain.errors import ModelError
from onnxtrain.graph import maps
from onnxtrain.graph.loading import whole
from onnxtrain.graph.loading.external import Content, map_files
from onnxtrain.graph.loading.mistaken import what_it_is
from onnxtrain.graph.loading.sparse import dense
from onnxtrain.graph.order import ordered
from onnxtrain.graph.torch_export.folded import tie
from onnxtrain.graph.torch_export.restored import restore
from onnxtrain.graph.verify import verify
from onnxtrain.graph.walk import all_graphs, all_nodes
from onnxtrain.types import ML, MS, DataType

_KNOWN_DOMAINS = {MS: 1, ML: onnx.defs.onnx_ml_opset_version()}
Edit = Callable[[ir.Model], None]
ModelLike = str | os.PathLike[str] | bytes | onnx.ModelProto | ir.Model


_FIELDS = {
    DataType.FLOAT: "float_data",
    DataType.DOUBLE: "double_data",
    DataType.INT32: "int32_data",
    DataType.INT64: "int64_data",
    DataType.UINT64: "uint64_data",
}
"""Where numbers of a type are listed that are not held as bytes; others are packed."""


@dataclasses.dataclass(frozen=True)
class Source:
    """A model, and what it was read from.

    Attributes:
        model: The model.
        proto: Its protobuf; None if it was given as an onnx-ir model.
        files: Contents of the files in which it has external data, by their locations.
    """

    model: ir.Model
    proto: onnx.ModelProto | None = None
    files: Mapping[str, Content] = dataclasses.field(default_factory=dict)


def load_model(source: ModelLike, *, own: bool = False, edit: Edit | None = None) -> ir.Model:
    """Load a model; external data stays on disk until it is read.

    Args:
        source: Where the model is.
        own: Whether an onnx-ir model is copied, for callers that change it.
        edit: Changes the model before its external data is looked for; needs ``own``.

    Raises:
        ModelError: if it is not a usable ONNX model.
        GraphError: if the graph of a model to be copied breaks a rule.
    """
    if isinstance(source, ir.Model):
        if own:
            verify(source)
        model = source.clone() if own else source
        if edit is not None:
            edit(model)
        return model
    return _loaded(source, edit).model


def load_source(source: ModelLike) -> Source:
    """Load a model to be trained and keep what it was read from, for callers that write it back.

    What an exporter computed from a weight is made of it again, see ``graph.folded``; what it
    merged is apart and what it left out is back, see ``graph.restored``.

    Raises:
        ModelError: if it is not a usable ONNX model.
    """
    loaded = Source(source.clone()) if isinstance(source, ir.Model) else _loaded(source)
    model = loaded.model
    if any([tie(model), restore(model)]) and loaded.proto is not None:
        return dataclasses.replace(loaded, proto=whole.written(loaded.model))
    return loaded


def read_model(path: str | os.PathLike[str]) -> Source:
    """A model with what it was read from, as it is in its file.

    Raises:
        ModelError: if it is not a usable ONNX model.
    """
    return _loaded(path)


def _loaded(
    source: str | os.PathLike[str] | bytes | onnx.ModelProto, edit: Edit | None = None
) -> Source:
    if isinstance(source, onnx.ModelProto):
        return _from_proto(source, "the given ModelProto", None, edit)
    if isinstance(source, (bytes, bytearray, memoryview)):
        what = "the given bytes"
        return _from_proto(_parse(bytes(source), what), what, None, edit)
    if isinstance(source, (str, os.PathLike)):
        path = pathlib.Path(source)
        return _from_proto(_parse(_read(path), f"'{path}'"), f"'{path}'", path, edit)
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
    if not data:
        raise ModelError(f"{what} is not an ONNX model: it is empty")
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError:
        raise ModelError(_not_a_model(data, what)) from None
    return proto


def _not_a_model(data: bytes, what: str) -> str:
    known = what_it_is(data)
    if known is None:
        return f"{what} is not an ONNX model, or it is truncated"
    return f"{what} is not an ONNX model\n  it is {known}"


def _from_proto(
    proto: onnx.ModelProto, what: str, path: pathlib.Path | None, edit: Edit | None
) -> Source:
    if not proto.ir_version or not proto.HasField("graph") or not proto.opset_import:
        raise ModelError(
            f"{what} is not an ONNX model: it has no "
            + ("IR version" if not proto.ir_version else "graph or no opset import")
        )
    try:
        proto = dense(proto)
        model = ordered(maps.read(proto))
        whole.remember(model, proto)
    except Exception as error:
        raise ModelError(f"{what} is not a valid ONNX model: {_root(error)}") from error
    if edit is not None:
        edit(model)
    files = map_files(model, what, path)
    _name_apart(model, what)
    _import_known(model)
    return Source(model, proto, files)


def _root(error: BaseException) -> BaseException:
    """What went wrong first; errors above it only tell where."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _import_known(model: ir.Model) -> None:
    """Import domains that nodes use and everybody knows, as onnxruntime does."""
    imports = model.graph.opset_imports
    missing = [(domain, v) for domain, v in _KNOWN_DOMAINS.items() if domain not in imports]
    used = {node.domain for node in all_nodes(model.graph)} if missing else set()
    imports.update({domain: version for domain, version in missing if domain in used})


def _name_apart(model: ir.Model, what: str) -> None:
    """Give tensors names of their own, so that renaming one leaves the protobuf as it is."""
    for graph in (*all_graphs(model.graph), *(f.graph for f in model.functions.values())):
        for value in graph.initializers.data.values():
            if isinstance(value.const_value, ir.serde.TensorProtoTensor):
                value.const_value = _apart(value.const_value, what)
        for node in graph:
            for key, attribute in node.attributes.data.items():
                if isinstance(attribute.value, ir.serde.TensorProtoTensor):
                    tensor = _apart(attribute.value, what)
                    node.attributes[key] = ir.AttrTensor(key, tensor, attribute.doc_string)


def _apart(tensor: ir.serde.TensorProtoTensor, what: str) -> ir.LazyTensor:
    held, dtype, shape = tensor.raw.raw_data, tensor.dtype, tensor.shape
    count, unit = math.prod(shape.numpy()), "elements"
    found = count if dtype not in _FIELDS else len(getattr(tensor.raw, _FIELDS[dtype]))
    if held:
        count, found, unit = math.ceil(dtype.itemsize * count), len(held), "bytes"
    if found != count or any(size < 0 for size in shape.numpy()):
        raise ModelError(
            f"{what}: tensor '{tensor.name}' should have {count} {unit}, "
            f"but the file holds {found}\n  its shape is {list(shape.numpy())}"
        )
    return ir.LazyTensor(
        lambda: tensor,
        dtype,
        shape,
        name=tensor.name,
        doc_string=tensor.doc_string,
        metadata_props=dict(tensor.metadata_props),
    )
