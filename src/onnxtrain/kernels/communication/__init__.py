"""Messages between two processes: Send and Recv."""

from onnxtrain.kernels.communication import point_to_point

__all__ = ["point_to_point"]
