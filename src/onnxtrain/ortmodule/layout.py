"""Arguments and results of a torch module as flat lists of tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from onnxtrain.errors import FeedError

PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
"""Values that a graph has as constants."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """A structure of lists, tuples, dicts and registered classes, without its tensors.

    Attributes:
        spec: The structure, as torch describes it.
        constants: For each leaf None if it is a tensor, else what it is, in a tuple.
    """

    spec: pytree.TreeSpec
    constants: tuple[tuple[Any] | None, ...]

    @classmethod
    def of(cls, tree: Any) -> tuple[Layout, list[torch.Tensor]]:
        """The layout of a structure, and its tensors in order."""
        leaves, spec = pytree.tree_flatten(tree)
        known = [None if isinstance(leaf, torch.Tensor) else (leaf,) for leaf in leaves]
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        return cls(spec, tuple(known)), tensors

    def filled(self, tensors: Iterable[Any]) -> Any:
        """The structure with these tensors in it."""
        given = iter(tensors)
        leaves = [next(given) if known is None else known[0] for known in self.constants]
        return pytree.tree_unflatten(leaves, self.spec)

    @property
    def others(self) -> list[str]:
        """Types of what is neither a tensor nor a plain value."""
        values = [known[0] for known in self.constants if known is not None]
        return sorted({type(value).__name__ for value in values if not isinstance(value, PLAIN)})

    def key(self) -> Hashable:
        """Equal for structures that can share an exported module.

        Raises:
            FeedError: if there is something else than tensors and plain values.
        """
        if others := self.others:
            raise FeedError(
                f"arguments of a module are tensors, numbers and text, alone or in lists, tuples "
                f"and dicts, not {', '.join(others)}\n"
                "  register the class with torch.utils._pytree.register_pytree_node, or keep the "
                "object in the module"
            )
        kinds = tuple(
            known if known is None else (type(known[0]), known[0]) for known in self.constants
        )
        return repr(self.spec), kinds


def symbols_fit(shapes: Sequence[Sequence[Any]], tensors: Sequence[torch.Tensor]) -> bool:
    """Whether tensors have sizes that were declared: numbers as such, names once and for all."""
    sizes: dict[str, int] = {}
    for shape, tensor in zip(shapes, tensors, strict=True):
        for declared, size in zip(shape, tensor.shape, strict=True):
            name = str(declared)
            if isinstance(declared, int) and declared != size:
                return False
            if name.isidentifier() and sizes.setdefault(name, size) != size:
                return False
    return True


def other_sizes(
    shapes: Sequence[Sequence[Any]], tensors: Sequence[torch.Tensor]
) -> set[tuple[int, int]]:
    """Which axes of which tensors have other sizes than those that were declared as numbers."""
    return {
        (place, axis)
        for place, (shape, tensor) in enumerate(zip(shapes, tensors, strict=True))
        for axis, (declared, size) in enumerate(zip(shape, tensor.shape, strict=True))
        if isinstance(declared, int) and declared != size
    }
