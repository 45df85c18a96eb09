"""Sliding windows: where the kernel of a convolution or of a pool lies on its input."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Ints = tuple[int, ...]
AUTO_PADS = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")


@dataclasses.dataclass(frozen=True)
class Window:
    """Kernel, steps and padding along each spatial axis."""

    kernel: Ints
    strides: Ints
    dilations: Ints
    begin: Ints
    end: Ints

    @property
    def symmetric(self) -> bool:
        """Whether both ends of every axis have the same padding."""
        return self.begin == self.end

    @property
    def extent(self) -> Ints:
        """Distance from the first to the last element that the kernel touches, plus 1."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True))

    def outputs(self, sizes: Sequence[int], ceil_mode: int = 0) -> Ints:
        """How many windows fit; with ``ceil_mode`` the last one may hang over the end."""
        found = tuple(map(self._count, range(len(self.kernel)), sizes, [ceil_mode] * len(sizes)))
        if min(found, default=0) < 0:
            raise ValueError(
                f"a window of {self.extent} does not fit into {tuple(sizes)} "
                f"with padding {self.begin} and {self.end}"
            )
        return found

    def _count(self, axis: int, size: int, ceil_mode: int) -> int:
        stride, begin = self.strides[axis], self.begin[axis]
        room = size + begin + self.end[axis] - self.extent[axis]
        if not ceil_mode:
            return room // stride + 1
        count = -(-room // stride) + 1
        # a window that would start behind the input sees nothing but padding
        return count - 1 if (count - 1) * stride >= size + begin else count

    def tail(self, sizes: Sequence[int], outputs: Sequence[int]) -> Ints:
        """The end padding with which the last window ends exactly at the last element."""
        return tuple(
            (count - 1) * stride + extent - size - begin
            for count, stride, extent, size, begin in zip(
                outputs, self.strides, self.extent, sizes, self.begin, strict=True
            )
        )

    def hollow(self, sizes: Sequence[int], outputs: Sequence[int]) -> bool:
        """Whether a window holds padding alone: before or behind the input, or around it."""
        return any(map(self._misses, range(len(self.kernel)), sizes, outputs))

    def _misses(self, axis: int, size: int, count: int) -> bool:
        reach = self.extent[axis] - 1
        last = (count - 1) * self.strides[axis] - self.begin[axis]
        if self.begin[axis] > reach or last >= size:
            return True
        if size >= self.dilations[axis]:  # no gap of a window is that wide
            return False
        starts = range(-self.begin[axis], last + 1, self.strides[axis])
        return any(
            not any(0 <= start + tap < size for tap in range(0, reach + 1, self.dilations[axis]))
            for start in starts
        )


def steps_between(kernel: Sequence[int], dilations: Ints) -> Ints:
    """The dilations, 1 for what is one element wide: oneDNN reads beside small images otherwise."""
    return tuple(1 if n == 1 else d for n, d in zip(kernel, dilations, strict=True))


def resolve(
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int] | None,
    dilations: Sequence[int] | None,
    pads: Sequence[int] | None,
    auto_pad: str,
) -> Window:
    """The window that a node's attributes describe, ``auto_pad`` resolved for the input's sizes."""
    rank = len(sizes)
    strides = positive("stride", strides, rank)
    dilations = positive("dilation", dilations, rank)
    if len(kernel) != rank:
        raise ValueError(f"kernel_shape {tuple(kernel)} must have {rank} values")
    positive("kernel_shape", kernel, rank)
    dilations = steps_between(kernel, dilations)
    check_auto_pad(auto_pad, pads)
    begin, end = explicit(pads, rank)
    window = Window(tuple(kernel), strides, dilations, begin, end)
    if not auto_pad.startswith("SAME"):
        return window
    missing = [
        max((-(-size // stride) - 1) * stride + extent - size, 0)
        for size, stride, extent in zip(sizes, strides, window.extent, strict=True)
    ]
    begin, end = halves(missing, larger_first=auto_pad == "SAME_LOWER")
    return dataclasses.replace(window, begin=begin, end=end)


def positive(name: str, values: Sequence[int] | None, rank: int) -> Ints:
    """Strides, dilations or sizes of a window, all 1 by default."""
    found = (1,) * rank if not values else tuple(values)
    if len(found) != rank or min(found, default=1) <= 0:
        raise ValueError(f"all {name} values must be positive, one for each of {rank}: {found}")
    return found


def check_auto_pad(auto_pad: str, pads: Sequence[int] | None) -> None:
    """Refuse unknown modes, and two sources of padding at once."""
    if auto_pad not in AUTO_PADS:
        raise ValueError(f"auto_pad is '{auto_pad}', must be one of {', '.join(AUTO_PADS)}")
    if auto_pad != "NOTSET" and any(pads or ()):
        raise ValueError(f"the node has both 'auto_pad' ({auto_pad}) and 'pads' {pads}")


def explicit(pads: Sequence[int] | None, rank: int) -> tuple[Ints, Ints]:
    """Begin and end of the ``pads`` attribute, 0 by default."""
    found = (0,) * (2 * rank) if not pads else tuple(pads)
    if len(found) != 2 * rank:
        raise ValueError(f"pads {found} must have {2 * rank} values")
    return found[:rank], found[rank:]


def halves(totals: Iterable[int], *, larger_first: bool) -> tuple[Ints, Ints]:
    """Split paddings evenly; an odd element goes to the begin or to the end."""
    totals = list(totals)
    small = tuple(total // 2 for total in totals)
    large = tuple(total - total // 2 for total in totals)
    return (large, small) if larger_first else (small, large)


def pad(x: Tensor, begin: Sequence[int], end: Sequence[int], value: float = 0.0) -> Tensor:
    """Pad the last axes; negative amounts crop, also what the other end was padded with."""
    if not any(begin) and not any(end):
        return x
    pairs = [*zip(reversed(begin), reversed(end), strict=True)]
    amounts = [n for pair in pairs for n in pair]
    if any(size < -min(pair) for size, pair in zip(reversed(x.shape), pairs, strict=False)):
        x = F.pad(x, [max(n, 0) for n in amounts], value=value)
        amounts = [min(n, 0) for n in amounts]
    return F.pad(x, amounts, value=value)


def sliding(x: Tensor, window: Window, end: Sequence[int]) -> Tensor:
    """A view of every window: [N, C, outputs..., kernel...]; ``end`` replaces the end padding."""
    x = pad(x, window.begin, end)
    for axis, (extent, stride) in enumerate(zip(window.extent, window.strides, strict=True)):
        x = x.unfold(2 + axis, extent, stride)
    steps: list[Any] = [slice(None, None, d) for d in window.dilations]
    return x[tuple([..., *steps])]


def window_axes(window: Window) -> list[int]:
    """The kernel's axes in a result of ``sliding``."""
    return [-1 - axis for axis in range(len(window.kernel))]


def covered(
    window: Window, sizes: Sequence[int], outputs: Sequence[int], padding: bool, like: Tensor
) -> Tensor:
    """How many elements each window covers, those of the declared padding counted or not."""
    total = like.new_ones(())
    for axis, (size, count) in enumerate(zip(sizes, outputs, strict=True)):
        starts = torch.arange(count, device=like.device) * window.strides[axis] - window.begin[axis]
        taps = torch.arange(window.kernel[axis], device=like.device) * window.dilations[axis]
        places = starts[:, None] + taps
        low, high = (-window.begin[axis], size + window.end[axis]) if padding else (0, size)
        inside = ((places >= low) & (places < high)).sum(1).to(like.dtype)
        total = total[..., None] * inside
    return total
