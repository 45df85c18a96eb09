"""Proof of what a kernel's decorator says, on a call that the runtime itself makes.

Each function gives the claims that do not hold, one line each.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from onnxtrain.kernels.library import default_registry
from onnxtrain.kernels.registry import Kernel, KernelRegistry
from onnxtrain.testing.case import Case
from onnxtrain.testing.model import Value, evaluate

Arrange = Callable[[torch.Tensor], torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of a kernel as the runtime made it, to be made again with changes.

    Attributes:
        kernel: What was called.
        args: Its inputs, before the call.
        keywords: Attributes and resources.
        random: State of the generator before the call, if the kernel asked for one.
    """

    kernel: Kernel
    args: tuple[Any, ...]
    keywords: dict[str, Any]
    random: torch.Tensor | None = None

    def inputs(self) -> tuple[Any, ...]:
        """Fresh copies of the inputs."""
        return tuple(_copied(value, torch.clone) for value in self.args)

    def run(self, args: Sequence[Any], **changes: Any) -> list[Any]:
        """Outputs for other inputs or keywords, with the same random numbers."""
        if self.random is not None:
            self.keywords["rng"].set_state(self.random)
        result = self.kernel.fn(*args, **{**self.keywords, **changes})
        return [result] if self.kernel.outputs == 1 else list(result)

    def tensors(self, args: Sequence[Any]) -> Iterator[tuple[str, torch.Tensor]]:
        """Parameter and tensor for each tensor among the inputs, in lists too."""
        for index, value in enumerate(args):
            for tensor in value if isinstance(value, (list, tuple)) else [value]:
                if isinstance(tensor, torch.Tensor):
                    yield self.kernel.input_name(index), tensor


def recorded(
    case: Case,
    inputs: Sequence[Value],
    registry: KernelRegistry | None = None,
    device: str = "cpu",
) -> Call:
    """The call that the runtime makes for a row."""
    calls: list[Call] = []
    known = default_registry() if registry is None else registry
    spies = [_spy(k, calls) for k in known.kernels_of(case.domain, case.op)]
    evaluate(case, inputs, device, registry=KernelRegistry(spies))
    return calls[0]


def _spy(kernel: Kernel, calls: list[Call]) -> Kernel:
    @functools.wraps(kernel.fn)
    def spy(*args: Any, **keywords: Any) -> Any:
        generator = keywords.get("rng")
        random = generator.get_state() if isinstance(generator, torch.Generator) else None
        call = Call(kernel, args, keywords, random)
        calls.append(dataclasses.replace(call, args=call.inputs()))
        return kernel.fn(*args, **keywords)

    return dataclasses.replace(kernel, fn=spy)


def _copied(value: Any, arrange: Arrange) -> Any:
    if isinstance(value, list):
        return [_copied(item, arrange) for item in value]
    return arrange(value) if isinstance(value, torch.Tensor) else value


def wrong_changes(call: Call) -> list[str]:
    """Inputs that change although the decorator does not say so."""
    found = _changed(call, set(call.kernel.mutates))
    if call.kernel.updates:
        allowed = {*call.kernel.mutates, *call.kernel.updates}
        found += _changed(call, allowed, update=True)
    return found


def _changed(call: Call, allowed: set[str], **changes: Any) -> list[str]:
    args = call.inputs()
    before = [tensor.clone() for _, tensor in call.tensors(args)]
    call.run(args, **changes)
    return [
        f"input '{name}' changes with {changes}" if changes else f"input '{name}' changes"
        for (name, tensor), old in zip(call.tensors(args), before, strict=True)
        if name not in allowed and not identical(tensor, old)
    ]


def wrong_updates(call: Call) -> list[str]:
    """Updated inputs that do not hold the new value, or differ from a run without update."""
    if not call.kernel.updates:
        return []
    plain = call.run(call.inputs(), update=False)
    args = call.inputs()
    updated = call.run(args, update=True)
    found = [
        f"output {index} differs with update=True"
        for index, (a, b) in enumerate(zip(plain, updated, strict=True))
        if not identical(a, b)
    ]
    for name, outputs in call.kernel.view.items():
        tensors = [tensor for key, tensor in call.tensors(args) if key == name]
        for index in outputs or ():
            if name in call.kernel.updates and tensors and updated[index] is not None:
                shares = updated[index].data_ptr() == tensors[0].data_ptr()
                if not shares or not identical(updated[index], tensors[0]):
                    found.append(f"input '{name}' does not hold output {index} with update=True")
    return found


def inplace_inputs(call: Call) -> list[int]:
    """Positions that may be overwritten and fit the first output."""
    first = call.run(call.inputs())[0]
    return [
        index
        for index, value in enumerate(call.args)
        if isinstance(value, torch.Tensor)
        and call.kernel.input_name(index) in call.kernel.inplace
        and (value.shape, value.dtype) == (first.shape, first.dtype)
    ]


def wrong_inplace(call: Call) -> list[str]:
    """Inputs that cannot hold the first output, or whose use as ``out`` changes others."""
    expected = call.run(call.inputs())
    found = []
    for index in inplace_inputs(call):
        name = call.kernel.input_name(index)
        args = call.inputs()
        result = call.run(args, out=args[index])
        if result[0].data_ptr() != args[index].data_ptr():
            found.append(f"out='{name}' is not used")
        for position, (ours, true) in enumerate(zip(result, expected, strict=True)):
            if not identical(ours, true):
                found.append(f"output {position} is wrong with out='{name}'")
        for position, (other, old) in enumerate(zip(args, call.args, strict=True)):
            if position != index and not identical(other, old):
                found.append(f"input {position} changes with out='{name}'")
    return found


def wrong_sharing(call: Call) -> list[str]:
    """Outputs that share storage with an input, or memory with each other, without a ``view``."""
    args = call.inputs()
    outputs = [(i, t) for i, value in enumerate(call.run(args)) for t in _flat(value)]
    found = []
    for (index, output), (name, tensor) in itertools.product(outputs, call.tensors(args)):
        if _same_storage(output, tensor) and not _declared(call.kernel, name, index):
            found.append(f"output {index} shares storage with '{name}'")
    for (index, output), (other, second) in itertools.combinations(outputs, 2):
        is_view = all(_is_view(call.kernel, i) for i in (index, other))
        if _overlap(output, second) and not is_view:
            found.append(f"outputs {index} and {other} share memory")
    for index, output in outputs:
        if _overlaps_itself(output) and not _is_view(call.kernel, index):
            found.append(f"output {index} is expanded: its elements share memory")
    return found


def wrong_whole(call: Call) -> list[str]:
    """Outputs of a ``whole`` kernel that do not have every element of the viewed input once."""
    if not call.kernel.whole:
        return []
    args = call.inputs()
    viewed = [(n, t) for n, t in call.tensors(args) if n in call.kernel.view]
    outputs = [(i, t) for i, value in enumerate(call.run(args)) for t in _flat(value)]
    return [
        f"output {index} is not '{name}' in another shape"
        for (index, output), (name, tensor) in itertools.product(outputs, viewed)
        if output.numel() != tensor.numel() or _overlaps_itself(output)
    ]


def _declared(kernel: Kernel, name: str, index: int) -> bool:
    if name not in kernel.view:
        return False
    which = kernel.view[name]
    return which is None or index in which


def _is_view(kernel: Kernel, index: int) -> bool:
    return any(_declared(kernel, name, index) for name in kernel.view)


def _same_storage(a: torch.Tensor, b: torch.Tensor) -> bool:
    first, second = a.untyped_storage(), b.untyped_storage()
    return bool(first.nbytes()) and first.data_ptr() == second.data_ptr()


def _overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether one begins before the other ends; kernels may cut outputs out of one piece."""
    (first, end), (other, last) = _extent(a), _extent(b)
    return min(a.numel(), b.numel()) > 0 and first < last and other < end


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((size - 1) * stride for size, stride in pairs)
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def _overlaps_itself(tensor: torch.Tensor) -> bool:
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor.numel() > 0 and any(size > 1 and stride == 0 for size, stride in pairs)


def _flat(value: Any) -> list[torch.Tensor]:
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in _flat(item)]
    return [value] if isinstance(value, torch.Tensor) else []


def wrong_host_inputs(call: Call) -> list[str]:
    """Host inputs that arrive as tensors."""
    return [
        f"host input '{name}' is a tensor"
        for name, _ in call.tensors(call.args)
        if name in call.kernel.host
    ]


def wrong_wanted(call: Call) -> list[str]:
    """Outputs whose value depends on which other outputs are wanted."""
    if "wanted" not in call.kernel.needs:
        return []
    everything = tuple(call.keywords["wanted"])
    expected = call.run(call.inputs())
    found = []
    for only in range(len(everything)):
        one = tuple(wanted and index == only for index, wanted in enumerate(everything))
        rest = tuple(wanted and index != only for index, wanted in enumerate(everything))
        for wanted in {one, rest}:
            results = call.run(call.inputs(), wanted=wanted)
            found += [
                f"output {index} differs with wanted={wanted}"
                for index, asked in enumerate(wanted)
                if asked and not identical(results[index], expected[index])
            ]
    return found


def wrong_empty(call: Call) -> list[str]:
    """Elementwise kernels (those with ``inplace``) that cannot take a batch of no samples."""
    tensors = [tensor for _, tensor in call.tensors(call.args)]
    shapes = {tuple(tensor.shape) for tensor in tensors}
    full = call.run(call.inputs())[0] if call.kernel.inplace else None
    if full is None or shapes != {tuple(full.shape)} or not full.ndim:
        return []
    result = call.run([_copied(value, lambda x: x[:0].clone()) for value in call.args])[0]
    expected = (0, *full.shape[1:])
    if tuple(result.shape) == expected and result.dtype == full.dtype:
        return []
    return [f"a batch of none gives {result.dtype} {tuple(result.shape)}, not {expected}"]


def strided(tensor: torch.Tensor) -> torch.Tensor:
    """The same values in every second element of a larger storage."""
    if not tensor.ndim:
        return tensor.clone()
    wide = torch.stack([tensor, torch.zeros_like(tensor)], dim=-1).flatten(-2)
    return wide[..., ::2]


def transposed(tensor: torch.Tensor) -> torch.Tensor:
    """The same values with the first and last axis the other way round in memory."""
    if tensor.ndim < 2:
        return strided(tensor)
    return tensor.transpose(0, -1).contiguous().transpose(0, -1)


def rearranged(call: Call, arrange: Arrange) -> list[Any]:
    """Outputs when the inputs that are only read are not contiguous."""
    kept = {*call.kernel.mutates, *call.kernel.updates}
    args = [
        _copied(value, torch.clone if call.kernel.input_name(index) in kept else arrange)
        for index, value in enumerate(call.args)
    ]
    return call.run(args)


def identical(a: Any, b: Any) -> bool:
    """Whether two results are the same number by number (NaN equals NaN)."""
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(identical, a, b))
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return bool(np.all(a == b))
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    if a.dtype.is_floating_point:
        a, b = a.to(torch.float64), b.to(torch.float64)
        return bool(((a == b) | (torch.isnan(a) & torch.isnan(b))).all())
    return bool(torch.equal(_bytes(a), _bytes(b)))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a tensor; comparisons of unsigned whole numbers are missing in torch."""
    # A tensor of one element counts as contiguous whatever its stride; a copy has stride 1.
    return tensor.flatten().clone(memory_format=torch.contiguous_format).view(torch.uint8)
