"""Layers of language models that carry a state instead of a past."""

from __future__ import annotations

from torch import Tensor

from onnxtrain.kernels.attention.causal_conv import convolved
from onnxtrain.kernels.attention.linear import DELTA, GATED
from onnxtrain.kernels.attention.linear import linear_attention as attended
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import FLOATS, MS


def _no_window(state_window: int) -> None:
    if state_window:
        raise ValueError(
            f"states of the last {state_window} tokens are for decoding on trial; "
            "set state_window to 0 to train the model"
        )


@kernel("LinearAttention", domain=MS, outputs=2, T=FLOATS, S=FLOATS)
def linear_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    past_state: Tensor | None = None,
    decay: Tensor | None = None,
    beta: Tensor | None = None,
    *,
    chunk_size: int = 64,
    kv_num_heads: int,
    q_num_heads: int,
    scale: float = 0.0,
    state_window: int = 0,
    update_rule: str = "gated_delta",
) -> tuple[Tensor, Tensor]:
    """That of ONNX; where there are fewer queries than keys, several keys share a query."""
    _no_window(state_window)
    if q_num_heads < kv_num_heads:
        heads = query.unflatten(2, (q_num_heads, -1))
        query = heads.repeat_interleave(kv_num_heads // q_num_heads, 2).flatten(2)
    return attended(
        query,
        key,
        value,
        past_state,
        decay if update_rule in GATED else None,
        beta if update_rule in DELTA else None,
        kv_num_heads=kv_num_heads,
        q_num_heads=max(q_num_heads, kv_num_heads),
        scale=scale,
        update_rule=update_rule,
    )


@kernel("CausalConvWithState", domain=MS, outputs=2, T=FLOATS)
def causal_conv_with_state(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    past_state: Tensor | None = None,
    *,
    activation: str = "none",
    channels_last: int = 0,
    dilation: int = 1,
    ndim: int = 1,
    state_window: int = 0,
) -> tuple[Tensor, Tensor]:
    """That of ONNX with taps ``dilation`` apart; channels may be the last axes."""
    _no_window(state_window)
    if ndim != 1:
        raise ValueError(f"ndim is {ndim}, but only convolutions along one axis are known")
    if not channels_last:
        return convolved(input, weight, bias, past_state, activation, dilation)
    x = input.flatten(2).transpose(1, 2)
    past = None if past_state is None else past_state.flatten(2).transpose(1, 2)
    y, state = convolved(x, weight, bias, past, activation, dilation)
    channels = input.shape[2:]
    return tuple(t.transpose(1, 2).unflatten(2, channels) for t in (y, state))  # type: ignore[return-value]
