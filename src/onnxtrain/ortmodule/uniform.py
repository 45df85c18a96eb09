"""A number between 0 and 1 of which something is known before it is drawn.

Models of the transformers library leave out layers by chance: ``torch.rand([]) < self.layerdrop``.
A value is not known when a module is traced, but that it is not below 0, which most ask, is.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch

SURE: dict[str, tuple[Callable[[float], bool], Callable[[float], bool]]] = {
    "__lt__": (lambda n: n >= 1, lambda n: n <= 0),
    "__le__": (lambda n: n >= 1, lambda n: n < 0),
    "__gt__": (lambda n: n < 0, lambda n: n >= 1),
    "__ge__": (lambda n: n <= 0, lambda n: n >= 1),
}
"""Comparisons of a number that is at least 0 and below 1: of which numbers they hold, or never."""
NUMBERS = ("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "pow", "neg")
OTHERS = ("float", "bool", "eq", "ne", "and", "or", "invert", "getitem", "format")
"""What else may be done with it."""


class Uniform:
    """A draw that is made when more is asked than whether it lies beyond 0 or 1."""

    def __init__(self, draw: Callable[[], torch.Tensor]) -> None:
        self._draw = draw

    @functools.cached_property
    def _drawn(self) -> torch.Tensor:
        return self._draw()

    def _compare(self, name: str, other: Any) -> Any:
        always, never = SURE[name]
        if isinstance(other, (int, float)):
            if always(other):
                return True
            if never(other):
                return False
        return getattr(operator, name)(self._drawn, other)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._drawn, name)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        leaves, spec = torch.utils._pytree.tree_flatten((args, kwargs or {}))
        drawn = [leaf._drawn if isinstance(leaf, Uniform) else leaf for leaf in leaves]
        given, named = torch.utils._pytree.tree_unflatten(drawn, spec)
        return func(*given, **named)


def _as_drawn(name: str) -> Callable[..., Any]:
    return lambda self, *others: getattr(self._drawn, name)(*others)


def _compared(name: str) -> Callable[..., Any]:
    return lambda self, other: self._compare(name, other)


for _name in SURE:
    setattr(Uniform, _name, _compared(_name))
for _name in (*NUMBERS, *OTHERS):
    setattr(Uniform, f"__{_name}__", _as_drawn(f"__{_name}__"))


@contextlib.contextmanager
def draws_known_in_part() -> Iterator[None]:
    """With: ``torch.rand`` of no sizes gives such a number."""
    original = torch.rand

    def rand(*sizes: Any, **options: Any) -> Any:
        draw = functools.partial(original, *sizes, **options)
        scalar = sizes in (([],), ((),), (torch.Size([]),)) and not options
        return Uniform(draw) if scalar else draw()

    torch.rand = rand
    try:
        yield
    finally:
        torch.rand = original
