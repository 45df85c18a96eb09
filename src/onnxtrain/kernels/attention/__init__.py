"""Attention, and what stands beside it in transformers: positions, recurrent forms."""

from onnxtrain.kernels.attention import causal_conv, flash, linear, rotary, rotate, scaled_dot

__all__ = ["causal_conv", "flash", "linear", "rotary", "rotate", "scaled_dot"]
