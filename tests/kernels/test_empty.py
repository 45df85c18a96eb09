"""Results without elements, results of inputs without elements, and refusals of what is neither."""

from typing import Any

import numpy as np
import onnx
import pytest
import torch

from kernels.test_edges import Array, equal, f32, none, one, ones, run
from onnxtrain.errors import NodeError
from onnxtrain.kernels.nn.conv import conv_grad
from onnxtrain.kernels.nn.conv_transpose import conv_transpose_grad
from onnxtrain.kernels.nn.max_pool import max_pool_grad
from onnxtrain.kernels.nn.pool import average_pool_grad
from onnxtrain.kernels.sequence import concat_from_sequence, sequence_at, sequence_erase
from onnxtrain.kernels.tensor.resize import resize_grad
from onnxtrain.kernels.vision.regions import roi_align

POOLS = ["MaxPool", "AveragePool", "LpPool"]
SHAPES = [(0, 2, 5), (2, 0, 5, 5), (0, 0, 4, 4, 4), (1, 2, 0), (1, 1, 3, 0)]


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("op", [*POOLS, "Conv"])
def test_a_window_that_just_does_not_fit_is_in_no_place(op: str, rank: int) -> None:
    x, window = ones(2, 3, 4, *[2] * (rank - 1)), [5] + [1] * (rank - 1)
    if op == "Conv":
        found = one(op, x, ones(4, 3, *window), ones(4))
        equal(found, none(2, 4, 0, *[2] * (rank - 1)))
    else:
        equal(one(op, x, kernel_shape=window), none(2, 3, 0, *[2] * (rank - 1)))


@pytest.mark.parametrize("op", POOLS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_pools_of_nothing_are_empty(op: str, shape: tuple[int, ...]) -> None:
    sizes = shape[2:]
    found = one(op, none(*shape), kernel_shape=[1] * len(sizes), strides=[2] * len(sizes))
    equal(found, none(*shape[:2], *[-(-n // 2) for n in sizes]))


def test_places_of_no_maxima() -> None:
    y, places = run("MaxPool", none(0, 2, 4, 4), outputs=2, kernel_shape=[2, 2])
    assert y.shape == places.shape == (0, 2, 3, 3) and places.dtype == np.int64


@pytest.mark.parametrize("op", [*POOLS, "Conv"])
def test_a_window_that_is_far_too_large_is_refused(op: str) -> None:
    attributes: dict[str, Any] = {} if op == "Conv" else {"kernel_shape": [5]}
    more = [ones(1, 1, 5)] if op == "Conv" else []
    with pytest.raises(NodeError, match=r"a window of \(5,\) does not fit into \(2,\)"):
        one(op, ones(1, 1, 2), *more, **attributes)


@pytest.mark.parametrize("op", POOLS)
def test_padding_alone_is_not_pooled(op: str) -> None:
    with pytest.raises(NodeError, match=r"nothing to pool in a tensor of shape \(1, 2, 0\)"):
        one(op, none(1, 2, 0), kernel_shape=[2], pads=[1, 1])


@pytest.mark.parametrize("mode", ["avg", "max"])
def test_regions_without_samples(mode: str) -> None:
    """As many as there are are 0, also beside others; their corners have a gradient, which is 0."""
    x, options = f32(*range(18)).reshape(1, 2, 3, 3), {"mode": mode, "output_width": 2}
    regions = f32(1, 1, 1, 2, 0, 0, 2, 2, 2, 2, 1, 1).reshape(3, 4)
    for count in (0, 1):
        places = regions[:count], np.zeros(count, np.int64)
        found = one("RoiAlign", x, *places, opset=16, **options)
        equal(found, np.zeros((count, 2, 1, 2), np.float32))
    corners = torch.from_numpy(regions).requires_grad_()
    images = torch.zeros(3, dtype=torch.long)
    y = roi_align(torch.from_numpy(x), corners, images, opset=16, **options)
    assert y.flatten(1).any(1).tolist() == [False, True, False]
    (slopes,) = torch.autograd.grad(y.sum(), corners)
    assert slopes.any(1).tolist() == [False, True, False]


def test_the_largest_of_an_empty_image() -> None:
    equal(one("GlobalMaxPool", none(0, 2, 0)), none(0, 2, 1))
    with pytest.raises(NodeError, match="nothing to pool"):
        one("GlobalMaxPool", none(1, 2, 0))


def test_sums_without_terms_leave_the_bias() -> None:
    bias = f32(1, 2)
    padded = one("Conv", none(1, 1, 0), ones(2, 1, 1), bias, pads=[1, 2])
    equal(padded, [[[1, 1, 1], [2, 2, 2]]])
    equal(one("Conv", none(1, 0, 2), none(2, 0, 1), bias), [[[1, 1], [2, 2]]])
    equal(one("Conv", ones(1, 1, 2), none(0, 1, 1)), none(1, 0, 2))
    equal(one("ConvTranspose", none(1, 1, 0), ones(1, 2, 3), bias), [[[1, 1], [2, 2]]])
    equal(one("ConvTranspose", ones(1, 2, 3), none(2, 0, 2)), none(1, 0, 4))
    equal(one("ConvTranspose", ones(1, 1, 2), ones(1, 1, 2), pads=[1, 2]), none(1, 1, 0))
    with pytest.raises(NodeError, match="the padding cuts off more than there is"):
        one("ConvTranspose", ones(1, 1, 2), ones(1, 1, 2), pads=[3, 3])


@pytest.mark.parametrize("grad", [conv_grad, conv_transpose_grad])
@pytest.mark.parametrize("empty", ["batch", "result"])
def test_gradients_of_convolutions_of_nothing_are_zeros(grad: Any, empty: str) -> None:
    batch = 0 if empty == "batch" else 2
    x, w = torch.ones(batch, 3, 2), torch.ones(3, 3, 3)
    dy = torch.ones(batch, 3, 0 if grad is conv_grad or batch else 4)
    attributes: dict[str, Any] = {}
    if grad is conv_transpose_grad and batch:
        attributes = {"pads": [2, 2]}
    dx, dw, db = grad(dy, x, w, wanted=(True, True, True), **attributes)
    assert dx.shape == x.shape and not dx.any()
    assert dw.shape == w.shape and not dw.any()
    assert db.tolist() == [0, 0, 0]


def test_gradients_of_pools_of_nothing_are_zeros() -> None:
    dy, shape = torch.ones(2, 3, 0), [2, 3, 4]
    places = torch.zeros(2, 3, 0, dtype=torch.int64)
    options: dict[str, Any] = {"kernel_shape": [5], "out_shape": None}
    for found in (
        average_pool_grad(dy, shape, **options),
        max_pool_grad(dy, places, shape, **options),
    ):
        assert list(found.shape) == shape and not found.any()


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
def test_places_among_no_elements(op: str, last: int) -> None:
    options = {"select_last_index": last}
    with pytest.raises(NodeError, match=r"axis 1 of shape \(2, 0\) has no elements to choose of"):
        one(op, none(2, 0), axis=1, **options)
    assert one(op, none(0, 0), axis=1, **options).shape == (0, 1)
    assert one(op, none(0, 3), axis=1, keepdims=0, **options).shape == (0,)
    number = one(op, np.array(5, np.float32), axis=0, **options)
    assert number.shape == () and number == 0


@pytest.mark.parametrize("sorted_", [0, 1])
def test_slices_without_elements_are_the_same(sorted_: int) -> None:
    found = run("Unique", none(0, 3), outputs=4, axis=1, sorted=sorted_)
    for value, expected in zip(found, [none(0, 1), [0], [0, 0, 0], [3]], strict=True):
        equal(value, expected)
    found = run("Unique", none(2, 0), outputs=4, axis=1, sorted=sorted_)
    for value, expected in zip(found, [none(2, 0), none(0), none(0), none(0)], strict=True):
        equal(value, expected)


NOTHING: dict[str, tuple[Any, Array]] = {
    "DFT": (lambda: one("DFT", none(0, 5, 1)), none(0, 5, 2)),
    "DFT-length": (lambda: one("DFT", none(0, 5, 2), np.array(7)), none(0, 7, 2)),
    "DFT-one-side": (lambda: one("DFT", none(0, 5, 1), onesided=1), none(0, 3, 2)),
    "DFT-inverse": (lambda: one("DFT", none(0, 5, 2), inverse=1), none(0, 5, 2)),
    "STFT": (lambda: one("STFT", none(0, 8, 1), np.array(2), None, np.array(4)),
             none(0, 3, 3, 2)),
    "InstanceNormalization": (lambda: one("InstanceNormalization", none(1, 0, 4), none(0), none(0)),
                              none(1, 0, 4)),
    "LRN": (lambda: one("LRN", none(1, 0, 2, 2), size=3), none(1, 0, 2, 2)),
    "DynamicQuantizeLinear": (lambda: run("DynamicQuantizeLinear", none(2, 0), outputs=3)[0],
                              none(2, 0)),
}  # fmt: skip


@pytest.mark.parametrize("name", NOTHING)
def test_nothing_becomes_nothing(name: str) -> None:
    found, expected = NOTHING[name]
    equal(found(), expected)


def test_words_that_are_no_numbers() -> None:
    for word in ("NaN", "INF", "-inf"):
        with pytest.raises(NodeError, match=f"'{word}' is no number of type int64"):
            one("Cast", np.array(["1", word], object), to=onnx.TensorProto.INT64)
    equal(one("Cast", np.array(["2.5", "-3"], object), to=onnx.TensorProto.INT64), [2, -3])
    largest = np.array([str(2**64 - 1)], object)
    equal(one("Cast", largest, to=onnx.TensorProto.UINT64), np.array([2**64 - 1], np.uint64))


def test_words_keep_their_letters() -> None:
    words = np.array(["Ärger", "", "No"], object)
    assert one("StringNormalizer", words).tolist() == ["Ärger", "", "No"]
    found = one("StringNormalizer", words, case_change_action="LOWER", stopwords=["no"])
    assert found.tolist() == ["ärger", ""]
    assert one("StringNormalizer", words, stopwords=["ärger", "", "no"]).tolist() == [""]


def test_images_without_pixels_are_resized() -> None:
    twice = {"coordinate_transformation_mode": "half_pixel_symmetric"}
    for mode in ("nearest", "linear"):
        equal(one("Resize", none(1, 1, 0), None, f32(1, 1, 2), mode=mode, **twice), none(1, 1, 0))
        equal(one("Resize", ones(1, 1, 3), None, f32(1, 1, 0.1), mode=mode), none(1, 1, 0))
        sizes = np.array([0, 1, 4])
        equal(one("Resize", none(0, 1, 2), None, None, sizes, mode=mode), none(0, 1, 4))
        with pytest.raises(NodeError, match=r"nothing of shape \(1, 0\) cannot become \(1, 3\)"):
            one("Resize", none(1, 0), None, None, np.array([1, 3]), mode=mode)
    grad = resize_grad(torch.ones(1, 0), torch.ones(1, 3), None, [1.0, 0.1], deterministic=False)
    assert grad.tolist() == [[0, 0, 0]]


@pytest.mark.parametrize("reverse", [0, 1])
def test_a_number_is_a_row_of_one(reverse: int) -> None:
    for dtype in (np.float32, np.int64):
        x = np.array(3, dtype)
        equal(one("CumSum", x, np.array(0), reverse=reverse), x)
        equal(one("CumSum", x, np.array(0), reverse=reverse, exclusive=1), np.array(0, dtype))


def test_no_more_is_cut_off_than_there_is() -> None:
    equal(one("Pad", ones(2, 1), np.array([-1, 0, -1, 0])), none(0, 1))
    with pytest.raises(NodeError, match="cannot cut 3 off axis 0, which has 2 elements"):
        one("Pad", ones(2, 1), np.array([-1, 0, -2, 0]))


def test_places_have_the_shape_of_what_is_put_there() -> None:
    places = np.zeros((1, 1, 2, 2), np.int64)
    with pytest.raises(NodeError, match=r"X \(0, 1, 2, 2\) and I \(1, 1, 2, 2\) differ in shape"):
        one("MaxUnpool", none(0, 1, 2, 2), places, kernel_shape=[2, 2])


def test_sequences_without_elements() -> None:
    with pytest.raises(ValueError, match="the sequence has no elements to join"):
        concat_from_sequence([], axis=0)
    for function in (sequence_at, sequence_erase):
        with pytest.raises(ValueError, match="the sequence has no elements"):
            function([], 0)
