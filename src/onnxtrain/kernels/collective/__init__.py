"""Operators over groups of processes: sums, gathers, Adasum, tensor parallelism."""

from onnxtrain.kernels.collective import adasum, reduce, shares

__all__ = ["adasum", "reduce", "shares"]
