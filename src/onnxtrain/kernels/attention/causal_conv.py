"""A convolution over the past, whose end is carried to the next call."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from onnxtrain.kernels.precision import widen
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import FLOATS

_ACTIVATIONS = {"none": None, "silu": functional.silu, "swish": functional.silu}


@kernel("CausalConvWithState", since=27, outputs=2, T=FLOATS)
def causal_conv_with_state(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    past_state: Tensor | None = None,
    *,
    activation: str = "none",
) -> tuple[Tensor, Tensor]:
    """y[c, t] = activation(b[c] + Σ w[c, i] x[c, t - k + 1 + i]), and the last k - 1 inputs."""
    if activation not in _ACTIVATIONS:
        raise ValueError(
            f"activation is '{activation}', but it must be one of {', '.join(_ACTIVATIONS)}"
        )
    reach = weight.shape[2] - 1
    past = input.new_zeros(*input.shape[:2], reach) if past_state is None else past_state
    padded = torch.cat([past, input], 2)
    wide_bias = None if bias is None else widen(bias)
    y = functional.conv1d(widen(padded), widen(weight), wide_bias, groups=input.shape[1])
    function = _ACTIVATIONS[activation]
    y = y if function is None else function(y)
    return y.to(input.dtype), padded[:, :, padded.shape[2] - reach :].clone()
