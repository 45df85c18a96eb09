"""Copies: weights in the type that a model computes in, kept up to date beside the weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch


class Copies:
    """Pairs of a parameter and its narrow copy."""

    def __init__(self) -> None:
        self._trained: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
        self._frozen: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
        self._versions: list[int] = []

    def add(self, parameter: torch.Tensor, dtype: torch.dtype, trained: bool) -> torch.Tensor:
        """A new copy of a parameter; one that is trained is written again with every update.

        Once all copies are there they are to be marked.
        """
        pairs = self._trained if trained else self._frozen
        pairs[0].append(parameter)
        pairs[1].append(parameter.to(dtype))
        return pairs[1][-1]

    def pairs(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Parameters with their copies."""
        return [pair for kind in (self._trained, self._frozen) for pair in zip(*kind, strict=True)]

    def of(self, parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The copies of parameters; one without a copy stands for itself."""
        known = {id(parameter): copy for parameter, copy in self.pairs()}
        return [known.get(id(parameter), parameter) for parameter in parameters]

    def follow(self) -> None:
        """Write the copies of trained parameters, in one launch on a GPU."""
        if self._trained[0]:
            torch._foreach_copy_(self._trained[1], self._trained[0])

    def mark(self) -> None:
        """Remember that the copies are those of the parameters as they are now."""
        self._versions = self._current()

    def renew(self) -> None:
        """Write all copies if somebody else changed a parameter since the last update."""
        if self._versions == self._current():
            return
        self.follow()
        if self._frozen[0]:
            torch._foreach_copy_(self._frozen[1], self._frozen[0])
        self.mark()

    def _current(self) -> list[int]:
        """How often each parameter was written by torch, which counts without asking the device."""
        known = (*self._trained[0], *self._frozen[0])
        return [-1 if p.is_inference() else p._version for p in known]
