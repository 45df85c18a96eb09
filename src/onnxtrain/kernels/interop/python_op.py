"""PythonOp and PythonOpGrad: a ``torch.autograd.Function`` as a node, and its backward.

The forward runs under torch's own autograd if somebody reads its context; the backward asks
autograd for the gradients. What the function keeps is safe without copies: the context counts as a
view of the node's inputs and outputs, so nothing takes over their storage while it is alive.
"""

from __future__ import annotations

import dataclasses
import itertools
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from onnxtrain.kernels.dtypes import to_torch
from onnxtrain.kernels.interop.arguments import TENSOR, put_together
from onnxtrain.kernels.interop.registry import autograd_function
from onnxtrain.kernels.registry import kernel
from onnxtrain.kernels.scalars import single
from onnxtrain.types import MS

NO_CONTEXT = 0
_numbers = itertools.count(0x1000001)


@dataclasses.dataclass(frozen=True)
class Context:
    """What a backward needs of its forward: outputs in autograd's graph, and the inputs there."""

    outputs: tuple[Tensor, ...]
    inputs: tuple[Any, ...]


_contexts: dict[int, Context] = {}
_overwritten: dict[type[torch.autograd.Function], frozenset[int]] = {}
"""Inputs that each function is known to overwrite, learnt at its first call."""


@kernel(
    "PythonOp",
    domain=MS,
    view="tensors",
    host_out=[0],
    outputs=0,
    needs=["wanted"],
    special="effect",
)
def python_op(
    *tensors: Any,
    func_name: str,
    input_convention: str,
    input_requires_grads: Sequence[int] = (),
    input_tensor_types: Sequence[int] = (),
    input_tensor_ranks: Sequence[int] = (),
    output_tensor_types: Sequence[int] = (),
    output_tensor_ranks: Sequence[int] = (),
    tensor_reuse_map: Sequence[int] = (),
    bw_tensor_reuse_map: Sequence[int] = (),
    training_mode: int = 0,
    comment: str = "",
    safe_run_mode: int = 1,
    wanted: tuple[bool, ...],
    **constants: Any,
) -> Sequence[Any]:
    """context, outputs = Function.apply(arguments)."""
    function = autograd_function(func_name)
    _check_types("input", tensors, input_tensor_types)
    keep = wanted[0]
    grads = _tensor_flags(input_convention, input_requires_grads, len(tensors))
    with torch.set_grad_enabled(keep):
        inputs = tuple(_leaf(x, keep and flag) for x, flag in zip(tensors, grads, strict=True))
        given = _protected(function, inputs) if safe_run_mode else list(inputs)
        versions = [_version(x) for x in given]
        result = function.apply(*put_together(input_convention, given, constants))
        outputs = tuple(result) if isinstance(result, (tuple, list)) else (result,)
    if safe_run_mode:
        _learn(function, inputs, given, versions)
        _check_reuse(outputs, given, tensor_reuse_map)
    _check_types("output", outputs, output_tensor_types)
    if len(outputs) != len(wanted) - 1:
        raise ValueError(f"{func_name} gave {len(outputs)} outputs, the node has {len(wanted) - 1}")
    context = _kept(Context(outputs, inputs)) if keep else torch.tensor(NO_CONTEXT)
    return [context, *(x.detach() if isinstance(x, Tensor) else x for x in outputs)]


@kernel(
    "PythonOpGrad",
    domain=MS,
    host=["context"],
    view="grads",
    outputs=0,
    needs=["wanted"],
    special="effect",
)
def python_op_grad(
    context: Any,
    *grads: Tensor | None,
    func_name: str,
    output_convention: str,
    output_tensor_requires_grads: Sequence[int],
    input_tensor_types: Sequence[int] = (),
    input_tensor_ranks: Sequence[int] = (),
    output_tensor_types: Sequence[int] = (),
    output_tensor_ranks: Sequence[int] = (),
    tensor_reuse_map: Sequence[int] = (),
    comment: str = "",
    safe_run_mode: int = 1,
    wanted: tuple[bool, ...],
) -> Sequence[Tensor | None]:
    """Gradients of the function's tensor arguments; the context is used up."""
    number = int(single(context))
    kept = _contexts.pop(number, None)
    if kept is None:
        raise ValueError(
            f"context {number} of {func_name} is not alive: it lives from the PythonOp that made "
            "it to the first PythonOpGrad, in one run"
        )
    asked = [
        bool(need) and want for need, want in zip(output_tensor_requires_grads, wanted, strict=True)
    ]
    found = _gradients(kept, grads, asked)
    return [_own(grad, kept) for grad in found]


def _tensor_flags(convention: str, flags: Sequence[int], tensors: int) -> list[bool]:
    """For each tensor whether its gradient may be asked for; flags are given by argument."""
    if len(flags) == len(convention):
        flags = [f for f, mark in zip(flags, convention, strict=True) if mark == TENSOR]
    if not flags:
        return [False] * tensors
    if len(flags) != tensors:
        raise ValueError(
            f"input_requires_grads has {len(flags)} entries for convention '{convention}'"
        )
    return [bool(flag) for flag in flags]


def _leaf(x: Any, requires_grad: bool) -> Any:
    """The tensor as an input of autograd's graph, over the same memory."""
    if not isinstance(x, Tensor):
        return x
    return x.detach().requires_grad_(requires_grad and x.is_floating_point())


def _protected(function: type[torch.autograd.Function], inputs: Sequence[Any]) -> list[Any]:
    """The inputs, with copies of those that the function overwrites (at first: of all)."""
    known = _overwritten.get(function)
    return [
        x.clone() if isinstance(x, Tensor) and (known is None or i in known) else x
        for i, x in enumerate(inputs)
    ]


def _version(x: Any) -> int:
    return x._version if isinstance(x, Tensor) else 0


def _learn(
    function: type[torch.autograd.Function],
    inputs: Sequence[Any],
    given: Sequence[Any],
    versions: Sequence[int],
) -> None:
    """Remember which inputs were overwritten; one that was not copied before is an error."""
    changed = frozenset(i for i, x in enumerate(given) if _version(x) != versions[i])
    if lost := sorted(i for i in changed if given[i] is inputs[i]):
        raise ValueError(
            f"{function.__name__} overwrites tensor {lost[0]}, which it did not at its first call; "
            "a function must overwrite the same inputs each time"
        )
    _overwritten.setdefault(function, changed)


def _check_reuse(outputs: Sequence[Any], given: Sequence[Any], reuse: Sequence[int]) -> None:
    """The first entry of the map is the context's; -1 says nothing."""
    for index, (output, source) in enumerate(zip(outputs, reuse[1:], strict=False)):
        if source >= 0 and not _share(output, given[source]):
            raise ValueError(
                f"output {index} does not reuse tensor {source}, although tensor_reuse_map says so"
            )


def _share(a: Any, b: Any) -> bool:
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return False
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def _check_types(what: str, values: Sequence[Any], types: Sequence[int]) -> None:
    if types and len(types) != len(values):
        raise ValueError(f"{what}_tensor_types has {len(types)} entries for {len(values)} tensors")
    for index, (value, code) in enumerate(zip(values, types, strict=False)):
        if isinstance(value, Tensor) and value.dtype != to_torch(code):
            raise ValueError(
                f"{what} {index} is {value.dtype}, {what}_tensor_types says {to_torch(code)}"
            )


def _kept(context: Context) -> Tensor:
    """The number of a context, which is forgotten when the tensor that holds the number is."""
    number = next(_numbers)
    _contexts[number] = context
    held = torch.tensor(number)
    weakref.finalize(held, _contexts.pop, number, None)
    return held


def _gradients(
    kept: Context, grads: Sequence[Tensor | None], asked: Sequence[bool]
) -> list[Tensor | None]:
    pairs = [
        (output, grad)
        for output, grad in zip(kept.outputs, grads, strict=False)
        if grad is not None and output.requires_grad
    ]
    wanted = [i for i, x in enumerate(kept.inputs) if asked[i] and isinstance(x, Tensor)]
    reached = [i for i in wanted if kept.inputs[i].requires_grad and pairs]
    results: list[Tensor | None] = [None] * len(kept.inputs)
    if reached:
        found = torch.autograd.grad(
            [output for output, _ in pairs],
            [kept.inputs[i] for i in reached],
            [grad for _, grad in pairs],
            allow_unused=True,
        )
        for index, grad in zip(reached, found, strict=True):
            results[index] = grad
    for index in wanted:
        if results[index] is None:
            results[index] = torch.zeros_like(kept.inputs[index], requires_grad=False)
    return results


def _own(grad: Tensor | None, kept: Context) -> Tensor | None:
    """The gradient in storage that is not the forward's."""
    if grad is not None and any(_share(grad, x) for x in (*kept.inputs, *kept.outputs)):
        return grad.clone()
    return grad
