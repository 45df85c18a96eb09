"""Weights that an exporter merged since they were equal belong to their layers again."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from graph.text import model, proto
from onnxtrain.graph.loading.load import load_source
from onnxtrain.graph.torch_export.merged import separate

SCOPES = "pkg.torch.onnx.name_scopes"
LAYERS = """(float[N, 2] x) => (float[N, 2] y) <float[2] "b.bias" = {0, 0}, float[2] g = {0, 1}> {
    <<more>>
    h = Add(x, "b.bias")
    y = Add(h, <<second>>)
}"""


def layers(second: str = '"b.bias"', more: str = "") -> str:
    return LAYERS.replace("<<second>>", second).replace("<<more>>", more)


def in_modules(of: ir.Model, *paths: str) -> ir.Model:
    """The same model, whose nodes tell the modules that they belong to."""
    for node, path in zip(of.graph, paths, strict=True):
        node.metadata_props[SCOPES] = repr(["", path, node.op_type])
    return of


def read_by(of: ir.Model) -> list[list[str]]:
    """The constants that each node reads."""
    names = of.graph.initializers
    return [[v.name for v in node.inputs if v.name in names] for node in of.graph]


def test_what_an_identity_makes_of_equal_numbers_is_a_weight_of_its_own():
    merged = model(layers('"c.bias"', '"c.bias" = Identity("b.bias")'))
    assert separate(merged)
    assert read_by(merged) == [["b.bias"], ["c.bias"]]
    assert merged.graph.initializers["c.bias"].const_value.numpy().tolist() == [0, 0]


def test_a_tensor_of_different_numbers_is_tied_on_purpose():
    tied = model(layers('"c.bias"', '"c.bias" = Identity(g)  k = Mul(x, g)'))
    assert not separate(tied)
    again = in_modules(model(layers("g", "k = Add(x, g)")), "a", "b", "c")
    assert not separate(again)


def test_modules_have_their_own_parameters_under_their_own_names():
    merged = in_modules(model(layers()), "b", "block.c")
    assert separate(merged)
    assert read_by(merged) == [["b.bias"], ["block.c.bias"]]


PARTS = """(float[N, 2] x) => (float[N, 2] y)
<float[4] "b.bias" = {0, 0, 0, 0}, int64[2] sizes = {2, 2}, int64[1] first = {0}> {
    k, v = Split<axis=0>("b.bias", sizes)
    row = Unsqueeze(v, first)
    h = Add(x, k)
    i = Mul(h, row)
    j = Add(i, k)
    y = Mul(j, row)
}"""


def test_modules_that_read_parts_of_one_parameter_have_parameters_of_their_own():
    merged = in_modules(model(PARTS), "b", "b", "b", "b.inner", "block.c", "block.c")
    del merged.graph[0].metadata_props[SCOPES]
    assert separate(merged)
    assert [n for names in read_by(merged) for n in names if "bias" in n] == [
        "b.bias",
        "block.c.bias",
    ]
    made = {v.name: node for node in merged.graph for v in node.outputs}
    h, i, j, y = (made[name] for name in "hijy")
    assert h.inputs[1].producer() is i.inputs[1].producer().inputs[0].producer()
    assert j.inputs[1].producer() is y.inputs[1].producer().inputs[0].producer()
    assert h.inputs[1].producer() is not j.inputs[1].producer()
    onnx.checker.check_model(ir.to_proto(merged), full_check=True)


def test_a_module_that_alone_reads_parts_of_the_parameter_of_another_has_its_own():
    merged = in_modules(model(PARTS.replace("h = Add(x, k)", 'h = Sum(x, k, "b.bias")')),
                        "c", "c", "c", "c", "c", "c")  # fmt: skip
    del merged.graph[0].metadata_props[SCOPES]
    merged.graph[2].metadata_props[SCOPES] = repr(["", "b", "Sum"])
    merged.graph[2].replace_input_with(1, merged.graph.inputs[0])
    assert separate(merged)
    assert [n for names in read_by(merged) for n in names if "bias" in n] == ["c.bias", "b.bias"]


@pytest.mark.parametrize("modules", [["b"] * 6, ["b"] * 4 + ["b.c"] * 2])
def test_a_module_and_those_in_it_share_the_parts_of_its_parameter(modules):
    assert not separate(in_modules(model(PARTS), *modules))


def test_a_module_that_is_called_twice_shares_its_parameter():
    assert not separate(in_modules(model(layers()), "b", "b"))


@pytest.mark.parametrize("told", [None, "no list", "[", "['']"])
def test_without_modules_nothing_is_known(told):
    shared = model(layers())
    for node in shared.graph:
        if told is not None:
            node.metadata_props[SCOPES] = told
    assert not separate(shared)


def test_a_vector_that_was_computed_from_parameters_belongs_to_modules_too():
    merged = in_modules(model(layers().replace('"b.bias"', "val_3")), "b", "c")
    assert separate(merged)
    assert read_by(merged) == [["val_3"], ["c.val_3"]]


def test_a_number_that_no_module_owns_stays_one():
    text = layers().replace('"b.bias"', "val_3").replace("float[2] val_3", "float[1] val_3")
    assert not separate(in_modules(model(text.replace("{0, 0}", "{0}")), "b", "c"))


def test_running_statistics_belong_to_one_normalisation():
    merged = model(
        """(float[N, 2] x) => (float[N, 2] y)
        <float[2] one = {1, 1}, float[2] two = {1, 2}, float[2] m = {0, 0}> {
            "a.var" = Identity(two)
            h = BatchNormalization(x, one, m, m, one)
            y = BatchNormalization(h, one, m, two, "a.var")
        }"""
    )
    for node, name in zip(merged.graph, ("copy", "p", "q"), strict=True):
        node.name = name
    assert separate(merged)
    _, first, second = read_by(merged)
    assert first == ["one", "m", "p.running_mean", "p.running_var"]
    assert second == ["one", "m", "q.running_mean", "q.running_var"]
    assert merged.graph.initializers["q.running_var"].const_value.numpy().tolist() == [1, 2]


@pytest.mark.parametrize(
    ("tensor", "ways"),
    [
        ("double[2] v = {1, 2}", "f = Cast<to=1>(v)"),
        ("float[1, 2] v = {1, 2}", "f = Reshape(v, two)"),
        ("float[1, 2, 1] v = {1, 2}", "u = Squeeze(v) f = Identity(u)"),
        ("double[1, 2] v = {1, 2}", "u = Cast<to=1>(v) f = Squeeze(u)"),
        ("float16 v = {0}", "c = Constant<value = double[2] {1, 2}>() f = Cast<to=1>(c)"),
    ],
)
def test_running_statistics_move_that_nodes_make(tensor, ways):
    made = model(
        f"""(float[N, 2] x) => (float[N, 2] y)
        <float[2] s = {{1, 1}}, float[2] m = {{0, 1}}, int64[1] two = {{2}}, {tensor}> {{
            {ways}  y = BatchNormalization(x, s, s, m, f)
        }}"""
    )
    assert separate(made)
    own = made.graph.initializers["y.running_var"]
    assert read_by(made)[-1] == ["s", "s", "m", "y.running_var"]
    assert own.dtype == ir.DataType.FLOAT
    np.testing.assert_array_equal(own.const_value.numpy(), np.array([1, 2], np.float32))


def test_statistics_that_are_no_vectors_or_were_cast_by_a_word_stay_as_they_are():
    text = """(float[N, 2] x) => (float[N, 2] y)
        <float[2] s = {1, 1}, float[2] m = {0, 1}, double[2] v = {1, 2}> {
            f = %s(v)  y = BatchNormalization<spatial = %d>(x, s, s, m, f)
        }"""
    assert separate(model(text % ("Cast<to = 1>", 0)))
    assert separate(model(text % ("Squeeze", 1)))
    assert not separate(model(text % ('Cast<to = "FLOAT">', 1)))
    assert not separate(model(text % ("Squeeze", 0)))


def test_statistics_of_their_own_stay_as_they_are():
    text = """(float[N, 2] x) => (float[N, 2] y)
        <float[2] s = {1, 1}, float[2] b = {0, 0}, float[2] m = {0, 0}, float[2] v = {1, 1}>
        { y = BatchNormalization(x, s, b, m, v) }"""
    stored = proto(text)
    assert load_source(stored).proto is stored


def test_the_file_to_write_back_has_the_separate_tensors():
    loaded = load_source(proto(layers('"c.bias"', '"c.bias" = Identity("b.bias")')))
    assert loaded.proto is not None
    assert {t.name for t in loaded.proto.graph.initializer} == {"b.bias", "c.bias", "g"}
    onnx.checker.check_model(loaded.proto)
    (c,) = (t for t in loaded.proto.graph.initializer if t.name == "c.bias")
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(c), [0, 0])
