"""What torch's exporter writes down about where nodes and tensors come from."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Mapping, Sequence

import onnx_ir as ir

SCOPES = "pkg.torch.onnx.name_scopes"
"""Where nodes tell the modules that they were traced in, from the whole model to the operator."""
_FOLDED = "pkg.onnxscript.optimizer.folded_from"
"""Where tensors tell what they were computed from."""
_CALL = "pkg.torch.onnx.fx_node"
"""Where nodes tell the call that they were made of: %y = ...(args = (%x, %p_weight), ...)."""
RULE = "pkg.onnxscript.rewriter.rule_name"
"""Where nodes tell how an exporter made them of others."""
_NORMALIZED = "FuseBatchNormInto"
"""What the names of rules begin with that fold a batch normalization into the layer before it."""
_FOLDED_LEAVES = {1: "weight", 2: "bias"}
"""What of such a normalization went into which input of the layer."""
_SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
"""Where graphs tell which names of calls are which tensors of the module."""
_TENSOR = re.compile(r"^(\S+): (PARAMETER|BUFFER|CONSTANT_TENSOR) target='(.+?)'", re.MULTILINE)
DETACH = "detach"
"""What results of ``detach`` are called."""
_DETACHED = "[target=torch.ops.aten.detach.default](args = ("
"""What such a call tells."""
_NAME = re.compile(r"%(\w+)")
_HARDTANH = "[target=torch.ops.aten.hardtanh"
"""What calls of Hardtanh and ReLU6 tell."""
_CLAMP = "[target=torch.ops.aten.clamp"
"""What calls of clamp tell, with one bound or two."""
_EMBEDDING = re.compile(
    r"aten\.embedding\.default\]\(args = \(%\w+, %\w+(?:, (-?\d+))?(?:, (True|False))?"
)
"""How calls that look rows up end: with the row that is never trained, or -1, and whether the
gradient of a row is divided by how often it was looked up."""
_COMPUTED = re.compile(r"onnx::\w+_\d+")
"""What torch's older exporter calls a tensor that it computed."""
_REPEATERS = frozenset({
    *("embedding", "expand", "gather", "index", "index_select", "repeat", "repeat_interleave"),
    "tile",
})  # fmt: skip
"""Calls whose results may have numbers more than once."""
_SHAPERS = frozenset({
    *("_to_copy", "_unsafe_view", "alias", "clone", "contiguous", "detach", "flatten", "flip"),
    *("permute", "reshape", "roll", "squeeze", "t", "to", "transpose", "unflatten", "unsqueeze"),
    "view",
})  # fmt: skip
"""Calls whose results are all numbers of what they are given."""
_MOVERS = _REPEATERS | _SHAPERS | {"getitem", "narrow", "select", "slice", "split"}
"""Calls whose results are numbers of what they are given."""
JOINED = frozenset({"cat", "stack"})
"""Calls whose results have the numbers of all that they are given."""
_INSIDE = "val"
"""What results inside a call are called, and numbers."""
_JOINERS = _SHAPERS | JOINED | {_INSIDE, "full", "ones", "zeros"}
"""With these alone, tensors become one of which each has a part."""
_READS = "onnxtrain.reads"
"""Where a node that was made of no call tells the parameter that it reads."""
SOFTPLUS = "softplus"
"""A call of which a file does not tell all that it was given."""
SHIFTS = frozenset({"add", "sub"})
"""Calls whose results are trained as what they are given is, but for the sign."""
_OF_NUMBER = SHIFTS | {"mul"}
"""Calls with a number and a tensor."""
_NUMBERS = frozenset({"scalar_tensor_default", _INSIDE})
"""What the number of such a call is called, and the same in the type of the tensor."""
_SCALERS: dict[str, tuple[frozenset[str], int, str]] = {
    **dict.fromkeys(("add", "sub"), (frozenset({"Add", "Sub"}), 1, "alpha")),
    **dict.fromkeys(("addbmm", "addmv", "addr"), (frozenset({"Add"}), 0, "beta")),
    "baddbmm": (frozenset({"Add"}), 1, "beta"),
    "addcmul": (frozenset({"Mul"}), 0, "value"),
}
"""Calls that multiply something by a number that they tell: which operators read the product, at
which place, and what the number is called."""
_TARGET = re.compile(r"\[target=torch\.ops\.aten\.(\w+)\.")
_KINDS = ("token_type", "segment")
"""What names of buffers have in them that hold the kinds of tokens: the same for all."""
_POSITION = "position"
_COUNTS = frozenset({"arange", "cumsum", "linspace"})
"""Calls that count places."""
PRODUCER = "pytorch"
"""What both exporters call the one who made a file."""


def module_of(node: ir.Node) -> str | None:
    """The path of the module that a node was traced in, None if the file does not tell."""
    scopes = _listed(node.metadata_props.get(SCOPES))
    return scopes[-2] if len(scopes) > 1 else None


def other_names(value: ir.Value) -> list[str]:
    """What a parameter is called in other modules that read it, as those of tied weights do.

    Modules around its own one, or in it, have no such parameter; they only use it. A normalization
    that was folded into a layer has a part in its weight and in its bias.
    """
    owner, _, leaf = str(value.name).rpartition(".")
    found = {
        (module_of(node), _FOLDED_LEAVES.get(index, leaf) if is_normalized(node) else leaf): None
        for node, index in value.uses()
    }
    return [f"{m}.{leaf}" for m, leaf in found if m and owner and not nested(m, owner)]


def nested(one: str, other: str) -> bool:
    """Whether one module is the other, or one of them is in the other, as all are in the whole."""
    if not one or not other:
        return True
    one, other = f"{one}.", f"{other}."
    return one.startswith(other) or other.startswith(one)


def sources(value: ir.Value) -> list[str]:
    """Names of what an exporter computed a tensor from; none if it does not tell."""
    return _listed(value.metadata_props.get(_FOLDED))


def calls(value: ir.Value, known: Collection[str]) -> set[str]:
    """Calls that an exporter computed a tensor with, without their numbers.

    Those that computed something else on the way, such as places in a table, are among them.

    Args:
        value: The tensor.
        known: Names of the tensors of the module.
    """
    return {stem(name.rpartition(".")[2]) for name in sources(value) if name not in known}


def of_number(value: ir.Value) -> str | None:
    """The call that made a tensor of one other tensor and a number; None if nothing tells so."""
    call, names = stem(str(value.name).rpartition(".")[2]), sources(value)
    numbers = [stem(name) for name in names if stem(name) in _NUMBERS]
    once = numbers and len(set(numbers)) == len(numbers) == len(names) - 1
    return call if call in _OF_NUMBER and once else None


def tell_rest(value: ir.Value, name: str) -> None:
    """Write down that a tensor is the difference of a number and a parameter."""
    tell_sources(value, [name, _INSIDE])


def held_names(graph: ir.Graph) -> set[str]:
    """Names of the tensors of a graph, and of what an exporter computed them from."""
    return set(graph.initializers).union(*map(sources, graph.initializers.values()))


def is_computed(value: ir.Value) -> bool:
    """Whether a name tells that torch's older exporter computed a tensor."""
    return _COMPUTED.fullmatch(str(value.name)) is not None


def tell_sources(value: ir.Value, names: Sequence[str]) -> None:
    """Write down what a tensor was computed from, if anything, as the exporter does."""
    if names:
        value.metadata_props[_FOLDED] = repr(list(names))


def tensors(graph: ir.Graph) -> list[tuple[str, str, str]]:
    """What calls name a tensor of the module, what kind it is, and its name in the module."""
    return _TENSOR.findall(graph.metadata_props.get(_SIGNATURE, ""))


def parameters(graph: ir.Graph) -> dict[str, str]:
    """Parameters of the module by what calls name them; none if the file does not tell."""
    return {call: name for call, kind, name in tensors(graph) if kind == "PARAMETER"}


def call_of(node: ir.Node) -> str | None:
    """The name of the call that a node was made of, None if the file does not tell."""
    name = _NAME.match(node.metadata_props.get(_CALL, ""))
    return None if name is None else name.group(1)


def looked_up(node: ir.Node) -> tuple[int | None, bool]:
    """How torch trains a table in which a node looks rows up, if it is a call that does so.

    Returns:
        The row for padding, which gets no gradient, if there is one; and whether the gradient of a
        row is divided by how often it is looked up.
    """
    told = _EMBEDDING.search(node.metadata_props.get(_CALL, ""))
    if told is None:
        return None, False
    row = int(told.group(1) or -1)
    return (None if row < 0 else row), told.group(2) == "True"


def is_flat_at_bounds(node: ir.Node) -> bool:
    """Whether a Clip is a Hardtanh or ReLU6, which torch gives no gradient at its bounds."""
    return node.op_type == "Clip" and _HARDTANH in node.metadata_props.get(_CALL, "")


def is_clamp(node: ir.Node) -> bool:
    """Whether a Max or Min keeps its first operand within bounds, which gets dy at a bound."""
    return node.op_type in ("Max", "Min") and _CLAMP in node.metadata_props.get(_CALL, "")


def is_detached(node: ir.Node) -> bool:
    """Whether a node gives what it is given without its gradient."""
    return node.op_type == "Identity" and _DETACHED in node.metadata_props.get(_CALL, "")


def tell_detached(node: ir.Node, name: str) -> None:
    """Write down that a node is such a one, as the exporter does."""
    node.metadata_props[_CALL] = f"%{DETACH} = call_function{_DETACHED}%{name},), kwargs = {{}})"


def is_normalized(node: ir.Node) -> bool:
    """Whether a batch normalization was folded into a layer, which tells its call and module then.

    What the layer reads are its own weight and bias nonetheless, with other numbers.
    """
    rules = node.metadata_props.get(RULE, "").split(", ")
    return any(rule.startswith(_NORMALIZED) for rule in rules)


def told_by_copy(
    node: ir.Node, call: str | None, rename: Callable[[str], str | None]
) -> dict[str, str]:
    """What a copy of a node tells: a call of another name, or none, in modules of other names."""
    told = dict(node.metadata_props)
    text, scopes = told.pop(_CALL, None), _listed(told.get(SCOPES))
    if call is not None and text is not None:
        told[_CALL] = _NAME.sub(f"%{call}", text, count=1)
    if scopes:
        told[SCOPES] = repr([rename(path) or path for path in scopes])
    return told


def stem(name: str) -> str:
    """The name of a call without its number."""
    begin, _, number = name.rpartition("_")
    return begin if begin and number.isdecimal() else name


def repeats(name: str) -> bool:
    """Whether a tensor is called as the result of a call that may repeat numbers."""
    return stem(name.rpartition(".")[2]) in _REPEATERS


def moves(name: str) -> bool:
    """Whether a tensor is called as the result of a call that only moves numbers."""
    return stem(name.rpartition(".")[2]) in _MOVERS


def shapes(call: str) -> bool:
    """Whether a call only gives numbers another shape or order."""
    return call in _SHAPERS or call == _INSIDE


def joins(call: str) -> bool:
    """Whether a call gives numbers another shape, joins them, or makes some that are constant."""
    return call in _JOINERS


def one_place(value: ir.Value, known: Collection[str]) -> bool | None:
    """Whether all rows that were looked up are the same one of a table; None if nothing tells.

    Places of zeros tell so, and kinds of tokens; places that count do not.
    """
    made = calls(value, known)
    buffers = {name.rpartition(".")[2] for name in sources(value) if name in known}
    if any(word in name for name in buffers for word in _KINDS):
        return True
    counts = not _COUNTS.isdisjoint(made) or any(_POSITION in name for name in buffers)
    if "zeros" in made:
        return None if counts else True
    return False if counts else None


def read_by_call(node: ir.Node) -> list[str]:
    """Names of all that the call which a node was made of was given, in order."""
    return _NAME.findall(node.metadata_props.get(_CALL, "").partition("(args = ")[2])


def scale_at(node: ir.Node, index: int) -> float | None:
    """The number by which what a node reads at a place was multiplied, 1 if its call tells none.

    None if that is no place of a product.
    """
    text = node.metadata_props.get(_CALL, "")
    target = _TARGET.search(text)
    operators, place, name = _SCALERS.get(target.group(1) if target else "", (frozenset(), 0, ""))
    if node.op_type not in operators or index != place:
        return None
    number = re.search(rf"\b{name}: ([^,}}]+)", text.partition("kwargs = {")[2])
    try:
        return float(number.group(1)) if number else 1.0
    except ValueError:  # it is computed
        return None


def given(node: ir.Node, known: Mapping[str, str]) -> list[str]:
    """The parameters among that, or the one that was written down."""
    told = node.metadata_props.get(_READS)
    if told is not None:
        return [told]
    return [known[name] for name in dict.fromkeys(read_by_call(node)) if name in known]


def tell_given(node: ir.Node, name: str) -> None:
    """Write down which parameter a node reads that was made of no call."""
    node.metadata_props[_READS] = name


def _listed(text: str | None) -> list[str]:
    """A list of names that was written down."""
    try:
        names = ast.literal_eval(text) if text else []
    except (SyntaxError, ValueError):
        return []
    return [str(name) for name in names] if isinstance(names, list) else []
