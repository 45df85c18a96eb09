"""A plan made runnable: its source compiled, its names bound, its failures explained."""

from __future__ import annotations

import contextlib
import copy
import itertools
import linecache
import types
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch

from onnxtrain.distributed.groups import Groups
from onnxtrain.errors import NodeError, OnnxTrainError
from onnxtrain.kernels.dtypes import tensor_of, text_of
from onnxtrain.kernels.layout import IMAGES
from onnxtrain.runtime.named_sizes import contradiction
from onnxtrain.runtime.obstacle import waiting
from onnxtrain.runtime.plan import Plan, Step
from onnxtrain.runtime.rehearsal import offered
from onnxtrain.runtime.seeds import next_seed, seed_of
from onnxtrain.types import DataType, op_name

_counter = itertools.count()
_TENSORS = (ir.Tensor, ir.LazyTensor, ir.TensorProtocol)
"""Tensors of onnx-ir; most are of the first two kinds, and asking for the last takes long."""


class Program:
    """A compiled step over torch tensors.

    Args:
        plan: What to run.
        device: Where constants live and kernels create their outputs.
        state: Tensors for the plan's bound names, by their names in the graph.
        seed: Seed of the generators; None draws one, or takes one that follows from ``set_seed``.
        groups: Process groups for kernels that communicate; None if the process is alone.
    """

    def __init__(
        self,
        plan: Plan,
        device: torch.device,
        state: Mapping[str, Any] | None = None,
        seed: int | None = None,
        groups: Groups | None = None,
    ) -> None:
        self.plan = plan
        self.device = device
        host = torch.device("cpu")
        self.rng = torch.Generator(device)
        self.rng_host = self.rng if device == host else torch.Generator(host)
        self.seed(next_seed() if seed is None else seed_of(seed))
        self._names: dict[str, Any] = {
            "device": device,
            "device_host": host,
            "rng": self.rng,
            "rng_host": self.rng_host,
            "groups": groups,
            **plan.functions,
        }
        for name, (value, on_host) in plan.constants.items():
            self._names[name] = _bound(value, host if on_host else device)
        self.bindings = 0
        for name in plan.state:
            self.bind(name, (state or {})[name])
        self._ran = False
        self._lines: dict[int, Step] = {}
        self._file = f"<onnxtrain step {next(_counter)}>"
        self._step = self._compile()

    def seed(self, seed: int) -> None:
        """Start the random numbers of the step anew."""
        self.rng.manual_seed(seed)
        self.rng_host.manual_seed(seed)

    def bind(self, name: str, value: Any) -> None:
        """Make the step use a tensor for a bound name of the graph."""
        self.bindings += 1
        self._names[self.plan.state[name]] = value

    def _compile(self) -> Callable[..., Any]:
        lines = self.plan.block.lines()
        self._lines = {n: step for n, (_, step) in enumerate(lines, start=1) if step is not None}
        return self._execute([text for text, _ in lines])

    def _execute(self, lines: list[str]) -> Callable[..., Any]:
        source = "".join(line + "\n" for line in lines)
        linecache.cache[self._file] = (len(source), None, source.splitlines(True), self._file)
        exec(compile(source, self._file, "exec"), self._names)
        function: Callable[..., Any] = self._names[self.plan.block.name]
        return function

    @property
    def steps(self) -> list[Step]:
        """The steps in the order in which they are printed, nested ones included."""
        return list(self._lines.values())

    def with_hook(self, before: Callable[[int], None], after: Callable[[int], None]) -> Program:
        """The same program with a call before and after every step, which gets its index."""
        hooked = copy.copy(self)
        hooked._names = {**self._names, "hook_before": before, "hook_after": after}
        hooked._file = self._file.replace("step", "hooked step")
        lines: list[str] = []
        hooked._lines = {}
        index = 0
        for text, step in self.plan.block.lines():
            if step is None:
                lines.append(text)
                continue
            pad = text[: len(text) - len(text.lstrip())]
            lines += [f"{pad}hook_before({index})", text, f"{pad}hook_after({index})"]
            hooked._lines[len(lines) - 1] = step
            index += 1
        hooked._step = hooked._execute(lines)
        return hooked

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        """Run the step on tensors in the order of ``plan.inputs``.

        Raises:
            NodeError: if a kernel fails; the message has the node and its inputs' shapes.
        """
        with torch.no_grad(), self._rehearsed(args):
            try:
                result: tuple[Any, ...] = self._step(*args)
                return result
            except OnnxTrainError:
                raise
            except Exception as error:
                raise self._explained(error, args) from error

    def _rehearsed(self, args: Sequence[Any]) -> contextlib.AbstractContextManager[None]:
        """With: if kernels must be compiled for the first run, all of them are at once."""
        first, self._ran = not self._ran, True
        if not first or waiting(self.plan):
            return contextlib.nullcontext()
        generators = [self.rng, self.rng_host]
        return offered(self._step, args, self.device, generators, len(self._lines))

    def start(self, *args: Any) -> tuple[tuple[Any, ...], Generator[Any, Any, Any]]:
        """Run a step that yields up to its middle: the values handed out, and the rest."""
        running = self._step(*args)
        with self._rehearsed(args):
            return self._resume(running, None, args), running

    def finish(self, running: Generator[Any, Any, Any], grads: Sequence[Any]) -> tuple[Any, ...]:
        """Run the rest of a step with the gradients of what was handed out."""
        return self._resume(running, tuple(map(_in_rows, grads)))

    def _resume(
        self, running: Generator[Any, Any, Any], sent: Any, args: Sequence[Any] = ()
    ) -> tuple[Any, ...]:
        with torch.no_grad():
            try:
                handed: tuple[Any, ...] = running.send(sent)
                return handed
            except StopIteration as end:
                result: tuple[Any, ...] = end.value
                return result
            except OnnxTrainError:
                raise
            except Exception as error:
                raise self._explained(error, args) from error

    def _explained(self, error: Exception, args: Sequence[Any]) -> Exception:
        """The error with the node it happened in, if it happened in the step."""
        trace, found = error.__traceback__, None
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == self._file:
                found = (trace.tb_lineno, trace.tb_frame)
            trace = trace.tb_next
        step = self._lines.get(found[0]) if found else None
        if found is None or step is None:
            return error
        kernel = step.kernel
        shown = [
            f"{kernel.input_name(i)}: {_describe(_lookup(name, found[1]))}"
            for i, name in enumerate(step.reads)
            if name is not None
        ]
        return NodeError(
            f"node '{step.node}' ({op_name(kernel.domain, kernel.op)}) failed: "
            f"{type(error).__name__}: {error}\n"
            f"  inputs  {', '.join(shown) or 'none'}\n"
            f"  step    {self._file} line {found[0]}, kernel {kernel.place}"
            f"{contradiction(self.plan.inputs, args)}"
        )


def _in_rows(grad: Any) -> Any:
    """A gradient from torch as its readers want it: each would arrange it anew otherwise.

    That of a loss over classes in the second axis has them apart from each other.
    """
    if not isinstance(grad, torch.Tensor) or not grad.is_cpu or not 0 < grad.ndim < IMAGES:
        return grad
    return grad.contiguous()


def _lookup(name: str, frame: types.FrameType) -> Any:
    return frame.f_locals.get(name, frame.f_globals.get(name))


def _describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__} of {len(value)}"
    return repr(value)


def _bound(value: Any, device: torch.device) -> Any:
    """A constant of the plan as the step uses it."""
    if isinstance(value, _TENSORS):
        array = value.numpy()
        if value.dtype == DataType.STRING:
            return text_of(array)
        return tensor_of(array.copy()).to(device)
    return value
