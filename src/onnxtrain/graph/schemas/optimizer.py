"""Weight updates, gradient accumulation and clipping."""

from __future__ import annotations

import onnx

from onnxtrain.graph.schemas.declare import INT64, WIDE, op, sequences_of
from onnxtrain.graph.schemas.facts import Facts, tensor_type
from onnxtrain.graph.schemas.infer import fixed_shape, flag, same_as, same_as_each, shape_of
from onnxtrain.types import BOOL, FLOATS, OWN, DataType

FLOAT = frozenset({DataType.FLOAT})
HALF = frozenset({DataType.FLOAT16, DataType.BFLOAT16})
TENSORS = sequences_of(FLOATS)
LAMB_GROUPS = 1024
"""Lamb's lists default to one entry for each parameter it can hold."""


def _factor(facts: Facts, output: int) -> onnx.TypeProto | None:
    """A number in float32, or in float64 for a sequence of such tensors."""
    given = facts.type(0)
    kind = given.sequence_type.elem_type.tensor_type.elem_type if given is not None else 0
    return tensor_type(int(DataType.DOUBLE if kind == DataType.DOUBLE else DataType.FLOAT), ())


OPS = (
    op(
        "SGDOptimizer",
        "ETA: L, W: T, G: T -> NW?: T, NG?: T",
        L=FLOAT,
        T=FLOATS,
        infer=(same_as(1), same_as(2)),
    ),
    op(
        "SGDOptimizerV2",
        "lr: T1, weights: S_WEIGHT, gradients: S_GRAD, update_signal?: T_BOOL, factor?: T_FACTOR "
        "-> update_completed: T_BOOL, updated_weights?: S_WEIGHT",
        T1=FLOAT,
        T_BOOL=BOOL,
        T_FACTOR=WIDE,
        S_WEIGHT=TENSORS,
        S_GRAD=TENSORS,
        infer=(flag(shape_of(0)), same_as(1)),
    ),
    op(
        "AdamOptimizer",
        "R: T1, T: T2, weights: T3, gradients: T_GRAD, moment_1: T4, moment_2: T4, "
        "mixed_precision_weights?: T_MIXED_PRECISION_FP, loss_scale?: T3, "
        "global_gradient_norm?: T_GRAD_NORM, update_signal?: T_BOOL -> "
        "new_T: T2, new_moment_1: T4, new_moment_2: T4, new_weights?: T3, new_gradients?: T_GRAD, "
        "new_mixed_precision_weights?: T_MIXED_PRECISION_FP",
        T1=FLOATS,
        T2=INT64,
        T3=WIDE,
        T4=FLOATS,
        T_GRAD=FLOATS,
        T_MIXED_PRECISION_FP=HALF,
        T_GRAD_NORM=FLOATS,
        T_BOOL=BOOL,
        alpha=0.9,
        beta=0.999,
        attributes={"lambda": 0.0},
        epsilon=1e-8,
        max_norm_clip=1.0,
        do_bias_correction=1,
        weight_decay_mode=0,
        infer=(same_as(1), same_as(4), same_as(5), same_as(2), same_as(3), same_as(6)),
    ),
    op(
        "AdamWOptimizer",
        "lr: T1, step: T2, weights: S_WEIGHT, gradients: S_GRAD, momentums_1: S_MOMENT, "
        "momentums_2: S_MOMENT, update_signal?: T_BOOL, copies?: S_COPY, factor?: T_FACTOR -> "
        "updated_flag: T_BOOL, updated_weights?: S_WEIGHT, updated_momentums_1?: S_MOMENT, "
        "updated_momentums_2?: S_MOMENT",
        T1=FLOAT,
        T2=INT64,
        T_BOOL=BOOL,
        S_WEIGHT=TENSORS,
        S_GRAD=TENSORS,
        S_MOMENT=TENSORS,
        S_COPY=TENSORS,
        T_FACTOR=WIDE,
        alpha=0.9,
        beta=0.999,
        epsilon=1e-8,
        weight_decay=1e-2,
        correct_bias=1,
        adam_mode=0,
        infer=(flag(shape_of(1)), same_as(2), same_as(4), same_as(5)),
    ),
    op(
        "LambOptimizer",
        # a group is weights, gradients, moment1, moment2 and mixed-precision weights (or "")
        "update_signal?: T_BOOL, loss_scale?: T2, gradient_norm?: T_GRAD_NORM, R: T1, "
        "step?: TInt64, groups+: each T_GROUP -> new_step?: TInt64, new_groups+: each T_GROUP",
        T1=FLOATS,
        T2=WIDE,
        T_GRAD_NORM=FLOATS,
        T_GROUP=FLOATS,
        TInt64=INT64,
        T_BOOL=BOOL,
        alpha=[0.9] * LAMB_GROUPS,
        beta=[0.999] * LAMB_GROUPS,
        attributes={"lambda": [0.0] * LAMB_GROUPS},
        epsilon=[1e-6] * LAMB_GROUPS,
        max_norm_clip=[1.0] * LAMB_GROUPS,
        ratio_min=float("-inf"),
        ratio_max=float("inf"),
        do_bias_correction=1,
        infer=same_as_each(4),
    ),
    op(
        "InplaceClipGradNorm",
        "gradients: S_GRAD -> clipped_gradients: S_GRAD",
        S_GRAD=TENSORS,
        max_norm=1.0,
        norm_type="fro",
        infer=same_as(0),
    ),
    op(
        "ClipFactor",
        "gradients: S_GRAD -> factor: T_FACTOR",
        domain=OWN,
        S_GRAD=TENSORS,
        T_FACTOR=WIDE,
        max_norm=1.0,
        infer=_factor,
    ),
    op(
        "HandOver",
        "buffer: T, value: T_GRAD, overwrite_flag: T_BOOL, hand_over: T_BOOL -> gradient: T_GRAD",
        domain=OWN,
        T=FLOATS,
        T_GRAD=FLOATS,
        T_BOOL=BOOL,
        infer=same_as(1),
    ),
    op(
        "InPlaceAccumulator",
        "old_sum: T, value: T_GRAD, update_signal?: T_BOOL -> new_sum: T",
        T=FLOATS,
        T_GRAD=FLOATS,
        T_BOOL=BOOL,
        infer=same_as(0),
    ),
    op(
        "InPlaceAccumulatorV2",
        "accumulation_buffer: T, value: T_GRAD, overwrite_flag?: T_BOOL -> "
        "updated_flag: T_BOOL, accumulation_buffer_out?: T",
        T=FLOATS,
        T_GRAD=FLOATS,
        T_BOOL=BOOL,
        infer=(flag(fixed_shape(1)), same_as(0)),
    ),
)
