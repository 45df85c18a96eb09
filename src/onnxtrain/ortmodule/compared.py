"""Whether a program gives what the module gives, before it takes the module's place.

Torch's exporter leaves some things out without a word, such as the smoothing of labels or the
projection of an LSTM. The first call of each kind is made by torch as well, without gradients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from onnxtrain.errors import GraphError
from onnxtrain.ortmodule.export import as_before
from onnxtrain.ortmodule.layout import Layout
from onnxtrain.ortmodule.session import Session
from onnxtrain.ortmodule.uniform import draws_known_in_part

ALLOWED = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""How far results may be from torch's, as a share of their norm: far more than roundings cost, and
less than a change of what is computed."""
AT_ONCE = 1 << 22
"""Elements that are compared at once."""


def refuse_others(
    session: Session, module: nn.Module, layout: Layout, inputs: Sequence[Tensor]
) -> None:
    """Raise GraphError if a program does not give what torch does.

    Values cannot be compared where random numbers are drawn, but whether there are any.

    Args:
        session: The program.
        module: What it stands for.
        layout: Of the arguments.
        inputs: The arguments, and what the module stores, as the program takes them.
    """
    inputs = [tensor.detach() for tensor in inputs]
    names = session.exported.changed
    expected, moved, drawn = _by_torch(module, layout, inputs)
    if drawn and not session.draws:
        raise GraphError("a call draws random numbers, which the exported graph does not")
    if missing := sorted(moved.keys() - set(names)):
        raise GraphError(
            f"a call changes the buffer '{missing[0]}', which the exported graph does not"
        )
    found = session.tried(inputs)
    whats = [
        *(f"result {place}" for place in range(len(expected))),
        *map("buffer '{}'".format, names),
    ]
    theirs = [*expected, *(moved.get(name, module.get_buffer(name)) for name in names)]
    for what, ours, other in zip(whats, found, theirs, strict=True):
        _compare(what, ours, other, drawn)


def _by_torch(
    module: nn.Module, layout: Layout, inputs: Sequence[Tensor]
) -> tuple[list[Tensor], dict[str, Tensor], bool]:
    """Results, buffers that were changed, and whether random numbers were drawn."""
    args, kwargs = layout.filled(inputs)
    device = next((tensor.device for tensor in inputs), torch.device("cpu"))
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    with torch.no_grad(), as_before(module), draws_known_in_part():
        states = _states(device)
        _, results = Layout.of(module(*args, **kwargs))
        drawn = not all(map(torch.equal, states, _states(device)))
        moved = {
            name: buffer.clone()
            for name, buffer in module.named_buffers()
            if not torch.equal(buffer, before[name])
        }
    return results, moved, drawn


def _states(device: torch.device) -> list[Tensor]:
    """Of torch's random numbers."""
    on_gpu = [torch.cuda.get_rng_state(device)] if device.type == "cuda" else []
    return [torch.get_rng_state(), *on_gpu]


def _compare(what: str, ours: Tensor, theirs: Tensor, drawn: bool) -> None:
    if (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
        raise GraphError(
            f"{what} is {_kind(ours)} in the exported graph, and {_kind(theirs)} in torch"
        )
    if drawn or not theirs.is_floating_point() or not theirs.numel():
        return
    narrow = [theirs.dtype]
    if torch.is_autocast_enabled(theirs.device.type):
        narrow.append(torch.get_autocast_dtype(theirs.device.type))
    gap, size = _norms(ours, theirs)
    if not gap <= max(map(ALLOWED.__getitem__, narrow)) * size:
        share = f"{gap / size:.2g} of its size" if size else "all of its size"
        raise GraphError(f"{what} of the exported graph differs from torch's by {share}")


def _norms(ours: Tensor, theirs: Tensor) -> tuple[float, float]:
    """Norms of the difference and of torch's, in float64, of which large results have no room."""
    gap, size = 0.0, 0.0
    for a, b in zip(*(t.reshape(-1).split(AT_ONCE) for t in (ours, theirs)), strict=True):
        a, b = a.double(), b.double()
        same = torch.isclose(a, b, rtol=0, atol=0, equal_nan=True)  # infinities are
        gap += float(torch.where(same, 0.0, a - b).square().sum())
        size += float(torch.where(b.isfinite(), b, 0.0).square().sum())
    return math.sqrt(gap), math.sqrt(size)


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
