"""Every kernel that the reference registers for CUDA training has one of ours, in its types."""

import collections
import dataclasses
import functools
import json
from typing import Any

import pytest

from onnxtrain.cli import app
from onnxtrain.graph import schemas
from onnxtrain.kernels.library import (
    default_registry,
    register_cpu_training_kernels,
    register_cuda_training_kernels,
)
from onnxtrain.kernels.registry import KernelRegistry, kernel
from onnxtrain.testing.case import Case
from onnxtrain.testing.catalogue import Registration, missing, registrations
from onnxtrain.testing.close import mismatch
from onnxtrain.testing.model import declared_types, draw, evaluate, named
from onnxtrain.testing.table import schema_of, table
from onnxtrain.testing.truth import own_errors, truth
from onnxtrain.types import CPU, CUDA, MS, ONNX, DataType, Provider, dtype_name, parse_dtype

ONLY_CUDA = {"com.microsoft::TritonOp"}
"""Operators that cannot run on a CPU."""
WITHOUT_ROWS = {"PythonOpGrad", "Recv", "Send", "TritonOp", "YieldOp"}
"""Operators that one node alone cannot try: they need a second process, a GPU or a partner."""
TYPED_BY_ATTRIBUTES = {"PythonOp"}
"""Operators whose rows name the types in attributes."""

REGISTER = {CPU: register_cpu_training_kernels, CUDA: register_cuda_training_kernels}


def operators(lines: list[str]) -> set[str]:
    return {line.split()[0] for line in lines}


def test_the_catalogue_is_complete() -> None:
    assert len(registrations()) == 212
    assert len({(item.domain, item.op) for item in registrations()}) == 89


@pytest.mark.parametrize("item", registrations(), ids=lambda item: item.op)
def test_type_names_and_types_are_the_schema_s(item: Registration) -> None:
    schema = schemas.get(item.domain, item.op, item.since)
    assert schema is not None
    allowed = {c.type_param_str: "".join(c.allowed_type_strs) for c in schema.type_constraints}
    for name, types in item.types.items():
        assert [t.name for t in types if f"tensor({dtype_name(t)})" not in allowed[name]] == []


@pytest.mark.parametrize(("provider", "absent"), [(CUDA, set()), (CPU, ONLY_CUDA)], ids=str)
def test_training_registry(provider: Provider, absent: set[str]) -> None:
    registry = KernelRegistry()
    REGISTER[provider](registry)
    assert operators(missing(registry, provider)) == absent


def test_sessions_have_all_of_them() -> None:
    assert missing(default_registry(), CUDA) == []


def test_what_is_missing_is_found() -> None:
    kernels = [k for k in default_registry().kernels() if k.op not in ("ReluGrad", "TanhGrad")]

    @kernel("TanhGrad", domain=MS, T=[DataType.FLOAT], registry=None)
    def tanh_grad(dy, y):
        return dy

    found = missing(KernelRegistry([*kernels, *tanh_grad.kernels]), CUDA)
    assert sorted(found) == [
        "com.microsoft::ReluGrad 1 T=double",
        "com.microsoft::ReluGrad 1 T=float",
        "com.microsoft::ReluGrad 1 T=float16",
        "com.microsoft::TanhGrad 1 T=double",
        "com.microsoft::TanhGrad 1 T=float16",
    ]


@pytest.fixture(scope="module")
def listed() -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Kernels by operator, as the command line lists them."""
    from typer.testing import CliRunner

    rows = json.loads(CliRunner().invoke(app, ["ops", "--json"]).stdout)
    return {(row["domain"].replace("ai.onnx", ONNX), row["op"]): row["kernels"] for row in rows}


def test_command_line_lists_them(listed: dict[tuple[str, str], list[dict[str, Any]]]) -> None:
    absent = [
        (item.op, types)
        for item in registrations()
        for types in item.combinations()
        if not any(covers(row, item, types) for row in listed[item.domain, item.op])
    ]
    assert absent == []


def covers(row: dict[str, Any], item: Registration, types: dict[str, DataType]) -> bool:
    """Whether a listed kernel is for CUDA, the versions and the types."""
    last = row["until"] or item.since
    return (
        CUDA.name in row["providers"]
        and row["since"] <= item.since <= last
        and any(
            all(
                types.get(name, parse_dtype(text)) == parse_dtype(text)
                for name, text in one.items()
            )
            for one in row["types"]
        )
    )


@functools.cache
def rows() -> dict[tuple[str, str], list[Case]]:
    found: dict[tuple[str, str], list[Case]] = collections.defaultdict(list)
    for case in table():
        found[case.domain, case.op].append(case)
    return found


def row_for(item: Registration) -> Case:
    """The first row of a version that the reference's kernel is for."""
    newest = 10**9
    return next(
        case
        for case in rows()[item.domain, item.op]
        if item.since <= (case.opset or newest) <= (item.until or newest)
    )


def in_types(case: Case, types: dict[str, DataType]) -> Case:
    """A row whose inputs, and outputs where an attribute says so, have the types of names."""
    schema = schema_of(case)
    formals = list(schema.inputs)
    names = [formals[min(i, len(formals) - 1)].type_str for i in range(len(case.inputs))]
    inputs = [
        item.typed(types[name]) if item is not None and name in types else item
        for item, name in zip(case.inputs, names, strict=True)
    ]
    attributes = dict(case.attributes)
    result = types.get(schema.outputs[0].type_str)
    for attribute in {"to", "output_type"} & schema.attributes.keys():
        if result is not None:
            attributes[attribute] = result.value
    return dataclasses.replace(case, inputs=inputs, attributes=attributes)


TRIALS = [
    pytest.param(item, types, id=f"{item.op}-{'-'.join(t.name.lower() for t in types.values())}")
    for item in registrations()
    if item.op not in WITHOUT_ROWS | TYPED_BY_ATTRIBUTES
    for types in item.combinations()
]


@pytest.mark.parametrize(("item", "types"), TRIALS)
def test_values_in_the_reference_s_types(
    item: Registration, types: dict[str, DataType], device: str
) -> None:
    case = in_types(row_for(item), types)
    inputs = draw(case, DataType.FLOAT)
    ours = evaluate(case, inputs, device)
    trues, own = truth(case, inputs), own_errors(case, DataType.FLOAT, inputs)
    outputs = zip(named(case), ours, trues, own, declared_types(case, inputs), strict=True)
    for index, our, true, error, declared in outputs:
        if case.compare is None or index in case.compare:
            assert mismatch(our, true, error, declared) is None


def test_operators_without_rows_have_none() -> None:
    assert {op for op in WITHOUT_ROWS if rows()[MS, op]} == set()
