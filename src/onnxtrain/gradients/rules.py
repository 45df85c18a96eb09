"""The table of gradient rules: what each operator's derivative is, as nodes.

A rule takes the builder, the forward node and the gradient of its output, and gives one gradient
per input (None: the input has none)::

    @gradient("Mul")
    def mul(op, node, dy):
        a, b = node.inputs
        return [op.unbroadcast(op.Mul(dy, b), to=a), op.unbroadcast(op.Mul(dy, a), to=b)]

A rule never asks which gradients are wanted: what nobody uses is removed afterwards. Only rules of
operators with subgraphs do (``captures=True``): they get the wanted values, captured ones among
them, and give pairs of a value and its gradient.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir

from onnxtrain.errors import RegistrationError
from onnxtrain.graph.builder import Ops
from onnxtrain.types import op_name

Grad = ir.Value | None
Pair = tuple[ir.Value, ir.Value]
"""A value and a gradient of it."""
RuleFunction = Callable[..., Sequence[Any]]

FAMILIES = (
    "activation",
    "attention",
    "channel_norm",
    "communication",
    "control_flow",
    "control_flow_loop",
    "control_flow_scan",
    "conv",
    "dropout",
    "einsum",
    "fused",
    "gather",
    "image",
    "integer_products",
    "interop",
    "join",
    "loss",
    "math",
    "matmul",
    "ml",
    "ms_attention",
    "ms_fused",
    "ms_quantized",
    "ms_tensor",
    "norm",
    "pad",
    "pool",
    "quantization",
    "reduction",
    "rnn",
    "scatter",
    "second",
    "second_loss",
    "second_nn",
    "select",
    "sequence",
    "shape",
    "signal",
    "softmax",
    "training",
    "unary",
    "vector_jacobian",
    "vision",
    "zero",
)


@dataclasses.dataclass(frozen=True)
class Rule:
    """How one operator is differentiated; ``fn`` None declares a gradient of zero."""

    op: str
    domain: str
    fn: RuleFunction | None
    since: int = 1
    until: int | None = None
    all_outputs: bool = False
    captures: bool = False

    @property
    def place(self) -> str:
        """Where the rule stands."""
        if self.fn is None:
            return "declared zero"
        code = inspect.unwrap(self.fn).__code__
        return f"{pathlib.PurePath(code.co_filename).name}:{code.co_firstlineno}"

    def apply(self, op: Ops, node: ir.Node, dys: Sequence[Grad]) -> Sequence[Grad]:
        """Gradients of the inputs, one each.

        Raises:
            RegistrationError: if the rule gives more gradients than the node has inputs.
        """
        if self.fn is None:
            return []
        result = self.fn(op, node, dys if self.all_outputs else dys[0])
        if len(result) != len(node.inputs):
            raise RegistrationError(
                f"the gradient rule of {op_name(self.domain, self.op)} gave {len(result)} "
                f"gradients for {len(node.inputs)} inputs of node '{node.name}' ({self.place})"
            )
        return result

    def pairs(
        self, op: Ops, node: ir.Node, dys: Sequence[Grad], wanted: Sequence[ir.Value]
    ) -> Sequence[Pair]:
        """Values that a node reads, each with a gradient that arrives there."""
        if self.captures and self.fn is not None:
            return self.fn(op, node, dys, wanted)
        grads = self.apply(op, node, dys)
        return [
            (value, grad)
            for value, grad in zip(node.inputs, grads, strict=False)
            if value is not None and grad is not None
        ]


_RULES: dict[tuple[str, str], list[Rule]] = {}


def gradient(
    op: str,
    *more_ops: str,
    domain: str = "",
    since: int = 1,
    until: int | None = None,
    all_outputs: bool = False,
    captures: bool = False,
) -> Callable[[RuleFunction], RuleFunction]:
    """Declare a function to be the gradient rule of an operator.

    Args:
        op: Operator name.
        *more_ops: Further operators with the same rule.
        domain: Operator domain.
        since: First opset version for which the rule holds.
        until: Last one, or None.
        all_outputs: Whether the rule takes a list with the gradient (or None) of every output.
        captures: Whether it takes such a list and the wanted values, and gives pairs.
    """

    def declare(fn: RuleFunction) -> RuleFunction:
        for name in (op, *more_ops):
            _add(Rule(name, domain, fn, since, until, all_outputs or captures, captures))
        return fn

    return declare


def no_gradient(*ops: str, domain: str = "") -> None:
    """Declare operators whose derivative is zero almost everywhere (or that have none)."""
    for name in ops:
        _add(Rule(name, domain, None))


def _add(new: Rule) -> None:
    known = _RULES.setdefault((new.domain, new.op), [])
    for old in known:
        if old.since <= (new.until or 10**9) and new.since <= (old.until or 10**9):
            raise RegistrationError(
                f"two gradient rules for {op_name(new.domain, new.op)}\n"
                f"  have  {old.place}\n  new   {new.place}"
            )
    known.append(new)


def remove_rules(domain: str, op: str) -> None:
    """Forget the rules of an operator, so that another can be declared."""
    _RULES.pop((domain, op), None)


@functools.cache
def load_rules() -> None:
    """Import every family once."""
    for family in FAMILIES:
        importlib.import_module(f"onnxtrain.gradients.{family}")


def find_rule(domain: str, op: str, version: int) -> Rule | None:
    """The rule for an operator at an opset version, or None."""
    load_rules()
    for rule in _RULES.get((domain, op), ()):
        if rule.since <= version <= (rule.until or 10**9):
            return rule
    return None


def all_rules() -> list[Rule]:
    """Every rule, by domain and operator."""
    load_rules()
    return [rule for key in sorted(_RULES) for rule in _RULES[key]]


def attribute(node: ir.Node, name: str, default: Any) -> Any:
    """The value of an attribute of a node, or the schema's default."""
    found = node.attributes.get(name)
    return default if found is None else found.value


def forwarded(node: ir.Node, *leave_out: str) -> dict[str, ir.Attr]:
    """All attributes of a forward node, to be copied to its gradient node."""
    return {name: attr for name, attr in node.attributes.items() if name not in leave_out}
