"""A torch module as an ONNX model whose inputs are tensors, parameters and buffers.

Torch's exporter traces the module as it is called: in its mode of training, with its Dropout, and
with the buffers that a call changes among the results.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from onnxtrain.errors import NoGradientError
from onnxtrain.ortmodule.layout import Layout
from onnxtrain.ortmodule.traced import detach_without_grad, functions_as_nodes
from onnxtrain.ortmodule.translated import translated
from onnxtrain.ortmodule.uniform import draws_known_in_part

PREFIX = "module."
"""Before the names of parameters and buffers in what is exported."""
NOISY = ("torch", "torch.onnx", "torch.export", "torch.fx", "onnxscript")


class Flat(nn.Module):
    """A module whose arguments and results are tensors alone; its buffers come behind the latter.

    Args:
        module: The module.
        layout: That of its arguments.
        note: Gets the layout of what the module gives.

    Attributes:
        names: Those of the buffers.
    """

    def __init__(self, module: nn.Module, layout: Layout, note: Callable[[Layout], object]) -> None:
        super().__init__()
        self.module = module
        self.layout = layout
        self.note = note
        self.names = [name for name, _ in module.named_buffers()]
        self.training = module.training

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Call the module with these tensors among its arguments."""
        args, kwargs = self.layout.filled(tensors)
        results, found = Layout.of(self.module(*args, **kwargs))
        self.note(results)
        return (*found, *(self.module.get_buffer(name) for name in self.names))


@dataclasses.dataclass(frozen=True)
class Exported:
    """A module as a graph.

    Attributes:
        model: Its inputs are the arguments; parameters and buffers are initializers.
        stored: Names in the module of those initializers that are parameters and buffers.
        changed: Buffers whose new values are the last outputs.
        results: The layout of the other outputs.
    """

    model: ir.Model
    stored: dict[str, str]
    changed: list[str]
    results: Layout

    @property
    def shapes(self) -> list[list[Any]]:
        """Sizes of the arguments, as numbers where they are fixed, else as names."""
        known = [value.shape for value in self.model.graph.inputs]
        return [[] if s is None else [_size(dim) for dim in s] for s in known]


def _size(dim: Any) -> int | str:
    text = str(dim if isinstance(dim, int) else dim.value)
    return int(text) if text.isdecimal() else text


def export(module: nn.Module, layout: Layout, tensors: Sequence[Tensor]) -> Exported:
    """Trace a call of a module; sizes may be others later unless the module fixes them.

    Raises:
        NoGradientError: if a function of the module cannot be a node.
        Exception: whatever torch's exporter raises, if it cannot trace the module.
    """
    # attention in a graph lies in memory as that of plain products does, and so must this one
    with _quiet(), _as_before(module), sdpa_kernel(SDPBackend.MATH):
        try:
            return _exported(module, layout, tensors, torch.export.Dim.AUTO)
        except NoGradientError:
            raise
        except Exception:  # sizes that may be any are more than some modules can be traced for
            return _exported(module, layout, tensors, torch.export.Dim.STATIC)


def _exported(module: nn.Module, layout: Layout, tensors: Sequence[Tensor], dim: Any) -> Exported:
    results: list[Layout] = []
    flat = Flat(module, layout, results.append)
    detached = tuple(t.detach() for t in tensors)
    sizes = tuple(dict.fromkeys(range(t.ndim), dim) for t in tensors)
    with functions_as_nodes(), draws_known_in_part():
        program = torch.export.export(
            flat, detached, dynamic_shapes={"tensors": sizes}, strict=False
        )
    detach_without_grad(program.graph_module)
    written = torch.onnx.export(
        program,
        dynamo=True,
        optimize=False,
        verbose=False,
        custom_translation_table=translated(any(t.is_cuda for t in detached)),
    )
    assert written is not None and written.exported_program is not None
    signature = written.exported_program.graph_signature
    moved = {name.removeprefix(PREFIX) for name in signature.buffers_to_mutate.values()}
    changed = [name for name in flat.names if name in moved]
    graph = written.model.graph
    first = len(graph.outputs) - len(flat.names)
    new = zip(flat.names, graph.outputs[first:], strict=True)
    kept = [*graph.outputs[:first], *(value for name, value in new if name in moved)]
    graph.outputs.clear()
    graph.outputs.extend(kept)
    state = {*signature.parameters, *signature.buffers}
    stored = {name: name.removeprefix(PREFIX) for name in graph.initializers if name in state}
    return Exported(written.model, stored, changed, results[-1])


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """With: the exporter does not tell what it could not know."""
    loggers = [logging.getLogger(name) for name in NOISY]
    before = [logger.level for logger in loggers]
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, before, strict=True):
                logger.setLevel(level)


@contextlib.contextmanager
def _as_before(module: nn.Module) -> Iterator[None]:
    """With: tracing draws no random numbers and leaves buffers as they are."""
    devices = {t.device for t in (*module.parameters(), *module.buffers()) if t.is_cuda}
    buffers = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
    with torch.random.fork_rng(devices):
        yield
    with torch.no_grad():
        for buffer, value in buffers:
            if not torch.equal(buffer, value):
                buffer.copy_(value)
