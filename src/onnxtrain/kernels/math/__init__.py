"""Mathematics: elementwise operators, comparisons, running sums and products of matrices."""

from __future__ import annotations

import onnxtrain.kernels.math.arithmetic
import onnxtrain.kernels.math.bits
import onnxtrain.kernels.math.chain
import onnxtrain.kernels.math.clip
import onnxtrain.kernels.math.einsum
import onnxtrain.kernels.math.finite
import onnxtrain.kernels.math.logic
import onnxtrain.kernels.math.matmul
import onnxtrain.kernels.math.scale
import onnxtrain.kernels.math.scan
import onnxtrain.kernels.math.unary
import onnxtrain.kernels.math.variadic  # noqa: F401
