"""Inputs for a model that comes without data: sizes that fit, and numbers in range.

A file says little about what it may be fed. Free dimensions are tried in a few sizes until the
model runs; ids stay below the number of rows that they pick from; a number that the model compares
with a constant (a sample rate) is that constant; lengths are those of other inputs, or half of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxtrain.errors import FeedError
from onnxtrain.types import BOOL, FLOATS, INTEGERS, TEXT, type_string

Array = npt.NDArray[Any]

_BATCHES = (2, 1)
_LENGTHS = (16, 512, 576, 32, 4096, 16000, 3, 1)
_PIXELS = (64, 32, 48, 128, 160, 224, 320, 640)
_CHANNELS = (3, 1)
_IMAGE_RANK = 4
_CARRIES = frozenset(
    {"Cast", "Concat", "Expand", "Flatten", "Identity", "Reshape", "Slice", "Split", "Squeeze"}
    | {"Transpose", "Unsqueeze"}
)
"""Operators that hand numbers on as they are."""
_LENGTH = "len"
_SOUNDS, _SOUND_LENGTH = ("audio", "wave"), 16000
"""What inputs of sound are called, of which a few samples say nothing."""
_WORDS = ("a", "b", "1", "some words")
_LOSSES = frozenset({"NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"})
_COMPARES = frozenset({"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"})


def draw_feeds(
    model: ir.Model,
    runs: Callable[[Mapping[str, Array]], object],
    *,
    seed: int = 0,
    given: Mapping[str, Array] | None = None,
) -> dict[str, Array]:
    """Inputs that a prepared model runs on.

    Args:
        model: The model; those of its inputs that are initializers too are left alone.
        runs: Runs the model; any exception means that the inputs do not fit.
        seed: Seed of the numbers.
        given: Inputs that are known already.

    Raises:
        FeedError: if no inputs that were tried fit.
    """
    known = dict(given or {})
    inputs = [v for v in model.graph.inputs if not v.is_initializer() and v.name not in known]
    problem: Exception | None = None
    for sizes in _attempts(inputs):
        rng = np.random.default_rng(seed)
        feeds = known | {str(v.name): draw(v, sizes, rng) for v in inputs}
        feeds |= _lengths(inputs, feeds, rng)
        try:
            runs(feeds)
        except Exception as error:
            problem = problem or error
        else:
            return feeds
    raise FeedError(
        f"no made-up inputs fit the model, the first ones fail with: {problem}\n"
        f"  it takes  {', '.join(_shown(v) for v in inputs) or 'nothing'}"
    ) from problem


def draw(
    value: ir.Value, sizes: Mapping[str, int] | Callable[[str], int], rng: np.random.Generator
) -> Array:
    """Something to feed for one input.

    Args:
        value: The input.
        sizes: Size of each free dimension, by its key, or a function of the key.
        rng: Where numbers come from.

    Raises:
        FeedError: if the input is no tensor of numbers or text, its rank is not known, or it does
            not fit into memory.
    """
    known = isinstance(value.type, ir.TensorType) and value.shape is not None
    if not known or value.dtype not in FLOATS | INTEGERS | BOOL | TEXT:
        raise FeedError(
            f"cannot make up input '{value.name}' of {type_string(value.type)}\n"
            "  only tensors of numbers or text with a known rank can be made up"
        )
    assert value.dtype is not None
    size_of = sizes if callable(sizes) else sizes.__getitem__
    dims = [d if isinstance(d, int) else size_of(d) for d in _dims(value)]
    try:
        return _drawn(value, dims, rng)
    except (MemoryError, ValueError) as error:
        raise FeedError(
            f"cannot make up input '{value.name}' of {type_string(value.type)} {dims}: {error}"
        ) from error


def _drawn(value: ir.Value, dims: list[int], rng: np.random.Generator) -> Array:
    assert value.dtype is not None
    if value.dtype in TEXT:
        return rng.choice(np.array(_WORDS, object), dims)
    chosen = _constants(value)
    rows = _rows(value)
    numbers: Array
    if chosen:
        numbers = np.full(dims, chosen[0])
    elif rows is not None:
        numbers = rng.integers(0, max(rows, 1), dims)
    elif value.dtype in FLOATS:
        numbers = rng.normal(size=dims)
    else:
        numbers = rng.integers(0, 2, dims)
    return np.asarray(numbers).astype(value.dtype.numpy())


def _lengths(
    inputs: list[ir.Value], feeds: Mapping[str, Array], rng: np.random.Generator
) -> dict[str, Array]:
    """Lengths of samples: whole numbers, one for each, that are called so and pick nothing."""
    found = {}
    for value in inputs:
        drawn = feeds[str(value.name)]
        called = _LENGTH in str(value.name).lower() and drawn.ndim == 1
        if not called or value.dtype not in INTEGERS or _rows(value) is not None:
            continue
        sizes = [a.shape[1] for a in feeds.values() if a.ndim > 1 and len(a) == len(drawn)]
        if sizes:
            longest = max(sizes)
            numbers = rng.integers(max(1, longest // 2), longest + 1, drawn.shape)
            found[str(value.name)] = numbers.astype(drawn.dtype)
    return found


def _shown(value: ir.Value) -> str:
    dims = "unknown" if value.shape is None else ", ".join(map(str, _dims(value)))
    return f"{value.name} {type_string(value.type)} [{dims}]"


def _dims(value: ir.Value) -> list[int | str]:
    """Sizes of an input; a free dimension is its name, or a key of its own."""
    assert value.shape is not None
    found: list[int | str] = []
    for axis, dim in enumerate(value.shape):
        if isinstance(dim, int) and dim >= 0:
            found.append(dim)
        else:
            name = None if isinstance(dim, int) else dim.value
            found.append(name if name and name != "?" else f"{value.name}#{axis}")
    return found


def _attempts(inputs: list[ir.Value]) -> Iterator[dict[str, int]]:
    """Sizes of the free dimensions, the likeliest first."""
    shaped = [value for value in inputs if value.shape is not None]
    free = {d for value in shaped for d in _dims(value) if isinstance(d, str)}
    batch = {d for value in shaped for d in _batch_dims(value)}
    channels = {d for value in shaped for d in _channel_dims(value)} - batch
    image = any(value.shape is not None and len(value.shape) >= _IMAGE_RANK for value in shaped)
    lengths: tuple[int, ...] = (*_PIXELS, *_LENGTHS) if image else (*_LENGTHS, *_PIXELS)
    if any(word in str(value.name).lower() for value in inputs for word in _SOUNDS):
        lengths = (_SOUND_LENGTH, *lengths)
    seen = []
    for channel in _CHANNELS:
        for length in lengths:
            for count in _BATCHES:
                sizes = {d: length for d in free}
                sizes |= {d: channel for d in channels} | {d: count for d in batch}
                if sizes not in seen:
                    seen.append(sizes)
                    yield sizes


def _batch_dims(value: ir.Value) -> list[str]:
    """Free dimensions that count samples: the first; in a state [layers, batch, n] the second."""
    dims = _dims(value)
    place = 1 if len(dims) == 3 and isinstance(dims[0], int) and isinstance(dims[2], int) else 0
    return [d for d in dims[place : place + 1] if isinstance(d, str) and len(dims) > 1]


def _channel_dims(value: ir.Value) -> list[str]:
    dims = _dims(value)
    return [d for d in dims[1:2] if isinstance(d, str) and len(dims) == _IMAGE_RANK]


def _constants(value: ir.Value) -> list[float]:
    """Numbers that a scalar input is compared with."""
    if value.shape is None or len(value.shape) > 0:
        return []
    found = []
    for node, index in _readers(value):
        if node.op_type in _COMPARES and len(node.inputs) == 2:
            other = node.inputs[1 - index]
            if other is not None and other.const_value is not None and other.const_value.size == 1:
                found.append(float(other.const_value.numpy().ravel()[0]))
    return found


def _rows(value: ir.Value) -> int | None:
    """How many things there are that the numbers of an input pick from."""
    sizes = []
    for node, index in _readers(value):
        if node.op_type in ("Gather", "GatherElements") and index == 1:
            sizes.append(_axis_size(node.inputs[0], node.attributes.get_int("axis", 0)))
        if node.op_type in _LOSSES and index == 1:
            sizes.append(_axis_size(node.inputs[0], 1))
        if node.op_type == "OneHot" and index == 0:
            depth = None if node.inputs[1] is None else node.inputs[1].const_value
            sizes.append(None if depth is None else int(depth.numpy().ravel()[0]))
        if node.op_type == "Equal":
            others = [v.const_value for v in node.inputs if v is not None and v is not value]
            sizes += [int(t.numpy().max()) + 1 for t in others if t is not None and t.size > 1]
    known = [size for size in sizes if size is not None]
    return min(known, default=None)


def _axis_size(data: ir.Value | None, axis: int) -> int | None:
    if data is None or data.shape is None or not -len(data.shape) <= axis < len(data.shape):
        return None
    size = data.shape[axis]
    return size if isinstance(size, int) else None


def _readers(value: ir.Value) -> Iterator[tuple[ir.Node, int]]:
    """Nodes that read the numbers of a value, and as which input."""
    waiting, seen = [value], {value}
    while waiting:
        for node, index in waiting.pop().uses():
            yield node, index
            if node.op_type in _CARRIES and (index == 0 or node.op_type == "Concat"):
                fresh = [output for output in node.outputs if output not in seen]
                waiting += fresh
                seen.update(fresh)
