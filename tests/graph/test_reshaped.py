"""Sizes of what is reshaped, where they are products."""

import numpy as np
import onnx_ir as ir
import pytest

from graph.text import model, values
from onnxtrain.graph.inference.products import Product
from onnxtrain.graph.prepare import prepare

LEAD = (
    """s = Shape(x) b = Gather(s, zero) h = Gather(s, one) n = Mul(b, h) m = Unsqueeze(n, axes)"""
)
NUMBERS = "<int64 zero = {0}, int64 one = {1}, int64[1] axes = {0}, int64[1] rest = {-1}"


def shape_of(nodes: str, inputs: str = "float[B,4,T,8] x", numbers: str = "") -> list[int | str]:
    found = prepare(model(f"({inputs}) => (float y) {NUMBERS}{numbers}> {{ {nodes} }}"))
    shape = values(found)["y"].shape
    assert shape is not None
    return [d if isinstance(d, int) else _named(d) for d in shape]


def _named(dim: ir.SymbolicDim) -> str:
    return "?" if dim.value is None or dim.value.startswith("unk__") else dim.value


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("m, rest, last", ["4*B", "T", 8]),
        ("rest, rows, last", ["4*B", "T", 8]),
        ("m, rows, rest", ["4*B", "T", 8]),
        ("twice, rows, rest", ["8*B", "T", 4]),
        ("zero_, rest", ["B", "32*T"]),
        ("zero_, zero_, rest", ["B", 4, "8*T"]),
        ("half, rest, last", ["28*B", "?", 8]),
        ("rest, squared", ["?", "?"]),
    ],
)
def test_the_size_that_is_left_is_what_is_there_by_what_is_taken(
    form: str, expected: list[int | str]
) -> None:
    more = """rows = Slice(s, two_, three_) two = Mul(n, number) twice = Unsqueeze(two, axes)
        t = Squeeze(rows) whole = Mul(t, t) squared = Unsqueeze(whole, axes)
        odd = Mul(n, prime) half = Unsqueeze(odd, axes)"""
    numbers = """, int64[1] last = {8}, int64[1] zero_ = {0}, int64[1] two_ = {2},
        int64[1] three_ = {3}, int64 number = {2}, int64 prime = {7}"""
    nodes = f"{LEAD} {more} f = Concat<axis=0>({form}) y = Reshape(x, f)"
    assert shape_of(nodes, numbers=numbers) == expected


def test_quotients_are_sizes_where_they_come_out_even() -> None:
    """[B, T, 32] as [B, T·4, 32 / 4]."""
    nodes = """s = Shape(x) parts = Slice(s, axes, three) f = Div(parts, by) y = Reshape(x, f)"""
    numbers = ", int64[1] three = {3}, int64[3] by = {1, 1, 4}"
    assert shape_of(nodes, "float[B,T,32] x", numbers) == ["B", "T", 8]


def test_what_reads_the_result_is_told() -> None:
    nodes = f"""{LEAD} f = Concat<axis=0>(m, rest, last) z = Reshape(x, f)
        t = Transpose<perm=[0,2,1]>(z) p = MatMul(z, t) q = Relu(p)
        e = Slice(s, two, three) g = Concat<axis=0>(rest, e) y = Reshape(q, g)"""
    numbers = ", int64[1] last = {8}, int64[1] two = {2}, int64[1] three = {3}"
    assert shape_of(nodes, numbers=numbers) == ["4*B*T", "T"]
    whole = shape_of(nodes.replace("y = Reshape(q, g)", "y = Identity(q)"), numbers=numbers)
    assert whole == ["4*B", "T", "T"]


@pytest.mark.parametrize("size", ["4*B", "B*4", "4*B*1"])
def test_names_may_be_products(size: str) -> None:
    """As torch's exporter writes them."""
    of = model(
        f"(float[n,T,T] x, float[B,3] b, float[T] t) => (float y) {NUMBERS}, int64[1] four = {{4}}>"
        f" {{ s = Shape(b) b_ = Slice(s, axes, four) b1 = Gather(b_, axes) l = Shape(t)"
        f" f = Concat<axis=0>(b1, four, l, rest) y = Reshape(x, f) }}"
    )
    of.graph.inputs[0].shape = ir.Shape([size, "T", "T"])
    shape = values(prepare(of))["y"].shape
    assert shape is not None and list(shape)[3] == "T"


def test_a_formula_gives_way_to_what_it_comes_to() -> None:
    of = model(
        f"(float[B,4,T,T] x) => (float y) {NUMBERS}, int64[1] two = {{2}}, int64[1] three = {{3}}>"
        f" {{ {LEAD} r = Slice(s, two, three) f = Concat<axis=0>(m, r, rest)"
        " z = Reshape(x, f) y = Relu(z) }"
    )
    declared = ir.Shape([None, "T", "((T**2)//T)"])
    for value in ("z", "y"):
        values(of)[value].shape = declared
    shape = values(prepare(of))["z"].shape
    assert shape is not None and shape[1] == shape[2] == "T"


def test_zeros_are_sizes_where_the_node_says_so() -> None:
    nodes = "y = Reshape<allowzero=1>(x, f)"
    assert shape_of(nodes, "float[B,0] x", ", int64[2] f = {0, 3}") == [0, 3]


def test_shapes_that_may_be_fed_are_not_followed() -> None:
    of = model(
        f"(float[B,4,T,8] x, int64[1] last) => (float y) {NUMBERS}> {{"
        f"{LEAD} f = Concat<axis=0>(m, rest, last) y = Reshape(x, f) }}"
    )
    last = of.graph.inputs[1]
    last.const_value = ir.tensor(np.array([8]), name="last")
    of.graph.register_initializer(last)
    shape = values(prepare(of))["y"].shape
    assert shape is not None
    assert [_named(d) for d in list(shape)[:2] if not isinstance(d, int)] == ["?", "?"]


def test_a_size_that_does_not_come_out_even_is_not_known() -> None:
    many = Product(6, ("a", "b"))
    assert many.over(Product(2, ("b",))) == Product(3, ("a",))
    assert many.over(Product(4)) is None
    assert many.over(Product(2, ("c",))) is None
    assert many.over(Product(2, ("a", "a"))) is None
    assert many.over(Product(0)) is None


EINSUM = """s = Shape(x) lead = Gather(s, places) m = ReduceProd<axes=[0]>(lead)
    other = Gather(r, places) l = Max(lead, other) f = Concat<axis=0>"""


@pytest.mark.parametrize(
    ("of_other", "expected"),
    [
        ("r = Shape(x)", ["B", 4, "8*T"]),
        ("q = Concat<axis=2>(x, x) r = Shape(q)", ["B", 4, "8*T"]),
        ("q = Concat<axis=1>(x, x) r = Shape(q)", ["B", 8, "4*T"]),
        ("q = Concat<axis=0>(x, x) r = Shape(q)", ["?", 4, "?"]),
        ("i = Shape(x) c = Cast<to=6>(i) r = Cast<to=7>(c)", ["B", 4, "8*T"]),
    ],
)
def test_the_larger_of_two_sizes_is_known_if_they_are_equal_or_numbers(
    of_other: str, expected: list[int | str]
) -> None:
    numbers = ", int64[2] places = {0, 1}"
    nodes = f"{of_other} {EINSUM}(l, rest) y = Reshape(x, f)"
    assert shape_of(nodes, numbers=numbers) == expected


def test_all_sizes_of_a_vector_are_multiplied() -> None:
    numbers = ", int64[2] places = {0, 1}, int64[1] last = {8}"
    nodes = f"r = Shape(x) {EINSUM}(m, rest, last) y = Reshape(x, f)"
    assert shape_of(nodes, numbers=numbers) == ["4*B", "T", 8]


@pytest.mark.parametrize(
    ("inputs", "wanted", "expected"),
    [
        ("float[B,4,T,8] x", "whole", [3, "4*B", "T"]),
        ("float[B,1,T,8] x", "whole", [3, "B", "T"]),
        ("float[B,4,5,8] x", "whole", [3, "4*B", 5]),
        ("float[B,4,T,8] x", "none", [3, 1, 1]),
    ],
)
def test_what_is_expanded_has_the_sizes_that_are_wanted(
    inputs: str, wanted: str, expected: list[int | str]
) -> None:
    numbers = ", int64[1] two = {2}, int64[1] three = {3}, float[3,1,1] c = {1, 2, 3}"
    numbers += ", int64[1] none = {1}"
    nodes = f"{LEAD} t = Slice(s, two, three) whole = Concat<axis=0>(m, t) y = Expand(c, {wanted})"
    assert shape_of(nodes, inputs, numbers) == expected
    twice = nodes.replace("y = Expand", "z = Expand") + " y = Add(z, c)"
    assert shape_of(twice, inputs, numbers) == expected


def test_a_larger_size_stands_against_one_that_is_asked_for() -> None:
    numbers = ", int64[1] two = {2}, int64[1] three = {3}, float[5,1] c = {1, 2, 3, 4, 5}"
    nodes = f"{LEAD} t = Slice(s, two, three) f = Concat<axis=0>(t, m) y = Expand(c, f)"
    assert shape_of(nodes, numbers=numbers) == [5, "4*B"]
