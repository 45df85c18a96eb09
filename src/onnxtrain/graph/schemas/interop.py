"""Nodes that call out: torch autograd functions and Triton kernels."""

from __future__ import annotations

from onnxtrain.graph.schemas.declare import (
    ANY,
    INT64,
    Attribute,
    op,
    optional,
    required,
    sequences_of,
    type_strings,
)
from onnxtrain.graph.schemas.facts import Facts, Shape
from onnxtrain.graph.schemas.infer import SCALAR, Dims, fixed, from_list, of_rank, typed
from onnxtrain.types import DataType

TENSORS_AND_SEQUENCES = frozenset(type_strings(ANY)) | sequences_of(ANY)


def constants(kind: str) -> dict[str, Attribute]:
    """Attributes for the constant arguments of one kind: scalars, and tuples laid end to end."""
    values = optional("floats" if kind == "float" else "ints")
    return {
        f"input_{kind}_scalars": values,
        f"input_{kind}_scalar_positions": optional("ints"),
        f"input_{kind}_tuples": values,
        f"input_{kind}_tuple_positions": optional("ints"),
        f"input_{kind}_tuple_begins": optional("ints"),
    }


def ranked(first: int) -> Dims:
    """Ranks listed in ``output_tensor_ranks``; its first entry belongs to output ``first``."""

    def dims(facts: Facts, output: int) -> Shape | None:
        ranks = facts.integers("output_tensor_ranks")
        position = output - first
        return of_rank(ranks[position]) if 0 <= position < len(ranks) else None

    return dims


OPS = (
    op(
        "PythonOp",
        "inputs+: each T -> context: TInt64, outputs+: each T",
        T=TENSORS_AND_SEQUENCES,
        TInt64=INT64,
        func_name=required("string"),
        input_convention=required("string"),
        input_requires_grads=optional("ints"),
        input_tensor_types=required("ints"),
        input_tensor_ranks=required("ints"),
        attributes=constants("bool") | constants("int") | constants("float"),
        input_pointer_scalars=optional("ints"),
        input_pointer_scalar_positions=optional("ints"),
        output_tensor_types=required("ints"),
        output_tensor_ranks=required("ints"),
        tensor_reuse_map=optional("ints"),
        bw_tensor_reuse_map=optional("ints"),
        training_mode=0,
        comment=optional("string"),
        safe_run_mode=1,
        infer=(
            typed(fixed(DataType.INT64), SCALAR),
            typed(from_list("output_tensor_types", first=1), ranked(first=1)),
        ),
    ),
    op(
        "PythonOpGrad",
        "context: TInt64, inputs+: each T -> outputs+: each T",
        T=TENSORS_AND_SEQUENCES,
        TInt64=INT64,
        func_name=required("string"),
        output_convention=required("string"),
        input_tensor_types=optional("ints"),
        input_tensor_ranks=optional("ints"),
        output_tensor_types=optional("ints"),
        output_tensor_ranks=optional("ints"),
        output_tensor_requires_grads=required("ints"),
        tensor_reuse_map=optional("ints"),
        comment=optional("string"),
        safe_run_mode=1,
        infer=typed(from_list("output_tensor_types"), ranked(first=0)),
    ),
    op(
        "TritonOp",
        "inputs*: each T -> outputs+: each T",
        T=ANY,
        func_name="",
        onnx_key=0,
        onnx_string="",
    ),
)
