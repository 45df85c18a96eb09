"""Losses: each is called with the names of the prediction and of the target."""

from onnxtrain.onnxblock.loss.combined import WeightedSum
from onnxtrain.onnxblock.loss.contrastive import (
    ContrastiveLoss,
    CosineEmbeddingLoss,
    InfoNCELoss,
    TripletMarginLoss,
)
from onnxtrain.onnxblock.loss.cross_entropy import CrossEntropyLoss, LikelihoodLoss
from onnxtrain.onnxblock.loss.ctc import CTCLoss
from onnxtrain.onnxblock.loss.divergence import KLDivLoss
from onnxtrain.onnxblock.loss.loss import (
    BCELoss,
    BCEWithLogitsLoss,
    HuberLoss,
    L1Loss,
    MSELoss,
    SmoothL1Loss,
)
from onnxtrain.onnxblock.loss.token import NextTokenLoss, TokenCrossEntropyLoss

__all__ = [
    "BCELoss",
    "BCEWithLogitsLoss",
    "CTCLoss",
    "ContrastiveLoss",
    "CosineEmbeddingLoss",
    "CrossEntropyLoss",
    "HuberLoss",
    "InfoNCELoss",
    "KLDivLoss",
    "L1Loss",
    "LikelihoodLoss",
    "MSELoss",
    "NextTokenLoss",
    "SmoothL1Loss",
    "TokenCrossEntropyLoss",
    "TripletMarginLoss",
    "WeightedSum",
]
