"""What a caller passes, checked against what the graph declares, as tensors on the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch.utils.dlpack import from_dlpack

from onnxtrain.errors import FeedError
from onnxtrain.kernels.dtypes import from_torch, tensor_of, text_of, to_torch
from onnxtrain.runtime.ort_value import OrtValue, is_ort_value
from onnxtrain.runtime.plan import Argument
from onnxtrain.types import FIXED, DataType, dtype_name, type_string


class Feeds:
    """Turns feeds by name into arguments in order.

    Args:
        arguments: What the plan takes.
        device: Where tensors must be (those for the host stay on the CPU).
    """

    def __init__(self, arguments: Sequence[Argument], device: torch.device) -> None:
        self._arguments = tuple(arguments)
        self._device = device
        self._names = {a.name for a in arguments}

    def __call__(self, feeds: Mapping[str, Any]) -> list[Any]:
        """Arguments in the order of the plan.

        Raises:
            FeedError: if a feed is missing, unknown, or of the wrong type or shape.
        """
        _check_mapping(feeds)
        if feeds.keys() != self._names:
            self._explain_names(feeds)
        return [self.one(a, feeds[a.name]) for a in self._arguments]

    def check_missing(self, feeds: Mapping[str, Any]) -> None:
        """Refuse feeds that lack one.

        Raises:
            FeedError: if one is missing.
        """
        _check_mapping(feeds)
        if self._names - feeds.keys():
            self._explain_names(feeds)

    def _explain_names(self, feeds: Mapping[str, Any]) -> None:
        wanted = ", ".join(
            f"'{a.name}' {type_string(a.type)}{_dims(a.shape)}" for a in self._arguments
        )
        if missing := sorted(self._names - feeds.keys()):
            raise FeedError(
                f"no value for input {', '.join(map(repr, missing))}\n  inputs  {wanted}"
            )
        unknown = sorted(feeds.keys() - self._names)
        raise FeedError(
            f"the model has no input {', '.join(map(repr, unknown))}\n  inputs  {wanted}"
        )

    def one(self, argument: Argument, value: Any) -> Any:
        """One feed as a tensor (or list of tensors) that fits its argument."""
        return self._fitted(argument, argument.type, value)

    def _fitted(self, argument: Argument, type_: ir.TypeProtocol | None, value: Any) -> Any:
        if isinstance(type_, ir.OptionalType):
            return None if value is None else self._fitted(argument, type_.elem_type, value)
        if isinstance(type_, ir.SequenceType):
            value = value.raw() if isinstance(value, OrtValue) else value
            if not isinstance(value, (list, tuple)):
                raise FeedError(f"input '{argument.name}' is a sequence: give a list of tensors")
            return [self._fitted(argument, type_.elem_type, item) for item in value]
        tensor = _tensor(argument, type_, value)
        if isinstance(type_, ir.TensorType) or isinstance(tensor, torch.Tensor):
            _check_type(argument, type_, tensor)
            _check_shape(argument, tensor)
        return self._place(argument, tensor)

    def _place(self, argument: Argument, tensor: Any) -> Any:
        if not isinstance(tensor, torch.Tensor):
            return tensor
        if argument.host:
            return tensor.cpu()
        if tensor.device == self._device:
            return tensor.detach()
        return tensor.detach().to(self._device, non_blocking=True)


def _check_mapping(feeds: object) -> None:
    if not isinstance(feeds, Mapping):
        raise FeedError(
            f"cannot take a {type(feeds).__name__} for the feeds\n"
            "  give a mapping of names of inputs to values"
        )


def _tensor(argument: Argument, type_: ir.TypeProtocol | None, value: Any) -> Any:
    if isinstance(value, (torch.Tensor, dict)):
        return value
    if is_ort_value(value):
        return OrtValue(value).raw()
    if value is None:
        raise FeedError(f"input '{argument.name}' is None, but the graph needs a value")
    if isinstance(value, np.ndarray):
        _check_no_objects(argument, type_, value)
        return _from_array(argument, value)
    if hasattr(value, "__dlpack__") and not isinstance(value, np.generic):
        return from_dlpack(value)
    return _from_array(argument, _plain(argument, type_, value))


def _check_no_objects(argument: Argument, type_: ir.TypeProtocol | None, array: Any) -> None:
    """Refuse arrays of Python objects for numbers: no type can be told from them."""
    if array.dtype.kind == "O" and isinstance(type_, ir.TensorType) and type_.dtype in FIXED:
        wanted = np.dtype(type_.dtype.numpy()).name
        raise FeedError(
            f"input '{argument.name}' must be {type_string(argument.type)}, got an array of Python "
            f"objects\n  convert it with astype('{wanted}')"
        )


def _from_array(argument: Argument, array: Any) -> Any:
    if array.dtype.kind in "OUS":
        return text_of(array)
    try:
        return tensor_of(array)
    except TypeError as error:
        raise FeedError(f"input '{argument.name}' has numpy type {array.dtype}: {error}") from None


def _plain(argument: Argument, type_: ir.TypeProtocol | None, value: Any) -> Any:
    """Python numbers and lists, in the type that the graph declares."""
    dtype = type_.dtype if isinstance(type_, ir.TensorType) else None
    try:
        if dtype is None or dtype == DataType.STRING:
            return np.asarray(value)
        array = np.asarray(value, dtype=dtype.numpy())
        _check_whole(value, array)
        return array
    except (TypeError, ValueError, OverflowError) as error:
        raise FeedError(
            f"cannot take a {type(value).__name__} for input '{argument.name}' "
            f"of type {type_string(type_)}: {error}"
        ) from None


def _check_whole(value: Any, array: Any) -> None:
    """Refuse numbers that lost their fraction when they became whole ones."""
    if array.dtype.kind not in "iu":
        return
    given = np.asarray(value)
    if given.dtype.kind == "f" and (lost := given[given != array]).size:
        raise ValueError(f"{lost[0]} is no whole number")


def _check_type(argument: Argument, type_: ir.TypeProtocol | None, tensor: Any) -> None:
    if not isinstance(type_, ir.TensorType) or type_.dtype == DataType.UNDEFINED:
        return
    if isinstance(tensor, torch.Tensor):
        fits = type_.dtype != DataType.STRING and tensor.dtype == to_torch(type_.dtype)
        found = f"tensor({dtype_name(from_torch(tensor.dtype))})"
    else:
        fits = type_.dtype == DataType.STRING and isinstance(tensor, np.ndarray)
        found = "tensor(string)" if isinstance(tensor, np.ndarray) else f"a {type(tensor).__name__}"
    if not fits:
        raise FeedError(
            f"input '{argument.name}' must be {type_string(argument.type)}, got {found}"
        )


def _check_shape(argument: Argument, tensor: Any) -> None:
    if argument.shape is None:
        return
    fits = len(argument.shape) == tensor.ndim and all(
        not isinstance(want, int) or want == have
        for want, have in zip(argument.shape, tensor.shape, strict=True)
    )
    if not fits:
        raise FeedError(
            f"input '{argument.name}' must have shape {_dims(argument.shape)}, "
            f"got {list(tensor.shape)}"
        )


def _dims(shape: ir.ShapeProtocol | None) -> str:
    if shape is None:
        return ""
    shown = [str(d) if isinstance(d, int) else str(d.value or "?") for d in shape]
    return f"[{', '.join(shown)}]"
