"""Rows of com.microsoft's operators through onnxruntime's CPU kernels, against the runtime.

Floating point results agree if no element is further away than ``STEPS`` rounding steps of the
largest one: both sum in float32, in different orders. Whole numbers must be equal.
"""

import fnmatch
from typing import Any

import numpy as np
import pytest

from onnxtrain.testing.case import Case, given
from onnxtrain.testing.cases import (
    ms_embed,
    ms_fused,
    ms_gated,
    ms_pool,
    ms_quantized,
    ms_tensor,
    ms_weights,
)
from onnxtrain.testing.cases.ms_quantized import bytes_of, scale_of
from onnxtrain.testing.model import Value, draw, evaluate, feeds_of, one_node_model
from onnxtrain.testing.table import one_type
from onnxtrain.types import MS, DataType

ort = pytest.importorskip("onnxruntime", minversion="1.31", reason="schemas differ before 1.31")
STEPS = 64

REFUSED = {
    **dict.fromkeys(
        [
            "BiasAdd",
            "BiasSplitGelu",
            "ComplexMul",
            "ComplexMulConj",
            "FusedMatMulActivation",
            "GemmFastGelu",
            "GemmaRotaryEmbedding",
            "GroupNorm",
            "Irfft",
            "MulInteger",
            "NhwcConv",
            "NhwcFusedConv",
            "QLinearReduceMean",
            "ReduceSumInteger",
            "Rfft",
            "SkipGroupNorm",
            "TorchEmbedding",
        ],
        "there is no kernel for the CPU",
    ),
    "MatMulNBitsGrad": "there is no gradient",
    "FusedGemm-plain": "an activation must be given",
    "NhwcMaxPool-kernel*": "only bytes are pooled",
    "QLinear*-no-zeros": "zero points must be given",
    "MatMulInteger16-UINT16": "only signed numbers are multiplied",
    "UnfoldTensor-flags": "no truth values are unfolded",
    "ConvTransposeWithDynamicPads-plain": "pads must be given",
    "MaxpoolWithMask-[cs]*s": "of several masks, others than those of the plane are read",
    "WordConvEmbedding-none": "words without characters are not written",
    "MatMulNBits-[3567]-*": "only 2, 4 and 8 bits are unpacked",
    "MoE-swiglu-[02]": "only a gate whose numbers alternate with the others is known",
    "MoE-gated": "there is no third product",
    "MatMulBnb4-*transB=0": "the kernel for the CPU does not do what its documentation says",
}
"""Rows (by operator, or by patterns of their names) without a result to compare with, and why."""

TABLE = [
    *ms_embed.CASES,
    *ms_fused.CASES,
    *ms_gated.CASES,
    *ms_pool.CASES,
    *ms_quantized.CASES,
    *ms_tensor.CASES,
    *ms_weights.CASES,
]


def matches(case: Case, pattern: str) -> bool:
    return case.op == pattern or fnmatch.fnmatchcase(str(case), pattern)


ROWS = [
    pytest.param(case, id=str(case))
    for case in TABLE
    if not any(matches(case, pattern) for pattern in REFUSED)
]


_ZERO = given(3, DataType.UINT8)
_HALVES = [bytes_of(64), scale_of(0.5), _ZERO]
_TENTHS = [bytes_of(64), scale_of(0.1), _ZERO]
HALVES = [
    Case("QLinearAdd", [*_TENTHS, *_TENTHS, scale_of(0.2), _ZERO], domain=MS, name="tenths"),
    Case("QLinearMul", [*_TENTHS, *_TENTHS, scale_of(0.2), _ZERO], domain=MS, name="tenths"),
    Case("QLinearAdd", [*_HALVES, *_HALVES, scale_of(1.0), _ZERO], domain=MS),
    Case("QLinearMul", [*_HALVES, *_HALVES, scale_of(0.5), _ZERO], domain=MS),
    Case(
        "QLinearAveragePool",
        [bytes_of(1, 1, 8, 8), scale_of(0.5), _ZERO, scale_of(0.5), _ZERO],
        attributes={"kernel_shape": (1, 2)},
        domain=MS,
    ),
]
"""Every second result is a half, which goes to the even number behind the zero point."""


def theirs(case: Case, inputs: list[Value]) -> list[Any]:
    model = one_node_model(case, inputs)
    model.ir_version = 10
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1  # of several, each rounds the states of its own rows to bytes
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    feeds = feeds_of(case, inputs).items()
    return session.run(None, {n: v if isinstance(v, np.ndarray) else v.numpy() for n, v in feeds})


@pytest.mark.parametrize("case", [*ROWS, *HALVES])
def test_rows(case: Case) -> None:
    dtype = one_type(case)
    assert dtype is not None
    inputs = draw(case, dtype)
    for our, their in zip(evaluate(case, inputs), theirs(case, inputs), strict=True):
        ours = our.numpy()
        assert (ours.dtype, ours.shape) == (their.dtype, their.shape)
        if their.dtype.kind != "f":
            np.testing.assert_array_equal(ours, their)
            continue
        finite = np.isfinite(their)
        allowed = STEPS * np.finfo(their.dtype).eps * np.abs(their[finite]).max(initial=0)
        np.testing.assert_allclose(ours, their, rtol=0, atol=allowed)


def test_every_exclusion_is_of_a_row() -> None:
    assert [p for p in REFUSED if not any(matches(case, p) for case in TABLE)] == []
