"""Further shapes and settings of operators outside ONNX, for their gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from onnxtrain.testing.case import (
    Case,
    Input,
    apart,
    derived,
    given,
    integers,
    normal,
    only,
    shape_input,
    uniform,
)
from onnxtrain.testing.cases import (
    conv,
    interop,
    loss,
    loss_last_axis,
    ms_fused,
    ms_group_query,
    ms_tensor,
    ms_weights,
    pool,
    reduction,
    tensor_gather,
    vision,
)
from onnxtrain.testing.cases.activation import dropout, pointwise, softmax
from onnxtrain.testing.cases.math import scale
from onnxtrain.testing.cases.ms_attention import ints
from onnxtrain.types import MS, OWN, DataType

INT32 = DataType.INT32
TWO = only(DataType.FLOAT, DataType.DOUBLE)
SAME = ("SAME_UPPER", "SAME_LOWER", "VALID")


def _row(op: str, inputs: list[Input | None], reference: Any, name: str, **options: Any) -> Case:
    """A row in two types; further words are attributes."""
    outputs = options.pop("outputs", 1)
    return Case(op, inputs, reference, options, MS, outputs=outputs, dtypes=TWO, name=name)


def _each_side(x: Tensor, pads: Tensor, *, mode: str) -> Tensor:
    """Padding of the last axis of a matrix alone."""
    name = {"edge": "replicate", "wrap": "circular"}.get(mode, mode)
    return functional.pad(x.unsqueeze(0), (int(pads[1]), int(pads[3])), name).squeeze(0)


def _whole(generator: torch.Generator) -> Any:
    return torch.rand(2, 2, generator=generator, dtype=torch.float64) + 2 * torch.eye(2)


def _transform(x: Tensor, *, signal_ndim: int, **_: int) -> Tensor:
    return ms_tensor._rfft(x, signal_ndim)


def _turned_batch(a: Tensor, b: Tensor, *, transBatchA: int = 0, **rest: Any) -> Tensor:
    left, right = (a.movedim(0, 1), b) if transBatchA else (a, b.movedim(0, 1))
    return ms_fused._gemm(left, right, activation=rest["activation"])


_PLACES = uniform(1, 2, 2, 2, low=-0.9, high=0.9)


def _nearest(x: Tensor, rois: Tensor, batch: Tensor, size: Tensor, *, mode: str) -> Tensor:
    """The pixel next to each point of a grid."""
    found = []
    for image, (top, left, bottom, right) in zip(x[batch.long()], rois.tolist(), strict=True):
        ends = ((top, bottom, x.shape[2], size[0]), (left, right, x.shape[3], size[1]))
        rows, columns = (
            (torch.linspace(a, b, int(count), dtype=torch.float64) * (room - 1)).round().long()
            for a, b, room, count in ends
        )
        found.append(image[:, rows][:, :, columns])
    return torch.stack(found)


IMAGES = [
    _row("CropAndResize", [normal(2, 2, 5, 6), given([[0.1, 0.05, 0.93, 0.81]]).no_grad(),
                           given([1], INT32), given([3, 2], INT32, constant=True)], _nearest,
         "nearest", mode="nearest"),
    *(
        _row("ConvTransposeWithDynamicPads", [normal(1, 2, 3, 4), normal(2, 1, 3, 2)],
             conv._transposed, f"pads-{side}", auto_pad=side, strides=(2, 1))
        for side in SAME
    ),
    *(
        _row("FusedConv", [normal(1, 2, 5, 4), normal(3, 2, 2, 3)], conv._conv, f"pads-{side}",
             auto_pad=side, strides=(2, 1))
        for side in SAME
    ),
    *(
        _row("NhwcConv", [normal(1, 5, 4, 2), normal(3, 2, 3, 2)], ms_fused._last(conv._conv),
             f"pads-{side}", auto_pad=side, strides=(2, 1))
        for side in SAME
    ),
    *(
        _row("NhwcFusedConv", [normal(1, 5, 4, 2), normal(3, 2, 2, 3)],
             ms_fused._images_last(conv._conv), f"pads-{side}", auto_pad=side, strides=(2, 1))
        for side in SAME
    ),
    *(
        _row("NhwcMaxPool", [apart(1, 5, 4, 2)], ms_fused._last(pool.max_only), f"pads-{side}",
             auto_pad=side, strides=(2, 1), kernel_shape=(2, 3))
        for side in SAME
    ),
    _row("NhwcMaxPool", [apart(1, 4, 4, 1)], ms_fused._last(pool.max_only), "ceil",
         kernel_shape=(3, 3), strides=(2, 2), ceil_mode=1),
    *(
        _row("GridSample", [normal(1, 2, 3, 4), _PLACES], vision._sampled, f"{mode}-{outside}",
             mode=mode, padding_mode=outside)
        for mode, outside in (("bilinear", "border"), ("nearest", "reflection"),
                              ("bicubic", "zeros"))
    ),
]  # fmt: skip
NUMBERS = [
    _row("CDist", [normal(2, 4), normal(3, 4)], ms_tensor._distance, "other"),
    _row("ComplexMulConj", [normal(2, 2), normal(2, 2)],
         lambda a, b: ms_tensor._complex(a, b, -1), "matrix"),
    _row("Rfft", [normal(6)], _transform, "vector", signal_ndim=1),
    _row("Irfft", [normal(3, 2)], ms_tensor._irfft, "vector", signal_ndim=1),
    _row("Inverse", [derived(_whole)], torch.linalg.inv, "matrix"),
    _row("SampleOp", [normal(3)], torch.clone, "vector"),
    _row("GatedAdd", [normal(3, 2), normal(3, 2), uniform(3, 1)], lambda x, y, g: x + y * g,
         "matrix"),
    _row("ExpandDims", [normal(4), given(0, INT32, constant=True)], lambda x, axis: x[None],
         "vector"),
    _row("GatherND", [normal(4, 2), given([[3], [0]])], lambda x, i: x[i[:, 0]], "rows"),
    _row("TorchEmbedding", [normal(3, 2), given([1, 1, 0])], ms_tensor._embedding, "vector"),
    _row("UnfoldTensor", [normal(6)], lambda x, dim, size, step: x.unfold(dim, size, step),
         "vector", dim=0, size=2, step=3),
    _row("Unique", [apart(3)], ms_tensor._unique, "distinct-three", outputs=3),
    _row("Trilu", [normal(2, 3, 2)], torch.triu, "batch"),
    *(
        _row("Pad", [normal(3, 4), shape_input(0, 2, 0, 1)], _each_side, mode, mode=mode)
        for mode in ("reflect", "edge", "wrap")
    ),
    _row("ShrunkenGather", [normal(2, 5), tensor_gather._index(3, size=5)], tensor_gather._gather,
         "negative-axis", axis=-1),
    _row("NGramRepeatBlock", [integers(1, 2, high=4), apart(1, 4)], lambda i, s, ngram_size: s,
         "one", ngram_size=3),
    _row("RelativePositionBias", [normal(4, 2), given([3], constant=True),
                                  given([3], constant=True)], ms_group_query._relative, "small",
         max_distance=8),
    _row("RemovePadding", [normal(2, 2, 3), ints([1, 2])], ms_group_query._removed,
         "short", outputs=4),
    _row("RestorePadding", [normal(3, 2), ints([[0, 3], [2, 1]])],
         ms_group_query._spread, "short"),
]  # fmt: skip
ACTIVATIONS = [
    _row("BiasAdd", [normal(1, 2, 3), normal(3), normal(1, 2, 3)], lambda x, b, s: x + b + s,
         "one"),
    _row("BiasGelu", [normal(3, 4), normal(4)], pointwise._bias_gelu, "matrix"),
    _row("BiasSplitGelu", [normal(1, 2, 4), normal(4)], ms_fused._split, "one"),
    _row("BatchScale", [normal(4)], scale._batch_scale, "vector", outputs=2, scale_0=0.5,
         scale_1=-1.5),
    *(
        _row("FusedMatMulActivation", [normal(4, 3), normal(4, 5)], ms_fused._gemm, name,
             activation=name, transA=1, **ms_fused._PARAMS[name])
        for name in ("HardSigmoid", "Sigmoid", "Tanh")
    ),
    *(
        _row("FusedMatMulActivation", [normal(*a), normal(*b)], _turned_batch, f"batch-{side}",
             activation="Relu", **{side: 1})
        for side, a, b in (("transBatchA", (3, 2, 4), (2, 4, 5)),
                           ("transBatchB", (2, 3, 4), (4, 2, 5)))
    ),
    _row("BiasSoftmaxDropout", [normal(2, 4), normal(1, 4), dropout._ratio(0.0)],
         softmax._bias_softmax_dropout, "matrix", outputs=3, axis=-1, is_inner_broadcast=0),
    _row("SoftmaxDropoutGrad", [normal(3, 4), given([[True, False, True, True]] * 3),
                                softmax._output_of(torch.softmax, 3, 4)],
         softmax._softmax_dropout_grad, "last-axis", axis=-1),
    _row("BitmaskDropoutGrad", [normal(1, 5), dropout._WORD], dropout._grad, "matrix"),
]  # fmt: skip


def _moving(item: Input) -> Input:
    """The same input, of which a gradient is asked."""
    return Input(item.make)


def _summed_gelu(dy: Tensor, x: Tensor, *, approximate: str) -> tuple[Tensor, Tensor]:
    dx = pointwise._gradient_of(pointwise._gelu)(dy, x, approximate=approximate)
    return dx, dx.sum(0)


LOSSES = [
    *(
        _row(op, [_moving(loss._log_prob(*shape)), integers(shape[0], *shape[2:], high=shape[1])],
             loss._nll, f"moving-{how}", reduction=how)
        for op in ("NegativeLogLikelihoodLossInternal", "NegativeLogLikelihoodLossInternal2")
        for how, shape in (("mean", (3, 4)), ("sum", (2, 3, 2)), ("none", (2, 4)))
    ),
    *(
        _row("SoftmaxCrossEntropyLossInternal", [normal(3, 4), integers(3, high=4)],
             loss._cross_entropy, f"plain-{how}", reduction=how, outputs=2)
        for how in ("mean", "sum", "none")
    ),
    _row("SoftmaxCrossEntropy", [normal(3, 4), uniform(3, 4)], loss_last_axis._soft, "matrix",
         outputs=2),
    _row("SoftmaxCrossEntropyGrad", [uniform(low=0.5), normal(3, 4), uniform(3, 4)],
         loss_last_axis._soft_grad, "moving"),
]  # fmt: skip
REST = [
    *(
        Case(op, [normal(3, 2), normal(3, 2), normal(2)], pointwise._gradient_of(forward),
             domain=MS, dtypes=TWO, gradient=False, name="matrix")
        for op, forward in (("BiasGeluGrad_dX", pointwise._bias_gelu),
                            ("BiasFastGeluGrad_dX", pointwise._fast_gelu))
    ),
    Case("GeluGradSum", [normal(3, 2), normal(3, 2)], _summed_gelu, {"approximate": "none"}, OWN,
         outputs=2, dtypes=TWO, gradient=False, name="matrix"),
    Case("MatMulNBitsGrad", [normal(1, 3), normal(1, 32), *ms_weights._weights(4, (3, 32)),
                             uniform(3, 2, low=4, high=9)], ms_weights._grad,
         {"K": 32, "N": 3, "block_size": 16}, MS, outputs=4, gradient=False, dtypes=TWO,
         name="one"),
    Case("PythonOp", [normal(3, 1), normal(3, 1)],
         lambda a, b, **_: (torch.zeros(()), 0.5 * a * b, 2 * a), interop._PYTHON, MS, outputs=3,
         dtypes=only(DataType.FLOAT), gradient=False, empty=[0], name="column"),
    *(
        _row("ReduceSumTraining", [normal(*shape), shape_input(-1)],
             reduction._reference(reduction._SUMS["ReduceSum"]), f"rank-{len(shape)}")
        for shape in ((4,), (2, 3))
    ),
    _row("MegatronF", [normal(4)], lambda x: x, "vector"),
    _row("MegatronG", [normal(4)], lambda x, group_type: x, "vector", group_type=4),
    _row("PassThrough", [normal(3), normal(2, 2)], lambda *xs: xs, "vectors", outputs=2),
    _row("RecordEvent", [given(3), normal(2)], lambda event, x: x, "vector"),
    _row("WaitEvent", [given(-1), normal(2)], lambda event, x: x, "vector"),
    _row("View", [normal(4), shape_input(2), shape_input(1, 2)],
         lambda x, *_: (x[:2], x[2:].reshape(1, 2)), "vector", outputs=2),
    _row("MixedPrecisionScale", [given(0.25, DataType.FLOAT), normal(2)], scale._mixed_scale,
         "vector", to=int(DataType.DOUBLE)),
    _row("Range", [given(1.5), given(3.75).no_grad(), given(0.5)],
         lambda a, b, d: a + torch.arange(5, dtype=a.dtype) * d, "between"),
    _row("Range", [given(1.5), given(3.75).no_grad()],
         lambda a, b: a + torch.arange(3, dtype=a.dtype), "one-by-one"),
]  # fmt: skip

CASES: list[Case] = [*IMAGES, *NUMBERS, *ACTIVATIONS, *LOSSES, *REST]
