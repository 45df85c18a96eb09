"""The gradient of Gelu together with its sums over rows."""

from __future__ import annotations

from torch import Tensor

from onnxtrain.kernels import fast
from onnxtrain.kernels.activation.gelu import fast_gelu_grad, gelu_grad
from onnxtrain.kernels.reduction.columns import column_sums
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import FLOATS, OWN

_GRADIENTS = {"none": gelu_grad, "tanh": fast_gelu_grad}


@kernel("GeluGradSum", domain=OWN, outputs=2, T=FLOATS)
def gelu_grad_sum(dy: Tensor, x: Tensor, *, approximate: str = "none") -> tuple[Tensor, Tensor]:
    """dX = dY·Gelu'(x), and Σ dX over all axes but the last."""
    if approximate not in _GRADIENTS:
        raise ValueError(f"approximate is {approximate!r}, allowed are 'none' and 'tanh'")
    if fast.ready(dy, x):
        pair: tuple[Tensor, Tensor] = fast.load("columns").gelu_grad_and_sums(
            dy, x, None, approximate
        )
        return pair
    dx = _GRADIENTS[approximate](dy, x)
    return dx, column_sums(dx)
