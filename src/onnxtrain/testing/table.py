"""Every row there is, and the element types in which each can be tried."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Collection

import onnx

from onnxtrain.graph import schemas
from onnxtrain.kernels.library import default_registry
from onnxtrain.testing.case import Case, rows
from onnxtrain.testing.ranks import other_ranks
from onnxtrain.types import CPU, CUDA, ONNX, DataType, dtype_name, op_name

FAMILIES = (
    "activation",
    "attention",
    "collective",
    "control",
    "flash_attention",
    "further",
    "further_ms",
    "gist",
    "interop",
    "joined",
    "loss",
    "math",
    "ml",
    "ms_attention",
    "ms_embed",
    "ms_fused",
    "ms_gated",
    "ms_group_query",
    "ms_longformer",
    "ms_pool",
    "ms_quantized",
    "ms_recurrent",
    "ms_sparse",
    "ms_tensor",
    "ms_weights",
    "nn",
    "optimizer",
    "quantization",
    "reduction",
    "sequence",
    "signal",
    "summary",
    "tensor",
    "text",
    "vector_jacobian",
    "vision",
)
"""Modules of ``onnxtrain.testing.cases``."""
OPSET_BESIDE = 21
"""Version of ONNX's own domain in models of operators of another domain."""
_ANY = 2**31 - 1


@functools.cache
def table() -> tuple[Case, ...]:
    """All rows."""
    modules = [importlib.import_module(f"onnxtrain.testing.cases.{name}") for name in FAMILIES]
    written = rows(module.CASES for module in modules)
    return (*written, *other_ranks(written))


def opsets(case: Case) -> dict[str, int]:
    """Opset imports of the model of a row."""
    if case.domain == ONNX:
        return {ONNX: case.opset or onnx.defs.onnx_opset_version()}
    version = case.opset or schema_of(case).since_version
    return {ONNX: OPSET_BESIDE, case.domain: version}


def schema_of(case: Case) -> onnx.defs.OpSchema:
    """The operator's schema at the row's version.

    Raises:
        LookupError: if no such operator is registered.
    """
    found = _find_schema(case)
    if found is None:
        raise LookupError(f"no schema for {op_name(case.domain, case.op)} of row '{case}'")
    return found


def _find_schema(case: Case) -> onnx.defs.OpSchema | None:
    newest = onnx.defs.onnx_opset_version() if case.domain == ONNX else _ANY
    return schemas.get(case.domain, case.op, case.opset or newest)


def trial_types(case: Case) -> list[DataType]:
    """Types of a row that the schema allows where the type under test is used.

    A row whose inputs all have fixed types is tried once, whatever its types say.
    """
    wanted = sorted(case.dtypes)
    schema = _find_schema(case)
    free = [index for index, item in enumerate(case.inputs) if item and item.dtype is None]
    if not free or schema is None:
        return wanted[:1]
    drawn = case.draw()
    formals = list(schema.inputs)
    constraints = {c.type_param_str: set(c.allowed_type_strs) for c in schema.type_constraints}
    for index in free:
        name = formals[min(index, len(formals) - 1)].type_str
        allowed = constraints.get(name, {name})
        form = "seq(tensor({}))" if isinstance(drawn[index], list) else "tensor({})"
        wanted = [d for d in wanted if _allows(allowed, form.format(dtype_name(d)))]
    return wanted


def _allows(allowed: Collection[str], type_: str) -> bool:
    return type_ in allowed or f"optional({type_})" in allowed


def runs_on(case: Case, device: str) -> bool:
    """Whether a row can be tried on a device: some operators are joined on a CPU alone."""
    provider = CPU if device == "cpu" else CUDA
    kernels = default_registry().kernels_of(case.domain, case.op)
    return not kernels or any(provider in kernel.on for kernel in kernels)


def one_type(case: Case) -> DataType | None:
    """The type in which a row is tried where one is enough: float if it can be."""
    types = trial_types(case)
    return DataType.FLOAT if DataType.FLOAT in types else next(iter(types), None)
