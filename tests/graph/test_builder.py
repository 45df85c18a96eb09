import itertools

import numpy as np
import onnx_ir as ir
import pytest

from graph.text import model
from onnxtrain.errors import GraphError
from onnxtrain.graph.builder import Ops
from onnxtrain.types import MS, DataType


def ops(opset: int = 21) -> Ops:
    return Ops(model("(float[1] x) => (float[1] y) { y = Neg(x) }", opset).graph, "g/")


def value(name: str, *dims: int | str | None, dtype: DataType = DataType.FLOAT) -> ir.Value:
    return ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(dims))


def emitted(op: Ops) -> list[str]:
    return [node.op_type for node in op.nodes]


def test_operators_are_methods_that_give_typed_outputs() -> None:
    op = ops()
    y = op.MatMul(value("a", "N", 3), value("b", 3, 4))
    assert y.dtype == DataType.FLOAT and str(y.shape) == "[N,4]"
    assert op.nodes[0].name == "g/MatMul_0" and y.name == "g/MatMul_0_out"


def test_several_outputs_are_a_tuple() -> None:
    op = ops()
    values, indices = op.TopK(value("a", 4), op.ints([2]), _outputs=2)
    assert indices.dtype == DataType.INT64 and str(values.shape) == "[2]"
    assert [values.name, indices.name] == ["g/TopK_0_out0", "g/TopK_0_out1"]


def test_absent_trailing_inputs_and_attributes_are_left_out() -> None:
    op = ops()
    op.Clip(value("a", 2), None, None)
    op.Transpose(value("b", 2, 3), perm=None)
    assert len(op.nodes[0].inputs) == 1 and not op.nodes[1].attributes


def test_other_domains_are_imported_when_they_are_used() -> None:
    op = ops()
    assert MS not in op.graph.opset_imports
    dx = op.SoftmaxGrad_13(value("dy", 2, 3), value("y", 2, 3), _domain=MS)
    assert op.graph.opset_imports[MS] == 1 and str(dx.shape) == "[2,3]"


def test_lower_case_names_are_no_operators() -> None:
    with pytest.raises(AttributeError):
        _ = ops().nothing


def test_an_operator_that_the_opset_lacks_is_refused() -> None:
    with pytest.raises(GraphError, match="opset 7 has no operator Sign"):
        ops(7).Sign(value("x", 2))


def test_equal_small_constants_are_shared_and_large_ones_are_not() -> None:
    op = ops()
    assert op.ints([1, 2]) is op.ints([1, 2])
    assert op.ints([1, 2]) is not op.ints([2, 1])
    assert op.ints([1]) is not op.const(np.array(1))
    one = op.scalar(1.0, like=value("a", dtype=DataType.FLOAT16))
    assert one.dtype == DataType.FLOAT16 and one is not op.scalar(1.0, like=value("b"))
    assert op.ints(range(20)) is not op.ints(range(20))


@pytest.mark.parametrize("opset", [11, 13, 18, 21])
def test_reductions_take_axes_in_the_form_of_the_opset(opset: int) -> None:
    x = value("x", 2, 3)
    for op_type in ("ReduceSum", "ReduceMean"):
        op = ops(opset)
        assert str(op.reduce(op_type, x, [1], keepdims=False).shape) == "[2]"
        assert str(op.reduce(op_type, x, [0], keepdims=True).shape) == "[1,3]"
        assert str(op.reduce(op_type, x, None, keepdims=False).shape) == "[]"
        assert op.reduce(op_type, x, [], keepdims=True) is x


@pytest.mark.parametrize("opset", [11, 13])
def test_squeezing_takes_axes_in_the_form_of_the_opset(opset: int) -> None:
    op = ops(opset)
    assert str(op.unsqueeze(value("x", 2), [0, 2]).shape) == "[1,2,1]"
    assert str(op.squeeze(value("y", 1, 2), [0]).shape) == "[2]"


def test_a_known_shape_is_a_constant() -> None:
    op = ops()
    assert op.shape(value("x", 2, 3)).const_value.numpy().tolist() == [2, 3]
    op.shape(value("x", "N", 3))
    assert emitted(op) == ["Shape"]


@pytest.mark.parametrize(
    ("dims", "expected"),
    [
        ((2, 3), ["Reshape"]),
        (("N", 3), ["Reshape"]),
        (("N", "M"), ["Shape", "Reshape"]),
        ((0, 3), ["Expand"]),
    ],
)
def test_reshaping_like_another_computes_as_little_as_it_can(
    dims: tuple, expected: list[str]
) -> None:
    op = ops()
    op.reshape_like(value("x", None), value("like", *dims))
    assert emitted(op) == expected


def test_a_cast_to_the_own_type_is_nothing() -> None:
    op = ops()
    x = value("x", 2)
    assert op.cast(x, like=x) is x
    assert op.cast(x, DataType.DOUBLE).dtype == DataType.DOUBLE


def test_a_sum_of_what_is_there() -> None:
    op = ops()
    x = value("x", 2)
    assert op.add(None, None) is None and op.add(None, x) is x
    assert op.add(x, None, x) is not None and emitted(op) == ["Sum"]


def test_prefixes_that_names_have_already_are_numbered() -> None:
    """They do in a gradient graph out of a file; those of names in bodies count, too."""
    graph = model(
        """(float[1] x, bool b) => (float[1] y) {
            "g/Neg_0_out" = Neg(x)
            y = If(b) <
                then_branch = t () => (float[1] u) { u = Neg("g/Neg_0_out") },
                else_branch = e () => (float[1] v) { "g2/h/z" = Abs(x) v = Neg("g2/h/z") }
            >
        }"""
    ).graph
    assert [Ops(graph, text).prefix for text in ("g/", "g/", "g2/h/", "k/")] == [
        "g3/", "g4/", "g2/h2/", "k/",
    ]  # fmt: skip


SHAPES = [(), (1,), (3,), (2, 1), (2, 3), (1, 3), (4, 2, 3), (4, 1, 1), (1, 2, 1)]
BROADCAST = [
    (a, tuple(np.broadcast_shapes(a, b)))
    for a, b in itertools.product(SHAPES, SHAPES)
    if all(x == y or 1 in (x, y) for x, y in zip(a[::-1], b[::-1], strict=False))
]


@pytest.mark.parametrize(("to", "full"), sorted(set(BROADCAST)))
def test_unbroadcasting_gives_the_shape_back(to: tuple, full: tuple) -> None:
    op = ops()
    result = op.unbroadcast(value("g", *full), to=value("x", *to))
    assert tuple(result.shape) == to
    assert (result.name == "g") == (to == full)


def test_equal_symbols_need_no_sum() -> None:
    op = ops()
    grad = value("g", "N", 3)
    assert op.unbroadcast(grad, to=value("x", "N", 3)) is grad
    summed = op.unbroadcast(grad, to=value("y", 3))
    assert str(summed.shape) == "[3]" and emitted(op) == ["ReduceSum"]


@pytest.mark.parametrize("to", [("M", 3), (None, 3)])
def test_unknown_sizes_are_compared_at_run_time(to: tuple) -> None:
    op = ops()
    op.unbroadcast(value("g", "N", 3), to=value("x", *to))
    assert "BroadcastGradientArgs" in emitted(op)
