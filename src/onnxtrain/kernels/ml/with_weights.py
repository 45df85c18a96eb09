"""Operators that hold weights in attributes, with the weights as tensors that can be trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from onnxtrain.kernels.registry import kernel
from onnxtrain.kernels.vector_jacobian import forward_kernel, options_of
from onnxtrain.types import OWN


@kernel("WithWeights", domain=OWN, outputs=0)
def with_weights(
    *values: Tensor,
    of: str,
    of_domain: str,
    version: int,
    weights: Sequence[str],
    dtypes: Sequence[int] = (),
    columns: int = 0,
    options: str = "{}",
) -> Sequence[Any]:
    """What an operator gives whose attributes named ``weights`` are the last of the values."""
    item = forward_kernel(of_domain, of, version)
    taken = len(values) - len(weights)
    trained = dict(zip(weights, values[taken:], strict=True))
    result = item.fn(*values[:taken], **options_of(options), **trained)
    return [result] if item.outputs == 1 else list(result)
