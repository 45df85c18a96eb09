"""Tensors moved, cut, joined, indexed, cast and created: operators that hardly compute."""

from onnxtrain.kernels.tensor import (
    arrange,
    cast,
    concat,
    create,
    gather,
    gather_nd,
    memory,
    pad,
    random,
    resize,
    scatter,
    select,
    shape,
    slice,
    unpad,
)

__all__ = [
    "arrange",
    "cast",
    "concat",
    "create",
    "gather",
    "gather_nd",
    "memory",
    "pad",
    "random",
    "resize",
    "scatter",
    "select",
    "shape",
    "slice",
    "unpad",
]
