"""Where onnxruntime-training keeps PTable; the same as in ``onnxtrain.utils``."""

from onnxtrain.utils.table import PTable, Row

__all__ = ["PTable", "Row"]
