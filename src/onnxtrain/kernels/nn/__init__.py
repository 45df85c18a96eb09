"""Convolutions, pools, normalizations and recurrent layers, each with its gradient."""

from onnxtrain.kernels.nn import (
    batch_norm,
    batch_norm_relu,
    conv,
    conv_transpose,
    group_norm,
    layer_norm,
    max_pool,
    max_pool_planes,
    norm,
    pool,
    pool_lp,
    rms_norm,
    rnn,
    sums,
)

__all__ = [
    "batch_norm",
    "batch_norm_relu",
    "conv",
    "conv_transpose",
    "group_norm",
    "layer_norm",
    "max_pool",
    "max_pool_planes",
    "norm",
    "pool",
    "pool_lp",
    "rms_norm",
    "rnn",
    "sums",
]
