"""Nodes that call out: torch autograd functions, operators of torch, Triton functions."""

from onnxtrain.kernels.interop import aten, python_op, triton_op

__all__ = ["aten", "python_op", "triton_op"]
