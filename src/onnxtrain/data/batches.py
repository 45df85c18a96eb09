"""Batches in an order that depends on the seed and the step alone, so a run can be continued."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping

import numpy as np

from onnxtrain.data.lazy import Array, Indices, Samples, taken
from onnxtrain.errors import FeedError


@dataclasses.dataclass(frozen=True)
class Order:
    """The order of samples: a new permutation every epoch.

    Attributes:
        samples: How many there are.
        batch_size: Samples a batch; the last batch of an epoch may be smaller.
        seed: Seed of the permutations.
        whole: Whether a smaller last batch is left out.
        unit: Samples that stay together where a batch is shared; batches consist of them.
    """

    samples: int
    batch_size: int
    seed: int
    whole: bool = False
    unit: int = 1

    def __post_init__(self) -> None:
        if self.steps_per_epoch == 0:
            raise FeedError(
                f"{self.samples} samples do not fill one batch of {self.batch_size}\n"
                "  give more data or a smaller --batch-size"
            )

    @property
    def steps_per_epoch(self) -> int:
        """Batches in an epoch."""
        if self.whole:
            return self.samples // self.batch_size
        return -(-self.samples // self.batch_size)

    def indices(self, step: int) -> Indices:
        """Which samples make the batch of a step, counted from the start of training."""
        epoch, place = divmod(step, self.steps_per_epoch)
        first = place * self.batch_size
        return _permutation(self.samples, self.seed, epoch)[first : first + self.batch_size]

    def share(self, step: int, place: int, count: int) -> Indices:
        """The samples of a step's batch that one of several processes gets, in their order."""
        picked = self.indices(step)
        units = len(picked) // self.unit
        first, end = (units * k // count * self.unit for k in (place, place + 1))
        return picked[first:end]


@functools.lru_cache(maxsize=2)
def _permutation(samples: int, seed: int, epoch: int) -> Indices:
    return np.random.default_rng([seed, epoch]).permutation(samples)


@dataclasses.dataclass(frozen=True)
class Batches:
    """Arrays in the batches of an order; what is on the disk is read batch by batch."""

    arrays: Mapping[str, Samples]
    order: Order

    def at(self, step: int, place: int = 0, count: int = 1) -> dict[str, Array]:
        """The batch of a step, counted from the start of training, or the share of a process."""
        picked = self.order.share(step, place, count)
        return {name: array[picked] for name, array in self.arrays.items()}

    def __iter__(self) -> Iterator[dict[str, Array]]:
        """The batches of one epoch, in the order of the file."""
        return self.every(1)

    def every(self, count: int, first: int = 0) -> Iterator[dict[str, Array]]:
        """One of so many batches of one epoch, in the order of the file."""
        size = self.order.batch_size
        for step in range(first, self.order.steps_per_epoch, count):
            part = slice(step * size, (step + 1) * size)
            yield {name: array[part] for name, array in self.arrays.items()}


def split(
    arrays: Mapping[str, Samples], fraction: float, seed: int
) -> tuple[dict[str, Samples], dict[str, Samples]]:
    """Arrays for training and for validation; the samples are picked by the seed.

    Raises:
        FeedError: if one of the two would be empty.
    """
    samples = len(next(iter(arrays.values())))
    held = round(samples * fraction)
    if not 0 < held < samples:
        raise FeedError(
            f"a validation split of {fraction} leaves {held} of {samples} samples for validation\n"
            "  both parts need at least one sample"
        )
    order = np.random.default_rng([seed, samples]).permutation(samples)
    parts = np.sort(order[held:]), np.sort(order[:held])
    training, validation = ({n: taken(a, part) for n, a in arrays.items()} for part in parts)
    return training, validation
