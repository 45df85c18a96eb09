"""Maps from labels to numbers, which are Python dicts, made of tensors and read into them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from onnxtrain.kernels.dtypes import to_torch
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import ML, DataType

Types = Sequence[tuple[int, Any]]
Map = Mapping[Any, Any]
CASTS = {
    "TO_FLOAT": DataType.FLOAT,
    "TO_INT64": DataType.INT64,
    "TO_STRING": DataType.STRING,
}


@kernel("ZipMap", domain=ML, text=True)
def zip_map(
    x: Tensor,
    *,
    classlabels_int64s: Sequence[int] = (),
    classlabels_strings: Sequence[str] = (),
) -> list[dict[Any, float]]:
    """For each row of x a map from the labels to its numbers."""
    labels = classlabels_strings or classlabels_int64s
    rows = x.reshape(1, -1) if x.ndim == 1 else x
    if len(labels) != rows.shape[1]:
        raise ValueError(f"there are {len(labels)} labels for {rows.shape[1]} numbers in a row")
    return [dict(zip(labels, row, strict=True)) for row in rows.tolist()]


@kernel("CastMap", domain=ML, text=True)
def cast_map(
    x: Map, *, cast_to: str = "TO_FLOAT", map_form: str = "DENSE", max_map: int = 1
) -> Any:
    """The values in the order of their keys (dense), or each at the place that its key says."""
    if cast_to not in CASTS:
        raise ValueError(f"cast_to is '{cast_to}', but it must be one of {', '.join(CASTS)}")
    dtype = CASTS[cast_to]
    if map_form == "DENSE":
        return _row([x[key] for key in sorted(x)], dtype)
    if map_form != "SPARSE":
        raise ValueError(f"map_form is '{map_form}', but it must be DENSE or SPARSE")
    if wrong := [key for key in x if not 0 <= key < max_map]:
        raise ValueError(f"the key {wrong[0]} is not below max_map = {max_map}")
    absent = "" if dtype == DataType.STRING else 0
    return _row([x.get(place, absent) for place in range(max_map)], dtype)


@kernel("DictVectorizer", domain=ML, text=True, needs=["out_types"])
def dict_vectorizer(
    x: Map,
    *,
    int64_vocabulary: Sequence[int] = (),
    string_vocabulary: Sequence[str] = (),
    out_types: Types,
) -> Any:
    """The values of the keys of a vocabulary, 0 for those that the map does not have."""
    vocabulary = string_vocabulary or int64_vocabulary
    dtype = DataType(out_types[0][0] or _type_of(next(iter(x.values()), 0.0)))
    absent = "" if dtype == DataType.STRING else 0
    return _row([x.get(key, absent) for key in vocabulary], dtype)


def _type_of(value: Any) -> DataType:
    if isinstance(value, str):
        return DataType.STRING
    return DataType.INT64 if isinstance(value, (int, np.integer)) else DataType.FLOAT


def _row(values: Sequence[Any], dtype: DataType) -> Any:
    """Values as a tensor [1, n]."""
    if dtype == DataType.STRING:
        words = [value if isinstance(value, str) else f"{value:f}" for value in values]
        return np.array(words, object).reshape(1, -1)
    numbers = [float(value) if isinstance(value, str) else value for value in values]
    return torch.tensor(numbers).to(to_torch(dtype)).reshape(1, -1)
