"""Parameters that an exporter repeated for a batch of a fixed size."""

import numpy as np
import onnx_ir as ir
import pytest

from graph.text import model
from onnxtrain.graph.shared_rows import share_rows

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
        ([1, 2, 3, 4, 1, 2, 3, 5], "expand", "PARAMETER"),
        ([0] * 8, "val_7", "PARAMETER"),
        ([1, 2, 3, 4, 1, 2, 3, 4], "expand", "BUFFER"),
    ],
    ids=["samples differ", "equal numbers", "no parameter"],
)
def test_what_is_no_repetition_stays(numbers: list[float], name: str, kind: str) -> None:
    found = repeated(numbers, name, kind)
    assert not share_rows(found) and list(found.graph.initializers) == [name]


def test_sizes_that_are_no_batch_stay() -> None:
    found = repeated([1, 2, 3, 4, 1, 2, 3, 4])
    found.graph.inputs[0].shape = ir.Shape(["N", 2, 2])
    assert not share_rows(found)
