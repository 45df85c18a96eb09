"""Operators that onnxruntime's optimizer fuses: convolutions and products with what follows."""

from __future__ import annotations

from onnxtrain.graph.schemas.declare import Attributes, op, optional, required
from onnxtrain.graph.schemas.facts import Facts, Shape
from onnxtrain.graph.schemas.forward import product
from onnxtrain.graph.schemas.infer import at, of, same_as, typed
from onnxtrain.graph.schemas.ms_shapes import (
    convolved,
    convolved_images_last,
    convolved_last,
    pooled_last,
)
from onnxtrain.graph.schemas.nn import CONV, WINDOW
from onnxtrain.types import FLOATS, DataType

ACTIVATED_CONV: Attributes = {
    **CONV,
    "activation": optional("string"),
    "activation_params": optional("floats"),
}
PRODUCT: Attributes = {"alpha": 1.0, "transA": 0, "transB": 0}
ACTIVATION: Attributes = {
    "activation_alpha": optional("float"),
    "activation_beta": optional("float"),
    "activation_gamma": optional("float"),
}
GROUP_NORM: Attributes = {
    "activation": required("int"),
    "channels_last": 1,
    "epsilon": 1e-5,
    "groups": required("int"),
}
_BYTES = frozenset({DataType.INT8, DataType.UINT8})


def half_of_last(facts: Facts, output: int) -> Shape | None:
    """X.shape with the last axis halved."""
    x = facts.shape(0)
    width = at(x, -1)
    if not x:
        return None
    return x[:-1] + (width // 2 if isinstance(width, int) else None,)


OPS = (
    op(
        "FusedConv",
        "X: T, W: T, B?: T, Z?: T -> Y: T",
        T=FLOATS,
        attributes=ACTIVATED_CONV,
        infer=typed(of(0), convolved),
    ),
    op(
        "NhwcConv",
        "X: T, W: T, B?: T -> Y: T",
        T=FLOATS,
        attributes=CONV,
        infer=typed(of(0), convolved_last),
    ),
    op(
        "NhwcFusedConv",
        "X: T, W: T, B?: T, Z?: T -> Y: T",
        T=FLOATS,
        attributes=ACTIVATED_CONV,
        infer=typed(of(0), convolved_images_last),
    ),
    op(
        "NhwcMaxPool",
        "x: T -> y: T",
        T=FLOATS | _BYTES,
        attributes=WINDOW,
        ceil_mode=0,
        kernel_shape=required("ints"),
        infer=typed(of(0), pooled_last),
    ),
    op(
        "FusedGemm",
        "A: T, B: T, C?: T -> Y: T",
        T=FLOATS,
        attributes={**PRODUCT, **ACTIVATION},
        activation=optional("string"),
        beta=1.0,
        infer=typed(of(0), product),
    ),
    op(
        "GemmFastGelu",
        "X: T, W: T, bias?: T -> Y: T",
        T=FLOATS,
        infer=typed(of(0), product),
    ),
    op(
        "TransposeMatMul",
        "A: T, B: T -> Y: T",
        T=FLOATS,
        attributes=PRODUCT,
        infer=typed(of(0), product),
    ),
    op(
        "FusedMatMulActivation",
        "A: T, B: T -> Y: T",
        T=FLOATS,
        attributes={**PRODUCT, **ACTIVATION},
        activation=required("string"),
        activation_axis=optional("int"),
        transBatchA=0,
        transBatchB=0,
        infer=typed(of(0), product),
    ),
    op(
        "GroupNorm",
        "X: T, gamma: M, beta: M -> Y: T",
        T=FLOATS,
        M=FLOATS,
        attributes=GROUP_NORM,
        infer=same_as(0),
    ),
    op(
        "SkipGroupNorm",
        "X: T, gamma: M, beta: M, skip: T, bias?: T -> Y: T, S?: T",
        T=FLOATS,
        M=FLOATS,
        attributes=GROUP_NORM,
        infer=same_as(0),
    ),
    op("BiasAdd", "X: T, bias: T, skip: T -> Y: T", T=FLOATS, infer=same_as(0)),
    op("BiasSplitGelu", "X: T, bias: T -> Y: T", T=FLOATS, infer=typed(of(0), half_of_last)),
)
