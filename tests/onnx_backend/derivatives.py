"""Cases of ONNX's backend suite, differentiated: the gradient graph against differences.

A case is differentiated at a point near its own data. The data itself often sits on a corner (ties
of a maximum, the zero of Relu), where there is no derivative; a little noise moves it away.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np
import onnx
import onnx_ir as ir
from onnx.backend.test.case.test_case import TestCase

from onnx_backend.gradient_exclusions import INPUTS
from onnx_backend.suite import cases, data_of, model_of
from onnxtrain.cli.checking.differences import Array, Differences
from onnxtrain.cli.checking.doubles import in_type
from onnxtrain.errors import GraphError
from onnxtrain.gradients.engine import can_carry_gradient
from onnxtrain.graph.functions import inline_functions
from onnxtrain.graph.tidy import tidy
from onnxtrain.runtime.options import SessionOptions
from onnxtrain.runtime.session import InferenceSession
from onnxtrain.types import FLOATS, DataType

BOUNDS = {DataType.DOUBLE: 1e-6, DataType.FLOAT: 5e-3}
"""Largest error of a slope, relative to what it is summed from. In double four digits are left for
functions with large higher derivatives; float is for operators that do not take double."""
DIRECTIONS = 3
NOISE = 1e-2
ATTEMPTS = 20


@dataclasses.dataclass(frozen=True)
class Point:
    """Where a model is differentiated: what it is fed, by which inputs, and which outputs."""

    model: ir.Model
    forward: InferenceSession
    feeds: dict[str, Array]
    names: list[str]
    ys: list[str]


def float_cases() -> list[TestCase]:
    """Node cases with floating point tensors on both sides."""
    return [
        case
        for case in cases("node")
        if all(any(map(_is_float, side)) for side in _sides(model_of(case).graph))
    ]


def _sides(graph: onnx.GraphProto) -> Iterator[list[onnx.ValueInfoProto]]:
    yield list(graph.input)
    yield list(graph.output)


def _is_float(value: onnx.ValueInfoProto) -> bool:
    return value.type.tensor_type.elem_type in {int(dtype) for dtype in FLOATS}


def check(case: TestCase, *, all_inputs: bool = False) -> None:
    """Compare the gradients of a case with differences.

    Raises:
        AssertionError: if they differ, or if there was nothing to compare.
        OnnxTrainError: if the case cannot be differentiated.
    """
    source = _model(case)
    left = {str(v.name) for v in source.graph.outputs if can_carry_gradient(v)}
    checked = 0
    for dtype, bound in BOUNDS.items():
        try:
            at = _point(case, in_type(source.clone(), dtype), dtype, left, all_inputs)
        except GraphError:
            if dtype == DataType.FLOAT:
                raise
            continue
        if not at.names or not at.ys:
            continue
        found = Differences(at.model, at.feeds, at.names, at.ys, 0, at.forward)
        worst = found.check_together(DIRECTIONS)
        assert worst.error <= bound, f"{worst} in {dtype}"
        left -= set(at.ys)
        checked += 1
        if not left:
            break
    assert checked and not left, f"nothing was compared for {left or case.name}"


def _model(case: TestCase) -> ir.Model:
    """The model of a case; types are inferred when they have been made one."""
    model = ir.from_proto(model_of(case))
    inline_functions(model)
    tidy(model)
    return model


def _point(
    case: TestCase, model: ir.Model, dtype: DataType, outputs: set[str], all_inputs: bool
) -> Point:
    inputs = {str(value.name): value for value in model.graph.inputs}
    arrays = [np.asarray(item) for item in next(iter(data_of(case))).inputs]
    given = dict(zip(inputs, arrays, strict=True))
    feeds = {
        n: a.astype(v.dtype.numpy()) if (v := inputs[n]).dtype in FLOATS else a
        for n, a in given.items()
    }
    moved = [name for name, value in inputs.items() if value.dtype == dtype]
    names = [name for name in moved if all_inputs or not _without_gradient(inputs[name])]
    ys = [str(v.name) for v in model.graph.outputs if v.dtype == dtype and v.name in outputs]
    forward = InferenceSession(model, SessionOptions(seed=0))
    return Point(model, forward, _nearby(forward, feeds, names), names, ys)


def _without_gradient(value: ir.Value) -> bool:
    uses = [(node.op_type, index) for node, index in value.uses()]
    return bool(uses) and all(use in INPUTS for use in uses)


def _nearby(
    forward: InferenceSession, feeds: dict[str, Array], names: list[str]
) -> dict[str, Array]:
    """A point near the data of a case that leaves its domain no further than the data does."""
    rng = np.random.default_rng(0)
    allowed = _not_finite(forward, feeds)
    for _ in range(ATTEMPTS):
        moved = {n: _moved(feeds[n], rng) for n in names}
        if _not_finite(forward, feeds | moved) <= allowed:
            return feeds | moved
    raise AssertionError("no point near the data has finite outputs")


def _moved(array: Array, rng: np.random.Generator) -> Array:
    noise = NOISE * rng.normal(size=array.shape)
    return np.where(np.isfinite(array), array + noise, array).astype(array.dtype)


def _not_finite(forward: InferenceSession, feeds: dict[str, Array]) -> int:
    found = [np.asarray(value) for value in forward.run(None, feeds)]
    return sum(int((~np.isfinite(v)).sum()) for v in found if v.dtype.kind == "f")
