"""Training data: read from files, tied to the inputs of a model, and drawn in a fixed order."""

from onnxtrain.data.batches import Batches, Order, split
from onnxtrain.data.bind import Slot, bind
from onnxtrain.data.read import Arrays, read

__all__ = ["Arrays", "Batches", "Order", "Slot", "bind", "read", "split"]
