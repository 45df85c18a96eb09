"""What the rows of the table say about the gradient of each operator, without running anything."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable

import onnx_ir as ir

from onnxtrain.errors import OnnxTrainError
from onnxtrain.gradients.engine import backward, can_carry_gradient, depends_on
from onnxtrain.gradients.rules import find_rule
from onnxtrain.graph.bindings import opset_of
from onnxtrain.graph.edit import reads
from onnxtrain.graph.loading.load import load_model
from onnxtrain.graph.prepare import prepare
from onnxtrain.testing import gradcheck, trials
from onnxtrain.testing.case import Case
from onnxtrain.testing.model import draw, input_name, named, one_node_model
from onnxtrain.testing.table import schema_of, table
from onnxtrain.types import DataType, op_name

Key = tuple[str, str]


@dataclasses.dataclass
class Facts:
    """What is known about one operator from its rows.

    Attributes:
        rows: Rows that test its values.
        differences: Rows whose gradient is compared with differences.
        autograd: Rows whose gradient is compared with torch's.
        twice: Rows whose second gradient is compared with differences.
        once: Operators that its gradient is made of and that have no gradient themselves.
        reached: Inputs that some row gives a gradient.
        silent: Floating point inputs that some row gives none.
    """

    rows: int = 0
    differences: int = 0
    autograd: int = 0
    twice: int = 0
    once: set[str] = dataclasses.field(default_factory=set)
    reached: set[str] = dataclasses.field(default_factory=set)
    silent: set[str] = dataclasses.field(default_factory=set)


@functools.cache
def facts() -> dict[Key, Facts]:
    """Facts by domain and operator."""
    found: dict[Key, Facts] = {}
    types = (DataType.DOUBLE, DataType.FLOAT)
    by_torch = {id(case) for dtype in types for case in trials.by_autograd(dtype)}
    twice = {id(case) for case in trials.twice()}
    for case in table():
        of = found.setdefault((case.domain, case.op), Facts())
        of.rows += 1
        of.autograd += id(case) in by_torch
        of.twice += id(case) in twice
        dtype = gradcheck.type_for_differences(case)
        if dtype is not None:
            of.differences += 1
            look_at(case, dtype, of)
    return found


def look_at(case: Case, dtype: DataType, of: Facts) -> None:
    """Build the backward graph of a row and add what it shows to the facts."""
    rule = gradcheck.rule_of(case)
    if rule is None or rule.fn is None:
        return
    model = prepare(load_model(one_node_model(case, draw(case, dtype))))
    graph = model.graph
    xs = [value for value in graph.inputs if can_carry_gradient(value)]
    seeds = {
        y: ir.Value(name=f"seed_{y.name}", type=y.type, shape=y.shape)
        for index, y in zip(named(case), graph.outputs, strict=True)
        if can_carry_gradient(y) and (case.compare is None or index in case.compare)
    }
    graph.inputs.extend(seeds.values())
    forward = set(graph)
    try:
        grads = backward(graph, xs, seeds)
    except OnnxTrainError:
        asked = gradcheck.differentiable(case, draw(case, dtype))
        xs = [x for x in xs if x.name in {input_name(case, index) for index in asked}]
        grads = backward(graph, xs, seeds)
    moving = depends_on(graph, [*xs, *seeds.values()])
    emitted = [node for node in graph if node not in forward]
    of.once |= set(_without_rule(graph, emitted, moving))
    names = {str(x.name): _formal(case, str(x.name)) for x in xs}
    of.reached |= {names[str(x.name)] for x in grads}
    of.silent |= {names[str(x.name)] for x in xs if x not in grads}


def _formal(case: Case, name: str) -> str:
    """The schema's name of an input of a row's model."""
    formals = {formal.name for formal in schema_of(case).inputs}
    return name if name in formals else name.rpartition("_")[0]


def _without_rule(
    graph: ir.Graph, nodes: Iterable[ir.Node], moving: set[ir.Value]
) -> Iterable[str]:
    """Operators that a second gradient would have to pass and cannot."""
    for node in nodes:
        version = opset_of(node, graph.opset_imports)
        passed = any(v in moving for v in reads(node)) and any(v in moving for v in node.outputs)
        if passed and find_rule(node.domain, node.op_type, version) is None:
            yield op_name(node.domain, node.op_type)
