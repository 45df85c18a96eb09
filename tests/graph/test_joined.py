"""Weights that an exporter joined with others, and also left as they are."""

import numpy as np
import onnx_ir as ir
import pytest

from graph.text import model
from onnxtrain.graph.torch_export.joined import part

SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
FOLDED = "pkg.onnxscript.optimizer.folded_from"
TABLE = np.arange(8.0, dtype=np.float32).reshape(4, 2) + 1
MORE = np.full((4, 1), 9, np.float32)


def joined(numbers: np.ndarray, *made_of: str, name: str = "cat", older: bool = False) -> ir.Model:
    """A matrix beside a table of four rows."""
    rows, columns = numbers.shape
    text = ", ".join(map(str, numbers.ravel().tolist()))
    table = ", ".join(map(str, TABLE.ravel().tolist()))
    found = model(
        f"(float[3,4] x, float[3,{rows}] z) => (float[3,2] y, float[3,{columns}] w) "
        f"<float[4,2] table = {{{table}}}, float[{rows},{columns}] {name} = {{{text}}}> "
        f"{{ y = MatMul(x, table) w = MatMul(z, {name}) }}"
    )
    found.producer_name = "pytorch"
    value = found.graph.initializers[name]
    if older:
        value.name = f"onnx::{name}"
    else:
        signature = "p_a: PARAMETER target='table'\np_b: PARAMETER target='more'\n"
        found.graph.metadata_props[SIGNATURE] = signature
        value.metadata_props[FOLDED] = repr(["table", *made_of])
    return found


def numbers_of(value: ir.Value | None) -> np.ndarray:
    """What a value is, that a node of the graph may make of others."""
    assert value is not None
    node = value.producer()
    if node is None:
        assert value.const_value is not None
        return value.const_value.numpy()
    parts = [numbers_of(one) for one in node.inputs]
    if node.op_type == "Transpose":
        return parts[0].T
    assert node.op_type == "Concat"
    return np.concatenate(parts, node.attributes["axis"].as_int())


@pytest.mark.parametrize("older", [False, True], ids=["newer", "older"])
@pytest.mark.parametrize(
    ("numbers", "ops", "rests"),
    [
        (np.hstack([TABLE, MORE]), ["Concat"], [[4, 1]]),
        (np.hstack([MORE, TABLE]), ["Concat"], [[4, 1]]),
        (np.hstack([MORE, TABLE, MORE]), ["Concat"], [[4, 1], [4, 1]]),
        (np.vstack([TABLE.T, MORE.T]), ["Transpose", "Concat"], [[1, 4]]),
        (np.vstack([TABLE, TABLE]), ["Concat"], []),
        (np.vstack([TABLE.T, MORE.T, TABLE.T]), ["Transpose"] * 2 + ["Concat"] * 2, [[1, 4]]),
    ],
    ids=["before", "behind", "between", "transposed", "twice", "both"],
)
def test_they_are_joined_again(
    numbers: np.ndarray, ops: list[str], rests: list[list[int]], older: bool
) -> None:
    found = joined(numbers, "more", name="MatMul_7" if older else "cat", older=older)
    assert part(found)
    graph = found.graph
    names = [node.op_type for node in graph if node.op_type != "MatMul"]
    assert sorted(names, reverse=True) == ops
    made = next(node for node in graph if node.outputs[0] is graph.outputs[1]).inputs[1]
    np.testing.assert_array_equal(numbers_of(made), numbers)
    left = [v for v in graph.initializers.values() if v.name != "table"]
    assert [list(v.const_value.shape.numpy()) for v in left if v.const_value] == rests
    if not older:
        assert {v.metadata_props[FOLDED] for v in left} <= {"['more']"}
    assert not part(found)


def test_what_else_was_taken_from_it_still_tells_so() -> None:
    found = joined(np.hstack([TABLE, MORE]), "slice_1", "more")
    assert part(found)
    assert found.graph.initializers["cat_rest"].metadata_props[FOLDED] == (
        "['table', 'slice_1', 'more']"
    )


@pytest.mark.parametrize(
    ("numbers", "name"),
    [(np.hstack([2 * TABLE, MORE]), "cat"), (TABLE[:2], "slice_1"), (TABLE.T @ TABLE, "mm")],
    ids=["other numbers", "a part", "other sizes"],
)
def test_what_has_other_numbers_stays(numbers: np.ndarray, name: str) -> None:
    found = joined(numbers, "more", name=name)
    assert not part(found) and sorted(found.graph.initializers) == sorted(["table", name])
