"""What every block has in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import onnx

from onnxtrain.onnxblock.check import check, infer_types
from onnxtrain.onnxblock.model_accessor import active


class Block(ABC):
    """A piece of graph: ``build`` adds it to the model being edited and names its results.

    Derive from it, add nodes to ``self.base`` or call other blocks in ``build``, and return the
    names of the results.
    """

    _base: onnx.ModelProto | None = None

    def __init__(self, temp_file_name: str | None = None) -> None:
        # Callers of the reference name a scratch file here; checks of this package need none.
        del temp_file_name

    @property
    def base(self) -> onnx.ModelProto:
        """The model being edited; after its context was left, the one this block was built in.

        Raises:
            RuntimeError: if there is neither.
        """
        accessor = active()
        model = self._base if accessor is None else accessor.model
        if model is None:
            raise RuntimeError(_nothing_open(self))
        return model

    @abstractmethod
    def build(self, *args: Any, **kwargs: Any) -> Any:
        """Add the block to ``self.base``.

        Returns:
            The name of the result, or a tuple of names.
        """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Build the block, then check the whole model.

        Blocks that are called by another block's ``build`` are checked together with it.

        Raises:
            RuntimeError: if no model is being edited.
            onnx.checker.ValidationError: if the model is not valid any more.
        """
        accessor = active()
        if accessor is None:
            raise RuntimeError(_nothing_open(self))
        self._base = accessor.model
        with accessor.building() as outermost:
            names = self.build(*args, **kwargs)
        if outermost:
            check(self._base)
        return names

    def infer_shapes_on_base(self) -> onnx.ModelProto:
        """Copy of the model being edited with the types and shapes ONNX infers."""
        inferred = onnx.ModelProto()
        inferred.CopyFrom(self.base)
        del inferred.graph.value_info[:]
        inferred.graph.value_info.extend(infer_types(self.base).graph.value_info)
        return inferred


def _nothing_open(block: Block) -> str:
    return (
        f"cannot build {type(block).__name__}: no model is being edited\n"
        "  call it inside 'with onnxblock.base(model):' or 'with onnxblock.empty_base():'"
    )
