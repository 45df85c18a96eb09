"""Which tensors tell positions, which nobody trains: frequencies, rotations, grids."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxtrain.graph.walk import all_nodes
from onnxtrain.transforms.weights.places import MOVERS, final_uses
from onnxtrain.types import FLOATS, ONNX

_WAVES = frozenset({"Cos", "Sin"})
_PRODUCTS = frozenset({"Einsum", "MatMul", "Mul"})
_STEPS = frozenset({"DequantizeLinear", "QuantizeLinear"})
"""Operators that only round what they are given first."""
_ROUNDING = 0.02
_READERS = frozenset({"Add", "Gather", "Mul"})
"""Operators that tell positions by a table, or take rows out of it."""
_SCANNED = 2**22
"""Larger tensors are no grids."""
_TABLE = 8
"""Smaller tables may have such numbers by chance."""


def is_frequencies(value: ir.Value, counted: Collection[ir.Value]) -> bool:
    """Whether a tensor only turns positions into the angles of Sin and Cos.

    The positions are counted, so that the angles do not depend on any other number: rotary and
    sinusoidal encodings do this. A layer whose activation is a sine is fed with data instead.

    Args:
        value: The tensor.
        counted: What ``counted_values`` gives for its graph.
    """
    waves, seen, open_ = 0, set(), [value]
    while open_:
        current = open_.pop()
        if current in seen:
            continue
        seen.add(current)
        if current.is_graph_output():
            return False
        for node, _ in current.uses():
            if _is(node, _WAVES):
                waves += 1
            elif _is(node, MOVERS | _PRODUCTS | _STEPS) and _others_count(node, seen, counted):
                open_ += node.outputs
            else:
                return False
    return waves > 0


def _is(node: ir.Node, ops: frozenset[str]) -> bool:
    return node.domain == ONNX and node.op_type in ops


def _others_count(node: ir.Node, known: set[ir.Value], counted: Collection[ir.Value]) -> bool:
    """Whether what meets the tensor at a node was counted."""
    if not _is(node, _PRODUCTS):
        return True
    others = [v for v in node.inputs if v is not None and v not in known]
    return all(v in counted or _is_counted(v) for v in others)


def counted_values(graph: ir.Graph) -> set[ir.Value]:
    """What nodes make of whole numbers alone."""
    found: set[ir.Value] = set()
    for node in all_nodes(graph):
        alone = node.op_type == "CastLike" or node.op_type in _STEPS
        given = node.inputs[:1] if alone else node.inputs
        whole = _is(node, MOVERS | _PRODUCTS | _STEPS) and all(
            v in found or _is_counted(v) for v in given if v is not None
        )
        if whole or _is(node, frozenset({"Range"})):
            found.update(node.outputs)
    return found


def _is_counted(value: ir.Value) -> bool:
    """Whether a value has whole numbers, or is a single constant."""
    if value.dtype not in FLOATS:
        return True
    return value.const_value is not None and value.const_value.size == 1


def rotations(values: Iterable[ir.Value]) -> set[ir.Value]:
    """Tables of cosines and sines that rotate vectors by their positions.

    Two tensors that only multiply, and whose squares have the same sum everywhere: that is what
    is left of a rotary encoding once an exporter computed the angles.
    """
    tables: dict[tuple[int, ...], list[tuple[ir.Value, npt.NDArray[np.float64]]]] = {}
    for value in values:
        numbers = _factors(value)
        if numbers is not None:
            tables.setdefault(numbers.shape, []).append((value, numbers))
    found: set[ir.Value] = set()
    for alike in tables.values():
        heads = np.stack([numbers[:, :2].ravel() for _, numbers in alike])
        for index, (one, a) in enumerate(alike, start=1):
            near = _are_constant(heads[index - 1] + heads[index:])
            for other, b in (alike[index + place] for place in np.flatnonzero(near)):
                if _is_constant(a + b):
                    found |= {one, other}
    return found


def is_waves(value: ir.Value) -> bool:
    """Whether a tensor is one table of sines and cosines, a row for each position.

    The two are neighbours, or halves of a row or of either of its halves, which then tell rows
    and columns of an image. Rows of zeros are those of tokens without a position.
    """
    tensor = value.const_value
    if tensor is None or len(tensor.shape) < 2 or tensor.size < _TABLE:
        return False
    if not all(_is(node, _READERS) for node in _readers(value)):
        return False
    rows = tensor.numpy().reshape(-1, int(tensor.shape.numpy()[-1]))
    return _are_waves(rows[:_TABLE]) and _are_waves(rows)


def _readers(value: ir.Value) -> Iterator[ir.Node]:
    """Nodes that compute with a tensor, or with parts of it: sines and cosines may be parted."""
    for node, _ in final_uses(value):
        if _is(node, frozenset({"Split"})):
            for part in node.outputs:
                yield from _readers(part)
        else:
            yield node


def is_grid(tensor: ir.TensorProtocol) -> bool:
    """Whether a tensor has evenly spaced numbers, again and again along another axis.

    Detectors add such rows and columns of cells to what they find in each of them.
    """
    if sum(size > 1 for size in tensor.shape.numpy()) < 2 or tensor.size > _SCANNED:
        return False
    found = np.unique(tensor.numpy().astype(np.float64))
    repeated = 3 <= len(found) <= tensor.size // 2
    return repeated and np.allclose(np.diff(found), found[1] - found[0], rtol=1e-3)


def _are_waves(rows: np.ndarray) -> bool:
    """Whether the squares of numbers that belong together have the same sum everywhere."""
    squares = np.square(rows[rows.any(axis=1)].astype(np.float64))
    width = rows.shape[1]
    if len(squares) < 2 or width < 4 or _is_constant(squares):
        return False
    apart = {1, width // 2, width // 4}
    pairs = [squares.reshape(-1, 2, step) for step in apart if width % (2 * step) == 0]
    return any(_is_constant(pair.sum(axis=1)) for pair in pairs)


def _factors(value: ir.Value) -> npt.NDArray[np.float64] | None:
    """The squares of a table that only multiplies, as a matrix; None if it is no such."""
    tensor = value.const_value
    if tensor is None or tensor.dtype not in FLOATS or len(tensor.shape) < 2 or tensor.size < 2:
        return None
    if not all(_is(node, frozenset({"Mul"})) for node, _ in final_uses(value)):
        return None
    squares = np.square(tensor.numpy().astype(np.float64)).reshape(len(tensor.numpy()), -1)
    return None if _is_constant(squares) else squares


def _is_constant(numbers: npt.NDArray[np.float64]) -> bool:
    """Whether numbers are the same but for rounding of 16 bits."""
    return bool(_are_constant(numbers.reshape(1, -1))[0])


def _are_constant(rows: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Whether the numbers of each row are the same but for rounding of 16 bits."""
    near: npt.NDArray[np.bool_] = np.ptp(rows, axis=1) <= _ROUNDING * np.abs(rows).max(axis=1)
    return near
