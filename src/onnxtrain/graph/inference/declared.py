"""Shapes that a file declares: which to believe.

Exporters write shapes that they saw once, and files are edited afterwards. What follows from the
inputs wins over what is declared; sizes below 0 mean that nothing is known.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import onnx_ir as ir

from onnxtrain.graph import schemas
from onnxtrain.graph.bindings import opset_of, same_dim
from onnxtrain.graph.walk import all_graphs, all_nodes
from onnxtrain.types import ONNX

_GIVEN = 2
"""Inputs of a Loop, and of its body, before the carried values."""
_ASSUMED = "onnxtrain.assumed_shape"
_VARYING = "onnxtrain.varying_axes"
"""Under which key a carried value has the axes whose sizes its Loop declares as no numbers."""
_MADE_UP = "unk__"
"""What ONNX's inference begins the names of sizes with that it knows nothing about."""
ANYTHING = frozenset(
    {"", "*", "-1", "?", "any", "dynamic", "nan", "nil", "none", "null", "undefined", "unk"}
    | {"unknown"}
)
"""Words that converters write for every size that they do not know."""
UNTOLD = frozenset(
    {"ATen", "AveragePoolGrad", "GistPack1Decoder", "MaxPoolGrad", "PythonOp", "PythonOpGrad"}
    | {"Recv", "TritonOp"}
)
"""Operators whose inputs need not tell the shapes of their results: only a declaration does."""


def forget_meaningless(model: ir.Model) -> None:
    """Make sizes below 0, and names that stand for any size, unknown ones, in place.

    Quantisers infer shapes of files whose inputs have sizes of -1, and take them for numbers: what
    follows from these is unknown, too. Converters write one word for all sizes that they do not
    know, by which these would be equal.
    """
    reckoned = any(_is_negative(d) for v in model.graph.inputs for d in v.shape or ())
    for graph in all_graphs(model.graph):
        for node in graph:
            if reckoned and _is_known(node, model):
                for value in node.outputs:
                    _open(value, lambda d: isinstance(d, int))
        for value in [*graph.inputs, *graph.outputs, *(v for node in graph for v in node.outputs)]:
            _open(value, _is_meaningless)


def _is_meaningless(dim: int | ir.SymbolicDim) -> bool:
    if isinstance(dim, int):
        return dim < 0
    return dim.value is not None and dim.value.strip().lower() in ANYTHING


def _is_negative(dim: int | ir.SymbolicDim) -> bool:
    return isinstance(dim, int) and dim < 0


def _open(value: ir.Value, unknown: Callable[[int | ir.SymbolicDim], bool]) -> None:
    """Forget some sizes of a value."""
    if value.shape is not None and any(map(unknown, value.shape)):
        value.shape = ir.Shape([None if unknown(d) else d for d in value.shape])


def believe_weights(model: ir.Model) -> None:
    """Give initializers the shapes of what they hold, in place.

    Optimizers transpose weights in files that go on declaring them as they were.
    """
    for graph in all_graphs(model.graph):
        inputs = set(graph.inputs)
        for value in graph.initializers.values():
            held = value.const_value
            if held is not None and value not in inputs and value.shape != held.shape:
                value.shape = ir.Shape(held.shape.numpy())


def undeclare(model: ir.Model) -> dict[ir.Value, ir.Shape]:
    """Take the shapes off what known operators compute and Loops carry, in place; gives them."""
    taken: dict[ir.Value, ir.Shape] = {}
    for graph in all_graphs(model.graph):
        for node in graph:
            values = list(node.outputs)
            if not any(value.shape is not None for value in values) or not _is_known(node, model):
                values = []
            if _is_loop(node):
                carried = node.attributes["body"].as_graph().inputs[_GIVEN:]
                for value in carried:
                    sizes = enumerate(value.shape or ())
                    value.meta[_VARYING] = [axis for axis, dim in sizes if _is_open(dim)]
                values += carried
            for value in values:
                if value.shape is not None and isinstance(value.type, ir.TensorType):
                    taken[value], value.shape = value.shape, None
    return taken


def believe(model: ir.Model, declared: Mapping[ir.Value, ir.Shape]) -> bool:
    """Give values the shapes that they were declared with where these tell more, in place.

    What follows from the inputs wins over what is declared, and a scalar that nothing confirms is
    not believed: some exporters write one for any shape. Whether anything was news is returned.

    Args:
        model: The model, with what follows from its inputs alone.
        declared: The shapes that were declared.
    """
    symbols = free_sizes(model.graph)
    doubted = {value for node in all_nodes(model.graph) for value in _doubted(node, declared)}
    weighed = [
        _weigh(value, shape, symbols) for value, shape in declared.items() if value not in doubted
    ]
    if any(weighed):
        _forget_made_up(model)
    return any(weighed)


def _forget_made_up(model: ir.Model) -> None:
    """Open the sizes that inference named itself, so that the declared names spread to them."""
    for node in all_nodes(model.graph):
        for value in node.outputs:
            if value.shape is not None and not all(map(is_named, value.shape)):
                value.shape = ir.Shape([d if is_named(d) else None for d in value.shape])


def _weigh(value: ir.Value, declared: ir.Shape, symbols: Collection[str]) -> bool:
    """Take over what a declared shape tells; whether it was more than what is known."""
    found = value.shape
    if found is None:
        if len(declared) == 0 and value.producer() is not None:
            return False
        value.shape = declared
        value.meta.pop(_ASSUMED, None)
        return True
    if contradicts(declared, found, symbols):
        return False
    pairs = list(zip(declared, found, strict=True))
    news = [not is_named(new) and is_named(old) for old, new in pairs]
    kept = [  # a user knows the outputs by the names that were declared
        not isinstance(new, int) and value.is_graph_output() and is_named(old) for old, new in pairs
    ]
    if any(news) or any(kept):
        taken = zip(pairs, news, kept, strict=True)
        value.shape = ir.Shape([old if more or keep else new for (old, new), more, keep in taken])
    return any(news)


def is_named(dim: int | ir.SymbolicDim) -> bool:
    """Whether a size is a number or has a name that was given to it by somebody."""
    return isinstance(dim, int) or not (dim.value or _MADE_UP).startswith(_MADE_UP)


def contradicts(declared: ir.Shape, found: ir.Shape, symbols: Collection[str]) -> bool:
    """Whether a declared shape cannot be right, given what follows from the inputs.

    Args:
        declared: What the file says.
        found: What follows.
        symbols: Names of sizes that are free in the model's inputs, so that no number is right.
    """
    if len(declared) != len(found):
        return True
    for old, new in zip(declared, found, strict=True):
        if not isinstance(old, int):
            continue
        if new != old if isinstance(new, int) else new.value in symbols:
            return True
    return False


def free_sizes(graph: ir.Graph) -> set[str]:
    """Names of the free sizes of a graph's inputs."""
    shapes = [value.shape for value in graph.inputs if value.shape is not None]
    found = {d.value for shape in shapes for d in shape if isinstance(d, ir.SymbolicDim)}
    return {name for name in found if name}


def settle_carried(model: ir.Model) -> bool:
    """Make the shapes of what Loops carry fit the first and every later iteration, in place.

    A carried value is first taken to keep its initial shape; if the body gives it back in another
    one, only what both have in common is kept. Whether anything changed is returned.
    """
    loops = [node for node in all_nodes(model.graph) if _is_loop(node)]
    loops.reverse()  # what an outer loop carries may come from an inner one
    return (
        any([_assume(node) for node in loops])
        or any([_hand_on(node) for node in loops])
        or _correct(loops, model)
    )


def _assume(node: ir.Node) -> bool:
    """Take carried values of unknown shape to keep the initial one; whether there were any."""
    changed = False
    for inside, initial, _ in zip(
        *_carried(node, node.attributes["body"].as_graph()), strict=False
    ):
        if initial is None or initial.shape is None or not isinstance(inside.type, ir.TensorType):
            continue
        if inside.shape is None and _ASSUMED not in inside.meta:
            inside.shape = initial.shape.copy()
            inside.meta[_ASSUMED] = True
            changed = True
    return changed


def _hand_on(node: ir.Node) -> bool:
    """Give results the types and shapes that they have inside; whether that was news."""
    body = node.attributes["body"].as_graph()
    changed = _type_results(node, body)
    for inside, initial, result, output in zip(*_carried(node, body), node.outputs, strict=False):
        if initial is not None and inside.shape is not None and _fits(inside, initial, result):
            changed |= _tell(output, inside)
    return changed


def _correct(loops: Sequence[ir.Node], model: ir.Model) -> bool:
    """Weaken shapes of carried values that do not fit every iteration; whether there were any."""
    found = [one for node in loops for one in _misfits(node)]
    for inside, initial, result in found:
        _weaken(inside, initial, result)
    if found:
        _forget(model)
    return bool(found)


def _misfits(node: ir.Node) -> list[tuple[ir.Value, ir.Value, ir.Value]]:
    """Carried values whose shape does not fit: inside, as they start and as they are handed on."""
    carried = _carried(node, node.attributes["body"].as_graph())
    return [
        (inside, initial, result)
        for inside, initial, result in zip(*carried, strict=False)
        if initial is not None
        and initial.shape is not None
        and inside.shape is not None
        and isinstance(inside.type, ir.TensorType)
        and not _fits(inside, initial, result)
    ]


def _carried(
    node: ir.Node, body: ir.Graph
) -> tuple[list[ir.Value], list[ir.Value | None], list[ir.Value]]:
    """What a Loop carries: as its body gets it, as it starts, and as its body hands it on."""
    return list(body.inputs[_GIVEN:]), list(node.inputs[_GIVEN:]), list(body.outputs[1:])


def _type_results(node: ir.Node, body: ir.Graph) -> bool:
    """Give the results of a Loop the types that they have inside; whether that was news."""
    changed = False
    for output, result in zip(node.outputs, body.outputs[1:], strict=False):
        if output.type is None and result.type is not None:
            output.type = result.type
            changed = True
    return changed


def _tell(output: ir.Value, inside: ir.Value) -> bool:
    """Give the result of a Loop the shape that it has inside; whether that was news."""
    if output.shape is not None:
        return False
    assert inside.shape is not None
    output.type, output.shape = output.type or inside.type, inside.shape.copy()
    return True


def _doubted(node: ir.Node, declared: Mapping[ir.Value, ir.Shape]) -> list[ir.Value]:
    """Values in the body of a Loop, if it declares more of what it carries than always holds."""
    if not _is_loop(node):
        return []
    body = node.attributes["body"].as_graph()
    carried = body.inputs[_GIVEN:]
    if not any(_says_more(declared[value], value) for value in carried if value in declared):
        return []
    return [*carried, *(value for inner in body for value in inner.outputs)]


def _says_more(declared: ir.Shape, found: ir.Value) -> bool:
    """Whether a body declares more of a carried value than holds in every iteration."""
    if found.shape is None:
        return found.meta.get(_ASSUMED) is False
    if len(declared) != len(found.shape):
        return True
    pairs = zip(declared, found.shape, strict=True)
    return any(isinstance(mine, int) and mine != theirs for mine, theirs in pairs)


def _fits(inside: ir.Value, initial: ir.Value, result: ir.Value) -> bool:
    """Whether the shape inside of the body says no more than the shapes that come in."""
    assert inside.shape is not None
    if initial.shape is None:
        return False
    others = [initial.shape]
    if result.shape is not None:
        others.append(result.shape)
    elif inside.meta.get(_ASSUMED):
        return False
    return all(_covers(inside.shape, other) for other in others) and not _varies(inside, result)


def _varies(inside: ir.Value, result: ir.Value) -> bool:
    """Whether a size that keeps a number is declared as none, and nothing tells the next one."""
    if result.shape is None or not inside.meta.get(_ASSUMED):
        return False
    pairs = [*zip(inside.shape or (), result.shape, strict=True)]
    kept = [isinstance(mine, int) and _is_open(next_one) for mine, next_one in pairs]
    return any(kept[axis] for axis in inside.meta.get(_VARYING, ()) if axis < len(kept))


def _covers(general: ir.Shape, special: ir.Shape) -> bool:
    if len(general) != len(special):
        return False
    pairs = zip(general, special, strict=True)
    return all(_is_open(a) or same_dim(a, b) or _is_open(b) for a, b in pairs)


def _is_open(dim: int | ir.SymbolicDim) -> bool:
    return isinstance(dim, ir.SymbolicDim)


def _weaken(inside: ir.Value, initial: ir.Value, result: ir.Value) -> None:
    """Keep of a carried value's shape what every iteration agrees with."""
    assert inside.shape is not None and initial.shape is not None
    shapes = [s for s in (initial.shape, result.shape) if s is not None]
    unknown = result.shape is None and inside.meta.get(_ASSUMED)
    if unknown or any(len(shape) != len(inside.shape) for shape in shapes):
        inside.shape = None
        inside.meta[_ASSUMED] = False
        return
    inside.shape = ir.Shape(
        [
            dim if all(same_dim(dim, shape[axis]) for shape in shapes) else None
            for axis, dim in enumerate(inside.shape)
        ]
    )


def _forget(model: ir.Model) -> None:
    """Let the shapes of what known operators compute be inferred anew."""
    for node in all_nodes(model.graph):
        if _is_known(node, model):
            for value in node.outputs:
                value.shape = None


def _is_loop(node: ir.Node) -> bool:
    return node.domain == ONNX and node.op_type == "Loop"


def _is_known(node: ir.Node, model: ir.Model) -> bool:
    """Whether a node has a schema, so that the shapes of its outputs might be inferred."""
    if node.op_type in UNTOLD:
        return False
    version = opset_of(node, model.graph.opset_imports)
    return schemas.get(node.domain, node.op_type, version) is not None
