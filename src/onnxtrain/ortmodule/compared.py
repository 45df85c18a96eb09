"""Whether a program gives what the module gives, before it takes the module's place.

Torch's exporter leaves some things out without a word, such as the smoothing of labels or the
projection of an LSTM. The first call of each kind is made by torch as well, without gradients.
"""

from __future__ import annotations

import dataclasses
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
CHAOS = 4
"""How much farther a result may be from torch's than that of torch with other roundings: some are
chaotic, such as those of a batch normalization over two elements."""
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
    torchs = _by_torch(module, layout, inputs)
    if torchs.drawn and not session.draws:
        raise GraphError("a call draws random numbers, which the exported graph does not")
    if missing := sorted(torchs.moved - set(names)):
        raise GraphError(
            f"a call changes the buffer '{missing[0]}', which the exported graph does not"
        )
    found = session.tried(inputs)
    theirs = torchs.all(names)
    whats = [f"result {place}" for place in range(len(torchs.results))]
    whats += [f"buffer '{name}'" for name in names]
    for what, ours, other in zip(whats, found, theirs, strict=True):
        _refuse_kind(what, ours, other)
    if torchs.drawn:
        return
    far = [place for place, pair in enumerate(zip(found, theirs, strict=True)) if _is_far(*pair)]
    if far:
        elsewhere = _by_torch(module, layout, inputs, _rounding(theirs[far[0]])).all(names)
        for place in far:
            _refuse_far(whats[place], found[place], theirs[place], elsewhere[place])


@dataclasses.dataclass(frozen=True)
class Torchs:
    """What torch makes of a call.

    Attributes:
        results: The tensors that it gives.
        buffers: All buffers after it.
        moved: Names of those that it has changed.
        drawn: Whether it has drawn random numbers.
    """

    results: list[Tensor]
    buffers: dict[str, Tensor]
    moved: set[str]
    drawn: bool

    def all(self, names: Sequence[str]) -> list[Tensor]:
        """Results, then the buffers of these names."""
        return [*self.results, *(self.buffers[name] for name in names)]


def _by_torch(
    module: nn.Module, layout: Layout, inputs: Sequence[Tensor], noise: float = 0.0
) -> Torchs:
    """A call by torch, of which nothing stays; noise is as if what is given had been rounded."""
    device = next((tensor.device for tensor in inputs), torch.device("cpu"))
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    with torch.no_grad(), as_before(module), draws_known_in_part():
        weights = {}
        if noise:
            inputs = [_noisy(tensor, noise) for tensor in inputs]
            weights = {name: _noisy(p, noise) for name, p in module.named_parameters()}
        args, kwargs = layout.filled(inputs)
        states = _states(device)
        _, results = Layout.of(torch.func.functional_call(module, weights, args, kwargs))
        drawn = not all(map(torch.equal, states, _states(device)))
        buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    moved = {name for name, buffer in buffers.items() if not torch.equal(buffer, before[name])}
    return Torchs(results, buffers, moved, drawn)


def _noisy(tensor: Tensor, noise: float) -> Tensor:
    if not tensor.is_floating_point():
        return tensor
    return tensor * (1 + noise * torch.randn_like(tensor))


def _states(device: torch.device) -> list[Tensor]:
    """Of torch's random numbers."""
    on_gpu = [torch.cuda.get_rng_state(device)] if device.type == "cuda" else []
    return [torch.get_rng_state(), *on_gpu]


def _refuse_kind(what: str, ours: Tensor, theirs: Tensor) -> None:
    if (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
        raise GraphError(
            f"{what} is {_kind(ours)} in the exported graph, and {_kind(theirs)} in torch"
        )


def _is_far(ours: Tensor, theirs: Tensor) -> bool:
    """Whether two tensors differ by more than roundings usually do."""
    if not theirs.is_floating_point():
        return False
    gap, size = _norms(ours, theirs)
    # sums of about zero are nothing but roundings
    least = min(torch.finfo(kind).eps for kind in (theirs.dtype, torch.float32))
    return not gap <= max(ALLOWED[_narrowest(theirs)] * size, least * math.sqrt(theirs.numel()))


def _refuse_far(what: str, ours: Tensor, theirs: Tensor, elsewhere: Tensor) -> None:
    """Raise GraphError, unless a call of torch with other roundings is about as far away."""
    gap, size = _norms(ours, theirs)
    usual, _ = _norms(elsewhere, theirs)
    if not gap <= CHAOS * usual:
        share = f"{gap / size:.2g} of its size" if size else "all of its size"
        raise GraphError(f"{what} of the exported graph differs from torch's by {share}")


def _narrowest(tensor: Tensor) -> torch.dtype:
    """The type of a tensor, or that of autocast."""
    kind = tensor.device.type
    if tensor.dtype is torch.float32 and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return tensor.dtype


def _rounding(tensor: Tensor) -> float:
    """The roundings of a call, as a share."""
    return torch.finfo(_narrowest(tensor)).eps


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
