"""Group normalization with what stands around it in diffusion models."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from onnxtrain.kernels.nn.norm import grouped
from onnxtrain.kernels.precision import store, widen
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import FLOATS, MS


@kernel("GroupNorm", domain=MS, T=FLOATS, M=FLOATS)
def group_norm(
    x: Tensor,
    gamma: Tensor,
    beta: Tensor,
    *,
    activation: int,
    channels_last: int = 1,
    epsilon: float = 1e-5,
    groups: int,
) -> Tensor:
    """y = f(γ·(x - mean)/√(var + ε) + β) over groups of channels, with f = identity or SiLU."""
    wide = widen(x)
    y = grouped(wide.movedim(-1, 1) if channels_last else wide, gamma, beta, groups, epsilon)
    if activation not in (0, 1):
        raise ValueError(f"activation is {activation}, but it must be 0 (none) or 1 (SiLU)")
    y = functional.silu(y) if activation else y
    return store(y.movedim(1, -1).contiguous() if channels_last else y, x)


@kernel("SkipGroupNorm", domain=MS, outputs=2, T=FLOATS, M=FLOATS)
def skip_group_norm(
    x: Tensor,
    gamma: Tensor,
    beta: Tensor,
    skip: Tensor,
    bias: Tensor | None = None,
    *,
    activation: int,
    channels_last: int = 1,
    epsilon: float = 1e-5,
    groups: int,
) -> tuple[Tensor, Tensor]:
    """GroupNorm of s = x + skip + bias, and s; a skip [n, c] serves every place of a sample."""
    extra = widen(skip)
    if skip.ndim == 2:
        places = [1] * (x.ndim - 2)
        sizes = [*places, skip.shape[1]] if channels_last else [skip.shape[1], *places]
        extra = extra.reshape(len(skip), *sizes)
    s = widen(x) + extra
    if bias is not None:
        s = s + (bias if channels_last else bias.reshape(-1, *[1] * (x.ndim - 2)))
    y = group_norm(
        s,
        gamma,
        beta,
        activation=activation,
        channels_last=channels_last,
        epsilon=epsilon,
        groups=groups,
    )
    return store(y, x), store(s, x)
