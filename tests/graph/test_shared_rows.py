"""Parameters that an exporter repeated for a batch of a fixed size."""

import numpy as np
import onnx_ir as ir
import pytest

from graph.text import model
from onnxtrain.graph.torch_export.shared_rows import share_rows

SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
FOLDED = "pkg.onnxscript.optimizer.folded_from"


def repeated(numbers: list[float], name: str = "index", kind: str = "PARAMETER") -> ir.Model:
    """A tensor of 2 by 2 by 2 that is added to a batch of two samples."""
    found = model(
        "(float[2,2,2] x) => (float[2,2,2] y) <float[2,2,2] "
        f"{name} = {{{', '.join(map(str, numbers))}}}> {{ y = Add(x, {name}) }}"
    )
    found.graph.metadata_props[SIGNATURE] = f"p_t: {kind} target='token'\nx: USER_INPUT\n"
    found.graph.initializers[name].metadata_props[FOLDED] = "['token', 'val_1']"
    return found


@pytest.mark.parametrize(
    ("numbers", "name", "shape"),
    [
        ([1, 2, 3, 4, 1, 2, 3, 4], "index", [1, 2, 2]),
        ([1, 2, 1, 2, 3, 4, 3, 4], "index", [2, 1, 2]),
        ([0] * 8, "expand_3", [1, 2, 2]),
    ],
    ids=["samples first", "samples second", "zeros"],
)
def test_it_is_stored_once(numbers: list[float], name: str, shape: list[int]) -> None:
    found = repeated(numbers, name)
    assert share_rows(found)
    (expand, add), graph = found.graph, found.graph
    stored = expand.inputs[0]
    assert expand.op_type == "Expand" and add.inputs[1] is expand.outputs[0]
    assert stored is graph.initializers[f"{name}_once"] and stored.const_value is not None
    assert stored.metadata_props[FOLDED] == "['token', 'val_1']" and name not in graph.initializers
    once, sizes = stored.const_value.numpy(), expand.inputs[1]
    assert list(once.shape) == shape
    assert sizes is not None and sizes.const_value is not None
    whole = np.broadcast_to(once, sizes.const_value.numpy())
    assert whole.tolist() == np.reshape(numbers, (2, 2, 2)).tolist()
    assert not share_rows(found)


@pytest.mark.parametrize(
    ("numbers", "name", "kind"),
    [
        ([1, 2, 3, 4, 1, 2, 3, 5], "val_7", "PARAMETER"),
        ([1, 2, 3, 4, 5, 6, 7, 8], "expand", "PARAMETER"),
        ([1, 0, 1, 0, 1, 0, 0, 1], "view", "PARAMETER"),
        ([0] * 8, "val_7", "PARAMETER"),
        ([1, 2, 3, 4, 1, 2, 3, 4], "expand", "BUFFER"),
    ],
    ids=["samples differ", "all differ", "few numbers", "equal numbers", "no parameter"],
)
def test_what_is_no_repetition_stays(numbers: list[float], name: str, kind: str) -> None:
    found = repeated(numbers, name, kind)
    assert not share_rows(found) and list(found.graph.initializers) == [name]


@pytest.mark.parametrize("name", ["val_7", "view"])
def test_sizes_that_are_no_batch_stay(name: str) -> None:
    found = repeated([1, 2, 1, 2, 1, 2, 1, 2], name)
    found.graph.inputs[0].shape = ir.Shape(["N", 2, 2])
    assert not share_rows(found)


def test_a_row_that_all_places_have_is_stored_once() -> None:
    found = repeated([1, 2, 1, 2, 1, 2, 1, 2], "embedding_1")
    found.graph.inputs[0].shape = ir.Shape(["N", 2, 2])
    assert share_rows(found)
    assert [node.op_type for node in found.graph] == ["Expand", "Add"]
    stored = found.graph[0].inputs[0]
    assert stored is not None and stored.const_value is not None
    assert stored.const_value.numpy().tolist() == [[[1, 2]]]


@pytest.mark.parametrize(
    ("numbers", "ops"),
    [
        ([1, 2, 3, 4, 3, 4, 5, 6], ["Gather"]),
        ([1, 3, 2, 4, 3, 5, 4, 6], ["Gather", "Transpose"]),
    ],
    ids=["last axis", "another axis"],
)
def test_rows_that_some_places_share_are_stored_once(numbers: list[float], ops: list[str]) -> None:
    found = repeated(numbers, "unsqueeze")
    assert share_rows(found)
    assert [node.op_type for node in found.graph] == [*ops, "Add"]
    rows, places = (v.const_value.numpy() for v in found.graph[0].inputs if v and v.const_value)
    assert sorted(rows.tolist()) == [[1, 2], [3, 4], [5, 6]]
    whole = rows[places]
    if len(ops) > 1:
        whole = whole.transpose(found.graph[1].attributes["perm"].as_ints())
    assert whole.tolist() == np.reshape(numbers, (2, 2, 2)).tolist()


@pytest.mark.parametrize(
    ("numbers", "way", "shares"),
    [
        ([1, 2, 3, 1, 2, 3, 2, 1], "index", True),
        ([1, 2, 3, 1, 2, 3, 2, 1], "clone", False),
        ([1, 2, 0, 1, 2, 0, 2, 1], "index", False),
        ([1, 2, 3, 2, 4, 5, 6, 7], "index", False),
    ],
    ids=["looked up", "moved", "pruned", "few again"],
)
def test_numbers_that_places_share_are_stored_once(
    numbers: list[float], way: str, shares: bool
) -> None:
    found = repeated(numbers, "unsqueeze")
    found.graph.initializers["unsqueeze"].metadata_props[FOLDED] = f"['token', '{way}']"
    found.graph.inputs[0].shape = ir.Shape(["N", 2, 2])
    assert share_rows(found) is shares
    if shares:
        assert [node.op_type for node in found.graph] == ["Gather", "Add"]
        rows, places = (v.const_value.numpy() for v in found.graph[0].inputs if v and v.const_value)
        assert rows.tolist() == [1, 2, 3]
        assert rows[places].tolist() == np.reshape(numbers, (2, 2, 2)).tolist()


@pytest.mark.parametrize(("name", "shares"), [("transpose", False), ("embedding", True)])
def test_pruned_rows_are_no_repetition(name: str, shares: bool) -> None:
    """A weight may have several of them; a table has a row of zeros for what fills up."""
    assert share_rows(repeated([0, 0, 1, 2, 0, 0, 3, 4], name)) is shares


@pytest.mark.parametrize(("way", "ops"), [("repeat_2", ["Tile", "Add"]), ("clone", ["Add"])])
def test_samples_that_share_an_axis_with_heads_are_stored_once(way: str, ops: list[str]) -> None:
    found = model(
        "(float[2,3] x, float[4,3] h) => (float[4,3] y) <float[4,3] "
        "val_7 = {1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6}> { y = Add(h, val_7) }"
    )
    found.graph.metadata_props[SIGNATURE] = "p_t: PARAMETER target='table'\nx: USER_INPUT\n"
    found.graph.initializers["val_7"].metadata_props[FOLDED] = f"['table', '{way}']"
    assert share_rows(found) is (len(ops) > 1)
    assert [node.op_type for node in found.graph] == ops
    if len(ops) > 1:
        rows, times = (v.const_value.numpy() for v in found.graph[0].inputs if v and v.const_value)
        assert rows.tolist() == [[1, 2, 3], [4, 5, 6]] and times.tolist() == [2, 1]
