"""Gradients written as data: a list of nodes in place of a rule in Python.

Each node is ``(op, inputs, outputs)`` or ``(op, inputs, outputs, attributes)``, where ``op`` is a
name or a pair ``(name, domain)``. An input is ``GO(i)`` (gradient of output i), ``I(i)``,
``O(i)``, an output of an earlier node, or "" for one that is left out. An output is ``GI(i)``
(gradient of input i) or a name of its own. An attribute is ``{"value": ..., "dtype": ...,
"is_tensor": ...}``, where the dtype is int, float, bool, string, ``IElemType(i)`` or
``OElemType(i)``, the last two for the element type of an input or output::

    @register_gradient("my.domain", "Square")
    def square():
        return [
            ("Constant", [], ["two"], {"value": {"value": 2, "dtype": "IElemType(0)",
                                                 "is_tensor": True}}),
            ("Mul", ["GO(0)", "I(0)"], ["half"]),
            ("Mul", ["half", "two"], ["GI(0)"]),
        ]
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxtrain.errors import NoGradientError, RegistrationError
from onnxtrain.gradients.rules import (
    Grad,
    RuleFunction,
    attribute,
    gradient,
    load_rules,
    remove_rules,
)
from onnxtrain.graph.builder import Ops
from onnxtrain.types import FLOATS, DataType, op_name

Definition = Callable[[], Sequence[Sequence[Any]]]

KEY_ATTRIBUTES = {"ATen": ("operator", "overload_name")}
"""Operators that are many in one, and the attributes that tell which."""
_TYPES = {
    "int": DataType.INT64,
    "float": DataType.FLOAT,
    "bool": DataType.BOOL,
    "string": DataType.STRING,
}
_TOKEN = re.compile(r"(GO|GI|I|O)\((\d+)\)")
_ELEMENT_TYPE = re.compile(r"([IO])ElemType\((\d+)\)")


@dataclasses.dataclass(frozen=True)
class _Line:
    """One node of a definition."""

    op: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Mapping[str, Any]]


_DEFINED: dict[tuple[str, str], dict[tuple[str, ...], list[_Line]]] = {}
_OTHERWISE: dict[tuple[str, str], RuleFunction] = {}


def register_gradient(
    domain: str, name: str, *attributes: str
) -> Callable[[Definition], Definition]:
    """Declare a function that gives the gradient of an operator as a list of nodes.

    Args:
        domain: Operator domain.
        name: Operator name.
        *attributes: For ``ATen`` the operator of torch and its overload; else nothing.

    Raises:
        RegistrationError: if the operator has a rule, or the list does not make sense.
    """
    full = "::".join((op_name(domain, name), *attributes))
    keys = KEY_ATTRIBUTES.get(name, ())
    if len(attributes) > len(keys):
        raise RegistrationError(
            f"{full}: {op_name(domain, name)} is told apart by {', '.join(keys) or 'no attributes'}"
        )
    key = (*attributes, *[""] * (len(keys) - len(attributes)))

    def declare(definition: Definition) -> Definition:
        lines = [_line(full, item) for item in definition()]
        _check(full, lines)
        load_rules()
        known = _DEFINED.get((domain, name))
        if known is None:
            if (domain, name) not in _OTHERWISE:
                gradient(name, domain=domain, all_outputs=True)(_rule)
            known = _DEFINED[domain, name] = {}
        if key in known:
            raise RegistrationError(
                f"two gradient definitions for {full}\n  forget the first with unregister_gradient"
            )
        known[key] = lines
        return definition

    return declare


def unregister_gradient(domain: str, name: str) -> None:
    """Forget everything that ``register_gradient`` declared for an operator."""
    if _DEFINED.pop((domain, name), None) is not None and (domain, name) not in _OTHERWISE:
        remove_rules(domain, name)


def where_undefined(domain: str, name: str, rule: RuleFunction) -> None:
    """Declare what an operator that is many in one does where nobody gave a definition."""
    _OTHERWISE[domain, name] = rule
    gradient(name, domain=domain, all_outputs=True)(_rule)


def _line(full: str, item: Sequence[Any]) -> _Line:
    """A node of a definition, from its tuple."""
    if not 3 <= len(item) <= 4:
        raise RegistrationError(
            f"the gradient of {full} has a node of {len(item)} parts: {item!r}\n"
            "  a node is (op, inputs, outputs) or (op, inputs, outputs, attributes)"
        )
    op, domain = (item[0], "") if isinstance(item[0], str) else item[0]
    attributes = item[3] if len(item) == 4 else {}
    return _Line(op, domain, tuple(item[1]), tuple(item[2]), attributes)


def _check(full: str, lines: Sequence[_Line]) -> None:
    """Names must be defined once and before use, and some gradient must come out."""
    defined: set[str] = set()
    for line in lines:
        for name in line.inputs:
            token = _TOKEN.fullmatch(name)
            if name and name not in defined and (token is None or token[1] == "GI"):
                raise RegistrationError(
                    f"the gradient of {full} reads '{name}' at {line.op}, which is not there\n"
                    "  have  GO(i), I(i), O(i)" + "".join(f", {n}" for n in sorted(defined))
                )
        for name in filter(None, line.outputs):
            token = _TOKEN.fullmatch(name)
            if name in defined or (token is not None and token[1] != "GI"):
                raise RegistrationError(
                    f"the gradient of {full} cannot define '{name}' at {line.op}\n"
                    "  outputs are GI(i) or new names, each once"
                )
            defined.add(name)
        for attribute_name, given in line.attributes.items():
            _check_attribute(full, line, attribute_name, given)
    if not any(name.startswith("GI(") for name in defined):
        raise RegistrationError(f"the gradient of {full} defines no GI(i)")


def _check_attribute(full: str, line: _Line, name: str, given: Mapping[str, Any]) -> None:
    dtype = given.get("dtype", "")
    if "value" not in given or (dtype not in _TYPES and not _ELEMENT_TYPE.fullmatch(dtype)):
        raise RegistrationError(
            f"the gradient of {full} has an attribute '{name}' of {line.op} without a value or "
            f"with an unknown dtype: {dict(given)}\n"
            f"  have  {', '.join(_TYPES)}, IElemType(i), OElemType(i)"
        )


def _rule(op: Ops, node: ir.Node, dys: Sequence[Grad]) -> list[Grad]:
    """The rule of every operator with definitions: emit the nodes of the one that fits."""
    known = _DEFINED.get((node.domain, node.op_type), {})
    names = KEY_ATTRIBUTES.get(node.op_type, ())
    key = tuple(str(attribute(node, name, "")) for name in names)
    otherwise = _OTHERWISE.get((node.domain, node.op_type))
    if key not in known and otherwise is not None:
        return list(otherwise(op, node, dys))
    if key not in known:
        have = ", ".join("::".join(filter(None, k)) for k in known)
        raise NoGradientError(
            f"no gradient rule for {'::'.join((op_name(node.domain, node.op_type), *key))} "
            f"of node '{node.name}'\n  have  {have}\n  declare one with register_gradient"
        )
    return _Emit(op, node, dys).run(known[key])


class _Emit:
    """The work of one application of a definition."""

    def __init__(self, op: Ops, node: ir.Node, dys: Sequence[Grad]) -> None:
        self.op, self.node, self.dys = op, node, dys
        self.made: dict[str, ir.Value] = {}

    def run(self, lines: Sequence[_Line]) -> list[Grad]:
        for line in lines:
            self._emit(line)
        return [self.made.get(f"GI({i})") for i in range(len(self.node.inputs))]

    def _emit(self, line: _Line) -> None:
        if line.op == "Constant" and not line.domain:
            self.made[line.outputs[0]] = self._constant(line)
            return
        inputs = [self._value(name) for name in line.inputs]
        options = {name: self._attribute(given) for name, given in line.attributes.items()}
        found = self.op.emit(
            line.op, inputs, _domain=line.domain, _outputs=len(line.outputs), **options
        )
        values = [found] if len(line.outputs) == 1 else found
        self.made.update(zip(line.outputs, values, strict=True))

    def _constant(self, line: _Line) -> ir.Value:
        given = line.attributes["value"]
        return self.op.const(given["value"], self._dtype(given["dtype"]))

    def _value(self, name: str) -> ir.Value | None:
        """What an input of a node stands for."""
        if not name:
            return None
        token = _TOKEN.fullmatch(name)
        if token is None or token[1] == "GI":
            return self.made[name]
        index = int(token[2])
        if token[1] == "GO":
            return self._incoming(index)
        values = self.node.inputs if token[1] == "I" else self.node.outputs
        return values[index] if index < len(values) else None

    def _incoming(self, index: int) -> ir.Value:
        """The gradient of an output: zeros if none arrived."""
        if index < len(self.dys) and self.dys[index] is not None:
            return self.dys[index]  # type: ignore[return-value]
        output = self.node.outputs[index] if index < len(self.node.outputs) else None
        if output is None or output.dtype not in FLOATS:
            raise NoGradientError(
                f"the gradient of {op_name(self.node.domain, self.node.op_type)} needs that of "
                f"output {index}, which node '{self.node.name}' does not have"
            )
        return self.op.filled(0, output, output)

    def _dtype(self, name: str) -> DataType:
        found = _ELEMENT_TYPE.fullmatch(name)
        if found is None:
            return _TYPES[name]
        values = self.node.inputs if found[1] == "I" else self.node.outputs
        value = values[int(found[2])] if int(found[2]) < len(values) else None
        if value is None or value.dtype is None:
            raise NoGradientError(
                f"the gradient of {op_name(self.node.domain, self.node.op_type)} needs {name} of "
                f"node '{self.node.name}', which is not known"
            )
        return value.dtype

    def _attribute(self, given: Mapping[str, Any]) -> Any:
        """The value of an attribute, as the builder takes it."""
        value, dtype = given["value"], given["dtype"]
        if isinstance(value, str) and _ELEMENT_TYPE.fullmatch(value):
            return int(self._dtype(value))
        if given.get("is_tensor"):
            return ir.tensor(np.asarray(value, self._dtype(dtype).numpy()))
        convert = {"int": int, "bool": int, "float": float, "string": str}.get(dtype)
        if convert is None:
            return int(self._dtype(dtype))
        return [convert(v) for v in value] if isinstance(value, (list, tuple)) else convert(value)
