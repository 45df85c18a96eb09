"""Gradients that give their sums, or are added to others, on the way: nothing else changes."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxtrain import InferenceSession
from onnxtrain.gradients import build_gradient_graph
from onnxtrain.graph.loading.load import load_model
from onnxtrain.graph.prepare import prepare
from onnxtrain.transforms.backward import join
from onnxtrain.transforms.backward.added import add_products
from onnxtrain.transforms.backward.sums import (
    join_dropout_sums,
    join_norm_sums,
    join_packed_sums,
)
from onnxtrain.transforms.backward.tied import join_tied

SHAPES = {
    "w": (4, 4), "b": (4,), "scale": (4,), "shift": (4,), "wide": (4, 12), "wide_b": (12,),
    "one": (4, 4), "two": (4, 4), "three": (4, 4), "table": (7, 4), "twice": (2, 12),
}  # fmt: skip
PACKED = """
    r = Flatten<axis=2>(x) p = Gemm(r, wide, wide_b) s = Reshape(p, packed)
    q, k, v = Split<axis=-1, num_outputs=3>(s)
    qk = Mul(q, k) y = Mul(qk, v)
"""
BRANCHES = """
    r = Flatten<axis=2>(z) a = Gemm(r, one) c = Gemm(r, two) d = Gemm<transB=1>(r, three)
    ac = Mul(a, c) acd = Mul(ac, d) f = Reshape(acd, cube) y = Add(z, f)
"""
ROWS = """
    a = MatMul(z, one) c = MatMul(z, two) t = Transpose<perm=[1, 0]>(three) d = MatMul(z, t)
    ac = Mul(a, c) f = Mul(ac, d) y = Add(z, f)
"""
FORMS = {
    "norm": (
        "h = Flatten<axis=2>(x) p = Gemm(h, w, b) z = Reshape(p, cube) "
        "n = LayerNormalization(z, scale, shift) m = MatMul(n, one) y = Add(z, m)",
        ["w", "b", "scale", "shift", "one"],
        join_norm_sums,
    ),
    "dropout": (
        "h = Flatten<axis=2>(x) p = Gemm(h, w, b) y, mask = Dropout<seed=3>(p, half, on)",
        ["w", "b"],
        join_dropout_sums,
    ),
    "packed": (PACKED, ["wide", "wide_b"], join_packed_sums),
    "tied": (
        "e = Gather(table, ids) t = Transpose<perm=[1, 0]>(table) y = MatMul(e, t)",
        ["table"],
        join_tied,
    ),
    "branches": ("z = Mul(x, b)" + BRANCHES, ["b", "one", "two", "three"], add_products),
    "branches of rows": ("z = Mul(x, b)" + ROWS, ["b", "one", "two", "three"], add_products),
    "products": (
        "z = Mul(x, b)" + BRANCHES.replace("y = Add(z, f)", "y = Identity(f)"),
        ["b", "one"],
        add_products,
    ),
}


def _model(body: str) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["" : 20]>
        layer (double[2, 3, 4] x, int64[2, 3] ids) => (double loss)
        {{ {body} yy = Mul(y, y) loss = ReduceMean<keepdims=0>(yy) }}
    """)
    random = np.random.default_rng(0)
    values = {name: random.normal(size=shape) for name, shape in SHAPES.items()}
    sizes = {"packed": (2, 3, 12), "cube": (2, 3, 4)}
    values |= {name: np.asarray(shape, np.int64) for name, shape in sizes.items()}
    values |= {"half": np.asarray(0.5), "on": np.asarray(True), "places": np.array([2, 0, 3, 3])}
    used = {name for node in model.graph.node for name in node.input}
    for name in sorted(used & set(values)):
        model.graph.initializer.append(onnx.numpy_helper.from_array(values[name], name))
    return model


def _gradients(body: str, names: list[str], joined: bool) -> tuple[ir.Model, list[np.ndarray]]:
    model = build_gradient_graph(_model(body), names, ["loss"], loss="loss")
    graph = prepare(load_model(model))
    if joined:
        join(graph, on_gpu=True)
    session = InferenceSession(ir.to_proto(graph).SerializeToString())
    random = np.random.default_rng(1)
    feeds = {"x": random.normal(size=(2, 3, 4)), "ids": random.integers(-7, 7, (2, 3))}
    given = {v.name: feeds[str(v.name)] for v in graph.graph.inputs if v.name in feeds}
    return graph, session.run(["loss", *(f"{name}_grad" for name in names)], given)


@pytest.mark.parametrize("form", FORMS)
def test_nothing_but_the_number_of_passes_changes(form: str) -> None:
    body, names, step = FORMS[form]
    _, expected = _gradients(body, names, joined=False)
    graph, found = _gradients(body, names, joined=True)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-14)
    assert step(graph) == 0, "a second time nothing is left to join"


@pytest.mark.parametrize("form", FORMS)
def test_a_step_can_be_left_out(form: str) -> None:
    body, names, step = FORMS[form]
    model = build_gradient_graph(_model(body), names, ["loss"], loss="loss")
    graph = prepare(load_model(model))
    join(graph, on_gpu=True, without=(step.__name__, "add_products"))
    assert step(graph) == 1


def test_columns_that_are_looked_up_are_not_added_as_rows() -> None:
    body = "e = Gather<axis=1>(one, places) h = MatMul(x, e) k = MatMul(x, one) y = Add(h, k)"
    model = build_gradient_graph(_model(body), ["one"], ["loss"], loss="loss")
    assert join_tied(prepare(load_model(model))) == 0
    rows = build_gradient_graph(_model(body.replace("=1", "=0")), ["one"], ["loss"], loss="loss")
    assert join_tied(prepare(load_model(rows))) == 1
    _, expected = _gradients(body, ["one"], joined=False)
    _, found = _gradients(body, ["one"], joined=True)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-12)


@pytest.mark.parametrize(("axis", "count"), [(-1, 1), (2, 1), (1, 0)])
def test_only_parts_side_by_side_are_packed(axis: int, count: int) -> None:
    model = onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["" : 20]>
        parts (double[2, 3, 4] a, double[2, 3, 4] b) => (double[l, m, n] c, double[k] s)
        <int64[2] axes = {{0, 1}}>
        {{ c = Concat<axis={axis}>(a, b) s = ReduceSum<keepdims=0>(c, axes) }}
    """)
    assert join_packed_sums(prepare(load_model(model))) == count


def test_rows_that_others_read_stay() -> None:
    body, names, _ = FORMS["tied"]
    graph = prepare(load_model(build_gradient_graph(_model(body), names, ["loss"], loss="loss")))
    (rows,) = [node for node in graph.graph if node.op_type == "GatherGrad"]
    graph.graph.outputs.append(rows.outputs[0])
    assert join_tied(graph) == 0


def test_terms_that_others_read_stay() -> None:
    body = "z = Mul(x, b)" + BRANCHES
    model = build_gradient_graph(_model(body), ["b"], ["loss"], loss="loss")
    graph = prepare(load_model(model))
    products = [n for n in graph.graph if n.op_type == "Gemm" and len(n.inputs) == 2]
    seen = [n.outputs[0] for n in products if n.outputs[0].name.startswith("r_grad")]
    assert len(seen) == 3
    graph.graph.outputs.extend(seen)
    assert add_products(graph) == 0


def test_products_run_where_the_sum_was() -> None:
    graph, _ = _gradients("z = Mul(x, b)" + BRANCHES, ["b"], joined=True)
    nodes = [node for node in graph.graph if len(node.inputs) == 3 and node.op_type == "Gemm"]
    added = [node for node in nodes if str(node.name).endswith("_Added")]
    assert len(added) == 3
    sums = [node for node in graph.graph if node.op_type == "Sum"]
    assert not any(v.producer().op_type in ("Gemm", "Reshape") for n in sums for v in n.inputs)
