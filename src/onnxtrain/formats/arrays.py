"""NumPy arrays to raw bytes in files, and back."""

from __future__ import annotations

import io
from collections.abc import Collection, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from onnxtrain.errors import CheckpointError

Array: TypeAlias = npt.NDArray[Any]

MOST_DIMENSIONS = 64


def storable(name: str, array: Array, dtypes: Collection[np.dtype[Any]]) -> Array:
    """The array in memory order and in the byte order of this machine.

    Raises:
        CheckpointError: if its element type is not one of ``dtypes``.
    """
    array = np.asarray(array, order="C")
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if array.dtype not in dtypes:
        raise CheckpointError(
            f"tensor '{name}' has element type {array.dtype}, which cannot be stored\n"
            f"  have  {', '.join(str(dtype) for dtype in dtypes)}"
        )
    return array


def raw_bytes(array: Array) -> memoryview:
    """The bytes of an array in memory order, not copied."""
    return array.reshape(-1).view(np.uint8).data


def check_shape(name: str, shape: Sequence[object]) -> None:
    """Raise a ``CheckpointError`` if a shape from a file cannot be one."""
    possible = all(type(n) is int and 0 <= n < 2**63 for n in shape)
    if not possible or len(shape) > MOST_DIMENSIONS:
        raise CheckpointError(f"the file is damaged: tensor '{name}' has shape {list(shape)[:8]}")


def from_raw(name: str, raw: Array, dtype: np.dtype[Any], shape: Sequence[int]) -> Array:
    """View bytes as an array."""
    try:
        array: Array = raw.view(dtype).reshape(shape)
    except ValueError as error:  # NumPy has limits of its own
        raise CheckpointError(f"tensor '{name}' of shape {list(shape)}: {error}") from error
    return array


def read_raw(name: str, handle: io.BufferedReader, offset: int, size: int) -> Array:
    """Read bytes of a file, which must be that long, into memory of their own."""
    raw = np.empty(size, np.uint8)
    handle.seek(offset)
    if handle.readinto(raw.data) != size:
        raise CheckpointError(f"the file ends within tensor '{name}'")
    return raw
