"""What a module knows of gradients and a graph does not.

Where none goes, and where a function of the module has a backward pass of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils.checkpoint import CheckpointFunction

from onnxtrain.errors import NoGradientError
from onnxtrain.kernels.interop.registry import (
    qualified_name,
    register_autograd_function,
    register_object,
)


@contextlib.contextmanager
def functions_as_nodes() -> Iterator[None]:
    """With: a torch.autograd.Function that is traced becomes a PythonOp, which calls it."""
    function = torch.autograd.Function
    original = function.__dict__["apply"]
    within: list[type] = []

    def traced(cls: type[torch.autograd.Function], *args: Any, **kwargs: Any) -> Any:
        if cls is CheckpointFunction:  # what it does not keep, a graph keeps
            run, _, *given = args
            return run(*given)
        plain = original.__get__(None, cls)
        # without gradients a function is what it computes, unless it is there for something else
        if within or not (torch.is_grad_enabled() or getattr(cls, "has_effect", False)):
            return plain(*args, **kwargs)
        within.append(cls)
        try:
            results = plain(*args, **kwargs)
            if not isinstance(results, tuple):
                return node_of(cls, args, [results])[0]
            return tuple(node_of(cls, args, results))
        finally:
            within.pop()

    function.apply = classmethod(traced)  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        function.apply = original  # type: ignore[method-assign]


def node_of(
    cls: type[torch.autograd.Function], args: Sequence[Any], results: Sequence[Any]
) -> list[Tensor]:
    """A call of a function, as a node that has results like these."""
    tensors = [arg for arg in args if isinstance(arg, Tensor)]
    places = [place for place, arg in enumerate(args) if not isinstance(arg, Tensor)]
    others = [args[place] for place in places]
    sizes = (torch.SymInt, torch.SymFloat, torch.SymBool)
    if any(isinstance(other, sizes) for other in others):
        raise TypeError(f"{cls.__qualname__} is given a size, which is known when it is fixed")
    if not tensors or not all(isinstance(result, Tensor) for result in results):
        raise NoGradientError(
            f"{qualified_name(cls)} takes no tensor, or gives something else than tensors\n"
            "  wrap those parts of the module that do not call it"
        )
    name = f"{qualified_name(cls)}#{id(cls)}"
    register_autograd_function(cls, name)
    attributes: dict[str, Any] = {
        "func_name": name,
        "input_convention": "".join("d" if isinstance(arg, Tensor) else "c" for arg in args),
        "training_mode": 1,
    }
    if places:
        attributes["input_pointer_scalars"] = [register_object(other) for other in others]
        attributes["input_pointer_scalar_positions"] = places
    _, *found = torch.onnx.ops.symbolic_multi_out(
        "com.microsoft::PythonOp",
        tensors,
        attributes,
        dtypes=[torch.int64, *(result.dtype for result in results)],
        shapes=[[], *(result.shape for result in results)],
        version=1,
    )
    return found


@contextlib.contextmanager
def unchecked_distributions() -> Iterator[None]:
    """With: torch's distributions do not ask whether their parameters are valid ones."""
    kind = torch.distributions.Distribution
    before = kind._validate_args
    kind.set_default_validate_args(False)
    try:
        yield
    finally:
        kind.set_default_validate_args(before)


def detach_without_grad(module: fx.GraphModule) -> None:
    """Detach what is computed under ``torch.no_grad()``, which the exporter forgets, in place."""
    for inner in module.modules():
        if isinstance(inner, fx.GraphModule):
            for node in list(inner.graph.nodes):
                if _is_without_grad(node):
                    _detach_results(inner, node)


def _is_without_grad(node: fx.Node) -> bool:
    wrapped = torch.ops.higher_order.wrap_with_set_grad_enabled
    return node.op == "call_function" and node.target is wrapped and node.args[0] is False


def _detach_results(module: fx.GraphModule, node: fx.Node) -> None:
    aten = torch.ops.aten
    for result in list(node.users):
        value = result.meta["val"]
        # a complex number is two real ones to the exporter, which it cannot detach as one
        steps = [aten.detach.default]
        if value.is_complex():
            steps = [aten.view_as_real.default, *steps, aten.view_as_complex.default]
        users, last = list(result.users), result
        for step in steps:
            with module.graph.inserting_after(last):
                last = module.graph.call_function(step, (last,))
            value = step(value)
            last.meta = {**result.meta, "val": value}
        for user in users:
            user.replace_input_with(result, last)
    module.recompile()
