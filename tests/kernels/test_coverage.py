"""Every version of every operator of ONNX has a kernel or a function body, in all its types.

Versions before opset 7 are rewritten when a model is loaded, see ``graph/upgrade.py``.
"""

import fnmatch

import onnx
import pytest

from onnxtrain.graph import schemas
from onnxtrain.kernels.library import default_registry
from onnxtrain.types import CPU, CUDA, ML, ONNX, parse_dtype

FIRST = {ONNX: 7, ML: 1, "ai.onnx.preview.training": 1, "ai.onnx.preview": 1}
"""Domains of ONNX, and the first version of each that is run as it is."""

WITHOUT_KERNEL = {
    "ai.onnx.preview.training:Gradient:*": "the training graph is built by the gradient engine",
}
"""Versions (as patterns of domain:operator:version) without a kernel, and why."""

WITHOUT_TYPE = {
    "BitCast:*:complex*": "the parts of a complex number have no defined order in memory here",
    "BitCast:*:*int[24]": "torch keeps short numbers in wider ones, whose bits differ",
    "BitCast:*:float4e2m1": "torch keeps short numbers in wider ones, whose bits differ",
    "BitCast:*:float8e8m0": "torch has this type in newer versions only",
    "Col2Im:*:*": "torch adds up the types it computes with",
    "Dropout:*:float8*": "torch does not compute with 8-bit floating point numbers",
    "GridSample:*:bool": "there is nothing between true and false",
    "*:*:complex*": "a complex number is neither zero nor larger nor between others",
    "*:*:string": "words are neither zero nor numbers to interpolate",
}
"""Types (as patterns of operator:version:type) that an operator's kernels do not take, and why."""


def in_force(schema: onnx.defs.OpSchema) -> int | None:
    """The oldest version that is run as it is and for which this schema holds."""
    version = max(schema.since_version, FIRST[schema.domain])
    found = schemas.get(schema.domain, schema.name, version)
    return version if found is not None and found.since_version == schema.since_version else None


def has_body(schema: onnx.defs.OpSchema) -> bool:
    return schema.has_function or schema.has_context_dependent_function


schemas.ensure_registered()
SCHEMAS = [
    (schema, version)
    for schema in onnx.defs.get_all_schemas_with_history()
    if schema.domain in FIRST and not schema.deprecated
    if (version := in_force(schema)) is not None
]
IDS = [
    f"{schema.domain or 'ai.onnx'}-{schema.name}-{schema.since_version}" for schema, _ in SCHEMAS
]
every_schema = pytest.mark.parametrize(("schema", "version"), SCHEMAS, ids=IDS)


def excluded(name: str, table: dict[str, str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in table)


@every_schema
def test_operator(schema: onnx.defs.OpSchema, version: int) -> None:
    name = f"{schema.domain}:{schema.name}:{schema.since_version}"
    if has_body(schema) or excluded(name, WITHOUT_KERNEL):
        return
    for provider in (CPU, CUDA):
        found = default_registry().find(schema.domain, schema.name, version, {}, provider)
        assert found is not None, f"{name} on {provider}"


def missing_types(schema: onnx.defs.OpSchema, version: int) -> list[str]:
    """Tensor types that a schema allows and no kernel takes."""
    registry = default_registry()
    return [
        f"{schema.name}:{schema.since_version}:{text[7:-1]}"
        for constraint in schema.type_constraints
        for text in constraint.allowed_type_strs
        if text.startswith("tensor(")
        if registry.find(
            schema.domain,
            schema.name,
            version,
            {constraint.type_param_str: parse_dtype(text)},
            CPU,
        )
        is None
    ]


@every_schema
def test_types(schema: onnx.defs.OpSchema, version: int) -> None:
    name = f"{schema.domain}:{schema.name}:{schema.since_version}"
    if has_body(schema) or excluded(name, WITHOUT_KERNEL):
        return
    absent = [name for name in missing_types(schema, version) if not excluded(name, WITHOUT_TYPE)]
    assert absent == []


def test_every_exclusion_is_needed() -> None:
    registry = default_registry()
    without = [
        f"{s.domain}:{s.name}:{s.since_version}"
        for s, version in SCHEMAS
        if registry.find(s.domain, s.name, version, {}, CPU) is None and not has_body(s)
    ]
    types = [name for pair in SCHEMAS for name in missing_types(*pair)]
    assert [p for p in WITHOUT_KERNEL if not fnmatch.filter(without, p)] == []
    assert [p for p in WITHOUT_TYPE if not fnmatch.filter(types, p)] == []
