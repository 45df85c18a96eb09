"""Shapes of what windows, joins and selections make, for the operators outside ONNX."""

from __future__ import annotations

from onnxtrain.graph.schemas.facts import Dim, Facts, Shape
from onnxtrain.graph.schemas.infer import Dims, at, normalize


def convolved(facts: Facts, output: int) -> Shape | None:
    """[N, M, sizes...] of a convolution of [N, C, ...] with [M, C/group, kernel...]."""
    return _convolution(facts.shape(0), facts.shape(1), facts)


def convolved_last(facts: Facts, output: int) -> Shape | None:
    """[N, sizes..., M] of a convolution of [N, ..., C] with [M, kernel..., C/group]."""
    shape = _convolution(first(facts.shape(0)), first(facts.shape(1)), facts)
    return last(shape)


def convolved_images_last(facts: Facts, output: int) -> Shape | None:
    """The same with filters [M, C/group, kernel...]."""
    return last(_convolution(first(facts.shape(0)), facts.shape(1), facts))


def convolved_bytes(facts: Facts, output: int) -> Shape | None:
    """The same for QLinearConv, whose filter is its fourth input and has its channels second."""
    at_end = facts.integer("channels_last")
    x = first(facts.shape(0)) if at_end else facts.shape(0)
    shape = _convolution(x, facts.shape(3), facts)
    return last(shape) if at_end else shape


def pooled(facts: Facts, output: int) -> Shape | None:
    """[N, C, windows...]."""
    x = facts.shape(0)
    kernel: Shape = tuple(facts.integers("kernel_shape"))
    return None if x is None or len(x) < 3 else x[:2] + _windows(x[2:], kernel, facts)


def pooled_last(facts: Facts, output: int) -> Shape | None:
    """[N, windows..., C]."""
    x = first(facts.shape(0))
    kernel: Shape = tuple(facts.integers("kernel_shape"))
    return None if x is None else last(x[:2] + _windows(x[2:], kernel, facts))


def pooled_either(facts: Facts, output: int) -> Shape | None:
    """One of both, as ``channels_last`` says."""
    return (pooled_last if facts.integer("channels_last") else pooled)(facts, output)


def pooled_whole(facts: Facts, output: int) -> Shape | None:
    """Every spatial axis of size 1."""
    x = facts.shape(0)
    if x is None or len(x) < 2:
        return None
    ones = (1,) * (len(x) - 2)
    return (x[0], *ones, x[-1]) if facts.integer("channels_last") else (x[0], x[1], *ones)


def first(shape: Shape | None) -> Shape | None:
    """[N, ..., C] as [N, C, ...]."""
    return None if shape is None or len(shape) < 3 else (shape[0], shape[-1], *shape[1:-1])


def last(shape: Shape | None) -> Shape | None:
    """[N, C, ...] as [N, ..., C]."""
    return None if shape is None or len(shape) < 3 else (shape[0], *shape[2:], shape[1])


def _convolution(x: Shape | None, w: Shape | None, facts: Facts) -> Shape | None:
    if x is None or len(x) < 3:
        return None
    kernel: Shape = tuple(facts.integers("kernel_shape")) or (() if w is None else w[2:])
    return (x[0], at(w, 0), *_windows(x[2:], kernel, facts))


def _windows(sizes: Shape, kernel: Shape, facts: Facts) -> Shape:
    """How many windows fit along each axis, None where that is not known."""
    rank = len(sizes)
    strides = facts.integers("strides") or [1] * rank
    dilations = facts.integers("dilations") or [1] * rank
    pads = facts.integers("pads") or [0] * (2 * rank)
    fits = (len(kernel), len(strides), len(dilations)) == (rank,) * 3 and len(pads) == 2 * rank
    if not fits or min(strides) < 1:
        return (None,) * rank
    same = facts.text("auto_pad").startswith("SAME")
    ceil = facts.integer("ceil_mode") or 0
    return tuple(
        _count(sizes[i], kernel[i], strides[i], dilations[i], pads[i], pads[rank + i], same, ceil)
        for i in range(rank)
    )


def _count(
    size: Dim, taps: Dim, stride: int, spread: int, before: int, behind: int, same: bool, ceil: int
) -> Dim:
    """Windows along one axis; the last one must not start in the padding."""
    if not isinstance(size, int) or not isinstance(taps, int):
        return None
    if same:
        return -(-size // stride)
    room = size + before + behind - (taps - 1) * spread - 1
    if room < 0:
        return None
    if not ceil:
        return room // stride + 1
    count = -(-room // stride) + 1
    return count - 1 if (count - 1) * stride >= size + before else count


def gathered_at(name: str) -> Dims:
    """data.shape with the axis of an attribute replaced by the shape of the indices."""

    def dims(facts: Facts, output: int) -> Shape | None:
        data, indices = facts.shape(0), facts.shape(1)
        axis = None if data is None else normalize(facts.integer(name), len(data))
        if data is None or indices is None or axis is None:
            return None
        return data[:axis] + indices + data[axis + 1 :]

    return dims


def replaced(shape: Shape, axis: int, size: Dim) -> Shape:
    """A shape with the size of one axis replaced."""
    return shape[:axis] + (size,) + shape[axis + 1 :]
