"""Tensors of a model that lie in other files.

Each of these files is mapped once, when the model is loaded. That takes one handle of the system
for a file and not one for every tensor, and what the model holds stays as it was loaded even if
another file takes the place of one of them, or it is removed.
"""

from __future__ import annotations

import functools
import math
import mmap
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from onnxtrain.errors import ModelError
from onnxtrain.graph.walk import all_graphs

Content = mmap.mmap | bytes
Put = Callable[[ir.TensorProtocol], None]


class MappedTensor(ir.ExternalTensor):
    """An external tensor that is read from a mapping of its file.

    Args:
        tensor: The tensor as the file of the model describes it.
        folder: Where the file of the tensor lies.
        content: What the file holds.
    """

    def __init__(self, tensor: ir.ExternalTensor, folder: pathlib.Path, content: Content) -> None:
        super().__init__(
            tensor.location,
            tensor.offset,
            tensor.length,
            tensor.dtype,
            shape=tensor.shape,
            name=tensor.name,
            doc_string=tensor.doc_string,
            metadata_props=dict(tensor.metadata_props),
            base_dir=os.fspath(folder),
        )
        self._content = content

    def numpy(self) -> npt.NDArray[Any]:
        """The values; those of whole bytes are read from the file where they are needed."""
        if self.dtype.bitwidth < 8:
            return ir.serde.TensorProtoTensor(self._proto()).numpy()
        kind = np.dtype(self.dtype.numpy()).newbyteorder("<")
        begin, count = self.offset or 0, math.prod(self.shape.numpy())
        if not count:
            return np.empty(self.shape.numpy(), kind)
        return np.frombuffer(self._content, kind, count, begin).reshape(self.shape.numpy())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """The values as NumPy asks for them."""
        return np.array(self.numpy(), dtype, copy=copy)

    def tobytes(self) -> bytes:
        """The bytes that the file holds of it."""
        begin = self.offset or 0
        return bytes(self._content[begin : begin + (self.length or self.nbytes)])

    def _proto(self) -> onnx.TensorProto:
        dims = list(self.shape.numpy())
        return onnx.TensorProto(dims=dims, data_type=int(self.dtype), raw_data=self.tobytes())


def external_tensors(model: ir.Model) -> Iterator[tuple[ir.ExternalTensor, Put]]:
    """Tensors that lie in other files, each with what puts another one into its place."""
    tops = (model.graph, *(function.graph for function in model.functions.values()))
    for graph in (graph for top in tops for graph in all_graphs(top)):
        for value in graph.initializers.data.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                yield value.const_value, functools.partial(setattr, value, "const_value")
        for node in graph:
            for key, attribute in list(node.attributes.data.items()):
                if isinstance(attribute.value, ir.ExternalTensor):
                    yield attribute.value, functools.partial(_set_attribute, node, key)


def _set_attribute(node: ir.Node, key: str, tensor: ir.TensorProtocol) -> None:
    node.attributes[key] = ir.AttrTensor(key, tensor, node.attributes[key].doc_string)


def data_files(model: ir.Model) -> set[pathlib.Path]:
    """Files besides its own in which a loaded model has tensors."""
    return {pathlib.Path(tensor.path) for tensor, _ in external_tensors(model)}


def map_files(model: ir.Model, what: str, path: pathlib.Path | None) -> Mapping[str, Content]:
    """Let tensors be read from mappings of their files; gives these by the files' locations.

    Args:
        model: The model, which is changed.
        what: What it is called in errors.
        path: Its file; None if it has none.

    Raises:
        ModelError: if there is no path, or a file is missing, truncated or may be elsewhere.
    """
    contents: dict[str, Content] = {}
    homes: dict[str, pathlib.Path] = {}
    for tensor, put in external_tensors(model):
        location = os.fspath(tensor.location)
        if location not in contents:
            homes[location] = _home_of(tensor, what, path)
            contents[location] = _mapped(homes[location] / location, what)
        end = (tensor.offset or 0) + (tensor.length or tensor.nbytes)
        if len(contents[location]) < end:
            raise ModelError(
                f"{what}: external data file '{location}' is truncated: tensor '{tensor.name}' "
                f"ends at byte {end}, the file at {len(contents[location])}"
            )
        put(MappedTensor(tensor, homes[location], contents[location]))
    return contents


def _home_of(tensor: ir.ExternalTensor, what: str, path: pathlib.Path | None) -> pathlib.Path:
    """The folder in which external data has its place.

    It is the model's, and where the model is a link also that of the file which it leads to: caches
    of downloaded models have links to all files, in a folder where these have other names.
    """
    location = os.fspath(tensor.location)
    if path is None:
        raise ModelError(
            f"{what} keeps tensor '{tensor.name}' in the file '{location}', "
            "but without a path there is no folder to look in\n  load the model from its path"
        )
    homes = [*dict.fromkeys((path.parent.resolve(), path.resolve().parent))]
    allowed = [home for home in homes if _is_inside(home, location, homes)]
    if pathlib.PurePath(location).is_absolute() or not allowed:
        raise ModelError(
            f"{what}: external data of tensor '{tensor.name}' is outside the model's folder: "
            f"'{location}'\n  move the data file beside the model and load it again"
        )
    found = next((home for home in allowed if (home / location).is_file()), None)
    if found is None:
        raise ModelError(f"{what}: external data file '{location}' is missing from '{path.parent}'")
    if not _all_names_inside(found / location, found):
        name = (found / location).name
        raise ModelError(
            f"{what}: external data file '{location}' has other names too (hard links), one of "
            "which is outside the model's folder; ONNX refuses such a file, since a link may lead "
            "to what is no part of the model\n"
            "  put a copy of the file in its place, if you know where it comes from: "
            f"cp {name} copy && mv copy {name}"
        )
    return found


def _all_names_inside(file: pathlib.Path, home: pathlib.Path) -> bool:
    """Whether a file has no names but those in its own folder and in the model's."""
    one = file.stat()
    if one.st_nlink == 1:
        return True
    folders = {file.resolve().parent, home}
    names = {entry.path: entry for folder in folders for entry in os.scandir(folder)}
    alike = [e for e in names.values() if e.is_file(follow_symlinks=False)]
    return sum(os.path.samestat(e.stat(follow_symlinks=False), one) for e in alike) >= one.st_nlink


def _is_inside(home: pathlib.Path, location: str, homes: Sequence[pathlib.Path]) -> bool:
    """Whether a place is in a folder by its name, and what is there in one of several folders."""
    named, real = os.path.normpath(home / location), (home / location).resolve()
    return pathlib.Path(named).is_relative_to(home) and any(map(real.is_relative_to, homes))


def _mapped(path: pathlib.Path, what: str) -> Content:
    try:
        with path.open("rb") as stream:
            if not os.fstat(stream.fileno()).st_size:
                return b""  # nothing to map
            return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ModelError(f"{what}: cannot read '{path}': {error.strerror or error}") from error
