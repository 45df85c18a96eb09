"""Features: selected, scaled, replaced, joined."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from onnxtrain.kernels.ml.scores import NUMBERS, constant, like, real
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import ML, TEXT


@kernel("ArrayFeatureExtractor", domain=ML, T=TEXT, text=True, host=["y"])
def array_word_extractor(x: Any, y: Any) -> Any:
    """The same for words."""
    picked = x[..., np.asarray(y).reshape(-1)]
    return picked.reshape(1, -1) if x.ndim == 1 else picked


@kernel("ArrayFeatureExtractor", domain=ML, T=NUMBERS)
def array_feature_extractor(x: Tensor, y: Tensor) -> Tensor:
    """z = x[..., y]; a vector becomes a row."""
    picked = x.index_select(-1, y.reshape(-1))
    return picked.reshape(1, -1) if x.ndim == 1 else picked


@kernel("Binarizer", domain=ML, T=NUMBERS)
def binarizer(x: Tensor, *, threshold: float = 0.0) -> Tensor:
    """y = 1 where x > threshold, else 0."""
    return (x > threshold).to(x.dtype)


@kernel("Scaler", domain=ML, T=NUMBERS)
def scaler(
    x: Tensor, *, offset: Sequence[float] = (0.0,), scale: Sequence[float] = (1.0,)
) -> Tensor:
    """y = (x - offset) · scale, each single or one per feature."""
    values = real(x)
    shift, factor = (constant(tuple(v), like(values)) for v in (offset, scale))
    return ((values - shift) * factor).to(torch.float32)


@kernel("Normalizer", domain=ML, T=NUMBERS)
def normalizer(x: Tensor, *, norm: str = "MAX") -> Tensor:
    """y = x / (largest size, sum of sizes, or length of its row); x itself if that is 0."""
    orders = {"MAX": math.inf, "L1": 1, "L2": 2}
    if norm not in orders:
        raise ValueError(f"norm is '{norm}', but it must be one of {', '.join(orders)}")
    values = real(x)
    size = torch.linalg.vector_norm(values, orders[norm], dim=-1, keepdim=True)
    return (values / torch.where(size == 0, 1.0, size)).to(torch.float32)


@kernel("Imputer", domain=ML, T=NUMBERS)
def imputer(
    x: Tensor,
    *,
    imputed_value_floats: Sequence[float] = (),
    imputed_value_int64s: Sequence[int] = (),
    replaced_value_float: float = 0.0,
    replaced_value_int64: int = 0,
) -> Tensor:
    """x with one value (NaN too) replaced by another, single or one per feature."""
    floating = x.dtype.is_floating_point
    new = tuple(imputed_value_floats if floating else imputed_value_int64s)
    old = replaced_value_float if floating else replaced_value_int64
    if not new:
        raise ValueError("there is no imputed value of the type of x")
    missing = x.isnan() if math.isnan(old) else x == old
    return torch.where(missing, constant(new, like(x)), x)


@kernel("FeatureVectorizer", domain=ML, T1=NUMBERS)
def feature_vectorizer(*x: Tensor, inputdimensions: Sequence[int] = ()) -> Tensor:
    """The features of all inputs beside each other, each cut or filled with 0 to its size."""
    parts = []
    for index, part in enumerate(x):
        rows = part.reshape(1, -1) if part.ndim == 1 else part
        size = inputdimensions[index] if index < len(inputdimensions) else rows.shape[1]
        cut = rows[:, :size].to(torch.float32)
        parts.append(torch.nn.functional.pad(cut, (0, size - cut.shape[1])))
    return torch.cat(parts, 1)
