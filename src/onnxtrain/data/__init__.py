"""Training data: read from files, tied to the inputs of a model, and drawn in a fixed order."""

from onnxtrain.data.arrays import LABELS, Arrays, Slot
from onnxtrain.data.batches import Batches, Order, split
from onnxtrain.data.bind import bind
from onnxtrain.data.fitting import Classes
from onnxtrain.data.images import Pictures
from onnxtrain.data.lazy import Rows, parts
from onnxtrain.data.missing import complete
from onnxtrain.data.prefetch import prefetch
from onnxtrain.data.read import read

__all__ = [
    "LABELS",
    "Arrays",
    "Batches",
    "Classes",
    "Order",
    "Pictures",
    "Rows",
    "Slot",
    "bind",
    "complete",
    "parts",
    "prefetch",
    "read",
    "split",
]
