"""The device that a verb runs on or plans for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnxtrain.errors import OnnxTrainError

if TYPE_CHECKING:
    from onnxtrain.types import Provider


def checked_device(name: str | None) -> str:
    """A device that is there; CUDA if there is one and none is named.

    Raises:
        OnnxTrainError: if the device is unknown or not there.
    """
    import torch

    from onnxtrain.runtime.ort_value import device_of

    if name is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return str(device_of(name))
    except ValueError as error:
        raise OnnxTrainError(
            f"{error}\n  leave out --device to take what is there, or give --device cpu"
        ) from None


def provider_of(name: str) -> Provider:
    """The provider of a device, which need not be there.

    Raises:
        OnnxTrainError: if no provider goes by that name.
    """
    from onnxtrain.types import Provider

    try:
        return Provider[name.partition(":")[0].upper()]
    except KeyError:
        raise OnnxTrainError(f"unknown device '{name}'\n  have  cpu, cuda") from None
