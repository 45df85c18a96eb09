"""What differs between two models: nodes, inputs and outputs, and how far weights have moved."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxtrain.types import op_name, type_string

Array = npt.NDArray[Any]


@dataclasses.dataclass(frozen=True)
class Moved:
    """A weight of both models.

    Attributes:
        name: Its name.
        shape: Its shape.
        before: Its norm in the first model.
        distance: Norm of the difference.
        largest: Largest difference of an element.
    """

    name: str
    shape: tuple[int, ...]
    before: float
    distance: float
    largest: float

    @property
    def relative(self) -> float:
        """The distance as a share of the norm before."""
        return self.distance / self.before if self.before else float(self.distance > 0)


@dataclasses.dataclass(frozen=True)
class Changes:
    """All differences.

    Attributes:
        lines: Nodes, inputs, outputs, versions and tensors that do not match, a line each.
        moved: Weights with other values.
        same: How many weights are the same, bit for bit.
    """

    lines: list[str]
    moved: list[Moved]
    same: int


def compare(first: ir.Model, second: ir.Model) -> Changes:
    """What differs between two models; nodes are matched by name, or by their first output."""
    lines = [
        *_versions(first, second),
        *_values("input", first.graph.inputs, second.graph.inputs),
        *_values("output", first.graph.outputs, second.graph.outputs),
        *_nodes(first, second),
    ]
    mine, theirs = weights(first), weights(second)
    lines += [f"- weight {name}" for name in mine if name not in theirs]
    lines += [f"+ weight {name}" for name in theirs if name not in mine]
    moved, same = [], 0
    for name in mine:
        if name not in theirs:
            continue
        a, b = mine[name], theirs[name]
        if tuple(a.shape) != tuple(b.shape) or a.dtype != b.dtype:
            lines.append(f"~ weight {name}: {_described(a)} is {_described(b)}")
        elif (found := _moved(name, a.numpy(), b.numpy())) is None:
            same += 1
        else:
            moved.append(found)
    return Changes(lines, sorted(moved, key=lambda m: -m.relative), same)


def weights(model: ir.Model) -> dict[str, ir.TensorProtocol]:
    """Initializers, and the tensors of Constant nodes under the names of their outputs."""
    found = {}
    for name, value in model.graph.initializers.items():
        if value.const_value is not None:
            found[name] = value.const_value
    for node in model.graph:
        tensor = node.attributes.get("value") if node.op_type == "Constant" else None
        if tensor is not None and tensor.type == ir.AttributeType.TENSOR:
            found[str(node.outputs[0].name)] = tensor.as_tensor()
    return found


def _moved(name: str, before: Array, after: Array) -> Moved | None:
    """How far a weight has moved, None if not at all."""
    if before.tobytes() == after.tobytes():
        return None
    if before.dtype.kind not in "fiubV":
        return Moved(name, before.shape, 0.0, 1.0, 1.0)
    wide = [array.astype(np.float64) for array in (before, after)]
    gap = wide[1] - wide[0]
    norms = [float(np.linalg.norm(array)) for array in (wide[0], gap)]
    return Moved(name, before.shape, norms[0], norms[1], float(np.abs(gap).max(initial=0.0)))


def _described(tensor: ir.TensorProtocol) -> str:
    return f"{tensor.dtype.name.lower()} {list(tensor.shape)}"


def _versions(first: ir.Model, second: ir.Model) -> list[str]:
    lines = []
    if first.ir_version != second.ir_version:
        lines.append(f"~ IR version: {first.ir_version} is {second.ir_version}")
    mine, theirs = first.graph.opset_imports, second.graph.opset_imports
    for domain in sorted(mine.keys() | theirs.keys()):
        if mine.get(domain) != theirs.get(domain):
            shown = domain or "ai.onnx"
            lines.append(f"~ opset {shown}: {mine.get(domain)} is {theirs.get(domain)}")
    return lines


def _values(kind: str, first: Any, second: Any) -> list[str]:
    mine, theirs = ({str(v.name): _typed(v) for v in values} for values in (first, second))
    lines = [f"- {kind} {name} {mine[name]}" for name in mine if name not in theirs]
    lines += [f"+ {kind} {name} {theirs[name]}" for name in theirs if name not in mine]
    return lines + [
        f"~ {kind} {name}: {mine[name]} is {theirs[name]}"
        for name in mine
        if name in theirs and mine[name] != theirs[name]
    ]


def _typed(value: ir.Value) -> str:
    shape = "unknown shape" if value.shape is None else str(value.shape)
    return f"{type_string(value.type)} {shape}"


def _nodes(first: ir.Model, second: ir.Model) -> list[str]:
    mine, theirs = ({_key(n): n for n in m.graph if not _is_weight(n)} for m in (first, second))
    lines = [f"- node {_shown(key, mine[key])}" for key in mine if key not in theirs]
    lines += [f"+ node {_shown(key, theirs[key])}" for key in theirs if key not in mine]
    for key in mine.keys() & theirs.keys():
        if what := _difference(mine[key], theirs[key]):
            lines.append(f"~ node {_shown(key, mine[key])}: {what}")
    return sorted(lines, key=lambda line: line[0] == "~")


def _is_weight(node: ir.Node) -> bool:
    return node.op_type == "Constant" and "value" in node.attributes


def _key(node: ir.Node) -> str:
    return node.name or str(node.outputs[0].name)


def _shown(key: str, node: ir.Node) -> str:
    return f"{key} ({_kind(node)})"


def _kind(node: ir.Node) -> str:
    """The operator, with its domain where it is not ONNX's own."""
    return op_name(node.domain, node.op_type) if node.domain else node.op_type


def _difference(a: ir.Node, b: ir.Node) -> str:
    """What two nodes of one name do not have in common."""
    if (a.domain, a.op_type) != (b.domain, b.op_type):
        return f"it is {_kind(b)} now"
    parts = []
    for what in ("inputs", "outputs"):
        mine, theirs = ([v.name if v else "" for v in getattr(n, what)] for n in (a, b))
        if mine != theirs:
            parts.append(f"{what} {mine} are {theirs}")
    for name in sorted(a.attributes.keys() | b.attributes.keys()):
        mine, theirs = (n.attributes.get(name) for n in (a, b))  # type: ignore[assignment]
        if _text(mine) != _text(theirs):
            parts.append(f"{name} {_text(mine)} is {_text(theirs)}")
    return "; ".join(parts)


def _text(attribute: Any) -> str:
    """An attribute's value; graphs and tensors by what they hold."""
    if attribute is None:
        return "absent"
    if attribute.type == ir.AttributeType.TENSOR:
        return str(attribute.as_tensor().numpy().tolist())
    return str(attribute.value)
