"""Activations with their gradients: pointwise functions, softmax, dropout, fake quantization."""

from __future__ import annotations

import onnxtrain.kernels.activation.bias_softmax
import onnxtrain.kernels.activation.dropout
import onnxtrain.kernels.activation.fake_quant
import onnxtrain.kernels.activation.gated
import onnxtrain.kernels.activation.gelu
import onnxtrain.kernels.activation.gelu_sum
import onnxtrain.kernels.activation.pointwise
import onnxtrain.kernels.activation.rectifier
import onnxtrain.kernels.activation.softmax  # noqa: F401
