"""Every row × every fact of its kernel's decorator, and the kernels' signatures against schemas."""

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from onnxtrain.graph import schemas
from onnxtrain.kernels.library import declared_kernels, default_registry
from onnxtrain.kernels.registry import Kernel, KernelRegistry, kernel
from onnxtrain.runtime import copies
from onnxtrain.runtime.render import parameter
from onnxtrain.testing import claims
from onnxtrain.testing.case import Case, normal, shape_input
from onnxtrain.testing.close import mismatch
from onnxtrain.testing.model import (
    draw,
    feeds_of,
    named,
    one_node_model,
    run_model,
    with_fresh_inputs,
)
from onnxtrain.testing.table import one_type, table
from onnxtrain.testing.truth import own_errors, truth
from onnxtrain.types import CPU, ONNX, DataType

TRIALS = [
    pytest.param(case, dtype, id=str(case))
    for case in table()
    if (dtype := one_type(case)) is not None
]
KERNELS = [pytest.param(k, id=k.describe()) for k in declared_kernels()]
FACTS = [
    claims.wrong_changes,
    claims.wrong_updates,
    claims.wrong_inplace,
    claims.wrong_sharing,
    claims.wrong_whole,
    claims.wrong_host_inputs,
    claims.wrong_wanted,
    claims.wrong_empty,
]
MAPS = {"CastMap", "DictVectorizer", "ZipMap"}
"""Operators on maps, which are no tensors; ``test_ml_maps.py`` has them."""
every_row = pytest.mark.parametrize(("case", "dtype"), TRIALS)
every_kernel = pytest.mark.parametrize("item", KERNELS)


@every_row
def test_facts(case: Case, dtype: DataType, poison: None) -> None:
    call = claims.recorded(case, draw(case, dtype))
    assert {fact.__name__: wrong for fact in FACTS if (wrong := fact(call))} == {}


@pytest.mark.parametrize("arrange", [claims.strided, claims.transposed])
@every_row
def test_inputs_need_not_be_contiguous(
    case: Case, dtype: DataType, arrange: Any, poison: None
) -> None:
    call, expected = _recorded(case, dtype)
    results = claims.rearranged(call, arrange)
    for index, true, own in expected:
        if case.compare is None or index in case.compare:
            assert mismatch(results[index], true, own) is None


class _Last:
    """The row that was recorded last, and what was found: each is arranged in several ways."""

    case: Case | None = None
    found: tuple[claims.Call, list[tuple[int, Any, float]]]


def _recorded(case: Case, dtype: DataType) -> tuple[claims.Call, list[tuple[int, Any, float]]]:
    """The call of a row's kernel; index, true value and torch's own error of its outputs."""
    if _Last.case is not case:
        inputs = draw(case, dtype)
        call, errors = claims.recorded(case, inputs), own_errors(case, dtype, inputs)
        expected = zip(named(case), truth(case, inputs), errors, strict=True)
        _Last.case, _Last.found = case, (call, list(expected))
    return _Last.found


@every_row
def test_taking_over_storage_changes_nothing(case: Case, dtype: DataType) -> None:
    inputs = draw(case, dtype)
    model = with_fresh_inputs(one_node_model(case, inputs))
    registry = _with_copies()
    feeds = feeds_of(case, inputs)
    found = [run_model(model, feeds, registry=registry, reuse=reuse) for reuse in (True, False)]
    defined = [case.compare is None or index in case.compare for index in named(case)]
    assert claims.identical(*(list(itertools.compress(results, defined)) for results in found))


@functools.cache
def _with_copies() -> KernelRegistry:
    return KernelRegistry([*default_registry().kernels(), copies.declared(copies.copy)])


@pytest.mark.parametrize("case", [pytest.param(case, id=str(case)) for case in table()])
def test_row_has_a_type_that_its_schema_allows(case: Case) -> None:
    assert one_type(case) is not None


def _can_have_a_row(item: Kernel) -> bool:
    """Whether one process, one node and the CPU are enough to run a kernel."""
    graphs = [
        name
        for schema in _schemas(item)
        for name, attribute in schema.attributes.items()
        if "GRAPH" in str(attribute.type)
    ]
    plain = item.special is None and "groups" not in item.needs and CPU in item.on
    plain = plain and item.op not in MAPS
    return plain and not graphs


def test_every_kernel_has_a_row() -> None:
    tried = {(case.domain, case.op) for case in table()}
    wanted = {(k.domain, k.op) for k in declared_kernels() if _can_have_a_row(k)}
    assert wanted
    assert not wanted - tried, f"no row for {sorted(wanted - tried)}"


def test_every_input_that_may_be_overwritten_is_tried() -> None:
    claimed = {(k, name) for k in declared_kernels() for name in k.inplace}
    ops = {(k.domain, k.op) for k, _ in claimed}
    for case in table():
        if (case.domain, case.op) in ops and (dtype := one_type(case)) is not None:
            call = claims.recorded(case, draw(case, dtype))
            found = {call.kernel.input_name(index) for index in claims.inplace_inputs(call)}
            claimed -= {(call.kernel, name) for name in found}
    missing = sorted(f"{name} of {item.describe()}" for item, name in claimed)
    assert not missing, "no row tries\n" + "\n".join(missing)


@functools.cache
def _newest() -> dict[str, int]:
    """Newest version of each domain that an operator was changed in."""
    schemas.ensure_registered()
    found = {ONNX: onnx.defs.onnx_opset_version()}
    for schema in onnx.defs.get_all_schemas_with_history():
        found[schema.domain] = max(found.get(schema.domain, 1), schema.since_version)
    return found


def _schemas(item: Kernel) -> list[onnx.defs.OpSchema]:
    """The operator's schemas at every version that the kernel claims."""
    versions = range(item.since, (item.until or _newest()[item.domain]) + 1)
    found = [schemas.get(item.domain, item.op, version) for version in versions]
    return list({s.since_version: s for s in found if s is not None}.values())


@every_kernel
def test_kernel_has_a_schema(item: Kernel) -> None:
    assert _schemas(item)


@every_kernel
def test_attributes_are_the_schema_s(item: Kernel) -> None:
    known = {parameter(name) for schema in _schemas(item) for name in schema.attributes}
    assert item.attributes.keys() <= known
    assert item.any_attribute or known <= item.attributes.keys()


@every_kernel
def test_defaults_are_the_schema_s(item: Kernel) -> None:
    attributes = _schemas(item)[-1].attributes if _schemas(item) else {}
    for name, attribute in attributes.items():
        ours = item.attributes.get(parameter(name))
        if attribute.default_value.type and ours is not None:
            default = onnx.helper.get_attribute_value(attribute.default_value)
            assert _same(ours, default), (name, default)


def _same(ours: Any, schema: Any) -> bool:
    if isinstance(schema, list):
        return len(ours) == len(schema) and all(map(_same, ours, schema))
    if isinstance(schema, float) and isinstance(ours, float):
        return bool(np.float32(ours) == np.float32(schema))
    return bool(ours == (schema.decode() if isinstance(schema, bytes) else schema))


@every_kernel
def test_constrained_types_are_the_schema_s(item: Kernel) -> None:
    known = {c.type_param_str for schema in _schemas(item) for c in schema.type_constraints}
    assert item.types.keys() <= known


@every_kernel
def test_inputs_and_outputs_are_as_many_as_the_schema_s(item: Kernel) -> None:
    for schema in _schemas(item):
        assert item.variadic or len(item.inputs) >= schema.max_input
        assert item.outputs in (0, schema.max_output) or item.outputs > schema.max_output
        assert all(index < schema.max_output for index in item.host_out)


def _broken(**facts: Any) -> tuple[Case, Callable[[Any], KernelRegistry]]:
    """A row, and a registry with a kernel whose decorator lies."""

    def registry(fn: Any) -> KernelRegistry:
        made = KernelRegistry()
        kernel("Softmax", registry=made, **facts)(fn)
        return made

    return Case("Softmax", [normal(3, 4)], torch.softmax, {"axis": -1}), registry


def _call(fn: Any, **facts: Any) -> claims.Call:
    case, registry = _broken(**facts)
    return claims.recorded(case, draw(case, DataType.FLOAT), registry(fn))


def test_a_false_inplace_is_caught() -> None:
    def softmax(x: Any, *, axis: int = -1, out: Any = None) -> Any:
        out = torch.empty_like(x) if out is None else out
        out.copy_(x.amax(axis, keepdim=True).expand_as(x))
        return out.copy_((x - out).softmax(axis))

    assert claims.wrong_inplace(_call(softmax, inplace=["x"])) == ["output 0 is wrong with out='x'"]


def test_an_ignored_out_is_caught() -> None:
    def softmax(x: Any, *, axis: int = -1, out: Any = None) -> Any:
        return x.softmax(axis)

    assert claims.wrong_inplace(_call(softmax, inplace=["x"])) == ["out='x' is not used"]


def test_an_undeclared_view_is_caught() -> None:
    def softmax(x: Any, *, axis: int = -1) -> Any:
        return x[...]

    assert claims.wrong_sharing(_call(softmax)) == ["output 0 shares storage with 'x'"]
    assert claims.wrong_sharing(_call(softmax, view="x")) == []


def test_outputs_in_the_same_memory_are_caught() -> None:
    """Outputs may be cut out of one piece of memory, if they lie apart."""

    def softmax(x: Any, *, axis: int = -1, step: int = 12) -> Any:
        both = torch.zeros(24)
        return both[:12].view(3, 4), both[step : step + 12]

    call = _call(softmax, outputs=2)
    assert claims.wrong_sharing(call) == []
    changed = dataclasses.replace(call, keywords={**call.keywords, "step": 11})
    assert claims.wrong_sharing(changed) == ["outputs 0 and 1 share memory"]


def test_an_expanded_output_is_caught() -> None:
    def softmax(x: Any, *, axis: int = -1) -> Any:
        return torch.ones(1).expand_as(x)

    assert claims.wrong_sharing(_call(softmax)) == [
        "output 0 is expanded: its elements share memory"
    ]


def test_an_undeclared_mutation_is_caught() -> None:
    def softmax(x: Any, *, axis: int = -1) -> Any:
        return x.sub_(1).softmax(axis)

    assert claims.wrong_changes(_call(softmax)) == ["input 'x' changes"]
    assert claims.wrong_changes(_call(softmax, mutates=["x"])) == []


def test_an_update_that_is_not_made_is_caught() -> None:
    def softmax(x: Any, *, axis: int = -1, update: bool = False) -> Any:
        return x.softmax(axis)

    wrong = claims.wrong_updates(_call(softmax, updates=["x"], view={"x": 0}))
    assert wrong == ["input 'x' does not hold output 0 with update=True"]


def test_an_output_that_depends_on_what_else_is_wanted_is_caught() -> None:
    case = Case("TopK", [normal(4), shape_input(2)], torch.topk, outputs=2, compare=())
    registry = KernelRegistry()

    @kernel("TopK", host=["k"], needs=["wanted"], outputs=2, registry=registry)
    def top_k(x: Any, k: Any, *, wanted: Any, **_: Any) -> Any:
        values, indices = torch.topk(x, k[0])
        return values if all(wanted) else values * 2, indices

    call = claims.recorded(case, draw(case, DataType.FLOAT), registry)
    assert "output 0 differs with wanted=(True, False)" in claims.wrong_wanted(call)


def test_a_host_input_is_no_tensor() -> None:
    case = Case("TopK", [normal(4), shape_input(2)], torch.topk, outputs=2, compare=())
    registry = KernelRegistry()

    @kernel("TopK", outputs=2, registry=registry)
    def top_k(x: Any, k: Any, **_: Any) -> Any:
        return tuple(torch.topk(x, int(k[0])))

    call = claims.recorded(case, draw(case, DataType.FLOAT), registry)
    false = dataclasses.replace(call, kernel=dataclasses.replace(call.kernel, host=("k",)))
    assert claims.wrong_host_inputs(call) == []
    assert claims.wrong_host_inputs(false) == ["host input 'k' is a tensor"]


def test_a_kernel_that_needs_contiguous_inputs_is_caught() -> None:
    def softmax(x: Any, *, axis: int = -1) -> Any:
        return torch.as_strided(x, (3, 4), (4, 1)).softmax(axis)

    call = _call(softmax)
    expected = torch.softmax(call.args[0], -1)
    for arrange in (claims.strided, claims.transposed):
        assert mismatch(claims.rearranged(call, arrange)[0], expected.double(), 0.0) is not None


def test_a_kernel_that_cannot_take_an_empty_batch_is_caught() -> None:
    def softmax(x: Any, *, axis: int = -1, out: Any = None) -> Any:
        return torch.softmax(x if len(x) else torch.zeros(1, 4), axis, out=out)

    assert claims.wrong_empty(_call(softmax, inplace=["x"])) == [
        "a batch of none gives torch.float32 (1, 4), not (0, 4)"
    ]
