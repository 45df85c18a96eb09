"""What the rows of the table do not show of an operator's gradient, each with its reason."""

from __future__ import annotations

import fnmatch

from onnxtrain.testing.wanted import Key
from onnxtrain.types import op_name

_CONTROL = "a body is differentiated, in tests/gradients/test_control_flow*.py"
_SEQUENCE = "takes or gives sequences, compared with torch in tests/gradients/test_sequence.py"
_TRAINING = "compared with torch in tests/gradients/test_training.py"
_STRAIGHT = "passes gradients straight through what it rounds, in tests/gradients/"
_STATISTICS = "its inputs must fit each other, as they do in the second gradient of the layer"
_NO_MATCH = "torch has no such operator"

UNSEEN: dict[str, tuple[str, ...]] = {
    _CONTROL: ("ai.onnx::If:*", "ai.onnx::Loop:*", "ai.onnx::Scan:*"),
    _SEQUENCE: (
        "ai.onnx::ConcatFromSequence:*",
        "ai.onnx::Optional:*",
        "ai.onnx::Sequence*:*",
        "ai.onnx::SplitToSequence:*",
        "onnxtrain::NestedSum:*",
        "onnxtrain::Sequence*:*",
    ),
    _TRAINING: ("ai.onnx.preview.training::*:*",),
    "sends to or receives from another process, in tests/gradients/test_communication.py": (
        "com.microsoft::Recv:*",
        "com.microsoft::Send:*",
    ),
    f"{_STRAIGHT}test_quantization.py": ("com.microsoft::FakeQuant*:*",),
    f"{_STRAIGHT}test_ms.py": (
        "com.microsoft::DynamicQuantizeLSTM:*",
        "com.microsoft::DynamicQuantizeMatMul:*",
    ),
    f"{_STRAIGHT}test_qgemm.py": ("com.microsoft::QGemm:*",),
    _STATISTICS: (
        "com.microsoft::BatchNormalizationGrad:*",
        "com.microsoft::LayerNormalizationGrad:*",
        "com.microsoft::SimplifiedLayerNormalizationGrad:*",
        "onnxtrain::BatchNormReluGrad:*",
        "onnxtrain::FlashAttentionGrad:*",
        "onnxtrain::GroupNormalizedGrad:*",
        "onnxtrain::LayerNormalizationGradAdd*:*",
        "onnxtrain::SimplifiedLayerNormalizationGradAdd*:*",
    ),
    f"{_NO_MATCH}; it is a gradient itself": (
        "ai.onnx::AveragePoolGrad:autograd",
        "ai.onnx::SparseSoftmaxCrossEntropyGrad:autograd",
        "com.microsoft::*Gelu*Grad*:autograd",
        "com.microsoft::Conv*Grad:autograd",
        "com.microsoft::MatMulNBitsGrad:autograd",
        "com.microsoft::ResizeGrad:autograd",
        "com.microsoft::SoftmaxCrossEntropyLoss*Grad:autograd",
        "onnxtrain::GeluGradSum*:autograd",
    ),
    _NO_MATCH: (
        "ai.onnx.ml::ArrayFeatureExtractor:autograd",
        "ai.onnx.ml::FeatureVectorizer:autograd",
        "ai.onnx.ml::Normalizer:autograd",
        "ai.onnx.ml::SVMClassifier:autograd",
        "ai.onnx::DynamicQuantizeLinear:autograd",
    ),
    "votes of support vectors are no numbers between 0 and 1, as probits need them": (
        "ai.onnx.ml::SVMClassifier:post_transform=PROBIT",
    ),
    "the rows of Resize run its gradient so": ("com.microsoft::ResizeGrad:*",),
    "the rows of LSTM and GRU run it so": (
        "com.microsoft::GRU*:direction=*",
        "com.microsoft::LSTM*:direction=*",
        "com.microsoft::LSTM*:input_forget=1",
        "com.microsoft::LSTMGrad:with P",
    ),
    "always there, though the schema says otherwise": (
        "com.microsoft::GRUGrad:without *",
        "com.microsoft::LSTMGrad:without *",
        "com.microsoft::MatMulNBitsGrad:without zero_points",
    ),
    "the rows of SoftmaxCrossEntropyLoss run it so": (
        "com.microsoft::SoftmaxCrossEntropyLossInternalGrad:without weight",
    ),
    "what it is given are always single numbers, or two": (
        "ai.onnx::OneHot:several shapes",
        "ai.onnx::Range:several shapes",
    ),
    "gone before the first opset whose operators a second gradient can be made of": (
        "ai.onnx::Scatter:second gradient",
        "ai.onnx::Upsample:second gradient",
    ),
    "the second gradient is not defined": ("com.microsoft::PythonOp:second gradient",),
    "the rest of the line is minus infinity, compared in tests/gradients/test_ms.py": (
        "com.microsoft::NGramRepeatBlock:differences",
    ),
    "half of the values are dropped at random": (
        "com.microsoft::BiasSoftmaxDropout:without ratio",
    ),
    "refused, as the reference does": (
        "com.microsoft::*fft:normalized=1",
        "com.microsoft::*fft:onesided=0",
    ),
    "the scales of a cache of whole numbers, which has no gradient": (
        "com.microsoft::GroupQueryAttention:with ?_scale",
    ),
    "computes any operator's gradient, and has the rows of all that need it": (
        "onnxtrain::VectorJacobian:several shapes",
    ),
}
"""Patterns of operator:label (the labels of ``wanted``) by reason."""


def patterns() -> list[str]:
    """All patterns."""
    return [pattern for group in UNSEEN.values() for pattern in group]


def missing(key: Key, labels: set[str], wanted: set[str]) -> list[str]:
    """What was wanted and not seen, and has no reason to be missing."""
    named = {label: f"{op_name(*key)}:{label}" for label in wanted - labels}
    return sorted(
        label
        for label, name in named.items()
        if not any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns())
    )
