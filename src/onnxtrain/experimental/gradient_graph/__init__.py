"""From a torch module and a loss to an ONNX model that computes the loss and its gradients.

The module inside has the name under which programs for onnxruntime-training import it.
"""

from onnxtrain.experimental.gradient_graph._gradient_graph_tools import export_gradient_graph

__all__ = ["export_gradient_graph"]
