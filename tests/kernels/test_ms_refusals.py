"""What further kernels of com.microsoft refuse, and where they are right and onnxruntime is not."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest
import torch
from onnx import helper

from onnxtrain.kernels.ms.masked_pool import maxpool_with_mask
from onnxtrain.kernels.ms.qproducts import reduce_sum_integer
from onnxtrain.kernels.ms.warp import dynamic_time_warping
from onnxtrain.kernels.ms.words import word_conv_embedding
from onnxtrain.types import MS

WORDS = torch.tensor([[1, 2, 3, 0]], dtype=torch.int32)
W, B, C = torch.ones(4, 1, 2, 3), torch.ones(4), torch.ones(6, 3)
X, M = torch.ones(2, 3, 4, 4), torch.ones(1, 1, 4, 4, dtype=torch.int32)
LOWEST = torch.finfo(torch.float32).min

REFUSED = {
    "words of rank 1": (
        lambda: word_conv_embedding(WORDS[0], W, B, C),
        r"Sequence has shape \[4\], but it must be \[word, place\]",
    ),
    "characters of rank 1": (
        lambda: word_conv_embedding(WORDS, W, B, C[0]),
        r"C has shape \[3\], but it must be \[character, feature\]",
    ),
    "filters for other characters": (
        lambda: word_conv_embedding(WORDS, W[..., :2], B, C),
        r"W has shape \[4, 1, 2, 2\], but it must be \[filter, 1, place, 3\]",
    ),
    "filters of several channels": (
        lambda: word_conv_embedding(WORDS, W.expand(4, 2, 2, 3), B, C),
        r"W has shape \[4, 2, 2, 3\], but it must be \[filter, 1, place, 3\]",
    ),
    "biases": (
        lambda: word_conv_embedding(WORDS, W, B[:3], C),
        r"B has shape \[3\], but 4 filters need \[4\]",
    ),
    "short words": (
        lambda: word_conv_embedding(WORDS[:, :1], W, B, C),
        "windows of 2 characters do not fit into words with room for 1: pad Sequence",
    ),
    "embedding_size": (
        lambda: word_conv_embedding(WORDS, W, B, C, embedding_size=5),
        "embedding_size is 5, but the weights are made for 4",
    ),
    "conv_window_size": (
        lambda: word_conv_embedding(WORDS, W, B, C, conv_window_size=3),
        "conv_window_size is 3, but the weights are made for 2",
    ),
    "char_embedding_size": (
        lambda: word_conv_embedding(WORDS, W, B, C, char_embedding_size=2),
        "char_embedding_size is 2, but the weights are made for 3",
    ),
    "a mask of other sizes": (
        lambda: maxpool_with_mask(X, M[:, :, :2], kernel_shape=(2, 2)),
        r"the mask has shape \[1, 1, 2, 4\].*one of \[2, 3, 4, 4\], \[1, 3, 4, 4\], \[1, 1, 4, 4\]",
    ),
    "a mask of samples alone": (
        lambda: maxpool_with_mask(X, M.expand(2, 1, 4, 4), kernel_shape=(2, 2)),
        r"the mask has shape \[2, 1, 4, 4\]",
    ),
    "no window": (lambda: maxpool_with_mask(X, M), "kernel_shape is missing: 2 sizes"),
    "a window of another rank": (
        lambda: maxpool_with_mask(X, M, kernel_shape=(2,)),
        r"kernel_shape \(2,\) must have 2 values",
    ),
    "costs of rank 1": (
        lambda: dynamic_time_warping(B),
        r"the costs have shape \[4\], but they must be \[row, column\] or \[1, row, column\]",
    ),
    "costs of a batch": (
        lambda: dynamic_time_warping(torch.ones(2, 3, 3)),
        r"the costs have shape \[2, 3, 3\]",
    ),
    "axes": (
        lambda: reduce_sum_integer(WORDS.to(torch.int8), axes=[2], keepdims=1),
        r"axis 2 is not in valid range \[-2,1\]",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    call, why = REFUSED[name]
    with pytest.raises(ValueError, match=why):
        call()


def test_the_first_place_of_a_plane_is_closed_like_any_other() -> None:
    x = torch.arange(9.0).reshape(1, 1, 3, 3)
    mask = torch.zeros(1, 1, 3, 3, dtype=torch.int32)
    y = maxpool_with_mask(x, mask, kernel_shape=(2, 2))
    assert y.tolist() == [[[[LOWEST] * 2] * 2]]


def test_an_empty_word_for_the_padding_is_none() -> None:
    y = maxpool_with_mask(X, M, kernel_shape=(2, 2), auto_pad="", pads=(0, 0, 0, 0))
    assert y.shape == (2, 3, 3, 3)


def test_sums_of_bytes_have_32_bits_with_their_sign() -> None:
    x = torch.full((2, 100), 255, dtype=torch.uint8)
    total = reduce_sum_integer(x, axes=[1], keepdims=0)
    assert (total.dtype, total.tolist()) == (torch.uint32, [25500, 25500])
    total = reduce_sum_integer(torch.full((200,), -128, dtype=torch.int8), axes=[0], keepdims=1)
    assert (total.dtype, total.tolist()) == (torch.int32, [-25600])


def test_long_ways_are_those_of_onnxruntime() -> None:
    ort = pytest.importorskip("onnxruntime", reason="the kernel to compare with")
    node = helper.make_node("DynamicTimeWarping", ["costs"], ["way"], domain=MS)
    costs = helper.make_tensor_value_info("costs", onnx.TensorProto.FLOAT, [None, None])
    graph = helper.make_graph([node], "one", [costs], [onnx.ValueInfoProto(name="way")])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(MS, 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for rows, columns in ((60, 200), (200, 60), (1, 1)):
        x = np.random.default_rng(rows).standard_normal((rows, columns)).astype(np.float32)
        (want,) = session.run(None, {"costs": x})
        np.testing.assert_array_equal(dynamic_time_warping(torch.from_numpy(x)).numpy(), want)


@pytest.mark.parametrize("bits", range(16))
def test_ways_are_cheapest_also_where_steps_tie(bits: int) -> None:
    costs = torch.tensor([[1, 3, 9], [1, 9, 9], [9, 1, 1]], dtype=torch.float32)
    for place, (i, j) in enumerate(itertools.product((1, 2), (0, 1))):
        costs[i, j] = 1.0 if bits >> place & 1 else 3.0
    way = dynamic_time_warping(costs).T.tolist()
    assert way[0] == [0, 0] and way[-1] == [2, 2]
    steps = [(b - a, d - c) for (a, c), (b, d) in itertools.pairwise(way)]
    assert {*steps} <= {(0, 1), (1, 0), (1, 1)}
    assert sum(float(costs[i, j]) for i, j in way) == cheapest(costs.tolist(), 0, 0)


def cheapest(costs: list[list[float]], i: int, j: int) -> float:
    ahead = [(i + 1, j), (i, j + 1), (i + 1, j + 1)]
    inside = [cheapest(costs, a, b) for a, b in ahead if a < 3 and b < 3]
    return costs[i][j] + min(inside, default=0.0)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (1, 0, 0)])
def test_no_costs_have_no_way(shape: tuple[int, ...]) -> None:
    way = dynamic_time_warping(torch.ones(shape))
    assert way.shape == (2, 0) and way.dtype == torch.int32


def test_infinite_costs_still_have_a_way() -> None:
    way = dynamic_time_warping(torch.full((3, 2), torch.inf)).T.tolist()
    assert way[0] == [0, 0] and way[-1] == [2, 1]
