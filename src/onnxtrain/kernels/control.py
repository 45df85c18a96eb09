"""Gradient accumulation and reset, events between threads, the line between the two passes."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from onnxtrain.kernels.registry import kernel
from onnxtrain.kernels.scalars import single
from onnxtrain.types import FLOATS, MS, OWN

_ALIGNED = 16
"""Bytes at whose multiples wide loads may begin."""
EVENTS = 4096
"""How many events a process has."""


@kernel(
    "InPlaceAccumulator",
    domain=MS,
    updates=["old_sum"],
    view="old_sum",
    T=FLOATS,
    T_GRAD=FLOATS,
)
def in_place_accumulator(
    old_sum: Tensor, value: Tensor, update_signal: Tensor | None = None, *, update: bool = False
) -> Tensor:
    """new_sum = old_sum + value, or old_sum if the signal is false."""
    value = value.to(old_sum.dtype)
    if update_signal is not None:
        value = torch.where(update_signal.reshape(()), value, 0.0)
    return old_sum.add_(value) if update else old_sum + value


@kernel(
    "InPlaceAccumulatorV2",
    domain=MS,
    outputs=2,
    host=["overwrite_flag"],
    host_out=[0],
    mutates=["accumulation_buffer"],
    view={"accumulation_buffer": 1},
    needs=["taken"],
    T=FLOATS,
    T_GRAD=FLOATS,
)
def in_place_accumulator_v2(
    accumulation_buffer: Tensor, value: Tensor, overwrite_flag: Any = None, *, taken: bool = False
) -> tuple[Tensor, Tensor]:
    """buffer += value, or buffer = value if the flag is set; always reports an update."""
    if accumulation_buffer.shape != value.shape:
        raise ValueError(
            f"accumulation_buffer shape {tuple(accumulation_buffer.shape)} "
            f"is not that of the value {tuple(value.shape)}"
        )
    if overwrite_flag is not None and single(overwrite_flag):
        if taken and _replaces(value, accumulation_buffer):
            accumulation_buffer.set_(value)  # type: ignore[call-overload]
        else:
            accumulation_buffer.copy_(value)
    else:
        accumulation_buffer.add_(value)
    return torch.ones(1, dtype=torch.bool), accumulation_buffer


@kernel(
    "HandOver",
    domain=OWN,
    host=["overwrite_flag", "hand_over"],
    mutates=["buffer"],
    view="value",
    T=FLOATS,
    T_GRAD=FLOATS,
)
def hand_over_gradient(
    buffer: Tensor, value: Tensor, overwrite_flag: Any, hand_over: Any
) -> Tensor:
    """A gradient for who reads it at once (the buffer is left alone), or nothing.

    Nothing is a tensor without elements: buffer += value, or buffer = value if the flag is set.
    """
    if buffer.shape != value.shape:
        raise ValueError(
            f"buffer has shape {tuple(buffer.shape)}, the gradient {tuple(value.shape)}"
        )
    if single(hand_over):
        whole = value.contiguous()
        # one that begins elsewhere would keep all of them from being updated in one launch
        return whole if whole.data_ptr() % _ALIGNED == 0 else whole.clone()
    if single(overwrite_flag):
        buffer.copy_(value)
    else:
        buffer.add_(value)
    return value.new_empty(0)


def _replaces(value: Tensor, buffer: Tensor) -> bool:
    """Whether a buffer may have the memory of a value for its own: laid out alike, and no more."""
    return (
        value.dtype == buffer.dtype
        and value.device == buffer.device
        and value.is_contiguous()
        and value.untyped_storage().nbytes() == value.numel() * value.element_size()
    )


@kernel("ZeroGradient", domain=MS, updates=["old_gradient"], view="old_gradient", T1=FLOATS)
def zero_gradient(old_gradient: Tensor, reset_signal: Tensor, *, update: bool = False) -> Tensor:
    """Zeros, after whatever makes the signal."""
    return old_gradient.zero_() if update else torch.zeros_like(old_gradient)


_recorded: dict[int, threading.Event] = {}


def event(identifier: int) -> threading.Event:
    """The event of a number, the same one for all threads of the process."""
    if not 0 <= identifier < EVENTS:
        raise ValueError(f"event {identifier} is out of range [0, {EVENTS}) and is not -1")
    return _recorded.setdefault(identifier, threading.Event())


def reset_events() -> None:
    """Forget that events were recorded; those who wait go on waiting."""
    for item in list(_recorded.values()):
        item.clear()


@kernel(
    "RecordEvent",
    domain=MS,
    outputs=0,
    host=["event_identifier"],
    needs=["wanted"],
    view="input_data",
    special="effect",
)
def record_event(
    event_identifier: Any, *input_data: Tensor, wanted: tuple[bool, ...]
) -> Sequence[Tensor]:
    """Wake all that wait for the event (-1: none), then hand the inputs on."""
    identifier = int(single(event_identifier))
    if identifier != -1:
        event(identifier).set()
    return input_data[: len(wanted)]


@kernel(
    "WaitEvent",
    domain=MS,
    outputs=0,
    host=["event_identifier"],
    needs=["wanted"],
    view="input_data",
    special="effect",
)
def wait_event(
    event_identifier: Any, *input_data: Tensor, wanted: tuple[bool, ...]
) -> Sequence[Tensor]:
    """Block the host's thread until the event was recorded (-1: go on), then hand the inputs on."""
    identifier = int(single(event_identifier))
    if identifier != -1:
        event(identifier).wait()
    return input_data[: len(wanted)]


@kernel("YieldOp", domain=MS, outputs=0, special="yield")
def yield_op(
    *module_outputs: Tensor,
    full_shape_outputs: Sequence[int] = (),
    non_differentiable_outputs: Sequence[int] = (),
) -> Sequence[Tensor]:
    """Hand the forward's results out and take their gradients; a plan runs it, not a call."""
    raise RuntimeError("YieldOp is the line between forward and backward and cannot be called")
