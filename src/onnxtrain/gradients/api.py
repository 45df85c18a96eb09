"""Gradient graphs for users: a model in, the same model with gradients among its outputs out."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Collection, Iterable, Mapping, Sequence

import onnx
import onnx_ir as ir

from onnxtrain.errors import GraphError, ParameterError
from onnxtrain.files.atomic import atomic_write
from onnxtrain.gradients.bodies import expand_without_rule
from onnxtrain.gradients.engine import backward, can_carry_gradient, seed_of
from onnxtrain.gradients.signals import is_signal
from onnxtrain.graph.bodies import body_tensors
from onnxtrain.graph.builder import Ops
from onnxtrain.graph.edit import value_names
from onnxtrain.graph.later import collecting_later
from onnxtrain.graph.lift import lift
from onnxtrain.graph.loading.load import ModelLike, load_model
from onnxtrain.graph.names import nearest, trainable
from onnxtrain.graph.prepare import prepare
from onnxtrain.graph.torch_export.detached import restore_detached
from onnxtrain.graph.verify import verify
from onnxtrain.graph.walk import all_nodes
from onnxtrain.types import type_string

_SHOWN = 20
"""How many names an error lists of each kind."""


def build_gradient_graph(
    model: ModelLike,
    xs: str | Iterable[str],
    ys: str | Iterable[str] = (),
    loss: str | None = None,
    *,
    allow_unused: bool = False,
) -> onnx.ModelProto:
    """A model that computes what a model does and, besides, gradients.

    The gradient of x is the output ``<x>_grad``; a name that is taken is numbered (``x_grad.2``),
    as it is when the result is differentiated again. All of them follow the model's own outputs,
    in the order of ``xs``. Functions are inlined and weights stay initializers.

    Args:
        model: Path, bytes, ``onnx.ModelProto`` or ``onnx_ir.Model``; it is not changed.
        xs: Weights, inputs or inner values whose gradients are wanted. Weights in the bodies of
            If, Loop and Scan or of the model's functions are among them: they become
            initializers, and one whose name something else has is numbered (``w_2``). The signal
            that a Recv waits for is one too: its gradient says that the gradients were sent.
        ys: Values whose gradients come from outside: each gives the model an input ``<y>_grad``,
            and what comes out is the sum over all ys of the vector-Jacobian products.
        loss: A value of one element, whose gradient is 1, or the signal of a Send.
        allow_unused: Leave out an x that nothing depends on, instead of refusing it.

    Raises:
        GraphError: if ys or the loss are not in the graph, or not floating point tensors.
        LossError: if the loss has more than one element.
        NoGradientError: if an operator in the way has no gradient rule.
        ParameterError: if an x is not in the graph or not floating point, or nothing depends on it.
    """
    return gradient_graph(model, xs, ys, loss, allow_unused=allow_unused).model


@dataclasses.dataclass(frozen=True)
class GradientGraph:
    """A model with gradients, and the names that they got.

    Attributes:
        model: The model.
        grads: Name of the gradient of each x.
        seeds: Name of the input for the gradient of each y.
    """

    model: onnx.ModelProto
    grads: dict[str, str]
    seeds: dict[str, str]


@collecting_later()
def gradient_graph(
    model: ModelLike,
    xs: str | Iterable[str],
    ys: str | Iterable[str] = (),
    loss: str | None = None,
    *,
    allow_unused: bool = False,
) -> GradientGraph:
    """Like ``build_gradient_graph``, for callers that need the names."""
    wanted, given = _names(xs), [y for y in _names(ys) if y != loss]
    if not given and loss is None:
        raise GraphError("nothing to differentiate: give the names of some ys, or of a loss")
    working = load_model(model, own=True)
    verify(working)
    inside = [one.name for one in body_tensors(working)]
    lift(working, lambda one: one.name in wanted)
    ir.external_data.load_to_model(prepare(working))
    restore_detached(working.graph)
    expand_without_rule(working, wanted, given if loss is None else [*given, loss])
    graph = working.graph
    named = _Named(graph, inside)
    x_values = named.find(wanted, ParameterError)
    y_values = named.find(given, GraphError)
    losses = named.find([] if loss is None else [loss], GraphError)
    inputs = {y: _seed_input(graph, y) for y in y_values}
    seeds = inputs | {y: seed_of(graph, y) for y in losses}
    grads = backward(graph, x_values, seeds)
    if not allow_unused:
        _check_reached(x_values, grads, [*losses, *y_values])
    returned = _return(graph, grads, set(seeds.values()))
    _distinct_nodes(graph)
    return GradientGraph(ir.to_proto(working), _by_name(returned), _by_name(inputs))


def _by_name(grads: Mapping[ir.Value, ir.Value]) -> dict[str, str]:
    return {str(value.name): str(grad.name) for value, grad in grads.items()}


def _names(given: str | Iterable[str]) -> list[str]:
    return [given] if isinstance(given, str) else list(dict.fromkeys(given))


class _Named:
    """The values of a graph by name.

    Args:
        graph: The graph.
        inside: Names of weights in bodies, which can be asked for as well.
    """

    def __init__(self, graph: ir.Graph, inside: Sequence[str]) -> None:
        self.graph, self.inside = graph, inside
        values = [*graph.inputs, *graph.initializers.values()]
        values += [value for node in graph for value in node.outputs]
        self.values = {value.name: value for value in values if value.name}

    def find(
        self, names: Sequence[str], refusal: type[GraphError] | type[ParameterError]
    ) -> list[ir.Value]:
        """The floating point values of these names."""
        if unknown := [name for name in names if name not in self.values]:
            raise refusal(
                f"the graph has no value {', '.join(map(repr, unknown))}\n{self._have(unknown)}"
            )
        for name in names:
            if not can_carry_gradient(self.values[name]) and not is_signal(self.values[name]):
                raise refusal(
                    f"'{name}' is {type_string(self.values[name].type)}, which has no gradient\n"
                    "  only floating point tensors have one"
                )
        return [self.values[name] for name in names]

    def _have(self, wanted: Sequence[str]) -> str:
        constants = self.graph.initializers
        inputs = [str(v.name) for v in self.graph.inputs if v.name not in constants]
        kinds = {
            "inputs": inputs,
            "weights": trainable(
                (n, v.dtype) for n, v in constants.items() if n not in self.inside
            ),
            "weights in bodies": self.inside,
            "inner values": [n for n in self.values if n not in {*inputs, *constants}],
        }
        lines = [f"  {kind}  {nearest(wanted, names)}" for kind, names in kinds.items() if names]
        return "\n".join(lines)


def _seed_input(graph: ir.Graph, y: ir.Value) -> ir.Value:
    """An input for the gradient of y."""
    name = _numbered(f"{y.name}_grad", graph)
    seed = ir.Value(name=name, type=y.type, shape=y.shape)
    graph.inputs.append(seed)
    return seed


def _numbered(name: str, graph: ir.Graph) -> str:
    """A name that is free; numbered with a dot, since ``x_grad_1`` is a summand of ``x_grad``."""
    taken = value_names(graph)
    numbers = (f"{name}.{number}" for number in itertools.count(2))
    return next(free for free in itertools.chain([name], numbers) if free not in taken)


def _check_reached(
    xs: Sequence[ir.Value], grads: Collection[ir.Value], ys: Sequence[ir.Value]
) -> None:
    if lost := [str(x.name) for x in xs if x not in grads]:
        shown = ", ".join(map(repr, lost[:_SHOWN]))
        ends = " or ".join(repr(y.name) for y in ys)
        raise ParameterError(
            f"no gradient for {shown}: {ends} does not depend on it in a differentiable way\n"
            "  leave it out, or allow it with allow_unused=True"
        )


def _return(
    graph: ir.Graph, grads: Mapping[ir.Value, ir.Value], seeds: Collection[ir.Value]
) -> dict[ir.Value, ir.Value]:
    """Make gradients the last outputs of a graph, each under a name of its own."""
    returned = {}
    for x, grad in grads.items():
        name = f"{x.name}_grad"
        if grad in seeds:
            grad = _copy(graph, x, grad)
        if grad.name != name:
            grad.name = _numbered(name, graph)
        graph.outputs.append(grad)
        returned[x] = grad
    return returned


def _distinct_nodes(graph: ir.Graph) -> None:
    """Number nodes whose name an earlier gradient graph gave already, since errors name nodes."""
    taken: set[str] = set()
    counts: dict[str, int] = {}
    for node in all_nodes(graph):
        name = str(node.name)
        while node.name in taken:
            counts[name] = counts.get(name, 1) + 1
            node.name = f"{name}.{counts[name]}"
        taken.add(str(node.name))


def _copy(graph: ir.Graph, x: ir.Value, grad: ir.Value) -> ir.Value:
    """An Identity, since what comes in cannot also be what goes out."""
    op = Ops(graph, f"{x.name}_Grad/")
    copied: ir.Value = op.Identity(grad)
    graph.extend(op.nodes)
    return copied


class GradientGraphBuilder:
    """Builds a gradient graph, with the reference's interface.

    Args:
        serialized_model: The model, serialized.
        y_names: Values whose gradients come in; without a loss as inputs ``<y>_grad``.
        x_names: Values whose gradients are wanted, as outputs ``<x>_grad``.
        loss_name: The loss, whose gradient is 1; empty if there is none.
        options: Taken and not used.
    """

    def __init__(
        self,
        serialized_model: ModelLike,
        y_names: Collection[str],
        x_names: Collection[str],
        loss_name: str = "",
        options: object = None,
    ) -> None:
        self._model = serialized_model
        self._ys, self._xs = sorted(y_names), sorted(x_names)
        self._loss = loss_name or None
        self._built: onnx.ModelProto | None = None

    def build(self) -> None:
        """Differentiate the model."""
        self._built = build_gradient_graph(self._model, self._xs, self._ys, self._loss)

    def get_model(self) -> bytes:
        """The model with gradients, serialized.

        Raises:
            GraphError: before ``build``.
        """
        if self._built is None:
            raise GraphError("there is no gradient graph yet\n  call build() first")
        return bytes(self._built.SerializeToString())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model with gradients to a file; a crash leaves the old file or the new one.

        Raises:
            GraphError: before ``build``.
            SaveError: if the file cannot be written.
        """
        atomic_write(path, self.get_model())
