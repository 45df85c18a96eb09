"""Constants computed once instead of in every step, and nodes that do nothing left out."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxtrain.graph.bindings import same_shape
from onnxtrain.graph.edit import remove_dead
from onnxtrain.graph.inference.infer import infer_node
from onnxtrain.graph.inference.reshaped import refined
from onnxtrain.graph.lean import share_equal
from onnxtrain.graph.torch_export.traced import is_detached
from onnxtrain.transforms.fusion.reading import is_op
from onnxtrain.types import FIXED, FLOATS, ONNX

Array = npt.NDArray[Any]

LARGEST = 1024
"""Constants of more elements are not made."""
_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "Add": np.add,
    "And": np.logical_and,
    "Div": np.divide,
    "Equal": np.equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "Max": lambda *parts: functools.reduce(np.maximum, parts),
    "Min": lambda *parts: functools.reduce(np.minimum, parts),
    "Mul": np.multiply,
    "Neg": np.negative,
    "Not": np.logical_not,
    "Or": np.logical_or,
    "Pow": np.power,
    "Reciprocal": np.reciprocal,
    "Sqrt": np.sqrt,
    "Sub": np.subtract,
}
"""Operators of numbers; quotients of whole numbers are left to the run."""


def _concat(node: ir.Node, *parts: Array) -> Array:
    return np.concatenate(parts, int(node.attributes["axis"].as_int()))


def _gather(node: ir.Node, data: Array, indices: Array) -> Array:
    return np.take(data, indices, node.attributes.get_int("axis", 0))


def _gather_elements(node: ir.Node, data: Array, indices: Array) -> Array:
    return np.take_along_axis(data, indices, node.attributes.get_int("axis", 0))


def _range(node: ir.Node, start: Array, end: Array, step: Array) -> Array | None:
    first, last, by = start.item(), end.item(), step.item()
    return np.arange(first, last, by) if abs(last - first) <= LARGEST * abs(by) else None


def _reshape(node: ir.Node, data: Array, shape: Array) -> Array | None:
    return None if 0 in shape else data.reshape(shape)


def _slice(node: ir.Node, data: Array, start: Array, end: Array, *rest: Array) -> Array | None:
    axes = rest[0].tolist() if rest else list(range(start.size))
    steps = rest[1].tolist() if len(rest) > 1 else [1] * start.size
    places = [slice(None)] * data.ndim
    for axis, low, high, step in zip(axes, start.tolist(), end.tolist(), steps, strict=True):
        if step < 1:
            return None
        places[axis] = slice(low, high, step)
    return data[tuple(places)]


def _squeeze(node: ir.Node, data: Array, *axes: Array) -> Array | None:
    if "axes" in node.attributes:
        return None
    return np.squeeze(data, tuple(axes[0].tolist()) if axes else None)


def _unsqueeze(node: ir.Node, data: Array, *axes: Array) -> Array | None:
    return np.expand_dims(data, tuple(axes[0].tolist())) if axes else None


def _reduced(node: ir.Node, data: Array, *axes: Array) -> Array | None:
    """Whole numbers: real ones would be added in another order."""
    given = node.attributes.get_ints("axes", None) if not axes else axes[0].tolist()
    nothing = not given and node.attributes.get_int("noop_with_empty_axes", False)
    if not np.issubdtype(data.dtype, np.integer) or nothing or not data.size:
        return None
    along, kept = tuple(given) if given else None, bool(node.attributes.get_int("keepdims", 1))
    return np.asarray(_REDUCTIONS[node.op_type](data, axis=along, keepdims=kept))


_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "ReduceMax": np.max,
    "ReduceMin": np.min,
    "ReduceProd": np.prod,
    "ReduceSum": np.sum,
}
_MOVES: dict[str, Callable[..., Array | None]] = {
    **dict.fromkeys(_REDUCTIONS, _reduced),
    "Cast": lambda node, x: x,
    "Concat": _concat,
    "Expand": lambda node, x, shape: np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(shape))),
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "Range": _range,
    "Reshape": _reshape,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
}
"""Operators that move numbers or count, by the node and its inputs."""


def fold(graph: ir.Graph) -> None:
    """Compute what depends on constants and known shapes only, pass by what does nothing."""
    news: set[ir.Value] = set()
    for node in list(graph):
        if news.intersection(node.inputs):
            news.update(refined(node, graph.opset_imports, infer_node))
        if len(node.outputs) != 1 or node.outputs[0].is_graph_output():
            continue
        if (same := _passed_by(node)) is not None:
            node.outputs[0].replace_all_uses_with(same)
        elif (array := _computed(node)) is not None:
            news.add(_to_constant(graph, node, array))
    remove_dead(graph, keep=lambda node: node.domain != ONNX)


def share(graph: ir.Graph) -> None:
    """Let small constants of whole numbers, and nodes, that are equal be one, in place."""
    seen: dict[Hashable, ir.Value] = {}
    for value in list(graph.initializers.values()):
        array = None if value.dtype in FLOATS else _constant(value)
        if array is None or value.is_graph_output() or value.is_graph_input():
            continue
        first = seen.setdefault((array.dtype.str, array.shape, array.tobytes()), value)
        if first is not value:
            value.replace_all_uses_with(first)
    share_equal(graph, set(graph), set(graph.outputs))


def _to_constant(graph: ir.Graph, node: ir.Node, array: Array) -> ir.Value:
    """Let an initializer of the same name stand for what a node makes."""
    old = node.outputs[0]
    name = str(old.name)
    tensor = ir.tensor(array, name=name)
    value = ir.Value(
        name=name,
        type=ir.TensorType(tensor.dtype),
        shape=ir.Shape(array.shape),
        const_value=tensor,
    )
    old.replace_all_uses_with(value)
    graph.remove(node, safe=True)
    graph.register_initializer(value)
    return value


def _passed_by(node: ir.Node) -> ir.Value | None:
    """The input that a node hands on as it is."""
    if not node.inputs or node.inputs[0] is None:
        return None
    x, y = node.inputs[0], node.outputs[0]
    same = x.dtype is not None and x.dtype == y.dtype
    if is_op(node, "Identity"):
        return None if is_detached(node) else x
    if is_op(node, "Cast", "CastLike"):
        return x if same else None
    if is_op(node, "Transpose"):
        perm = node.attributes.get_ints("perm", None)
        return x if perm is not None and list(perm) == list(range(len(perm))) else None
    if is_op(node, "Expand", "Reshape"):
        return x if same_shape(x, y) else None
    if is_op(node, "Pad"):
        pads = _constant(node.inputs[1]) if len(node.inputs) > 1 else None
        return x if pads is not None and not pads.any() else None
    return None


def _computed(node: ir.Node) -> Array | None:
    """What a node gives, if constants or shapes tell."""
    y = node.outputs[0]
    if node.domain != ONNX or y.dtype not in FIXED:
        return None
    if is_op(node, "Shape"):
        return _shape(node)
    given = node.inputs[:1] if is_op(node, "CastLike") else node.inputs
    arrays = [_constant(value) for value in given]
    present = [array for array in arrays if array is not None]
    if not present or len(present) < len(arrays):
        return None
    return _evaluated(node, present)


def _constant(value: ir.Value | None) -> Array | None:
    """The value of a small constant; what may be a weight is none."""
    tensor = None if value is None else value.const_value
    if tensor is None or tensor.dtype not in FIXED:
        return None
    if tensor.size > (1 if tensor.dtype in FLOATS else LARGEST):
        return None
    return tensor.numpy()


def _shape(node: ir.Node) -> Array | None:
    """A part of a shape, all of whose sizes are known."""
    x = node.inputs[0]
    if x is None or x.shape is None:
        return None
    start, end = node.attributes.get_int("start", 0), node.attributes.get_int("end", len(x.shape))
    dims = list(x.shape)[start:end]
    known = [d for d in dims if isinstance(d, int)]
    return np.asarray(known, np.int64) if len(known) == len(dims) else None


def _evaluated(node: ir.Node, arrays: Sequence[Array]) -> Array | None:
    """What a node makes of arrays, in the type that its output has."""
    dtype, found = node.outputs[0].dtype, None
    assert dtype is not None
    if is_op(node, "CastLike"):
        found = arrays[0]
    elif is_op(node, *_MOVES):
        found = _MOVES[node.op_type](node, *arrays)
    elif is_op(node, *_ARITHMETIC) and not _is_quotient(node, arrays[0]):
        with np.errstate(all="ignore"):
            found = np.asarray(_ARITHMETIC[node.op_type](*arrays))
    if found is None or found.size > LARGEST:
        return None
    return found.astype(dtype.numpy())


def _is_quotient(node: ir.Node, data: Array) -> bool:
    """Whether whole numbers may not stay whole numbers."""
    return node.op_type in ("Div", "Pow", "Reciprocal") and np.issubdtype(data.dtype, np.integer)
