"""An exported module with its gradients as a program, called by torch's autograd."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Sequence
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from onnxtrain.errors import OptionError, ParameterError
from onnxtrain.graph.prepare import prepare
from onnxtrain.graph.torch_export.traced import is_detached
from onnxtrain.graph.walk import all_nodes, bodies_of
from onnxtrain.kernels.library import default_registry
from onnxtrain.ortmodule.export import Exported
from onnxtrain.ortmodule.graph_optimizer_registry import edited
from onnxtrain.runtime.heap import keep_freed
from onnxtrain.runtime.lower import LowerOptions
from onnxtrain.runtime.plan import Plan
from onnxtrain.runtime.program import Program
from onnxtrain.runtime.ready import planned
from onnxtrain.transforms.fusion import Fusion
from onnxtrain.transforms.mode import TrainingForm
from onnxtrain.transforms.recipe import Waiting, make_lean
from onnxtrain.transforms.training_graph import (
    build_open_model,
    initializers_as_constants,
    parameters_to_inputs,
    set_outputs,
)
from onnxtrain.types import CPU, CUDA, FLOATS


@dataclasses.dataclass
class Session:
    """What runs a module for arguments of one kind.

    Attributes:
        exported: The module as a graph.
        model: What is run: the module, and its gradients behind a YieldOp if some are wanted.
        program: The model as a program.
        inputs: Names of its inputs: arguments, then what the module stores.
        wanted: Inputs that have a gradient, in the order in which the program gives them.
        outputs: Where each output of the module is among those that differ.
        reached: Of each of these the inputs that it has a gradient for; none if it has none.
    """

    exported: Exported
    model: ir.Model
    program: Program
    inputs: list[str]
    wanted: list[str]
    outputs: list[int]
    reached: list[set[str]]

    @classmethod
    def of(
        cls,
        exported: Exported,
        wanted: Collection[str],
        device: torch.device,
        again: str | None = None,
        kind: str = "",
    ) -> Session:
        """Plan a module; with gradients of those inputs that are wanted.

        What the backward pass computes ``again`` is one of ``transforms.recompute.WAYS``; ``kind``
        is the name of the module's class, for which functions may be registered.

        Raises:
            OnnxTrainError: if an operator has no kernel or no gradient.
        """
        model = initializers_as_constants(exported.model.clone())
        given = [str(value.name) for value in model.graph.inputs]
        parameters_to_inputs(model, exported.stored)
        prepare(model)
        names = [str(value.name) for value in model.graph.outputs]
        different = list(dict.fromkeys(names))
        own = names[: len(names) - len(exported.changed)]
        reached = reached_by(model.graph, wanted)
        form, found = TrainingForm(as_marked=True), []
        if wanted:
            try:
                found = build_open_model(
                    model,
                    wrt=list(wanted),
                    outputs=different,
                    constant=set(names).difference(own),
                    form=form,
                    fusion=Fusion({}),
                )
            except ParameterError:  # outputs depend on none of them: all is drawn, or detached
                return cls.of(exported, [], device)
            model = edited(model, kind, device.type)
        else:
            set_outputs(model.graph, different)
            form(model)
        on_gpu = device.type == "cuda"
        waiting = Waiting(recompute=again)
        make_lean(model, on_gpu=on_gpu, compiled=on_gpu, waiting=waiting, trained=wanted)
        plan = planned(model, default_registry(), LowerOptions(CUDA if on_gpu else CPU))
        keep_freed(device)
        program = Program(plan, device, seed=0)
        kept = [argument.name for argument in plan.inputs]
        assert kept[: len(given)] == given
        places = [different.index(name) for name in names]
        each = [reached[names.index(name)] for name in different]
        return cls(exported, model, program, kept, found, places, each)

    def run(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Outputs of the module, for tensors in the order of the inputs.

        Random numbers follow from torch's: a seed of its own is drawn for each call.
        """
        if self.draws:
            self.program.seed(int(torch.randint(1 << 62, ())))
        if self.wanted:
            again = self.overwritten
            kept = [t.clone() if i in again else t for i, t in enumerate(tensors)]
            found = _Step.apply(self, *kept)
        else:
            found = self.program(*[t.detach() for t in tensors])
        return [found[place] for place in self.outputs]

    def tried(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Outputs as ``run`` gives them, without a backward pass and with other random numbers."""
        if not self.wanted:
            found = self.program(*tensors)
        else:
            found, _ = self.program.start(*tensors)
        return [found[place] for place in self.outputs]

    @functools.cached_property
    def draws(self) -> bool:
        """Whether the program draws random numbers."""
        steps = self.program.plan.block.walk()
        return any(text.startswith("rng") for step in steps for text in step.keywords.values())

    @functools.cached_property
    def read_later(self) -> tuple[list[int], list[int]]:
        """Places of inputs, and of outputs that are handed out, that the backward pass reads."""
        return _read_later(self.program.plan)

    @functools.cached_property
    def overwritten(self) -> set[int]:
        """Places of buffers that the backward pass reads as they were before the call."""
        places, _ = self.read_later
        own = self.exported
        return {i for i in places if own.stored.get(self.inputs[i]) in own.changed}


def reached_by(graph: ir.Graph, names: Collection[str]) -> list[set[str]]:
    """Of each output the inputs of these names that a gradient of it goes back to.

    None goes through whole numbers, comparisons and what is detached.
    """
    known: dict[ir.Value, frozenset[str]] = {
        value: frozenset([str(value.name)]) for value in graph.inputs if value.name in names
    }
    for node in graph:
        inside = [part for body in bodies_of(node) for part in all_nodes(body)]
        inner = [value for part in (node, *inside) for value in part.inputs]
        found = [known[value] for value in inner if value is not None and value in known]
        together = frozenset().union(*found)
        if together and not is_detached(node):
            real = [value for value in node.outputs if value.dtype in (None, *FLOATS)]
            known.update(dict.fromkeys(real, together))
    return [set(known.get(value, ())) for value in graph.outputs]


def _read_later(plan: Plan) -> tuple[list[int], list[int]]:
    steps = plan.block.steps
    middle = next(i for i, step in enumerate(steps) if step.kernel.special == "yield")
    later = {name for step in steps[middle + 1 :] for name in step.reads_all}
    inputs = [place for place, argument in enumerate(plan.inputs) if argument.local in later]
    handed = [place for place, name in enumerate(steps[middle].reads) if name in later]
    return inputs, handed


class _Step(torch.autograd.Function):
    """The forward pass up to the YieldOp; the backward pass is the rest of the program."""

    @staticmethod
    def forward(ctx: Any, session: Session, *tensors: Tensor) -> tuple[Tensor, ...]:
        given = [tensor.detach() for tensor in tensors]
        handed, running = session.program.start(*given)
        own = {tensor.data_ptr() for tensor in given}
        outputs = tuple(_apart(t, own) for t in handed)
        ctx.session, ctx.running = session, running
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(
            *(t for t, names in zip(outputs, session.reached, strict=True) if not names)
        )
        inputs, places = session.read_later
        # only to be told if somebody has changed them meanwhile
        ctx.save_for_backward(*(tensors[i] for i in inputs), *(outputs[i] for i in places))
        ctx.kinds = [(t.shape, t.dtype, t.device) for t in outputs]
        return outputs

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        session, running = ctx.session, ctx.running
        if running is None:
            raise OptionError(
                "a module keeps what its backward pass needs for one of them\n"
                "  call the module once more, or keep the torch module for retain_graph"
            )
        _ = ctx.saved_tensors
        ctx.running = None
        given = [_given(grad, kind) for grad, kind in zip(grads, ctx.kinds, strict=True)]
        found = dict(zip(session.wanted, session.program.finish(running, given), strict=True))
        pairs = zip(session.reached, grads, strict=True)
        alive = set[str]().union(*(names for names, grad in pairs if grad is not None))
        return (None, *(found.get(name) if name in alive else None for name in session.inputs))


def _apart(tensor: Tensor, own: Collection[int]) -> Tensor:
    """An output as an object of its own, and with memory of its own where it is an input.

    Torch lets the object lead to the backward pass, which keeps those that the program made:
    handed out themselves, they would keep one another for ever.
    """
    is_input = bool(tensor.numel()) and tensor.data_ptr() in own
    return tensor.clone() if is_input else tensor.detach()


def _given(grad: Tensor | None, kind: tuple[Any, ...]) -> Tensor | None:
    """The gradient of an output; zeros if nothing depends on it."""
    shape, dtype, device = kind
    if not dtype.is_floating_point:
        return None
    if grad is None:
        return torch.zeros(shape, dtype=dtype, device=device)
    return grad.detach().contiguous()
