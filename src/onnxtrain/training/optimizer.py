"""Optimizer: runs the optimizer model over a module's parameters and gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch

from onnxtrain.errors import CheckpointError, ModelError, OptionError
from onnxtrain.graph.loading.load import ModelLike, load_model
from onnxtrain.graph.prepare import prepare
from onnxtrain.kernels.library import default_registry
from onnxtrain.onnxblock.numbers import number_of
from onnxtrain.runtime.capture import Recorder
from onnxtrain.runtime.lower import LowerOptions
from onnxtrain.runtime.plan import Plan
from onnxtrain.runtime.program import Program
from onnxtrain.runtime.ready import planned
from onnxtrain.training.checkpoint import OptimizerState, Parameter
from onnxtrain.training.module import Module
from onnxtrain.training.runner import provider_of
from onnxtrain.transforms.backward.clipping import fold_clipping, reads_only
from onnxtrain.types import MS, DataType

MOMENTS = {"first_order_moments": "momentum0", "second_order_moments": "momentum1"}
"""Inputs of optimizer models that carry state, and its names in checkpoints."""
_NEEDED = ("learning_rate", "params", "gradients")
_INPUTS = ("learning_rate", "step", "params", "gradients", *MOMENTS)
_NUMBERS = {"learning_rate": torch.float32, "step": torch.int64}
_SIGNAL = {"AdamWOptimizer": 6, "SGDOptimizerV2": 3}
"""Which input of an optimizer can tell it to leave everything as it is."""
SIGNAL = "update_signal"
"""Input of optimizer models that is false where gradients overflowed and the step is skipped."""
_UPDATES = (*_SIGNAL, "LambOptimizer", "Momentum", "Adam", "Adagrad")
"""Operators that tell one kind of optimizer from another."""
_COPIES = {"AdamWOptimizer": 7}
"""Which input of an optimizer takes copies of the weights, to write them with the weights."""
COPIES = "copies"
_UPDATED = "updated_"
"""Outputs of optimizer models that do not update in place: new values of the input so called."""


class Optimizer:
    """Updates a module's parameters.

    Args:
        optimizer_uri: The optimizer model: a path, or the model itself.
        module: Whose parameters it updates.

    Attributes:
        kind: Operators that it updates by; empty for an optimizer of other nodes.
        program: Updates from the gradients in the buffers of the parameters, and clips those.
        direct: Updates from gradients of any type that it only reads; None if it cannot.

    Raises:
        OptionError: if there is no module.
        ModelError: if the model is no optimizer model.
    """

    def __init__(self, optimizer_uri: ModelLike, module: Module) -> None:
        if not isinstance(module, Module):
            raise OptionError(f"an optimizer updates a Module, not {module!r}")
        self._module = module
        model = prepare(load_model(optimizer_uri, own=True))
        names = [str(v.name) for v in model.graph.inputs]
        _check_inputs(names)
        self.kind = _kind(model)
        self._scaling = module.scaling
        if self._scaling is not None:
            guard(model)
        self._copies = write_copies(model) if module.copies.pairs() else False
        self._moments = [name for name in MOMENTS if name in names]
        self.direct = None if self._scaling else _direct(model.clone(), module.device)
        plan = planned(model, default_registry(), LowerOptions(provider_of(module.device)))
        self.program = Program(plan, module.device)
        self._numbers = {
            a.name: torch.zeros(
                1, dtype=_NUMBERS[a.name], device="cpu" if a.host else module.device
            )
            for a in plan.inputs
            if a.name in _NUMBERS
        }
        self.why_not = unrecordable(model, plan)
        self._certain = self._scaling is not None or always_true(model.graph.outputs[0])
        self._lists: dict[str, list[torch.Tensor]] | None = None
        self.recorder: Recorder | None = None
        state = module.state
        state.optimizer = state.optimizer or OptimizerState()
        self.state = state.optimizer
        if not state.parameters.nominal:
            self._bind()

    def _bind(self) -> dict[str, list[torch.Tensor]]:
        """The lists that the optimizer model works on; moments are made where there are none."""
        self._module.state.parameters.require_values()
        trained = self._module.parameters_in_order(trainable_only=True)
        known, keys = self.state.moments, [MOMENTS[name] for name in self._moments]
        if known:
            _check_moments(known, trained, keys)
        for parameter in trained:
            own = known.setdefault(parameter.name, {})
            for key in keys:
                old = own.get(key)
                if old is None:
                    own[key] = torch.zeros_like(parameter.tensor)
                else:
                    own[key] = old.to(self._module.device)
        recorder = self._module.runner(training=True).recorder
        if recorder is not None:
            self.recorder = Recorder(
                self.update, [0], [self.program], graphs=recorder.graphs, why_not=self.why_not
            )
        self._lists = {
            "params": [p.tensor for p in trained],
            "gradients": [p.grad_tensor for p in trained if p.grad_tensor is not None],
            **{name: [known[p.name][MOMENTS[name]] for p in trained] for name in self._moments},
        }
        if self._copies:
            self._lists[COPIES] = self._module.copies.of(self._lists["params"])
        return self._lists

    def step(self) -> None:
        """Update every trained parameter from its gradient."""
        self.begin()
        [done] = [self.update()[0]] if self.recorder is None else self.recorder.run(())
        self.end(done)

    def begin(self) -> None:
        """Hand over the learning rate and the number of the step; the device is not waited for."""
        if self._lists is None:
            self._bind()
        values = {"learning_rate": self.state.learning_rate, "step": self.state.step + 1}
        for name, number in self._numbers.items():
            number.fill_(values[name])

    def update_from(self, gradients: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor]:
        """Like ``update``, with gradients by name of their parameters instead of the buffers."""
        assert self.direct is not None
        trained = self._module.parameters_in_order(trainable_only=True)
        lists = {**(self._lists or {}), "gradients": [gradients[p.name] for p in trained]}
        feeds: dict[str, Any] = {**self._numbers, **lists}
        done = self.direct(*(feeds[a.name] for a in self.direct.plan.inputs))[0]
        if not self._copies:
            self._module.copies.follow()
        return (done,)

    def update(self) -> tuple[torch.Tensor]:
        """Change parameters and moments; gives a flag that tells whether that was done."""
        lists = self._lists or {}
        feeds: dict[str, Any] = {**self._numbers, **lists}
        scaling = self._scaling
        if scaling is not None:
            scaling.unscale(lists["gradients"])
            feeds[SIGNAL] = scaling.finite
            if "step" in feeds:
                feeds["step"] = feeds["step"] - scaling.skipped.to(feeds["step"].device)
        done, *rest = self.program(*(feeds[a.name] for a in self.program.plan.inputs))
        for output, tensors in zip(self.program.plan.outputs[1:], rest, strict=True):
            if output.name.startswith(_UPDATED):
                own = lists[output.name.removeprefix(_UPDATED)]
                new = tensors if scaling is None else scaling.chosen(tensors, own)
                torch._foreach_copy_(own, new)
        if scaling is not None:
            scaling.update()
        if not self._copies:
            self._module.copies.follow()
        return (done,)

    def end(self, done: torch.Tensor) -> None:
        """Count the step, unless the optimizer model says that it left everything as it was."""
        self._module.copies.mark()
        if self._certain or bool(done.all()):
            self.state.step += 1

    def set_learning_rate(self, learning_rate: float) -> None:
        """Set the learning rate from the next step on.

        Raises:
            OptionError: if it is no finite number.
        """
        rate = number_of(learning_rate)
        if rate is None:
            raise OptionError(f"a learning rate must be a finite number, not {learning_rate!r}")
        self.state.learning_rate = rate

    def get_learning_rate(self) -> float:
        """The learning rate in use."""
        return self.state.learning_rate

    @property
    def steps_taken(self) -> int:
        """How many updates were made; waits for the device where the loss is scaled."""
        return self.state.step - (0 if self._scaling is None else int(self._scaling.skipped))


def _kind(model: ir.Model) -> str:
    found = {node.op_type for node in model.graph if node.op_type in _UPDATES}
    return ", ".join(sorted(found))


def _direct(model: ir.Model, device: torch.device) -> Program | None:
    """The program of an optimizer model that only reads gradients; None if it writes them."""
    fold_clipping(model)
    if len(model.graph.outputs) != 1 or not reads_only(model):
        return None
    plan = planned(model, default_registry(), LowerOptions(provider_of(device)))
    return Program(plan, device)


def guard(model: ir.Model) -> None:
    """Give an optimizer model an input that tells it whether to update, in place.

    Raises:
        ModelError: if it updates by an operator that cannot be told.
    """
    signal = ir.val(SIGNAL, DataType.BOOL, [1])
    updated = [v.name for v in model.graph.outputs if str(v.name).startswith(_UPDATED)]
    told = [n for n in model.graph if n.domain == MS and n.op_type in _SIGNAL]
    for node in told:
        node.resize_inputs(_SIGNAL[node.op_type] + 1)
        node.replace_input_with(_SIGNAL[node.op_type], signal)
    if not told and not updated:
        raise ModelError(
            "the loss cannot be scaled: the optimizer model has no operator that can skip a step\n"
            f"  it needs {' or '.join(_SIGNAL)}, or outputs named {_UPDATED}..."
        )
    if told:
        model.graph.inputs.append(signal)


def write_copies(model: ir.Model) -> bool:
    """Let the update write copies of the parameters as well, in place; whether it can."""
    params = next(v for v in model.graph.inputs if v.name == "params")
    nodes = [n for n in model.graph if n.domain == MS and n.op_type in _COPIES]
    if len(nodes) != 1 or params not in nodes[0].inputs:
        return False
    copies = ir.Value(name=COPIES, type=params.type)
    nodes[0].resize_inputs(_COPIES[nodes[0].op_type] + 1)
    nodes[0].replace_input_with(_COPIES[nodes[0].op_type], copies)
    model.graph.inputs.append(copies)
    return True


def unrecordable(model: ir.Model, plan: Plan) -> str | None:
    """Why updates cannot be recorded that the plan alone does not show; None if they can."""
    if not always_true(model.graph.outputs[0]) and SIGNAL not in {a.name for a in plan.inputs}:
        return "whether the optimizer updates depends on values"
    read = [a.name for a in plan.inputs if a.host]
    return f"the host reads '{read[0]}' of the optimizer" if read else None


def always_true(flag: ir.Value) -> bool:
    """Whether an optimizer model always updates, as far as its graph tells."""
    node = flag.producer()
    if node is None:
        return False
    if node.op_type == "Equal":
        return node.inputs[0] is node.inputs[1]
    at = _SIGNAL.get(node.op_type) if node.domain == MS else None
    return at is not None and (len(node.inputs) <= at or node.inputs[at] is None)


def _check_inputs(names: Sequence[str]) -> None:
    wrong = [f"unknown input '{name}'" for name in names if name not in _INPUTS]
    wrong += [f"no input '{name}'" for name in _NEEDED if name not in names]
    if wrong:
        raise ModelError(
            f"not an optimizer model: {', '.join(wrong[:8])}\n"
            f"  inputs must be among {', '.join(_INPUTS)}"
        )


def _check_moments(
    known: dict[str, dict[str, torch.Tensor]], trained: Sequence[Parameter], keys: Sequence[str]
) -> None:
    """A checkpoint must have all of the state that the optimizer needs, in the right shapes."""
    if missing := [p.name for p in trained if p.name not in known]:
        raise CheckpointError(
            f"the checkpoint has no optimizer state for {', '.join(map(repr, missing[:8]))}"
        )
    for parameter in trained:
        own = known[parameter.name]
        if lacking := [key for key in keys if key not in own]:
            raise CheckpointError(
                f"the checkpoint was made with another optimizer: it has no {lacking[0]} "
                f"for '{parameter.name}'\n"
                "  go on with that optimizer, or save the checkpoint without optimizer state"
            )
        for key in keys:
            if own[key].shape != parameter.tensor.shape:
                raise CheckpointError(
                    f"optimizer state of '{parameter.name}' has shape {list(own[key].shape)}, "
                    f"the parameter {list(parameter.tensor.shape)}"
                )
