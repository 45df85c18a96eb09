"""Rows for convolutions, pools, normalizations and recurrent layers."""

from onnxtrain.testing.cases import conv, norm, pool, pool_grad, rnn

CASES = [*conv.CASES, *pool.CASES, *pool_grad.CASES, *norm.CASES, *rnn.CASES]
