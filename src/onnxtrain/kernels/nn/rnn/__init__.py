"""Recurrent layers, those that keep what a gradient needs, and the gradients."""

from onnxtrain.kernels.nn.rnn import gru, lstm, lstm_layer, lstm_training, simple

__all__ = ["gru", "lstm", "lstm_layer", "lstm_training", "simple"]
