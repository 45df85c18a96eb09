"""Models of classical machine learning give float, so their gradients are compared in float."""

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch

from gradients.emit import differentiated, run
from onnxtrain.gradients.rules import find_rule
from onnxtrain.types import ML

X = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
COEFFICIENTS = [0.5, -0.25, 1.5, 2.0, -1.0, 0.75]
VECTORS = [0.1, 0.2, 0.3, -0.4, 0.5, 0.6]


def _grad(op: str, output: int = 0, **attributes: object) -> np.ndarray:
    outputs = [f"y{i}" for i in range(output + 1)]
    node = onnx.helper.make_node(op, ["x"], outputs, domain=ML, **attributes)
    graph = onnx.helper.make_graph(
        [node],
        "g",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [4, 3])],
        [onnx.helper.make_tensor_value_info(outputs[-1], onnx.TensorProto.FLOAT, None)],
    )
    imports = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid(ML, 4)]
    of = differentiated(ir.from_proto(onnx.helper.make_model(graph, opset_imports=imports)))
    width = {"Scaler": 3, "Normalizer": 3, "Imputer": 3, "SVMRegressor": 1}.get(op, 2)
    return run(of, x=X, **{f"d_{outputs[-1]}": _seed((4, width))})["x_grad"]


def _seed(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(1).normal(size=shape).astype(np.float32)


def _expected(function: Callable[[torch.Tensor], torch.Tensor]) -> np.ndarray:
    x = torch.tensor(X, requires_grad=True)
    y = function(x)
    return torch.autograd.grad(y, x, torch.tensor(_seed(tuple(y.shape))))[0].numpy()


W = torch.tensor(COEFFICIENTS).reshape(2, 3)
SUPPORT = torch.tensor(VECTORS).reshape(2, 3)
SVM = {
    "coefficients": [0.5, -1.0],
    "support_vectors": VECTORS,
    "n_supports": 2,
    "rho": [0.25],
    "kernel_params": [0.5, 0.1, 2.0],
}
ROWS = {
    "scaler": ("Scaler", {"offset": [0.5], "scale": [2.0]}, lambda x: (x - 0.5) * 2),
    "largest": ("Normalizer", {"norm": "MAX"}, lambda x: x / x.abs().amax(1, keepdim=True)),
    "sum": ("Normalizer", {"norm": "L1"}, lambda x: x / x.abs().sum(1, keepdim=True)),
    "length": ("Normalizer", {"norm": "L2"}, lambda x: x / x.square().sum(1, keepdim=True).sqrt()),
    "imputer": (
        "Imputer",
        {"imputed_value_floats": [7.0], "replaced_value_float": float(X[1, 1])},
        lambda x: torch.where(x == float(X[1, 1]), torch.tensor(7.0), x),
    ),
    "vectorizer": ("FeatureVectorizer", {"inputdimensions": [2]}, lambda x: x[:, :2]),
    "regressor": (
        "LinearRegressor",
        {"coefficients": COEFFICIENTS, "targets": 2, "post_transform": "LOGISTIC"},
        lambda x: torch.sigmoid(x @ W.t()),
    ),
    "linear": (
        "SVMRegressor",
        {**SVM, "kernel_type": "LINEAR"},
        lambda x: (x @ SUPPORT.t()) @ torch.tensor([[0.5], [-1.0]]) + 0.25,
    ),
    "poly": (
        "SVMRegressor",
        {**SVM, "kernel_type": "POLY"},
        lambda x: (0.5 * x @ SUPPORT.t() + 0.1) ** 2 @ torch.tensor([[0.5], [-1.0]]) + 0.25,
    ),
    "rbf": (
        "SVMRegressor",
        {**SVM, "kernel_type": "RBF"},
        lambda x: (
            torch.exp(-0.5 * (x[:, None] - SUPPORT).square().sum(-1))
            @ torch.tensor([[0.5], [-1.0]])
            + 0.25
        ),
    ),
    "sigmoid": (
        "SVMRegressor",
        {**SVM, "kernel_type": "SIGMOID"},
        lambda x: torch.tanh(0.5 * x @ SUPPORT.t() + 0.1) @ torch.tensor([[0.5], [-1.0]]) + 0.25,
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_features_and_regressors(name: str) -> None:
    op, attributes, function = ROWS[name]
    np.testing.assert_allclose(_grad(op, **attributes), _expected(function), rtol=1e-5, atol=1e-6)


def test_scores_of_a_classifier() -> None:
    found = _grad(
        "LinearClassifier",
        1,
        coefficients=COEFFICIENTS,
        intercepts=[0.5, -0.5],
        classlabels_strings=["a", "b"],
        post_transform="SOFTMAX",
    )
    expected = _expected(lambda x: torch.softmax(x @ W.t() + torch.tensor([0.5, -0.5]), -1))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("op", ["Binarizer", "TreeEnsemble", "TreeEnsembleRegressor"])
def test_steps_are_constant(op: str) -> None:
    rule = find_rule(ML, op, 5)
    assert rule is not None and rule.fn is None
