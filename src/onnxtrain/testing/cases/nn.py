"""Rows for convolutions, pools, normalizations and recurrent layers."""

from onnxtrain.testing.cases import conv, norm, pool, rnn

CASES = [*conv.CASES, *pool.CASES, *norm.CASES, *rnn.CASES]
