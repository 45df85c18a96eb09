"""Gradients of classical machine learning, to its real inputs."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxtrain.gradients.known import operands, to_first
from onnxtrain.gradients.rules import Grad, gradient, no_gradient
from onnxtrain.gradients.vector_jacobian import pulled_back
from onnxtrain.graph.builder import Ops
from onnxtrain.types import ML, MS, OWN

no_gradient("Binarizer", "CategoryMapper", "LabelEncoder", "OneHotEncoder", domain=ML)
no_gradient("CastMap", "DictVectorizer", "ZipMap", domain=ML)
no_gradient("TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor", domain=ML)


@gradient("FeatureVectorizer", "Imputer", "Normalizer", "Scaler", domain=ML)
@gradient("LinearRegressor", "SVMRegressor", domain=ML)
def recorded(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """Run again and differentiated by torch."""
    return pulled_back(op, node, [dy])


@gradient("LinearClassifier", "SVMClassifier", domain=ML, all_outputs=True)
def scored(op: Ops, node: ir.Node, dys: Sequence[Grad]) -> list[Grad]:
    """The same, through the scores; the labels are constant."""
    return pulled_back(op, node, [None, *dys[1:]])


@gradient("WithWeights", domain=OWN, all_outputs=True)
def with_weights(op: Ops, node: ir.Node, dys: Sequence[Grad]) -> list[Grad]:
    """To inputs and weights; labels are constant."""
    return pulled_back(op, node, dys)


@gradient("ArrayFeatureExtractor", domain=ML)
def array_feature_extractor(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """dy added where each feature came from."""
    x, places = operands(node)
    flat = op.Reshape(places, op.ints([-1]))
    picked = op.Shape(op.Gather(x, flat, axis=-1))
    grad = op.GatherGrad(op.shape(x), flat, op.Reshape(dy, picked), axis=-1, _domain=MS)
    return to_first(node, grad)
