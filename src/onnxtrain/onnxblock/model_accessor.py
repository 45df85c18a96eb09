"""The one model that blocks edit, and the contexts that open and close it."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import onnx

from onnxtrain.graph.builder import OPSET_BESIDE
from onnxtrain.onnxblock.edit import reserve_names
from onnxtrain.types import MS, ONNX

NEWEST_OPSET = 21
"""Opset of an empty model: the newest that onnxruntime-training 1.19.2 runs."""
_IR_VERSION = 10
_PRODUCER = "orttraining"


class ModelAccessor:
    """Hands out the model being edited, and the path it was loaded from if there is one."""

    def __init__(self, model: onnx.ModelProto, path: str | None = None) -> None:
        self._model = model
        self._path = path
        self._depth = 0

    @property
    def model(self) -> onnx.ModelProto:
        """The model being edited."""
        return self._model

    @property
    def has_path(self) -> bool:
        """Whether the path of the model is known."""
        return self._path is not None

    @property
    def path(self) -> str:
        """The path given to ``base``.

        Raises:
            RuntimeError: if none was given.
        """
        if self._path is None:
            raise RuntimeError(
                "the path of the model is not known\n  give it to onnxblock.base(model, model_path)"
            )
        return self._path

    @contextmanager
    def building(self) -> Iterator[bool]:
        """Mark that a block builds; gives whether it is the outermost one."""
        self._depth += 1
        try:
            yield self._depth == 1
        finally:
            self._depth -= 1


class _Open:
    """What is open in this process; at most one of each."""

    accessor: ModelAccessor | None = None
    custom_op_library: str | None = None


def active() -> ModelAccessor | None:
    """The accessor of the open context, if one is open."""
    return _Open.accessor


def active_custom_op_library() -> str | None:
    """Path of the custom operator library of the open context, if one is open."""
    return _Open.custom_op_library


def __getattr__(name: str) -> Any:
    """What is open, under the names by which blocks for onnxruntime-training ask for it."""
    if name == "_GLOBAL_ACCESSOR":
        return _Open.accessor
    if name == "_GLOBAL_CUSTOM_OP_LIBRARY":
        return _Open.custom_op_library
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


@contextmanager
def base(model: onnx.ModelProto, model_path: str | None = None) -> Iterator[ModelAccessor]:
    """Edit a copy of a model; the given model stays as it is.

    A model of classical operators alone may not import those of ONNX itself; the copy does.

    Args:
        model: the model to start from.
        model_path: where it was loaded from, handed on by ``ModelAccessor.path``.

    Raises:
        RuntimeError: if another model is being edited.
        TypeError: if it is not a ``ModelProto``.
    """
    if not isinstance(model, onnx.ModelProto):
        raise TypeError(
            f"cannot edit a {type(model).__name__}\n"
            "  give an onnx.ModelProto, such as onnx.load(path)"
        )
    edited = copy.deepcopy(model)
    if not {ONNX, "ai.onnx"} & {one.domain for one in edited.opset_import}:
        edited.opset_import.add(domain=ONNX, version=OPSET_BESIDE)
    with _opened(edited, model_path) as accessor:
        yield accessor


@contextmanager
def empty_base(opset_version: int | None = None) -> Iterator[ModelAccessor]:
    """Edit a new model without nodes.

    Args:
        opset_version: opset of ONNX's own operators, 21 unless given.

    Raises:
        RuntimeError: if another model is being edited.
    """
    with _opened(_empty_model(opset_version or NEWEST_OPSET)) as accessor:
        yield accessor


@contextmanager
def custom_op_library(custom_op_library_path: str | os.PathLike[str]) -> Iterator[str]:
    """Name the shared library that holds the custom operators of the model.

    Raises:
        RuntimeError: if the file does not exist or another library is open.
    """
    path = os.fspath(custom_op_library_path)
    if _Open.custom_op_library is not None:
        raise RuntimeError(
            f"cannot open the custom operator library '{path}': "
            f"'{_Open.custom_op_library}' is open\n  leave its context first"
        )
    if not os.path.exists(path):
        raise RuntimeError(f"there is no custom operator library '{path}'")
    _Open.custom_op_library = path
    try:
        yield path
    finally:
        _Open.custom_op_library = None


@contextmanager
def _opened(model: onnx.ModelProto, path: str | None = None) -> Iterator[ModelAccessor]:
    if _Open.accessor is not None:
        raise RuntimeError(
            "cannot open a model: another one is being edited\n"
            "  leave the context of onnxblock.base or onnxblock.empty_base first"
        )
    reserve_names(model)
    accessor = ModelAccessor(model, path)
    _Open.accessor = accessor
    try:
        yield accessor
    finally:
        _Open.accessor = None


def _empty_model(opset_version: int) -> onnx.ModelProto:
    opsets = [onnx.helper.make_opsetid(MS, 1), onnx.helper.make_opsetid(ONNX, opset_version)]
    needed = onnx.helper.find_min_ir_version_for(opsets[1:], ignore_unknown=True)
    return onnx.helper.make_model(
        onnx.helper.make_graph([], "graph", [], []),
        ir_version=max(_IR_VERSION, needed),
        producer_name=_PRODUCER,
        opset_imports=opsets,
    )
