"""Every row once more with sizes that only a run can tell."""

import dataclasses
from collections.abc import Callable

import onnx
import pytest
import torch

from gradients import points
from onnxtrain.errors import GraphError
from onnxtrain.testing import gradcheck, trials
from onnxtrain.testing.case import Case
from onnxtrain.testing.gradcheck import Point
from onnxtrain.testing.model import Value, one_node_model
from onnxtrain.types import FLOATS, DataType

_FLOATS = {int(dtype) for dtype in FLOATS}
NEEDS_RANKS = ("DequantizeLinear", "SkipGroupNorm")
"""Operators whose operands mean something else with another number of axes."""
REFUSAL = (
    r"cannot differentiate node 'node': the rank of '(x_scale|skip)' is not known, "
    r"the gradient of \w+ needs it\n  declare the shapes of the model's inputs"
)
ROWS = trials.in_type(DataType.DOUBLE)


def _symbolic(value: onnx.ValueInfoProto) -> None:
    for index, dim in enumerate(value.type.tensor_type.shape.dim):
        dim.dim_param = f"{value.name}_{index}"


def _unranked(value: onnx.ValueInfoProto) -> None:
    value.type.tensor_type.ClearField("shape")


def _loosened(change: Callable[[onnx.ValueInfoProto], None]) -> Callable[..., onnx.ModelProto]:
    """The model of a row whose floating point inputs have lost their sizes."""

    def make(case: Case, inputs: list[Value]) -> onnx.ModelProto:
        model = one_node_model(case, inputs)
        for value in model.graph.input:
            if value.type.tensor_type.elem_type in _FLOATS:
                change(value)
        for value in model.graph.output:
            _unranked(value)
        del model.graph.value_info[:]
        return model

    return make


def _same(at: Point, expected: list[torch.Tensor], change: Callable[..., None]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gradcheck, "one_node_model", _loosened(change))
        found = gradcheck.by_graph(dataclasses.replace(at))
    for ours, true in zip(found, expected, strict=True):
        assert ours.shape == true.shape
        assert ours.numel() == 0 or float((ours - true).abs().max()) <= 1e-12 * (
            1 + float(true.abs().max())
        )


@pytest.mark.parametrize("case", ROWS, ids=str)
def test_unknown_sizes_and_ranks_change_no_gradient(case: Case) -> None:
    at = points.drawn(case, DataType.DOUBLE)
    expected = points.by_graph(at, DataType.DOUBLE)
    _same(at, expected, _symbolic)
    if case.op in NEEDS_RANKS:
        with pytest.raises(GraphError, match=REFUSAL):
            _same(at, expected, _unranked)
        return
    _same(at, expected, _unranked)
