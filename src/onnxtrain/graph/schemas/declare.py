"""Operators in a line each: ``op("ReluGrad", "dY: T, X: T -> dX: T", T=FLOATS)``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import onnx
from onnx.defs import OpSchema

from onnxtrain.errors import RegistrationError
from onnxtrain.graph.schemas.facts import Default, Rule, infer_with
from onnxtrain.types import FIXED, MS, DataType, dtype_name, op_name, parse_dtype

TypeSet = frozenset[DataType] | frozenset[str]
"""Element types of tensors, or full type strings such as ``seq(tensor(float))``."""
AttributeKind = Literal["int", "ints", "float", "floats", "string", "strings", "graph"]
INT32 = frozenset({DataType.INT32})
INT64 = frozenset({DataType.INT64})
UINT8 = frozenset({DataType.UINT8})
UINT32 = frozenset({DataType.UINT32})
WIDE = frozenset({DataType.FLOAT, DataType.DOUBLE})
"""Types that master weights and statistics are kept in."""

ANY: frozenset[DataType] = FIXED | {DataType.STRING, DataType.COMPLEX64, DataType.COMPLEX128}
"""Every element type that operators may pass on unread."""

_FORMAL = re.compile(r"(?P<name>\w+)(?P<count>[?+*]?): (?P<each>each )?(?P<type>\w+)")
_OPTIONS = {
    "": OpSchema.FormalParameterOption.Single,
    "?": OpSchema.FormalParameterOption.Optional,
    "+": OpSchema.FormalParameterOption.Variadic,
    "*": OpSchema.FormalParameterOption.Variadic,
}


@dataclass(frozen=True)
class Attribute:
    """An attribute without a default value."""

    kind: AttributeKind
    required: bool


Attributes = Mapping[str, Attribute | Default]


@dataclass(frozen=True)
class Operator:
    """Declaration of an operator; nothing is registered until ``register_all``."""

    name: str
    signature: str
    domain: str
    since: int
    types: Mapping[str, TypeSet]
    attributes: Attributes
    rules: Sequence[Rule]

    def schema(self) -> OpSchema:
        """The declaration in ONNX's terms."""
        inputs, _, outputs = self.signature.partition(" -> ")
        schema = OpSchema(
            self.name,
            self.domain,
            self.since,
            inputs=self._formals(inputs),
            outputs=self._formals(outputs),
            type_constraints=[
                (name, type_strings(allowed), "") for name, allowed in self.types.items()
            ],
            attributes=[_attribute(name, fact) for name, fact in self.attributes.items()],
        )
        if self.rules:
            defaults = {
                name: fact
                for name, fact in self.attributes.items()
                if not isinstance(fact, Attribute)
            }
            schema.set_type_and_shape_inference_function(infer_with(self.rules, defaults))
        return schema

    def _formals(self, side: str) -> list[OpSchema.FormalParameter]:
        return [self._formal(text) for text in side.split(", ")]

    def _formal(self, text: str) -> OpSchema.FormalParameter:
        match = _FORMAL.fullmatch(text)
        if match is None:
            raise RegistrationError(
                f"cannot read {text!r} in the signature of {op_name(self.domain, self.name)}\n"
                "a parameter is written 'name: T', 'name?: T' (optional), 'name+: T' (one or more) "
                "or 'name*: T' (any number); 'each T' lets every element have a type of its own"
            )
        return OpSchema.FormalParameter(
            match["name"],
            match["type"] if match["type"] in self.types else self._concrete(match["type"]),
            param_option=_OPTIONS[match["count"]],
            is_homogeneous=match["each"] is None,
            min_arity=0 if match["count"] == "*" else 1,
        )

    def _concrete(self, name: str) -> str:
        try:
            return f"tensor({dtype_name(parse_dtype(name))})"
        except KeyError:
            raise RegistrationError(
                f"{name!r} in the signature of {op_name(self.domain, self.name)} is neither a type "
                f"variable nor an element type\nits type variables: {', '.join(self.types)}"
            ) from None


def op(
    name: str,
    signature: str,
    *,
    infer: Rule | Sequence[Rule] = (),
    domain: str = MS,
    since: int = 1,
    attributes: Attributes | None = None,
    **facts: TypeSet | Attribute | Default,
) -> Operator:
    """Declares an operator.

    Args:
        name: operator type.
        signature: ``inputs -> outputs``, each ``name: T``; ``?`` optional, ``+`` one or more,
            ``*`` any number, ``each T`` for a list whose elements may differ in type. A type is a
            variable or the name of an element type.
        infer: one rule an output; the last one serves all further outputs.
        domain: operator domain.
        since: first version of the domain with this form of the operator.
        attributes: attributes that several operators share, or whose name Python reserves.
        **facts: sets are type variables, anything else is an attribute: its default value,
            ``required(kind)`` or ``optional(kind)``.
    """
    return Operator(
        name,
        signature,
        domain,
        since,
        types={key: fact for key, fact in facts.items() if isinstance(fact, frozenset)},
        attributes={**(attributes or {})}
        | {key: fact for key, fact in facts.items() if not isinstance(fact, frozenset)},
        rules=(infer,) if callable(infer) else tuple(infer),
    )


def required(kind: AttributeKind) -> Attribute:
    """An attribute that every node must have."""
    return Attribute(kind, required=True)


def optional(kind: AttributeKind) -> Attribute:
    """An attribute that a node may leave out and that has no default value."""
    return Attribute(kind, required=False)


def sequences_of(types: frozenset[DataType]) -> frozenset[str]:
    """Sequences of tensors with these element types."""
    return frozenset(f"seq({text})" for text in type_strings(types))


def type_strings(types: TypeSet) -> list[str]:
    """Types as schemas write them, in a stable order."""
    return sorted(
        f"tensor({dtype_name(type_)})" if isinstance(type_, DataType) else type_ for type_ in types
    )


def register_all(operators: Iterable[Operator]) -> None:
    """Registers each operator with ``onnx.defs``, except those that are there already.

    Another package of the process may have declared the same operator first; its schema then stays.
    """
    for operator in operators:
        if not _is_registered(operator):
            onnx.defs.register_schema(operator.schema())


def _is_registered(operator: Operator) -> bool:
    key = (operator.name, operator.since, operator.domain)
    return onnx.defs.has(*key) and onnx.defs.get_schema(*key).since_version == operator.since


def _attribute(name: str, fact: Attribute | Default) -> OpSchema.Attribute:
    if isinstance(fact, Attribute):
        kind = getattr(OpSchema.AttrType, fact.kind.upper())
        return OpSchema.Attribute(name, kind, required=fact.required)
    return OpSchema.Attribute(name, onnx.helper.make_attribute(name, fact))
