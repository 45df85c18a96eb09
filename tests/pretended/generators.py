"""Generators that say they are on cuda:0. They draw what generators of the CPU draw."""

from __future__ import annotations

from typing import Any

import torch

_Generator = torch.Generator


class _Kinds(type(_Generator)):
    """Every generator of torch is one, wherever it is."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _Generator)


class Generator(_Generator, metaclass=_Kinds):
    """Stands in for ``torch.Generator``; on the CPU it is that."""

    def __new__(cls, device: Any = "cpu") -> Any:
        return _Generator.__new__(cls if torch.device(device).type == "cuda" else _Generator)

    def __init__(self, device: Any = "cpu") -> None:
        del device

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", 0)

    def clone_state(self) -> Generator:
        copy: Generator = Generator("cuda")
        copy.set_state(self.get_state())
        return copy

    def graphsafe_get_state(self) -> Generator:
        return self.clone_state()

    def graphsafe_set_state(self, state: torch.Generator) -> None:
        self.set_state(state.get_state())


DEFAULT: Generator = Generator("cuda")
"""The one that operators draw from if they are given none."""
