"""Labels for labels: numbers and strings mapped to each other, or to places."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from onnxtrain.kernels.dtypes import to_torch
from onnxtrain.kernels.registry import kernel
from onnxtrain.kernels.rehearsal import remembered
from onnxtrain.types import ML, DataType

Types = Sequence[tuple[int, Any]]


@kernel("LabelEncoder", domain=ML, text=True, since=2, needs=["out_types"])
def label_encoder(
    x: Any,
    *,
    default_float: float = -0.0,
    default_int64: int = -1,
    default_string: str = "_Unused",
    default_tensor: Any = None,
    keys_floats: Sequence[float] | None = None,
    keys_int64s: Sequence[int] | None = None,
    keys_strings: Sequence[str] | None = None,
    keys_tensor: Any = None,
    values_floats: Sequence[float] | None = None,
    values_int64s: Sequence[int] | None = None,
    values_strings: Sequence[str] | None = None,
    values_tensor: Any = None,
    out_types: Types,
) -> Any:
    """y[i] = the value of the key x[i], or the default; the last of equal keys counts."""
    keys = _given(keys_tensor, keys_floats, keys_int64s, keys_strings)
    values = _given(values_tensor, values_floats, values_int64s, values_strings)
    dtype = DataType(out_types[0][0])
    if default_tensor is not None:
        (default,) = _given(default_tensor)
    elif dtype == DataType.STRING:
        default = default_string
    else:
        default = default_float if dtype.is_floating_point() else default_int64
    return _mapped(x, keys, values, default, dtype)


def _given(*choices: Any) -> tuple[Any, ...]:
    """The one of several attributes that is set, as Python values."""
    found = next((choice for choice in choices if choice is not None), None)
    if found is None:
        raise ValueError("there are no keys or no values")
    return tuple(found.reshape(-1).tolist() if hasattr(found, "tolist") else found)


def _mapped(
    x: Any, keys: tuple[Any, ...], values: tuple[Any, ...], default: Any, dtype: DataType
) -> Any:
    """The values that belong to the elements of x."""
    if isinstance(x, Tensor) and dtype != DataType.STRING:
        return _looked_up(x, keys, values, default, to_torch(dtype))
    table = {_key(key): value for key, value in zip(keys, values, strict=True)}
    items = [table.get(_key(item), default) for item in x.reshape(-1).tolist()]
    if dtype == DataType.STRING:
        return np.array(items, object).reshape(x.shape)
    return torch.tensor(items, dtype=to_torch(dtype)).reshape(x.shape)


def _key(value: Any) -> Any:
    """A value that is equal to itself."""
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


def _looked_up(
    x: Tensor, keys: tuple[Any, ...], values: tuple[Any, ...], default: Any, dtype: torch.dtype
) -> Tensor:
    """Numbers for numbers, by search in the sorted keys."""
    known, results, for_nan = _sorted(keys, values, default, (x.dtype, dtype, x.device))
    place = torch.searchsorted(known, x.contiguous()).clamp(max=len(known) - 1)
    found = torch.where(known[place] == x, results[place], results[-1])
    return torch.where(x.isnan(), for_nan, found) if x.dtype.is_floating_point else found


@remembered(64)
def _sorted(
    keys: tuple[Any, ...],
    values: tuple[Any, ...],
    default: Any,
    form: tuple[torch.dtype, torch.dtype, torch.device],
) -> tuple[Tensor, Tensor, Tensor]:
    """Keys in order and their values with the default behind them, and the value for NaN."""
    key_type, value_type, device = form
    table = {_key(key): value for key, value in zip(keys, values, strict=True)}
    for_nan = table.pop("NaN", default)
    order = sorted(table) or [0]
    results = [*(table.get(key, default) for key in order), default]
    return (
        torch.tensor(order, dtype=key_type, device=device),
        torch.tensor(results, dtype=value_type, device=device),
        torch.tensor(for_nan, dtype=value_type, device=device),
    )


@kernel("LabelEncoder", domain=ML, text=True, until=1, needs=["out_types"])
def label_encoder_1(
    x: Any,
    *,
    classes_strings: Sequence[str],
    default_int64: int = -1,
    default_string: str = "_Unused",
    out_types: Types,
) -> Any:
    """The place of a string in a list, or the string at a place."""
    places = range(len(classes_strings))
    return category_mapper(
        x,
        cats_int64s=places,
        cats_strings=classes_strings,
        default_int64=default_int64,
        default_string=default_string,
        out_types=out_types,
    )


@kernel("CategoryMapper", domain=ML, text=True, needs=["out_types"])
def category_mapper(
    x: Any,
    *,
    cats_int64s: Sequence[int],
    cats_strings: Sequence[str],
    default_int64: int = -1,
    default_string: str = "_Unused",
    out_types: Types,
) -> Any:
    """The number of a category for its name, or the name for the number."""
    numbers, names = tuple(cats_int64s), tuple(cats_strings)
    if isinstance(x, Tensor):
        return _mapped(x, numbers, names, default_string, DataType.STRING)
    return _mapped(x, names, numbers, default_int64, DataType.INT64)


@kernel("OneHotEncoder", domain=ML, text=True)
def one_hot_encoder(
    x: Any,
    *,
    cats_int64s: Sequence[int] = (),
    cats_strings: Sequence[str] = (),
    zeros: int = 1,
) -> Tensor:
    """y[..., k] = 1 where x is category k, else 0."""
    categories = tuple(cats_strings or cats_int64s)
    x = x.to(torch.int64) if isinstance(x, Tensor) else x
    place: Tensor = _mapped(x, categories, tuple(range(len(categories))), -1, DataType.INT64)
    if not zeros and bool((place < 0).any()):
        raise ValueError("an element of x is none of the categories, and zeros is 0")
    numbers = torch.arange(len(categories), device=place.device)
    return (place.unsqueeze(-1) == numbers).to(torch.float32)
