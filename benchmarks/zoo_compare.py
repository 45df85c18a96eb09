"""How far a model's outputs are from onnxruntime's, and how far they may be."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnxruntime

from onnxtrain.cli.checking.doubles import in_type
from onnxtrain.errors import GraphError
from onnxtrain.graph.loading.load import load_model
from onnxtrain.graph.prepare import prepare
from onnxtrain.runtime.session import InferenceSession
from onnxtrain.types import DataType

FORWARD_BOUND = 1e-3
OTHERS = 7
"""Inputs at which outputs are compared once more, if those of the first one differ too much."""
MANY_OTHERS = 25
"""The same where a last bit decides, and only means tell."""
EXACT = 1e-6
"""Outputs this small are not compared: onnxruntime's Sigmoid is no more exact near 0."""

Feeds = dict[str, Any]


class Failed(Exception):
    """A stage ran, and what came out is wrong."""


def reference(model: pathlib.Path | bytes, optimized: bool = False) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    source = model if isinstance(model, bytes) else str(model)
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def compared(
    model: pathlib.Path | onnx.ModelProto, feeds: Feeds, want: list[Any], found: list[Any]
) -> float:
    """How far outputs are from onnxruntime's; raises if that is too much.

    A model may lose its digits by itself, in a difference of nearly equal numbers. Then both are
    compared with the model in double. Ours may be the worse one by luck alone: most other inputs
    must then have outputs within the bound.
    """
    want, found = _arrays(want), _arrays(found)
    for a, b in zip(want, found, strict=True):
        if a.shape != b.shape or a.dtype != b.dtype:
            raise Failed(f"{a.dtype}{a.shape} in onnxruntime, got {b.dtype}{b.shape}")
    error = _difference(want, found)
    if error <= FORWARD_BOUND:
        return error
    try:
        exact = InferenceSession(in_type(prepare(load_model(model)), DataType.DOUBLE))
    except GraphError:
        return _as_far_as_their_own(model, feeds, error)
    wide = {n: a.astype(np.float64) if a.dtype.kind == "f" else a for n, a in feeds.items()}
    right = _arrays(exact.run(None, wide))
    ours, theirs = _difference(right, found), _difference(right, want)
    if not ours <= theirs:
        elsewhere = _elsewhere(model, feeds)
        if not elsewhere <= FORWARD_BOUND:
            raise Failed(
                f"outputs differ by {error:.1e}; from double {ours:.1e}, theirs {theirs:.1e}; "
                f"for other inputs by {elsewhere:.1e}"
            )
    return error


def _as_far_as_their_own(
    model: pathlib.Path | onnx.ModelProto, feeds: Feeds, error: float
) -> float:
    """Compare where double says nothing, as of rounded numbers: a last bit moves whole steps.

    Outputs must be no further from onnxruntime's than twice what its optimizations change.
    """
    source = model if isinstance(model, pathlib.Path) else model.SerializeToString()
    plain, optimized, own = reference(source), reference(source, True), InferenceSession(source)
    ours, theirs = [], []
    for other in _others(feeds, MANY_OTHERS):
        want = _arrays(plain.run(None, other))
        ours.append(_difference(want, _arrays(own.run(None, other))))
        theirs.append(_difference(want, _arrays(optimized.run(None, other))))
    if not np.mean(ours) <= 2 * np.mean(theirs):
        raise Failed(f"outputs differ by {np.mean(ours):.1e}, theirs by {np.mean(theirs):.1e}")
    return error


def _others(feeds: Feeds, count: int) -> Iterator[Feeds]:
    """So many inputs with the same numbers at other places."""
    for seed in range(count):
        rng = np.random.default_rng(seed)
        yield {n: rng.permuted(a) if a.dtype.kind == "f" else a for n, a in feeds.items()}


def _elsewhere(model: pathlib.Path | onnx.ModelProto, feeds: Feeds) -> float:
    """How far outputs are from onnxruntime's for other inputs, in the median."""
    source = model if isinstance(model, pathlib.Path) else model.SerializeToString()
    own, plain = InferenceSession(source), reference(source)
    found = []
    for other in _others(feeds, OTHERS):
        results = plain.run(None, other), own.run(None, other)
        found.append(_difference(*map(_arrays, results)))
    return float(np.median(found))


def _arrays(values: list[Any]) -> list[Any]:
    """Without sequences and maps, which are not compared."""
    return [value for value in values if isinstance(value, np.ndarray)]


def _difference(want: list[Any], found: list[Any]) -> float:
    """The largest difference of outputs, relative to the largest number in each."""
    worst = 0.0
    for a, b in zip(want, found, strict=True):
        if a.dtype.kind in "OSU":
            worst = max(worst, 0.0 if np.array_equal(a, b) else math.inf)
        elif a.size:
            wide = a.astype(np.float64), b.astype(np.float64)
            same = np.equal(*wide) | (np.isnan(wide[0]) & np.isnan(wide[1]))
            largest = float(np.nanmax(np.abs(wide[0]), initial=0))
            scale = max(largest, EXACT / FORWARD_BOUND)
            worst = max(worst, float(np.where(same, 0, np.abs(wide[0] - wide[1])).max()) / scale)
    return worst if math.isfinite(worst) else math.inf
