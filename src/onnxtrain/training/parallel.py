"""Data parallelism: every process has a share of each batch, and all of them make one update."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch

from onnxtrain.distributed.groups import Groups
from onnxtrain.distributed.layout import GroupType
from onnxtrain.errors import FeedError, OptionError
from onnxtrain.kernels.precision import widen

BUCKET = 32 * 2**20
"""Bytes of tensors that travel together."""


class Shares:
    """The processes that train one model on different samples.

    Args:
        groups: How they reach each other.
    """

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        ranks = groups.ranks(GroupType.DATA)
        self.count = len(ranks)
        self.place = ranks.index(groups.rank)
        self._alike = False

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files."""
        return self.place == 0

    def seed(self, seed: int | None) -> int | None:
        """The seed of this process: another one for each, the given one for the first."""
        if seed is None or self.first:
            return seed
        return int(np.random.SeedSequence([seed, self.place]).generate_state(1)[0])

    def start_alike(
        self, tensors: Sequence[torch.Tensor], facts: Callable[[], Mapping[str, int]]
    ) -> None:
        """Give all processes the values that the first one has, when this is called first.

        It is not done where a trainer is made: a process that cannot make one would leave the
        others waiting.

        Args:
            tensors: The values.
            facts: Gives what must be the same before, as numbers by name.

        Raises:
            OptionError: in all processes, if it is not.
        """
        if self._alike:
            return
        self._compare(facts())
        self._alike = True
        if not self.first:
            torch._foreach_zero_(list(tensors))
        self._add_up(tensors)

    def _compare(self, facts: Mapping[str, int]) -> None:
        """Refuse to train what is not one model."""
        rows = self.gathered(torch.tensor(list(facts.values())))
        for name, column in zip(facts, rows.T.tolist(), strict=True):
            if others := [place for place, fact in enumerate(column) if fact != column[0]]:
                raise OptionError(
                    f"process {others[0]} does not train what process 0 trains: they differ in "
                    f"{name}\n  all processes must make their trainers of the same model with the "
                    "same options, and resume from the same checkpoint"
                )

    def mean(
        self, loss: torch.Tensor, samples: int, tensors: Sequence[torch.Tensor]
    ) -> torch.Tensor:
        """The mean loss over all samples; tensors become means too, in place.

        With n_r samples in process r: t = Σ n_r·t_r / Σ n_r. A process without samples gives
        nothing.

        Raises:
            FeedError: in all processes, if none of them has samples.
        """
        wide = widen(loss)
        sums = torch.stack([torch.full_like(wide, samples), wide * samples]).double()
        self._groups.all_reduce(sums, GroupType.DATA)
        if samples:
            torch._foreach_mul_(list(tensors), samples / sums[0].to(wide.dtype))
        elif not float(sums[0]):
            raise FeedError("a step needs at least one sample, no process has one")
        else:
            torch._foreach_zero_(list(tensors))
        self._add_up(tensors)
        return (sums[1] / sums[0]).to(loss.dtype)

    def sums(self, *numbers: float) -> list[float]:
        """Each number added up over the processes."""
        added = torch.tensor(numbers, dtype=torch.float64)
        self._groups.all_reduce(added, GroupType.DATA)
        return [float(number) for number in added]

    def gathered(self, state: torch.Tensor) -> torch.Tensor:
        """The tensors of all processes, which have one shape and are on the host, in a row."""
        rows = state.new_zeros(self.count, *state.shape)
        rows[self.place] = state
        self._groups.all_gather(rows.view(-1), GroupType.DATA)
        return rows

    def _add_up(self, tensors: Sequence[torch.Tensor]) -> None:
        for bucket in _buckets(tensors):
            if len(bucket) == 1 and bucket[0].is_contiguous():
                self._groups.all_reduce(bucket[0], GroupType.DATA)
                continue
            flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
            self._groups.all_reduce(flat, GroupType.DATA)
            parts = flat.split([tensor.numel() for tensor in bucket])
            pairs = zip(parts, bucket, strict=True)
            torch._foreach_copy_(bucket, [part.view_as(tensor) for part, tensor in pairs])


def _buckets(tensors: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Tensors in their order, those of one type together as long as they are small."""
    by_type: dict[torch.dtype, list[torch.Tensor]] = {}
    for tensor in tensors:
        open_ = by_type.setdefault(tensor.dtype, [])
        if open_ and sum(t.nbytes for t in open_) + tensor.nbytes > BUCKET:
            yield open_
            by_type[tensor.dtype] = open_ = []
        open_.append(tensor)
    yield from by_type.values()
