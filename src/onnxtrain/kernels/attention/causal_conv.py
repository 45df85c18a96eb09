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
    return convolved(input, weight, bias, past_state, activation, 1)


def convolved(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    past: Tensor | None,
    activation: str,
    dilation: int,
) -> tuple[Tensor, Tensor]:
    """The same with taps that are so many positions apart; the state is as long as they reach."""
    if activation not in _ACTIVATIONS:
        raise ValueError(
            f"activation is '{activation}', but it must be one of {', '.join(_ACTIVATIONS)}"
        )
    reach = (weight.shape[2] - 1) * dilation
    past = x.new_zeros(*x.shape[:2], reach) if past is None else past
    padded = torch.cat([past, x], 2)
    wide_bias = None if bias is None else widen(bias)
    taps = {"dilation": dilation, "groups": x.shape[1]}
    y = functional.conv1d(widen(padded), widen(weight), wide_bias, **taps)
    function = _ACTIVATIONS[activation]
    y = y if function is None else function(y)
    return y.to(x.dtype), padded[:, :, padded.shape[2] - reach :].clone()
