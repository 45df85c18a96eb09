"""Forward operators of com.microsoft, which onnxruntime's optimizer puts into models."""

from onnxtrain.kernels.ms import fused, norm, qlinear, qproducts, tensor, text, weights

__all__ = ["fused", "norm", "qlinear", "qproducts", "tensor", "text", "weights"]
