"""The training graph: forward, loss, backward and accumulation, in the reference's contract.

Inputs, in order: the user's, the parameters, one ``<p>_grad.accumulation.buffer`` per trainable
parameter, and ``lazy_reset_grad``. Outputs: the loss, other outputs, and one
``<p>_grad.accumulation.out`` per trainable parameter.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence

import onnx_ir as ir
import onnx_ir.passes.common as passes

from onnxtrain.errors import GraphError, LossError, ParameterError
from onnxtrain.gradients.bodies import expand_without_rule
from onnxtrain.gradients.engine import backward, can_carry_gradient, seed_of
from onnxtrain.graph.edit import declare_constant, remove_dead, value_names
from onnxtrain.graph.names import is_generated, listed, nearest
from onnxtrain.graph.names import trainable as trainable_names
from onnxtrain.graph.phase import Phase, mark
from onnxtrain.graph.prepare import prepare
from onnxtrain.graph.torch_export.detached import restore_detached
from onnxtrain.transforms.mode import EvaluationForm, TrainingForm
from onnxtrain.transforms.precision import Narrowing
from onnxtrain.types import MS, ONNX, DataType, type_string

BUFFER_SUFFIX = "_grad.accumulation.buffer"
FLAG_SUFFIX = "_grad.accumulation.out"
RESET_INPUT = "lazy_reset_grad"
SCALE_INPUT = "loss_scale"
"""The gradient of the loss, where that is an input: all gradients are multiplied by it."""
_CONSTANTS_SINCE = 4
"""The first IR version whose initializers need not be inputs too."""


@dataclasses.dataclass(frozen=True)
class TrainingModels:
    """What training needs: the step's graph, the graph for evaluation, and what is trained."""

    training: ir.Model
    evaluation: ir.Model
    trained: list[str]


def initializers_as_constants(model: ir.Model) -> ir.Model:
    """Take initializers off the list of inputs, where old IR versions wanted them, in place."""
    passes.RemoveInitializersFromInputsPass()(model)
    model.ir_version = max(model.ir_version, _CONSTANTS_SINCE)
    return model


def parameters_to_inputs(model: ir.Model, names: Collection[str]) -> None:
    """Turn initializers into the last inputs, in initializer order; their values are left out.

    Raises:
        ParameterError: if a name is neither an initializer nor an input.
    """
    graph = model.graph
    given = {value.name for value in graph.inputs}
    if unknown := sorted(set(names) - set(graph.initializers) - given):
        have = trainable_names((name, v.dtype) for name, v in graph.initializers.items())
        raise ParameterError(
            f"the model has no parameter {listed(map(repr, unknown))}\n"
            f"  have  {nearest(unknown, have)}"
        )
    for name in [n for n in graph.initializers if n in names]:
        value = graph.initializers[name]
        declare_constant(value)
        del graph.initializers[name]
        value.const_value = None
        if value.is_graph_input():
            graph.inputs.remove(value)
        graph.inputs.append(value)


def build_models(
    model: ir.Model,
    *,
    trainable: Sequence[str],
    outputs: Sequence[str],
    form: TrainingForm | None = None,
    optional: Collection[str] = (),
    narrowing: Narrowing | None = None,
    fusion: Callable[[ir.Model], None] | None = None,
    scaled: bool = False,
) -> TrainingModels:
    """Training and evaluation models of a model whose parameters are inputs already.

    Args:
        model: Forward graph with the loss in it; it becomes the training model.
        trainable: Inputs whose gradients are accumulated.
        outputs: Names of the outputs; the first one is the loss.
        form: How the model is put into training form.
        optional: Trainable inputs that are left out if the loss does not depend on them.
        narrowing: How the training model computes in 16 bits; the evaluation model never does.
        fusion: Fuses nodes of the training model; the evaluation model keeps its own.
        scaled: Whether the training model has an input ``loss_scale``.

    Raises:
        LossError: if the first output is not a floating point scalar.
        NoGradientError: if an operator in the way has no gradient rule.
        ParameterError: if the loss does not depend on a trainable parameter.
    """
    evaluation = _both_forms(model, outputs, form, narrowing, fusion)
    expand_without_rule(model, trainable, outputs)
    graph = model.graph
    loss = graph.outputs[0]
    seed = _scale_input(graph, loss) if scaled else seed_of(graph, loss)
    grads = differentiate(graph, trainable, {loss: seed}, optional)
    return _finished(model, evaluation, grads)


def build_split_model(
    model: ir.Model,
    *,
    trainable: Sequence[str],
    outputs: Sequence[str],
    form: TrainingForm | None = None,
    optional: Collection[str] = (),
    narrowing: Narrowing | None = None,
    fusion: Callable[[ir.Model], None] | None = None,
) -> TrainingModels:
    """Like ``build_models``, but the gradients of the outputs come from outside in mid-step.

    The graph hands its outputs out with a YieldOp and gets their gradients back.
    """
    evaluation = _both_forms(model, outputs, form, narrowing, fusion)
    expand_without_rule(model, trainable, outputs)
    graph = model.graph
    grads = differentiate(graph, trainable, _yield(graph), optional)
    graph.outputs.clear()
    return _finished(model, evaluation, grads)


def build_open_model(
    model: ir.Model,
    *,
    wrt: Sequence[str],
    outputs: Sequence[str],
    constant: Collection[str] = (),
    form: TrainingForm | None = None,
    fusion: Callable[[ir.Model], None] | None = None,
) -> list[str]:
    """Make a model hand its outputs out with a YieldOp and return gradients, in place.

    Args:
        model: A prepared model whose parameters are inputs already.
        wrt: Inputs whose gradients are wanted.
        outputs: What is handed out, in order.
        constant: Outputs that have no gradient.
        form: How the model is put into training form.
        fusion: Fuses nodes of the model.

    Returns:
        The inputs whose gradients are returned, in order: those that an output depends on.

    Raises:
        NoGradientError: if an operator in the way has no gradient rule.
        ParameterError: if the outputs depend on none of the inputs.
    """
    _training_form(model, outputs, form, fusion)
    expand_without_rule(model, wrt, outputs)
    graph = model.graph
    seeds = {y: seed for y, seed in _yield(graph).items() if y.name not in constant}
    grads = differentiate(graph, wrt, seeds, optional=wrt)
    graph.outputs.clear()
    graph.outputs.extend(grads.values())
    remove_dead(graph, keep=_changes_state)
    return list(grads)


def _both_forms(
    model: ir.Model,
    outputs: Sequence[str],
    form: TrainingForm | None,
    narrowing: Narrowing | None,
    fusion: Callable[[ir.Model], None] | None,
) -> ir.Model:
    """Put a model into training form; gives a copy in evaluation form."""
    set_outputs(model.graph, outputs)
    evaluation = model.clone()
    EvaluationForm()(evaluation)
    remove_dead(evaluation.graph)
    _training_form(model, outputs, form, fusion)
    if narrowing is not None:
        narrowing(model)
    return evaluation


def _training_form(
    model: ir.Model,
    outputs: Sequence[str],
    form: TrainingForm | None,
    fusion: Callable[[ir.Model], None] | None,
) -> None:
    """Make a model one that can be differentiated, in place."""
    set_outputs(model.graph, outputs)
    _differentiable_opset(model.graph.opset_imports)
    (form or TrainingForm())(model)
    restore_detached(model.graph)
    prepare(model)
    if fusion is not None:
        fusion(model)


def _differentiable_opset(imports: dict[str, int]) -> None:
    """Opset 8 says the same as 7, and its MaxPool tells which elements were the largest."""
    for domain in (ONNX, "ai.onnx"):
        if imports.get(domain) == 7:
            imports[domain] = 8


def _finished(
    model: ir.Model, evaluation: ir.Model, grads: Mapping[str, ir.Value]
) -> TrainingModels:
    _accumulate(model.graph, grads)
    remove_dead(model.graph, keep=_changes_state)
    return TrainingModels(model, evaluation, list(grads))


def _changes_state(node: ir.Node) -> bool:
    return node.domain == MS and node.op_type in ("BatchNormInternal", "YieldOp")


def set_outputs(graph: ir.Graph, names: Sequence[str]) -> None:
    """Make the named values the outputs of a graph, and remove the nodes none of them needs.

    Raises:
        GraphError: if a name is not in the graph.
    """
    known = {value.name: value for node in graph for value in node.outputs if value.name}
    known.update({str(value.name): value for value in graph.inputs})
    known.update(graph.initializers)
    if unknown := [name for name in names if name not in known]:
        raise GraphError(
            f"the graph has no value {listed(map(repr, unknown))} to return\n"
            f"{returnable(graph, unknown)}"
        )
    graph.outputs.clear()
    graph.outputs.extend(known[name] for name in names)
    remove_dead(graph)


def returnable(graph: ir.Graph, wanted: Sequence[str] = ()) -> str:
    """The values that could be outputs, for errors: the latest first, as one mostly wants those.

    Before them come those whose names are like the wanted ones; what blocks made is left out.
    """
    outputs = [str(value.name) for value in graph.outputs]
    inner = [str(v.name) for node in graph for v in node.outputs if v.name]
    inner = [n for n in reversed(inner) if n not in outputs and not is_generated(n)]
    lines = [f"  outputs  {nearest(wanted, outputs)}"]
    lines += [f"  inner values  {nearest(wanted, inner)}"] if inner else []
    return "\n".join(lines)


def differentiate(
    graph: ir.Graph,
    names: Sequence[str],
    seeds: Mapping[ir.Value, ir.Value],
    optional: Collection[str] = (),
) -> dict[str, ir.Value]:
    """Gradients of named inputs, in the order of the names.

    Raises:
        ParameterError: if a name is no input, or no y depends on one that is not optional.
    """
    inputs = {value.name: value for value in graph.inputs}
    if unknown := [name for name in names if name not in inputs]:
        raise ParameterError(f"the model has no parameter {listed(map(repr, unknown))}")
    grads = backward(graph, [inputs[name] for name in names], seeds)
    found = {str(x.name): grad for x, grad in grads.items()}
    lost = [name for name in names if name not in found]
    if refused := [name for name in lost if name not in optional or not found]:
        shown = ", ".join(map(repr, refused[:10]))
        raise ParameterError(
            f"the loss does not depend on {shown} in a differentiable way\n"
            "  leave these parameters out of the trainable ones"
        )
    return {name: found[name] for name in names if name in found}


def _scale_input(graph: ir.Graph, loss: ir.Value) -> ir.Value:
    """An input for the gradient of the loss, in its type and shape."""
    ones = seed_of(graph, loss)
    del graph.initializers[str(ones.name)]
    if SCALE_INPUT in value_names(graph):
        raise GraphError(f"the model has a value '{SCALE_INPUT}' already, so it cannot be scaled")
    shape = ir.Shape([1] * len(loss.shape or ()))
    scale = ir.Value(name=SCALE_INPUT, type=ir.TensorType(DataType.FLOAT), shape=shape)
    graph.inputs.append(scale)
    if loss.dtype == DataType.FLOAT:
        return scale
    cast = ir.node("Cast", [scale], {"to": loss.dtype}, name=f"{SCALE_INPUT}_Cast")
    seed = cast.outputs[0]
    seed.name, seed.type, seed.shape = str(ones.name), loss.type, shape
    graph.insert_before(next(iter(graph)), cast)
    return seed


def _yield(graph: ir.Graph) -> dict[ir.Value, ir.Value]:
    """A YieldOp that hands the outputs out; gives the gradient that comes back for each."""
    ys = list(dict.fromkeys(graph.outputs))
    for y in ys:
        if not isinstance(y.type, ir.TensorType):
            raise LossError(
                f"output '{y.name}' is {type_string(y.type)}, a loss function takes tensors\n"
                "  name the outputs that it takes with outputs="
            )
    taken = value_names(graph)
    whole = {"full_shape_outputs": list(range(len(ys)))}
    node = ir.node("YieldOp", ys, whole, domain=MS, num_outputs=len(ys), name="YieldOp")
    for y, grad in zip(ys, node.outputs, strict=True):
        name = f"{y.name}_grad"
        grad.name = name if name not in taken else f"{name}_external"
        grad.type, grad.shape = y.type, y.shape
    graph.append(node)
    graph.opset_imports.setdefault(MS, 1)
    return {y: g for y, g in zip(ys, node.outputs, strict=True) if can_carry_gradient(y)}


def _accumulate(graph: ir.Graph, grads: Mapping[str, ir.Value]) -> None:
    """Add each gradient to its buffer as soon as it is there.

    The switch is an input even if there are no gradients: the reference feeds it to every model.
    """
    reset = ir.val(RESET_INPUT, DataType.BOOL, [1])
    first = len(graph.outputs)
    for count, (name, grad) in enumerate(grads.items()):
        value = _before_cast(grad)
        buffer = ir.Value(name=f"{name}{BUFFER_SUFFIX}", type=grad.type, shape=grad.shape)
        node = ir.Node(MS, "InPlaceAccumulatorV2", [buffer, value, reset])
        node.name = f"GradientAccumulator{first + count}"
        mark(node, Phase.BACKWARD)
        done = node.outputs[0]
        done.name = f"{name}{FLAG_SUFFIX}"
        done.type, done.shape = ir.TensorType(DataType.BOOL), ir.Shape([1])
        producer = value.producer()
        assert producer is not None
        graph.insert_after(producer, node)
        graph.inputs.append(buffer)
        graph.outputs.append(done)
    graph.inputs.append(reset)
    if grads:
        graph.opset_imports.setdefault(MS, 1)


def _before_cast(grad: ir.Value) -> ir.Value:
    """A gradient before it was cast: adding it to its buffer casts it anyway."""
    node = grad.producer()
    if node is not None and node.domain == ONNX and node.op_type == "Cast":
        value = node.inputs[0]
        if can_carry_gradient(value) and value.producer() is not None:  # type: ignore[union-attr]
            return value  # type: ignore[return-value]
    return grad
