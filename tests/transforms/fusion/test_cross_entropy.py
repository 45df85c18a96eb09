"""LogSoftmax and NegativeLogLikelihoodLoss become one loss."""

from __future__ import annotations

import numpy as np
import pytest

from training.small import normal
from transforms.fusion.compare import fused, same

X = normal(4, 3, seed=1, dtype=np.float64)
LABELS = np.array([0, 2, 1, 2])


def model(nodes: str, shape: str = "N,3", labels: str = "N", outputs: str = "", opset: int = 20):
    text = f"(double[{shape}] x, int64[{labels}] t) => (double y{outputs}) {{ {nodes} }}"
    weights = {"w": np.array([1.0, 2.0, 0.5])} if "w)" in nodes else {}
    return fused(text, weights, opset=opset)


@pytest.mark.parametrize("opset", [12, 20])
@pytest.mark.parametrize(
    "loss",
    [
        "NegativeLogLikelihoodLoss(s, t)",
        'NegativeLogLikelihoodLoss<reduction="sum">(s, t, w)',
        "NegativeLogLikelihoodLoss<ignore_index=2>(s, t)",
    ],
)
def test_it_is_one_operator(loss: str, opset: int) -> None:
    result = model(f"s = LogSoftmax<axis=1>(x) y = {loss}", opset=opset)
    assert result.ops == ["SoftmaxCrossEntropyLoss"]
    assert result.report.count("SoftmaxCrossEntropyLoss") == 1
    same(result, {"x": X, "t": LABELS}, ["x"])


def test_classes_may_have_axes_behind_them() -> None:
    nodes = "s = LogSoftmax<axis=1>(x) y = NegativeLogLikelihoodLoss(s, t)"
    result = model(nodes, "N,3,2", "N,2")
    assert result.ops == ["SoftmaxCrossEntropyLoss"]
    x = normal(2, 3, 2, seed=1, dtype=np.float64)
    same(result, {"x": x, "t": np.array([[0, 1], [2, 2]])}, ["x"])


def test_another_axis_is_refused() -> None:
    nodes = "s = LogSoftmax(x) y = NegativeLogLikelihoodLoss(s, t)"
    result = model(nodes, "N,3,2", "N,2")
    assert result.reasons() == ["LogSoftmax is along axis -1, not along that of the classes"]


def test_probabilities_that_are_shown_stay() -> None:
    nodes = "s = LogSoftmax<axis=1>(x) y = NegativeLogLikelihoodLoss(s, t)"
    result = model(nodes, outputs=", double[N,3] s")
    assert result.reasons() == ["'s' is an output of the model"]
