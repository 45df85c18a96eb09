"""Corners where a gradient graph is easily wrong, each with the right answer."""

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch

from gradients.emit import agrees_with_differences, differentiated, run
from graph.text import model
from onnxtrain.gradients import build_gradient_graph
from onnxtrain.gradients.engine import backward, seed_of
from onnxtrain.graph.prepare import prepare
from onnxtrain.runtime.session import InferenceSession


def grads(text: str, *xs: str, opset: int = 21, **feeds: Any) -> dict[str, np.ndarray]:
    return run(differentiated(text, *xs, opset=opset), **feeds)


def test_a_leaf_may_be_both_operands_of_a_node() -> None:
    text = "(double[2] w) => (double[2] y) { y = Mul(w, w) }"
    assert grads(text, w=[3.0, 4.0], d_y=[1.0, 2.0])["w_grad"].tolist() == [6, 16]


def test_gradients_that_were_summed_can_be_differentiated_again() -> None:
    of = differentiated("(double w) => (double y) { a = Mul(w, w) y = Mul(a, w) }")
    graph = of.graph
    w = graph.inputs[0]
    seed = ir.Value(name="again", type=w.type, shape=w.shape)
    graph.inputs.append(seed)
    graph.outputs.append(backward(graph, [w], {graph.outputs[-1]: seed})[w])
    found = run(of, w=2.0, d_y=1.0, again=1.0)
    assert list(found.values())[-1] == 12


@pytest.mark.parametrize("kind", ["float16", "float", "double", "bfloat16"])
@pytest.mark.parametrize("shape", ["", "[1]"])
def test_a_loss_may_have_any_floating_point_type_and_one_axis(kind: str, shape: str) -> None:
    of = prepare(model(f"({kind}{shape} x) => ({kind}{shape} y) {{ y = Mul(x, x) }}", 21))
    graph = of.graph
    y = graph.outputs[0]
    graph.outputs.extend(backward(graph, graph.inputs[:1], {y: seed_of(graph, y)}).values())
    session = InferenceSession(ir.to_proto(of))
    size = [1] if shape else []
    feed = torch.full(
        size, 3.0, dtype=getattr(torch, {"double": "float64", "float": "float32"}.get(kind, kind))
    )
    (found,) = session.run_torch(["x_grad"], {"x": feed})
    assert found.shape == feed.shape and found.dtype == feed.dtype and float(found) == 6


@pytest.mark.parametrize("call", ["Where(c, a, b)", "Pow(a, b)"])
def test_operands_that_were_broadcast_keep_their_shape(call: str) -> None:
    text = (
        f"(bool[3,1] c, double[2] a, double b) => (double[3,2] y) {{ t = {call} y = Expand(t, s) }}"
    )
    text = text.replace("=> (double[3,2] y) {", "=> (double[3,2] y) <int64[2] s = {3, 2}> {")
    feeds = {"c": [[True], [False], [True]], "a": [2.0, 3.0], "b": 2.0}
    found = grads(text, "a", "b", **feeds, d_y=np.ones((3, 2)))
    assert found["a_grad"].shape == (2,) and found["b_grad"].shape == ()


def test_a_part_of_a_split_that_nobody_uses_counts_as_zero() -> None:
    text = "(double[4] x) => (double[2] y) { a, b = Split<num_outputs=2>(x) y = Mul(b, b) }"
    found = grads(text, x=[1.0, 2.0, 3.0, 4.0], d_y=[1.0, 1.0])
    assert found["x_grad"].tolist() == [0, 0, 6, 8]


def test_exponents_may_be_trained_whole_or_the_base_itself() -> None:
    own = grads("(double x) => (double y) { y = Pow(x, x) }", x=2.0, d_y=1.0)["x_grad"]
    np.testing.assert_allclose(own, 4 * (1 + np.log(2)), rtol=1e-12)
    whole = grads(
        "(double x, int64 n) => (double y) { y = Pow(x, n) }", x=2.0, n=np.int64(3), d_y=1.0
    )
    assert whole["x_grad"] == 12 and "n_grad" not in whole


@pytest.mark.parametrize("op", ["ReduceL2", "ReduceLogSumExp", "ReduceMax", "ReduceMean"])
@pytest.mark.parametrize(
    ("axes", "opset"), [("", 13), ("", 18), (", axes=[1]", 13), (", axes=[1]", 17)]
)
def test_reductions_that_drop_their_axes(op: str, axes: str, opset: int) -> None:
    result = "double" if not axes else "double[2]"
    text = f"(double[2,2] x) => ({result} y) {{ y = {op}<keepdims=0{axes}>(x) }}"
    x = np.array([[3.0, 4.0], [1.0, 2.0]])
    d_y = np.ones(2) if axes else np.float64(1)
    found = grads(text, opset=opset, x=x, d_y=d_y)["x_grad"]
    leaf = torch.tensor(x, requires_grad=True)
    dims = [1] if axes else [0, 1]
    function = {
        "ReduceL2": lambda t: torch.linalg.vector_norm(t, dim=dims),
        "ReduceLogSumExp": lambda t: torch.logsumexp(t, dims),
        "ReduceMax": lambda t: torch.amax(t, dims),
        "ReduceMean": lambda t: torch.mean(t, dims),
    }[op]
    (true,) = torch.autograd.grad(function(leaf), leaf, torch.tensor(d_y))
    np.testing.assert_allclose(found, true.numpy(), rtol=1e-12)


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMean", "ReduceL2", "ReduceProd", "ReduceMax"])
@pytest.mark.parametrize("noop", [0, 1])
def test_no_axes_mean_none_or_all_as_the_node_says(op: str, noop: int) -> None:
    shape = "double[2]" if noop else "double[1]"
    text = (
        f"(double[2] x) => ({shape} y) <int64[0] none = {{}}> "
        f"{{ y = {op}<noop_with_empty_axes={noop}>(x, none) }}"
    )
    x, d_y = np.array([3.0, 4.0]), np.array([5.0, 7.0] if noop else [5.0])
    found = grads(text, "x", opset=18, x=x, d_y=d_y)["x_grad"]
    every = {
        "ReduceSum": [5, 5],
        "ReduceMean": [2.5, 2.5],
        "ReduceL2": [3, 4],
        "ReduceProd": [20, 15],
    }
    expected = every.get(op, [0, 5])
    if noop:
        expected = [5, 7]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_bounds_that_are_attributes_cut_the_gradient() -> None:
    text = "(double[3] x) => (double[3] y) { y = Clip<min=-1.0, max=1.0>(x) }"
    found = grads(text, opset=7, x=[-2.0, 0.5, 2.0], d_y=np.ones(3))
    assert found["x_grad"].tolist() == [0, 1, 0]


@pytest.mark.parametrize("op", ["ScatterElements", "ScatterND"])
@pytest.mark.parametrize(
    ("reduction", "data", "update"),
    [
        ("none", [0, 5], 7),
        ("add", [7, 5], 7),
        ("mul", [21, 5], 14),
        ("max", [0, 5], 7),
        ("min", [7, 5], 0),
    ],
)
def test_what_is_scattered_into_keeps_its_share(
    op: str, reduction: str, data: list[float], update: float
) -> None:
    places = "int64[1]" if op == "ScatterElements" else "int64[1,1]"
    text = (
        f"(double[2] x, {places} i, double[1] u) => (double[2] y) "
        f'{{ y = {op}<reduction="{reduction}">(x, i, u) }}'
    )
    indices = np.zeros(1 if op == "ScatterElements" else (1, 1), np.int64)
    found = grads(text, opset=18, x=[2.0, 9.0], i=indices, u=[3.0], d_y=[7.0, 5.0])
    assert found["x_grad"].tolist() == data and found["u_grad"].tolist() == [update]


def test_the_approximation_of_gelu_has_its_own_gradient() -> None:
    text = '(double[3] x) => (double[3] y) { y = Gelu<approximate="tanh">(x) }'
    x = np.array([-1.0, 0.3, 2.0])
    leaf = torch.tensor(x, requires_grad=True)
    y = torch.nn.functional.gelu(leaf, approximate="tanh")
    (true,) = torch.autograd.grad(y.sum(), leaf)
    np.testing.assert_allclose(grads(text, x=x, d_y=np.ones(3))["x_grad"], true.numpy(), rtol=1e-9)


@pytest.mark.parametrize("call", ["Dropout(x)", "Dropout(x, r)", "Dropout(x, r, t)"])
def test_dropout_that_does_nothing_scales_nothing(call: str) -> None:
    text = f"(double[3] x, float r, bool t) => (double[3] y) {{ y = {call} }}"
    feeds = {"x": np.ones(3), "r": np.float32(0.5), "t": np.array(False)}
    found = grads(text, "x", **feeds, d_y=np.ones(3))
    assert found["x_grad"].tolist() == [1, 1, 1]


def test_outputs_and_inputs_that_a_node_leaves_out_are_no_hindrance() -> None:
    loss = "(float[2,3] x, int64[2] t) => (float y) { y = SoftmaxCrossEntropyLoss(x, t) }"
    found = grads(loss, x=np.zeros((2, 3), np.float32), t=np.array([0, 1]), d_y=np.float32(1))
    np.testing.assert_allclose(found["x_grad"][0], [-1 / 3, 1 / 6, 1 / 6], rtol=1e-6)
    norm = "(float[1,2] x, float[2] s) => (float[1,2] y) { y = LayerNormalization(x, s) }"
    feeds = {"x": np.float32([[1, 3]]), "s": np.float32([1, 1]), "d_y": np.float32([[1, 1]])}
    assert grads(norm, **feeds)["s_grad"].shape == (2,)


@pytest.mark.parametrize(
    ("a", "b"), [((2, 3), (3,)), ((3,), (3, 2)), ((3,), (3,)), ((4, 2, 3), (3,))]
)
def test_products_with_vectors(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    left, right = (",".join(map(str, shape)) for shape in (a, b))
    generator = np.random.default_rng(0)
    x, w = generator.normal(size=a), generator.normal(size=b)
    y = np.matmul(x, w)
    shown = f"double[{','.join(map(str, y.shape))}]" if y.shape else "double"
    text = f"(double[{left}] a, double[{right}] b) => ({shown} y) {{ y = MatMul(a, b) }}"
    d_y = generator.normal(size=y.shape)
    found = grads(text, a=x, b=w, d_y=d_y)
    leaves = [torch.tensor(v, requires_grad=True) for v in (x, w)]
    true = torch.autograd.grad(torch.matmul(*leaves), leaves, torch.tensor(d_y))
    for name, expected in zip("ab", true, strict=True):
        np.testing.assert_allclose(found[f"{name}_grad"], expected.numpy(), rtol=1e-12, atol=1e-14)


def test_products_of_unknown_rank_with_vectors() -> None:
    text = (
        "(double[2,3] a, double[3] b, int64[R] s) => (double[] y) "
        "{ r = Reshape(a, s) y = MatMul(r, b) }"
    )
    a, b = np.arange(6.0).reshape(2, 3), np.array([1.0, 2.0, 3.0])
    found = grads(text, "a", "b", a=a, b=b, s=np.array([2, 3]), d_y=np.array([1.0, 2.0]))
    assert found["a_grad"].tolist() == [[1, 2, 3], [2, 4, 6]]
    assert found["b_grad"].tolist() == [6, 9, 12]


@pytest.mark.parametrize("shape", [(6,), (1, 6), (2, 3, 6)])
def test_a_vector_of_unknown_rank_times_a_matrix(shape: tuple[int, ...]) -> None:
    text = (
        "(double[N] a, double[6,2] b, int64[R] s) => (double[] y) "
        "{ r = Reshape(a, s) y = MatMul(r, b) }"
    )
    generator = np.random.default_rng(0)
    a, b = generator.normal(size=shape), generator.normal(size=(6, 2))
    d_y = generator.normal(size=(*shape[:-1], 2))
    found = grads(text, "a", "b", a=a.reshape(-1), b=b, s=np.array(shape), d_y=d_y)
    np.testing.assert_allclose(found["a_grad"], (d_y @ b.T).reshape(-1))
    np.testing.assert_allclose(found["b_grad"], a.reshape(-1, 6).T @ d_y.reshape(-1, 2))


@pytest.mark.parametrize(("alpha", "beta"), [(0.0, 1.0), (1.0, 0.0), (0.5, 2.0)])
def test_factors_of_a_product_may_be_zero(alpha: float, beta: float) -> None:
    text = (
        "(double[1,2] a, double[2,1] b, double[1] c) => (double[1,1] y) "
        f"{{ y = Gemm<alpha={alpha}, beta={beta}>(a, b, c) }}"
    )
    found = grads(text, a=[[1.0, 2.0]], b=[[3.0], [4.0]], c=[5.0], d_y=[[1.0]])
    assert found["a_grad"].tolist() == [[3 * alpha, 4 * alpha]] and found["c_grad"] == [beta]
    assert found["b_grad"].tolist() == [[alpha], [2 * alpha]]


@pytest.mark.parametrize("opset", [10, 21])
@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
def test_padding_is_undone_in_every_form(mode: str, opset: int) -> None:
    pads = "<int64[4] p = {0, 2, 1, 1}>" if opset > 10 else ""
    call = f'Pad<mode="{mode}">(x, p)' if pads else f'Pad<mode="{mode}", pads=[0,2,1,1]>(x)'
    text = f"(double[3,4] x) => (double[4,7] y) {pads} {{ y = {call} }}"
    x, d_y = np.arange(12.0).reshape(3, 4), np.random.default_rng(0).normal(size=(4, 7))
    found = grads(text, "x", opset=opset, x=x, d_y=d_y)["x_grad"]
    leaf = torch.tensor(x[None], requires_grad=True)
    name = {"edge": "replicate"}.get(mode, mode)
    padded = torch.nn.functional.pad(leaf, (2, 1, 0, 1), name)
    (true,) = torch.autograd.grad(padded, leaf, torch.tensor(d_y[None]))
    np.testing.assert_allclose(found, true.numpy()[0], rtol=1e-12)


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
def test_padding_of_chosen_axes_is_undone(mode: str) -> None:
    text = (
        "(double[2,3] x) => (double[2,5] y) <int64[2] p = {1, 1}, int64[1] k = {1}> "
        f'{{ y = Pad<mode="{mode}">(x, p, , k) }}'
    )
    x, d_y = np.arange(6.0).reshape(2, 3), np.random.default_rng(0).normal(size=(2, 5))
    found = grads(text, "x", x=x, d_y=d_y)["x_grad"]
    leaf = torch.tensor(x[:, None], requires_grad=True)
    name = {"edge": "replicate", "wrap": "circular"}.get(mode, mode)
    padded = torch.nn.functional.pad(leaf, (1, 1), name)
    (true,) = torch.autograd.grad(padded, leaf, torch.tensor(d_y[:, None]))
    np.testing.assert_allclose(found, true.numpy()[:, 0], rtol=1e-12)


@pytest.mark.parametrize("training", [0, 1])
def test_batch_normalization_is_differentiated_in_the_mode_it_runs_in(training: int) -> None:
    more = ", m, v" if training else ""
    text = (
        "(double[4,1] x, double[1] s, double[1] b, double[1] mean, double[1] var) => "
        "(double[4,1] y) "
        f"{{ y{more} = BatchNormalization<training_mode={training}>(x, s, b, mean, var) }}"
    )
    x = np.array([[1.0], [2.0], [3.0], [6.0]])
    feeds = {"s": [2.0], "b": [0.0], "mean": [0.0], "var": [3.0], "d_y": [[1.0], [0.0], [0.0], [0]]}
    found = agrees_with_differences(text, "x", "s", "b", x=x, **feeds)["x_grad"].ravel()
    if training:
        assert abs(found.sum()) < 1e-12 and found[3] != 0
    else:
        np.testing.assert_allclose(found, [2 / np.sqrt(3 + 1e-5), 0, 0, 0], rtol=1e-7)


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("options", ["", ', direction="reverse"', ", clip=1.0"])
@pytest.mark.parametrize("lengths", ["", ", , k"])
def test_recurrent_layers_need_no_placeholders_for_what_they_leave_out(
    op: str, options: str, lengths: str
) -> None:
    rows = {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
    text = (
        f"(double[3,2,2] x, double[1,{rows},2] w, double[1,{rows},1] r, int32[2] k) => "
        f"(double[3,1,2,1] y) {{ y = {op}<hidden_size=1{options}>(x, w, r{lengths}) }}"
    )
    generator = np.random.default_rng(0)
    feeds = {
        "x": generator.normal(size=(3, 2, 2)),
        "w": generator.normal(size=(1, rows, 2)),
        "r": generator.normal(size=(1, rows, 1)),
        "d_y": generator.normal(size=(3, 1, 2, 1)),
    }
    found = agrees_with_differences(text, **feeds, k=np.int32([3, 1]))["x_grad"]
    assert found.any() and not (lengths and found[1:, 1].any())


def test_ties_share_and_corners_take_a_side() -> None:
    ties = {"x": [2.0, 2.0], "d_y": 1.0}
    assert grads("(double[2] x) => (double y) { y = ReduceMax<keepdims=0>(x) }", **ties)[
        "x_grad"
    ].tolist() == [0.5, 0.5]
    pooled = {"x": [[[2.0, 2.0]]], "d_y": [[[1.0]]]}
    assert grads("(double[1,1,2] x) => (double[1,1,1] y) { y = GlobalMaxPool(x) }", **pooled)[
        "x_grad"
    ].tolist() == [[[0.5, 0.5]]]
    for op in ("Max", "Min"):
        text = f"(double a, double b, double c) => (double y) {{ y = {op}(a, b, c) }}"
        found = grads(text, a=2.0, b=2.0, c={"Max": 1.0, "Min": 3.0}[op], d_y=1.0)
        assert [found[f"{name}_grad"] for name in "abc"] == [0.5, 0.5, 0]
    edges = {"x": [-1.0, 0.0, 1.0], "d_y": np.ones(3)}
    clip = "(double[3] x) => (double[3] y) { y = Clip<min=-1.0, max=1.0>(x) }"
    assert grads(clip, opset=10, **edges)["x_grad"].tolist() == [1, 1, 1]
    for op in ("Relu", "Abs"):
        found = grads(f"(double x) => (double y) {{ y = {op}(x) }}", x=0.0, d_y=1.0)
        assert found["x_grad"] == 0


def test_gradients_from_outside_are_added_to_those_from_further_down() -> None:
    text = "(double x) => (double y, double z) { y = Mul(x, x) z = Mul(y, y) }"
    found = grads(text, x=2.0, d_y=10.0, d_z=1.0)
    assert found["x_grad"] == (10 + 2 * 4) * 4


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_resizing_to_sizes_is_differentiated_on_any_provider(mode: str) -> None:
    text = (
        "(double[1,1,4,4] x) => (double[1,1,6,3] y) <int64[4] n = {1, 1, 6, 3}> "
        f'{{ y = Resize<mode="{mode}">(x, , , n) }}'
    )
    generator = np.random.default_rng(0)
    x, d_y = generator.normal(size=(1, 1, 4, 4)), generator.normal(size=(1, 1, 6, 3))
    agrees_with_differences(text, "x", x=x, d_y=d_y)


def test_sizes_with_different_names_may_turn_out_to_be_one() -> None:
    text = "(double[N] a, double[M] b) => (double[K] y) { y = Add(a, b) }"
    found = grads(text, a=[1.0], b=[1.0, 2.0, 3.0], d_y=[1.0, 2.0, 3.0])
    assert found["a_grad"].tolist() == [6] and found["b_grad"].tolist() == [1, 2, 3]


def test_the_public_function_gives_the_same() -> None:
    proto = ir.to_proto(model("(double w) => (double y) { y = Mul(w, w) }", 21))
    built = build_gradient_graph(proto, "w", loss="y")
    (found,) = InferenceSession(built).run(["w_grad"], {"w": np.float64(3)})
    assert found == 6
