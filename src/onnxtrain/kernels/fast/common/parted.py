"""Kernels whose rows are cut into parts, each a program's."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from onnxtrain.kernels.fast.common.axis import Parts
from onnxtrain.kernels.fast.common.cluster import InClusters
from onnxtrain.kernels.fast.common.compiled import Compiled
from onnxtrain.kernels.fast.common.exchange import words_for
from onnxtrain.kernels.fast.common.launch import power


class Grouped:
    """A Triton function whose programs come one by one, or in clusters of its argument ``S``."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self._single = Compiled(function)
        self._clusters = Compiled(InClusters(function, "S"))

    def by(self, together: int) -> Compiled:
        """What launches clusters of so many programs, or one by one."""
        return self._single if together == 1 else self._clusters


class Parted(Grouped):
    """A Triton function that goes along rows, launched in clusters where the device has them.

    Its arguments are tensors of the same shape, ``words``, ``zero``, ``columns``, ``LOG``,
    ``PARTS`` and the power of two above, ``C`` elements of a part, ``S`` programs of a cluster,
    ``B`` elements side by side, and what else a launch is given.
    """

    def launch(
        self,
        tensors: tuple[Tensor, ...],
        size: int,
        cut: Parts,
        log: bool,
        *more: int,
        threads: int,
        registers: int,
    ) -> None:
        """Run over all rows of so many elements, which are cut in this way."""
        like = tensors[0]
        rows = like.numel() // size
        self.by(cut.together)[(rows * cut.number // cut.together,)](
            *tensors,
            words_for(rows, cut, like),
            0,
            size,
            log,
            cut.number,
            power(cut.number),
            cut.size,
            cut.together,
            cut.block(like.dtype.itemsize),
            *more,
            num_warps=threads,
            maxnreg=registers,
        )
