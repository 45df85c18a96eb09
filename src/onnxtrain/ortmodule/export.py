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
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from onnxtrain.errors import GraphError, NoGradientError
from onnxtrain.ortmodule.layout import Layout
from onnxtrain.ortmodule.left_out import called_by_nodes, left_out
from onnxtrain.ortmodule.traced import (
    detach_without_grad,
    functions_as_nodes,
    unchecked_distributions,
)
from onnxtrain.ortmodule.translated import translated
from onnxtrain.ortmodule.uniform import draws_known_in_part
from onnxtrain.ortmodule.watched import (
    SIZES,
    Settings,
    attributes_of,
    reads_of,
    refuse_changes,
    without_other_draws,
)

PREFIX = "module."
"""Before the names of parameters and buffers in what is exported."""
ALWAYS_FREE = 2
"""Axes of tensors, samples and words, whose sizes may be others in the next call."""
MOST_LEFT_OUT = 16
"""Operators without a translation that a module may call: each is found by one more try."""
NOISY = ("torch", "torch.onnx", "torch.export", "torch.fx", "onnxscript")


class SizeError(Exception):
    """A result is a size, which is a number only where sizes are fixed."""


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
        before = attributes_of(self.module)
        results, found = Layout.of(self.module(*args, **kwargs))
        refuse_changes(before, attributes_of(self.module))
        _refuse_results(results)
        self.note(results)
        return (*found, *(self.module.get_buffer(name) for name in self.names))


def _refuse_results(results: Layout) -> None:
    """Raise an error for what a graph cannot give."""
    if any(known is not None and isinstance(known[0], SIZES) for known in results.constants):
        raise SizeError
    if others := results.others:
        raise GraphError(
            f"a call gives {', '.join(others)}, in which a graph cannot put tensors\n"
            "  register the class with torch.utils._pytree.register_pytree_node"
        )


@dataclasses.dataclass(frozen=True)
class Exported:
    """A module as a graph.

    Attributes:
        model: Its inputs are the arguments; parameters and buffers are initializers.
        stored: Names in the module of those initializers that are tensors of it.
        kinds: Of these, by their names in the module, what cannot change without another export.
        changed: Buffers whose new values are the last outputs.
        results: The layout of the other outputs.
        settings: Plain attributes of the module that the call has read.
    """

    model: ir.Model
    stored: dict[str, str]
    kinds: dict[str, Hashable]
    changed: list[str]
    results: Layout
    settings: Settings

    @property
    def shapes(self) -> list[list[Any]]:
        """Sizes of the arguments, as numbers where they are fixed, else as names."""
        known = [value.shape for value in self.model.graph.inputs]
        return [[] if s is None else [_size(dim) for dim in s] for s in known]


def _size(dim: Any) -> int | str:
    text = str(dim if isinstance(dim, int) else dim.value)
    return int(text) if text.isdecimal() else text


def export(
    module: nn.Module,
    layout: Layout,
    tensors: Sequence[Tensor],
    varying: Collection[tuple[int, int]] = (),
) -> Exported:
    """Trace a call of a module.

    Sizes of the first two axes of each tensor may be others later, and those that have varied,
    unless the module fixes them. Tracing a network of windows for images of any size takes minutes.

    Args:
        module: The module.
        layout: That of its arguments.
        tensors: Those in the arguments.
        varying: Places of tensors, and axes of these, whose sizes have varied.

    Raises:
        GraphError: if a call does something else than to give results.
        NoGradientError: if a function of the module cannot be a node.
        Exception: whatever torch's exporter raises, if it cannot trace the module.
    """
    # attention in a graph lies in memory as that of plain products does, and so must this one
    with _quiet(), as_before(module), without_other_draws(), sdpa_kernel(SDPBackend.MATH):
        try:
            return _exported(module, layout, tensors, varying)
        except (GraphError, NoGradientError):
            raise
        except Exception:  # sizes that may be any are more than some modules can be traced for
            return _exported(module, layout, tensors, None)


def _exported(
    module: nn.Module,
    layout: Layout,
    tensors: Sequence[Tensor],
    varying: Collection[tuple[int, int]] | None,
) -> Exported:
    """Trace with sizes that may vary, or with none."""
    results: list[Layout] = []
    flat = Flat(module, layout, results.append)
    detached = tuple(t.detach() for t in tensors)
    fixed, free = torch.export.Dim.STATIC, torch.export.Dim.AUTO
    sizes = [dict.fromkeys(range(t.ndim), fixed) for t in tensors]
    if varying is not None:
        for place, size in enumerate(sizes):
            size.update({i: free for i in size if i < ALWAYS_FREE or (place, i) in varying})
    traced = functions_as_nodes(), draws_known_in_part(), unchecked_distributions()
    with contextlib.ExitStack() as stack:
        for each in traced:
            stack.enter_context(each)
        settings = stack.enter_context(reads_of(module))
        program = torch.export.export(
            flat, detached, dynamic_shapes={"tensors": tuple(sizes)}, strict=False
        )
    _refuse_sparse(program.graph)
    detach_without_grad(program.graph_module)
    written = _written(program, any(t.is_cuda for t in detached))
    assert written.exported_program is not None
    signature = written.exported_program.graph_signature
    _refuse_changes(signature)
    moved = {name.removeprefix(PREFIX) for name in signature.buffers_to_mutate.values()}
    changed = [name for name in flat.names if name in moved]
    graph = written.model.graph
    first = len(graph.outputs) - len(flat.names)
    new = zip(flat.names, graph.outputs[first:], strict=True)
    kept = [*graph.outputs[:first], *(value for name, value in new if name in moved)]
    graph.outputs.clear()
    graph.outputs.extend(kept)
    state = {*signature.parameters, *signature.buffers, *signature.lifted_tensor_constants}
    own = {name: name.removeprefix(PREFIX) for name in graph.initializers if name in state}
    parts = dict(module.named_modules(remove_duplicate=False))
    found = {name: tensor_of(parts, path) for name, path in own.items()}
    devices = {t.device for t in (*module.parameters(), *tensors)}  # a number may lie elsewhere
    there = {name: t for name, t in found.items() if t is not None and t.device in devices}
    stored = {name: own[name] for name in there}
    kinds = {own[name]: kind_of(tensor) for name, tensor in there.items()}
    _refuse_trained(program.constants, stored)
    return Exported(written.model, stored, kinds, changed, results[-1], settings)


def tensor_of(parts: Mapping[str, nn.Module], name: str) -> Tensor | None:
    """A parameter, a buffer or another attribute by its name; None if it is no tensor.

    Attributes are tensors as well, such as a weight that a hook computes before each call.
    """
    path, _, own = name.rpartition(".")
    found = getattr(parts.get(path), own, None)
    return found if isinstance(found, Tensor) else None


def kind_of(tensor: Tensor | None) -> Hashable:
    """What a graph knows of a tensor of the module."""
    if tensor is None:
        return None
    trained = tensor.requires_grad and torch.is_grad_enabled()
    return tensor.shape, tensor.dtype, tensor.device, trained


def _refuse_trained(constants: Mapping[str, Any], stored: Collection[str]) -> None:
    """Raise GraphError if a constant should have a gradient."""
    for name, value in constants.items():
        if isinstance(value, Tensor) and value.requires_grad and name not in stored:
            raise GraphError(
                "a call reads a tensor with a gradient that is no attribute of a module\n"
                "  register it as a parameter"
            )


def _written(program: torch.export.ExportedProgram, on_gpu: bool) -> torch.onnx.ONNXProgram:
    """A program as ONNX; what the exporter cannot write is called by nodes."""
    for _ in range(MOST_LEFT_OUT):
        try:
            written = torch.onnx.export(
                program,
                dynamo=True,
                optimize=False,
                verbose=False,
                custom_translation_table=translated(on_gpu),
            )
        except Exception as error:
            if (target := left_out(error)) is None:
                raise
            program = called_by_nodes(program, target)
        else:
            assert written is not None
            return written
    raise GraphError(f"more than {MOST_LEFT_OUT} operators of torch have no translation into ONNX")


def _refuse_sparse(graph: torch.fx.Graph) -> None:
    """Raise GraphError if a gradient is to be sparse."""
    for node in graph.nodes:
        schema = getattr(node.target, "_schema", None)
        names = [argument.name for argument in schema.arguments] if schema is not None else []
        if {**dict(zip(names, node.args, strict=False)), **node.kwargs}.get("sparse"):
            raise GraphError(
                "an embedding has sparse=True, and gradients of a graph are not sparse\n"
                "  make it with sparse=False"
            )


def _refuse_changes(signature: torch.export.ExportGraphSignature) -> None:
    """Raise GraphError if a call changes tensors other than buffers."""
    names = [f"the parameter '{name}'" for name in signature.parameters_to_mutate.values()]
    changed = [*names, *("an argument" for _ in signature.user_inputs_to_mutate)]
    if changed:
        what = changed[0].replace(PREFIX, "")
        raise GraphError(f"a call changes {what} in place, which a graph does not")


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
def as_before(module: nn.Module) -> Iterator[None]:
    """With: no random numbers of torch are drawn and buffers are left as they are, it seems."""
    devices = {t.device for t in (*module.parameters(), *module.buffers()) if t.is_cuda}
    buffers = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        with torch.no_grad():
            for buffer, value in buffers:
                if not torch.equal(buffer, value):
                    buffer.copy_(value)
