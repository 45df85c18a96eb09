"""Convolution, pooling and normalization gradients, and the batch norm that keeps its statistics.

Gradient nodes carry the attributes of the forward node, so those are declared here too.
"""

from __future__ import annotations

from onnxtrain.graph.schemas.declare import INT32, INT64, WIDE, Attributes, op, optional, required
from onnxtrain.graph.schemas.facts import Facts, Shape
from onnxtrain.graph.schemas.infer import at, fixed, last_of, of, same_as, times, typed
from onnxtrain.types import FLOATS, ONNX, OWN, DataType

STATISTICS = WIDE | {DataType.BFLOAT16}
WINDOW: Attributes = {
    "auto_pad": "NOTSET",
    "dilations": optional("ints"),
    "pads": optional("ints"),
    "strides": optional("ints"),
}
PLAIN_WINDOW: Attributes = {
    "dilations": optional("ints"),
    "kernel_shape": required("ints"),
    "pads": optional("ints"),
    "strides": optional("ints"),
}
CONV: Attributes = {**WINDOW, "group": 1, "kernel_shape": optional("ints")}
LAYER_NORM: Attributes = {"axis": -1, "epsilon": 1e-5, "stash_type": 1}


def channels(facts: Facts, output: int) -> Shape:
    """One entry for each channel of dY, which W knows too: its first dimension."""
    return (at(facts.shape(2), 0) or at(facts.shape(0), 1),)


def of_groups(facts: Facts, output: int) -> Shape:
    """One entry for each group of a sample."""
    return at(facts.shape(0), 0), facts.integer("num_groups")


def wide(facts: Facts, output: int) -> int:
    """Statistics are computed in float32, or in double."""
    double = facts.dtype(0) == DataType.DOUBLE
    return int(DataType.DOUBLE if double else DataType.FLOAT)


def transposed_channels(facts: Facts, output: int) -> Shape:
    """One entry for each channel of dY: group times W's second dimension."""
    known = times(at(facts.shape(2), 1), facts.integer("group") or 1)
    return (known or at(facts.shape(0), 1),)


def planes(facts: Facts, output: int) -> Shape | None:
    """Batch and channels of the first input; sizes of images are not worked out, or not known."""
    shape = facts.shape(0)
    return None if shape is None else shape[:2] + (None,) * (len(shape) - 2)


OPS = (
    op(
        "ConvGrad",
        "dY: T, X: T, W: T -> dX?: T, dW?: T, dB?: T",
        T=FLOATS,
        attributes=CONV,
        infer=(same_as(1), same_as(2), typed(of(2), channels)),
    ),
    op(
        "ConvTransposeGrad",
        "dY: T, X: T, W: T -> dX?: T, dW?: T, dB?: T",
        T=FLOATS,
        attributes=CONV,
        output_padding=optional("ints"),
        output_shape=optional("ints"),
        infer=(same_as(1), same_as(2), typed(of(2), transposed_channels)),
    ),
    op(
        "MaxPoolGrad",
        "dY: T, Indices: I, shape?: I -> dX: T",
        domain=ONNX,
        since=9,
        T=FLOATS,
        I=INT64,
        attributes=WINDOW,
        kernel_shape=optional("ints"),
        ceil_mode=0,
        storage_order=0,
        infer=typed(of(0), planes),
    ),
    op(
        "AveragePoolGrad",
        "dY: T, shape?: I -> dX: T",
        domain=ONNX,
        since=9,
        T=FLOATS,
        I=INT64,
        attributes=WINDOW,
        kernel_shape=required("ints"),
        ceil_mode=0,
        count_include_pad=0,
        infer=typed(of(0), planes),
    ),
    op(
        "MaxPoolInPlanes",
        "X: T -> Y: T, places: I",
        domain=OWN,
        T=FLOATS,
        I=INT32,
        attributes=PLAIN_WINDOW,
        infer=(typed(of(0), planes), typed(fixed(DataType.INT32), planes)),
    ),
    op(
        "MaxPoolInPlanesGrad",
        "dY: T, places: I, shape?: S -> dX: T",
        domain=OWN,
        T=FLOATS,
        I=INT32,
        S=INT64,
        attributes=PLAIN_WINDOW,
        infer=typed(of(0), planes),
    ),
    op(
        "BatchNormInternal",
        "X: T, scale: T1, B: T1, input_mean: T2, input_var: T2 -> "
        "Y: T, running_mean?: T2, running_var?: T2, saved_mean?: T2, saved_inv_std?: T2",
        T=FLOATS,
        T1=FLOATS,
        T2=FLOATS,
        epsilon=1e-5,
        momentum=0.9,
        training_mode=1,
        infer=(same_as(0), same_as(3), same_as(4), same_as(3), same_as(4)),
    ),
    op(
        "BatchNormalizationGrad",
        "dY: T, X: T, scale: T1, mean: T2, variance: T2 -> "
        "X_grad: T, scale_grad: T1, bias_grad: T1",
        T=FLOATS,
        T1=FLOATS,
        T2=FLOATS,
        epsilon=required("float"),
        infer=(same_as(1), same_as(2), same_as(2)),
    ),
    op(
        "BatchNormRelu",
        "X: T, scale: T1, B: T1, input_mean: T2, input_var: T2 -> "
        "Y: T, running_mean?: T2, running_var?: T2, saved_mean?: T2, saved_inv_std?: T2",
        domain=OWN,
        T=FLOATS,
        T1=FLOATS,
        T2=FLOATS,
        epsilon=1e-5,
        momentum=0.9,
        infer=(same_as(0), same_as(3), same_as(4), same_as(3), same_as(4)),
    ),
    op(
        "BatchNormAddRelu",
        "X: T, scale: T1, B: T1, input_mean: T2, input_var: T2, residual: T -> "
        "Y: T, running_mean?: T2, running_var?: T2, saved_mean?: T2, saved_inv_std?: T2",
        domain=OWN,
        T=FLOATS,
        T1=FLOATS,
        T2=FLOATS,
        epsilon=1e-5,
        momentum=0.9,
        infer=(same_as(0), same_as(3), same_as(4), same_as(3), same_as(4)),
    ),
    op(
        "BatchNormReluGrad",
        "dY: T, X: T, scale: T1, B: T1, mean: T2, inverse: T2 -> "
        "X_grad: T, scale_grad: T1, bias_grad: T1",
        domain=OWN,
        T=FLOATS,
        T1=FLOATS,
        T2=FLOATS,
        epsilon=1e-5,
        infer=(same_as(1), same_as(2), same_as(2)),
    ),
    op(
        "LayerNormalizationGrad",
        "Y_grad: V, X: T, scale: V, mean: U, inv_std_dev: U -> "
        "X_grad: T, scale_grad: V, bias_grad: V",
        T=FLOATS,
        U=STATISTICS,
        V=FLOATS,
        attributes=LAYER_NORM,
        infer=(same_as(1), same_as(2), same_as(2)),
    ),
    op(
        "LayerNormalizationGradAdd",
        "Y_grad: V, X: T, scale: V, mean: U, inv_std_dev: U, residual: T -> "
        "X_grad: T, scale_grad: V, bias_grad: V, sums?: T",
        domain=OWN,
        T=FLOATS,
        U=STATISTICS,
        V=FLOATS,
        attributes=LAYER_NORM,
        infer=(same_as(1), same_as(2), same_as(2), last_of(1)),
    ),
    op(
        "SimplifiedLayerNormalizationGrad",
        "Y_grad: V, X: T, scale: V, inv_std_var: U -> X_grad: T, scale_grad: V",
        T=FLOATS,
        U=STATISTICS,
        V=FLOATS,
        attributes=LAYER_NORM,
        infer=(same_as(1), same_as(2)),
    ),
    op(
        "SimplifiedLayerNormalizationGradAdd",
        "Y_grad: V, X: T, scale: V, inv_std_var: U, residual: T -> X_grad: T, scale_grad: V",
        domain=OWN,
        T=FLOATS,
        U=STATISTICS,
        V=FLOATS,
        attributes=LAYER_NORM,
        infer=(same_as(1), same_as(2)),
    ),
    op(
        "GroupNormalized",
        "X: T, scale: T, bias: T -> Y: T, mean?: S, inverse?: S",
        domain=OWN,
        T=FLOATS,
        S=FLOATS,
        num_groups=required("int"),
        epsilon=1e-5,
        activation="none",
        alpha=1.0,
        infer=(same_as(0), typed(wide, of_groups), typed(wide, of_groups)),
    ),
    op(
        "GroupNormalizedGrad",
        "dY: T, X: T, scale: T, mean: S, inverse: S, bias?: T -> "
        "dX: T, scale_grad: T, bias_grad: T",
        domain=OWN,
        T=FLOATS,
        S=FLOATS,
        num_groups=required("int"),
        epsilon=1e-5,
        activation="none",
        alpha=1.0,
        infer=(same_as(1), same_as(2), same_as(2)),
    ),
    op(
        "InvertibleLayerNormalizationGrad",
        "Y_grad: V, Y: V, scale: V, bias: V, inv_std_var: U -> "
        "X_grad: T, scale_grad: V, bias_grad: V",
        T=FLOATS,
        U=STATISTICS,
        V=FLOATS,
        attributes=LAYER_NORM,
        # X itself is not an input: without a declaration its type is taken to be that of Y
        infer=(same_as(1), same_as(2), same_as(2)),
    ),
)
