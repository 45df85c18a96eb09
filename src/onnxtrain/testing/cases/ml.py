"""Rows of the classical machine learning operators; ONNX's reference is the truth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from onnxtrain.testing.case import Case, Input, apart, given, integers, normal, only, text
from onnxtrain.types import ML, OWN, DataType

FLOAT, DOUBLE, INT64 = DataType.FLOAT, DataType.DOUBLE, DataType.INT64
NUMBERS = only(FLOAT, DOUBLE)


def _row(op: str, *inputs: Input, name: str = "", **attributes: Any) -> Case:
    return Case(op, inputs, attributes=attributes, domain=ML, name=name, dtypes=NUMBERS,
                gradient=False)  # fmt: skip


FEATURES = [
    _row("ArrayFeatureExtractor", normal(3, 5), given([0, 4, 4])),
    _row("ArrayFeatureExtractor", normal(5), given([2, 1]), name="vector"),
    _row("ArrayFeatureExtractor", text([["a", "b", "c"]]), given([2, 1]), name="text"),
    _row("Binarizer", normal(3, 4), threshold=0.25),
    _row("Binarizer", integers(6, low=-3, high=4, dtype=INT64), name="whole"),
    _row("Normalizer", normal(3, 4)),
    *(_row("Normalizer", normal(3, 4), norm=norm) for norm in ("L1", "L2")),
    _row("Imputer", given([[1.0, -1.0], [-1.0, 3.0]]), imputed_value_floats=[5.0, 6.0],
         replaced_value_float=-1.0),
    _row("Imputer", given([[1.0, torch.nan], [torch.nan, 3.0]]), imputed_value_floats=[9.0],
         replaced_value_float=float("nan"), name="nan"),
    _row("Imputer", given([[1, 0], [0, 3]]), imputed_value_int64s=[7], name="whole"),
    _row("FeatureVectorizer", normal(3, 2), normal(3, 4), inputdimensions=[2, 3]),
    _row("FeatureVectorizer", normal(3, 2), normal(3, 1), inputdimensions=[4, 1], name="filled"),
]  # fmt: skip


def _scaled(x: Any, *, offset: Sequence[float], scale: Sequence[float]) -> Any:
    """ONNX's reference has no Scaler that takes one number for all features."""
    return (x - torch.tensor(offset).to(x.dtype)) * torch.tensor(scale).to(x.dtype)


SCALE = [
    Case("Scaler", [normal(3, 2)], _scaled, {"offset": offset, "scale": scale}, domain=ML,
         dtypes=NUMBERS, gradient=False)
    for offset, scale in (([0.5, 1.0], [2.0, 3.0]), ([0.5], [2.0]))
]  # fmt: skip


def _words(*found: str) -> Any:
    return lambda x, **_: np.array(found, object)


def _encode(x: Input, truth: Any, **attributes: Any) -> Case:
    return Case("LabelEncoder", [x], truth, attributes, domain=ML, opset=4, gradient=False,
                dtypes=only(FLOAT))  # fmt: skip


def _numbers(*found: float, dtype: torch.dtype = torch.int64) -> Any:
    return lambda x, **_: torch.tensor(found, dtype=dtype)


_LETTERS = text(["a", "b", "d", "c"])
ENCODE = [
    _encode(_LETTERS, _numbers(0, 1, 42, 2), keys_strings=["a", "b", "c"],
            values_int64s=[0, 1, 2], default_int64=42),
    _encode(given([1, 3, 2]), _words("x", "_Unused", "y"), keys_int64s=[1, 2],
            values_strings=["x", "y"]),
    _encode(given([1, 3, 2]), _numbers(10, -1, 20), keys_int64s=[2, 1], values_int64s=[20, 10]),
    _encode(given([0.5, torch.nan, 2.0], FLOAT), _numbers(1, 9, -1),
            keys_floats=[0.5, float("nan")], values_int64s=[1, 9]),
    _encode(given([5, 5]), _numbers(2, 2), keys_int64s=[5, 5], values_int64s=[1, 2]),
    _encode(_LETTERS, _numbers(3, 4, 9, 5, dtype=torch.int16),
            keys_strings=["a", "b", "c"],
            values_tensor=np.array([3, 4, 5], np.int16), default_tensor=np.array([9], np.int16)),
    Case("LabelEncoder", [_LETTERS], _numbers(0, 1, -1, 2), {"classes_strings": ["a", "b", "c"]},
         domain=ML, opset=1, gradient=False),
    Case("LabelEncoder", [given([2, 0, 7])], _words("c", "a", "_Unused"),
         {"classes_strings": ["a", "b", "c"]}, domain=ML, opset=1, gradient=False),
    Case("CategoryMapper", [_LETTERS], _numbers(7, 8, -1, 9), domain=ML, gradient=False,
         attributes={"cats_strings": ["a", "b", "c"], "cats_int64s": [7, 8, 9]}),
    Case("CategoryMapper", [given([8, 1])], _words("b", "_Unused"), domain=ML, gradient=False,
         attributes={"cats_strings": ["a", "b", "c"], "cats_int64s": [7, 8, 9]}),
    _row("OneHotEncoder", given([[1, 3], [2, 9]]), cats_int64s=[1, 2, 3]),
    _row("OneHotEncoder", _LETTERS, cats_strings=["a", "b", "c"], name="text"),
]  # fmt: skip

_WEIGHTS: dict[str, Any] = {
    "coefficients": [0.5, -0.25, 1.5, 2.0, -1.0, 0.75],
    "intercepts": [0.1, -0.2],
}
_ONE: dict[str, Any] = {"coefficients": [0.5, -0.25, 1.5], "intercepts": [0.1]}


def _classify(op: str, x: Input, *, labels: Any, name: str = "", **attributes: Any) -> Case:
    key = "classlabels_strings" if isinstance(labels[0], str) else "classlabels_ints"
    return Case(op, [x], attributes={key: labels, **attributes}, domain=ML, outputs=2, name=name,
                dtypes=only(FLOAT), gradient=False)  # fmt: skip


LINEAR = [
    _row("LinearRegressor", normal(4, 3), targets=2, **_WEIGHTS),
    Case("LinearRegressor", [normal(4, 3)],
         lambda x, coefficients: x @ torch.tensor(coefficients).to(x.dtype).unsqueeze(-1),
         {"coefficients": [0.5, -0.25, 1.5]}, domain=ML, dtypes=NUMBERS, gradient=False),
    *(
        _classify("LinearClassifier", normal(4, 3), labels=[5, 6], post_transform=how, **_WEIGHTS)
        for how in ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO")
    ),
    _classify("LinearClassifier", normal(4, 3), labels=["no", "yes"], name="text", **_WEIGHTS),
    _classify("LinearClassifier", normal(4, 3), labels=[0, 1], name="one-score", **_ONE),
    *(
        _row("SVMRegressor", normal(4, 3), coefficients=[0.5, -1.0], support_vectors=[
            0.1, 0.2, 0.3, -0.4, 0.5, 0.6], n_supports=2, rho=[0.25], kernel_type=kind,
            kernel_params=[0.5, 0.1, 2.0], one_class=one)
        for kind, one in (("LINEAR", 0), ("POLY", 0), ("RBF", 0), ("SIGMOID", 1))
    ),
    _row("SVMRegressor", normal(4, 3), coefficients=[0.5, -1.0, 2.0], rho=[0.25],
         name="linear-model"),
]  # fmt: skip

MACHINE: dict[str, Any] = {
    "coefficients": [0.5, -1.0, 0.75, 1.25, -0.5, -0.25, 1.0, -0.75],
    "support_vectors": [0.1, 0.2, 0.3, -0.4, 0.5, 0.6, -0.7, 0.8, 0.9, 1.0, -1.1, 0.2],
    "vectors_per_class": [1, 2, 1],
    "rho": [0.25, -0.5, 0.125],
    "kernel_params": [0.5, 0.1, 2.0],
}
_TWO: dict[str, Any] = {
    "coefficients": [0.5, -1.0, 0.75],
    "support_vectors": [0.1, 0.2, 0.3, -0.4, 0.5, 0.6, -0.7, 0.8, 0.9],
    "vectors_per_class": [1, 2],
    "rho": [0.25],
    "kernel_params": [0.5, 0.1, 2.0],
    "kernel_type": "RBF",
}
MACHINES = [
    *(
        _classify("SVMClassifier", normal(4, 3), labels=[5, 6, 7], kernel_type=kind, name=kind,
                  **MACHINE)
        for kind in ("LINEAR", "POLY", "RBF", "SIGMOID")
    ),
    _classify("SVMClassifier", normal(4, 3), labels=[0, 1], name="two", **_TWO),
    _classify("SVMClassifier", normal(4, 3), labels=[0, 1], name="two-logistic",
              post_transform="LOGISTIC", **_TWO),
    _classify("SVMClassifier", normal(4, 3), labels=[0, 1], name="two-probabilities", **_TWO,
              prob_a=[-1.5], prob_b=[0.1]),
    _classify("SVMClassifier", normal(4, 3), labels=[3, 4], name="linear-model",
              coefficients=[0.5, -0.25, 1.5, 2.0, -1.0, 0.75], rho=[0.1]),
]  # fmt: skip


def _forest(values: type, members: bool = False, **attributes: Any) -> dict[str, Any]:
    """Two trees: x0 <= 0 leads to x1 > 0.5 or to a leaf, and x1 <= 0 (or x1 in a set)."""
    sets: dict[str, Any] = {"membership_values": np.array([1.0, 2.0, np.nan], values)}
    return {
        "n_targets": 2,
        "tree_roots": [0, 2],
        "nodes_featureids": [0, 1, 1],
        "nodes_modes": np.array([0, 3, 6 if members else 0], np.uint8),
        "nodes_splits": np.array([0.0, 0.5, 0.0], values),
        "nodes_truenodeids": [1, 0, 3],
        "nodes_trueleafs": [0, 1, 1],
        "nodes_falsenodeids": [2, 1, 4],
        "nodes_falseleafs": [1, 1, 1],
        "leaf_targetids": [0, 1, 0, 1, 0],
        "leaf_weights": np.array([1.5, -2.0, 0.25, 4.0, 3.0], values),
        **(sets if members else {}),
        **attributes,
    }


def _trees(dtype: DataType, name: str, x: Input | None = None, **options: Any) -> Case:
    kind = np.float64 if dtype == DOUBLE else np.float32
    return Case("TreeEnsemble", [x or apart(6, 2, gap=0.3)], attributes=_forest(kind, **options),
                domain=ML, name=name, dtypes=only(dtype), gradient=False)  # fmt: skip


_OLD = {
    "nodes_treeids": [0, 0, 0, 1, 1, 1],
    "nodes_nodeids": [0, 1, 2, 0, 1, 2],
    "nodes_featureids": [0, 0, 0, 1, 0, 0],
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF", "BRANCH_GT", "LEAF", "LEAF"],
    "nodes_values": [0.0, 0.0, 0.0, 0.5, 0.0, 0.0],
    "nodes_truenodeids": [1, 0, 0, 1, 0, 0],
    "nodes_falsenodeids": [2, 0, 0, 2, 0, 0],
}
_POINTS = apart(6, 2, gap=0.3)


def _votes(what: str, ids: Sequence[int]) -> dict[str, Any]:
    return {
        f"{what}_treeids": [0, 0, 1, 1],
        f"{what}_nodeids": [1, 2, 1, 2],
        f"{what}_ids": ids,
        f"{what}_weights": [1.5, -2.0, 0.25, 4.0],
    }


def _old_classifier(ids: Sequence[int], name: str, **attributes: Any) -> Case:
    return Case("TreeEnsembleClassifier", [_POINTS], domain=ML, opset=3, outputs=2, name=name,
                dtypes=only(FLOAT), gradient=False,
                attributes={**_OLD, **_votes("class", ids), **attributes})  # fmt: skip


TREES = [
    _trees(FLOAT, "sum"),
    _trees(DOUBLE, "double"),
    _trees(FLOAT, "smallest", aggregate_function=2),
    _trees(FLOAT, "largest", aggregate_function=3),
    _trees(FLOAT, "mean", aggregate_function=0),
    _trees(FLOAT, "sets", given([[1.0, 1.0], [1.0, 3.0], [-1.0, 2.0]]), members=True),
    _trees(FLOAT, "missing", given([[torch.nan, 1.0], [1.0, torch.nan]]),
           nodes_missing_value_tracks_true=[1, 0, 1]),
    *(
        Case("TreeEnsembleRegressor", [_POINTS], domain=ML, opset=3, dtypes=only(FLOAT),
             name=how.lower(), gradient=False,
             attributes={**_OLD, **_votes("target", [0, 1, 1, 0]), "n_targets": 2,
                         "aggregate_function": how, "base_values": [0.5, -0.5]})
        for how in ("SUM", "AVERAGE")
    ),
    _old_classifier([0, 1, 1, 0], "two", classlabels_int64s=[3, 4]),
    _old_classifier([0, 1, 2, 0], "softmax", classlabels_strings=["x", "y", "z"],
                    post_transform="SOFTMAX"),
    _old_classifier([0, 0, 0, 0], "binary", classlabels_int64s=[0, 1],
                    post_transform="LOGISTIC"),
]  # fmt: skip

_LINEAR = {"of": "LinearRegressor", "of_domain": ML, "version": 1}


def _weighted(x: Any, coefficients: Any, intercepts: Any, **_: Any) -> Any:
    return x @ coefficients.reshape(2, -1).t() + intercepts


LEARNED = [
    Case("WithWeights", [normal(rows, 3), normal(6), normal(2)], _weighted,
         {**_LINEAR, "weights": ["coefficients", "intercepts"], "columns": 2,
          "options": '{"targets": 2}'}, domain=OWN, dtypes=NUMBERS, name=f"{rows}-rows")
    for rows in (4, 5)
]  # fmt: skip

CASES: list[Case] = [*FEATURES, *SCALE, *ENCODE, *LINEAR, *MACHINES, *TREES, *LEARNED]
