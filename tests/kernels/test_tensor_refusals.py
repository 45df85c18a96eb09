"""Values that tensor and sequence kernels refuse, and what they say."""

import pytest
import torch

from onnxtrain.kernels.sequence import (
    optional_get_element,
    sequence_at,
    sequence_insert,
    split_to_sequence,
)
from onnxtrain.kernels.tensor.arrange import depth_to_space, space_to_depth
from onnxtrain.kernels.tensor.cast import bit_cast
from onnxtrain.kernels.tensor.concat import concat, split, split_13, split_training
from onnxtrain.kernels.tensor.create import constant, eye_like
from onnxtrain.kernels.tensor.gather import (
    gather,
    gather_elements,
    gather_elements_grad,
    gather_grad,
    shrunken_gather,
)
from onnxtrain.kernels.tensor.gather_nd import gather_nd, gather_nd_grad
from onnxtrain.kernels.tensor.pad import pad
from onnxtrain.kernels.tensor.resize import resize, resize_grad
from onnxtrain.kernels.tensor.scatter import scatter_elements, tensor_scatter
from onnxtrain.kernels.tensor.select import top_k
from onnxtrain.kernels.tensor.shape import flatten, reshape, squeeze, tile, unsqueeze, view
from onnxtrain.kernels.tensor.slice import slice_, slice_grad
from onnxtrain.kernels.tensor.unpad import flatten_and_unpad, pad_and_unflatten
from onnxtrain.types import DataType

X = torch.ones(2, 3)
FIRST = torch.tensor([0])
IMAGE = torch.ones(1, 1, 2, 3)
TWO = (True, True)

REFUSED = {
    "axis": (lambda: gather(X, FIRST, axis=2), r"axis 2 is not in valid range \[-2,1\]"),
    "axis of a scalar": (
        lambda: concat(X[0, 0], axis=0),
        r"axis 0 is not in valid range \[-0,-1\]",
    ),
    "repeated axis": (lambda: unsqueeze(X, [0, 0]), "name the same axis twice"),
    "index": (lambda: gather(X, torch.tensor([0, 2])), r"index 2 is out of range \[-2,1\]"),
    "negative index": (
        lambda: gather(X, torch.tensor([-3, 0])),
        r"index -3 is out of range \[-2,1\]",
    ),
    "index of nothing": (lambda: gather(X[:0], FIRST), "indices must be empty"),
    "index tuple": (lambda: gather_nd(X, torch.tensor([[0, 3]])), "index 3 is out of range"),
    "index of elements": (
        lambda: gather_elements(X, torch.full((1, 3), 5)),
        "index 5 is out of range",
    ),
    "index of a gradient": (
        lambda: gather_grad([2, 3], torch.tensor([2]), X[:1]),
        "index 2 is out of range",
    ),
    "scatter index": (
        lambda: scatter_elements(X, torch.full((1, 3), -3), X[:1], deterministic=False),
        "index -3 is out of range",
    ),
    "scatter reduction": (
        lambda: scatter_elements(
            X, torch.zeros(1, 3, dtype=torch.int64), X[:1], reduction="sum", deterministic=False
        ),
        "reduction 'sum' is not one of none, add, mul, max, min",
    ),
    "cache mode": (
        lambda: tensor_scatter(X[None], X[None], mode="ring"),
        "mode 'ring' is not one of linear, circular",
    ),
    "elements too large": (
        lambda: gather_elements(X, torch.zeros(3, 3, dtype=torch.int64), axis=1),
        "do not fit data",
    ),
    "elements of another rank": (lambda: gather_elements(X, FIRST), "ranks must agree"),
    "elements' gradient": (
        lambda: gather_elements_grad(
            X, [2, 3], torch.zeros(1, 3, dtype=torch.int64), deterministic=False
        ),
        "indices and dY must have the same shape",
    ),
    "gather's gradient": (
        lambda: gather_grad([2, 2], FIRST, X),  # three columns are no broadcast of two
        r"dY has 6 elements, a gather of \[1\] indices along axis 0 of \[2, 2\] has 2",
    ),
    "tuples too long": (
        lambda: gather_nd(X, torch.zeros(1, 3, dtype=torch.int64)),
        "need a rank of at least 3",
    ),
    "tuples without axis": (lambda: gather_nd(X, FIRST[0]), "indices must have rank >= 1"),
    "batches": (
        lambda: gather_nd(X, torch.zeros(3, 1, dtype=torch.int64), batch_dims=1),
        "the first 1 dimensions of indices",
    ),
    "batches of the update": (
        lambda: gather_nd_grad(
            [2, 3],
            torch.zeros(2, 1, dtype=torch.int64),
            torch.ones(3),
            batch_dims=1,
            deterministic=False,
        ),
        "the first 1 dimensions of update",
    ),
    "shrunken scalar": (lambda: shrunken_gather(X[0, 0], FIRST), "must have rank >= 1"),
    "shrunken rank": (
        lambda: shrunken_gather(X, FIRST[None]),
        "ShrunkenGather only support 1D indices, got 2-D indices",
    ),
    "shrunken grows": (
        lambda: shrunken_gather(X, torch.zeros(3, dtype=torch.int64)),
        r"3 indices are more than axis 0 has slices \(2\)",
    ),
    "step": (lambda: slice_(X, [0], [1], [0], [0]), "'step' value cannot be 0"),
    "slice of a scalar": (lambda: slice_(X[0, 0], [0], [1], [0]), "cannot slice scalars"),
    "slice lengths": (lambda: slice_(X, [0, 0], [1]), "got 2, 1, 2 and 2"),
    "slice gradient": (
        lambda: slice_grad(X, [4], [0], [3]),
        r"dY has 6 elements, the slice of \[4\] has shape \[3\]",
    ),
    "uneven split": (lambda: split_13(X, axis=1, wanted=TWO), "axis 1 has size 3 for 2"),
    "split sizes": (lambda: split(X, [2, 2], axis=1, wanted=TWO), r"cannot split using \[2, 2\]"),
    "split count": (lambda: split(X, num_outputs=3, wanted=TWO), "the node has 2 outputs"),
    "negative split": (lambda: split_training(X, [3, -1], wanted=TWO), "cannot split using"),
    "reshape": (lambda: reshape(X, [6, 1, 0]), "keeps a dimension that"),
    "reshape zero": (lambda: reshape(X[:0], [0, -1], allowzero=1), "both 0 and -1"),
    "flatten": (lambda: flatten(X, axis=3), r"axis 3 is not in valid range \[-2,2\]"),
    "squeeze": (lambda: squeeze(X, [1]), r"cannot squeeze axes \[1\]"),
    "tile": (lambda: tile(X, [2]), "one entry per axis"),
    "view": (lambda: view(X, [4], [3], wanted=TWO), "6 elements together"),
    "unpad": (lambda: flatten_and_unpad(X[0], FIRST), "input must have rank >= 2"),
    "unflatten": (lambda: pad_and_unflatten(X, FIRST, [2, 2]), "one row per index"),
    "unflatten dims": (lambda: pad_and_unflatten(X[:1], FIRST, [2]), "must have two values"),
    "pads": (lambda: pad(X, [1, 1]), "two entries for each of 2 axes"),
    "pad mode": (lambda: pad(X, [1, 0, 0, 0], mode="mirror"), "mode 'mirror' is not one of"),
    "pad of nothing": (lambda: pad(X[:0], [1, 0, 0, 0], mode="edge"), "has no elements"),
    "k": (lambda: top_k(X, [4]), r"k=4 is not in \[0,3\]"),
    "depth": (lambda: depth_to_space(IMAGE, blocksize=2), "1 channels cannot be spread"),
    "space": (lambda: space_to_depth(IMAGE, blocksize=2), "has no whole number of blocks"),
    "image": (lambda: depth_to_space(X, blocksize=2), r"must have shape \[N,C,H,W\]"),
    "bits": (lambda: bit_cast(X, to=DataType.DOUBLE), "differ in width"),
    "eye": (lambda: eye_like(X[0]), "input must be a matrix"),
    "constant": (lambda: constant(device=torch.device("cpu")), "a constant needs one of"),
    "scales": (lambda: resize(IMAGE, None, [2.0]), "one entry for each of 4 axes"),
    "roi": (
        lambda: resize(
            IMAGE,
            None,
            [1.0, 1.0, 2.0, 2.0],
            coordinate_transformation_mode="tf_crop_and_resize",
        ),
        "a start and an end for each of 4 axes",
    ),
    "coordinates": (
        lambda: resize(IMAGE, None, [1.0, 1.0, 2, 2], coordinate_transformation_mode="corners"),
        "coordinate_transformation_mode 'corners' is unknown",
    ),
    "resize mode": (
        lambda: resize_grad(IMAGE, torch.ones(1, 1, 1, 1), mode="area", deterministic=False),
        "mode 'area' is not one of nearest, linear, cubic",
    ),
    "position": (
        lambda: sequence_at([X], 1),
        r"position 1 is not in valid range \[-1,0\]",
    ),
    "insert": (lambda: sequence_insert([X], X, 2), r"position 2 is not in valid range \[-1,1\]"),
    "chunks": (lambda: split_to_sequence(X, [1, 2]), "does not add up to 2"),
    "no value": (lambda: optional_get_element(None), "the optional has no value"),
}


@pytest.mark.parametrize(("call", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_refusal(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
