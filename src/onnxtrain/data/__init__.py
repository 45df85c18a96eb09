"""Training data: read from files, tied to the inputs of a model, and drawn in a fixed order."""

from onnxtrain.data.arrays import LABELS, Arrays, Slot
from onnxtrain.data.batches import Batches, Order, split
from onnxtrain.data.bind import Classes, bind
from onnxtrain.data.images import Pictures
from onnxtrain.data.read import read

__all__ = [
    "LABELS",
    "Arrays",
    "Batches",
    "Classes",
    "Order",
    "Pictures",
    "Slot",
    "bind",
    "read",
    "split",
]
