"""Strange but legal graphs."""

from collections.abc import Callable

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from gradients.against import Twice, agrees_once
from gradients.emit import differentiated, run
from graph.text import proto
from onnxtrain.gradients import build_gradient_graph
from onnxtrain.runtime.session import InferenceSession

X, W = np.array([1.0, 0.5, -1.0]), np.array([0.5, -1.0, 1.2])


def outputs(of: onnx.ModelProto, **feeds: object) -> dict[str, np.ndarray]:
    names = [value.name for value in of.graph.output]
    arrays = {name: np.asarray(value) for name, value in feeds.items()}
    return dict(zip(names, InferenceSession(of).run(None, arrays), strict=True))


@pytest.mark.parametrize(
    ("op", "reference"),
    [
        ("Sub", lambda x: x - x),
        ("Div", lambda x: x / x),
        ("Max", lambda x: x),
        ("Min", lambda x: x),
        ("MatMul", lambda x: x @ x),
        ("Mean", lambda x: x),
        ("Concat<axis=0>", lambda x: torch.cat([x, x])),
        ("PRelu", lambda x: torch.where(x > 0, x, x * x)),
    ],
)
def test_a_node_that_reads_one_value_twice(
    op: str, reference: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    text = (
        f"(double[3] x) => (double l) {{ y = {op}(x, x) z = Sin(y) l = ReduceSum<keepdims=0>(z) }}"
    )
    Twice(text, "x").agrees(lambda x: torch.sin(reference(x)).sum(), x=X)


def test_weights_that_are_the_data_too() -> None:
    conv = "(double[2,2,3,3] x) => (double l) { y = Conv(x, x) l = ReduceSum<keepdims=0>(y) }"
    data = np.random.default_rng(0).normal(size=(2, 2, 3, 3))
    Twice(conv, "x").agrees(lambda x: torch.conv2d(x, x).sum(), x=data)
    gemm = "(double[2,2] x) => (double l) { y = Gemm(x, x, x) l = ReduceSum<keepdims=0>(y) }"
    Twice(gemm, "x").agrees(lambda x: (x @ x + x).sum(), x=data[0, 0, :2, :2])


def test_outputs_that_are_inputs_or_weights() -> None:
    text = """(double[3] x) => (double[3] x, double[3] w, double l)
        <double[3] w = {1.0, 2.0, 3.0}> {
      y = Mul(x, w)  l = ReduceSum<keepdims=0>(y) }"""
    found = outputs(build_gradient_graph(proto(text), ["x", "w"], loss="l"), x=X)
    assert found["x_grad"].tolist() == [1, 2, 3] and found["w_grad"].tolist() == X.tolist()
    both = build_gradient_graph(proto(text), ["w"], ["w", "l"])
    assert outputs(both, x=X, w_grad=W, l_grad=1.0)["w_grad.2"].tolist() == (X + W).tolist()


def test_a_graph_without_nodes() -> None:
    of = build_gradient_graph(proto("(double[3] x) => (double[3] x) { }"), "x", "x")
    assert outputs(of, x=X, x_grad=W)["x_grad.2"].tolist() == W.tolist()


def test_a_batch_of_nothing() -> None:
    text = """(double[N,1,6,6] x, double[N,3] t, double[2,1,3,3] k, double[2] b, double[2,3] w)
        => (double l) {
      c = Conv(x, k)  n = BatchNormalization(c, b, b, b, b)  i = InstanceNormalization(n, b, b)
      p = MaxPool<kernel_shape=[2,2]>(i)  q = AveragePool<kernel_shape=[2,2]>(p)
      o = LRN<size=3>(q)  g = GlobalAveragePool(o)  f = Flatten(g)  m = MatMul(f, w)
      s = Softmax(m)  d = Sub(s, t)  e = Mul(d, d)  l = ReduceMean<keepdims=0>(e) }"""
    of = build_gradient_graph(proto(text), ["x", "k", "b", "w"], loss="l")
    weights = {"k": np.ones((2, 1, 3, 3)), "b": np.ones(2), "w": np.ones((2, 3))}
    found = outputs(of, x=np.zeros((0, 1, 6, 6)), t=np.zeros((0, 3)), **weights)
    assert found["x_grad"].shape == (0, 1, 6, 6)
    for name, value in weights.items():
        np.testing.assert_array_equal(found[f"{name}_grad"], np.zeros_like(value))


@pytest.mark.parametrize("shape", ["2,0", "N,M"])
def test_the_mean_of_nothing(shape: str) -> None:
    text = f"""(double[{shape}] x) => (double l) <int64[1] a = {{1}}> {{
      m = ReduceMean<keepdims=0>(x, a)  l = ReduceSum<keepdims=0>(m) }}"""
    assert outputs(build_gradient_graph(proto(text), "x", loss="l"), x=np.zeros((2, 0)))[
        "x_grad"
    ].shape == (2, 0)


def test_numbers_that_were_whole_on_the_way_have_no_gradient() -> None:
    text = """(double[3] x) => (double l) {
      i = Cast<to=7>(x)  f = Cast<to=11>(i)  y = Mul(f, x)  l = ReduceSum<keepdims=0>(y) }"""
    Twice(text, "x").agrees(lambda x: (x.detach().trunc() * x).sum(), x=3 * X)


def test_a_branch_that_was_not_taken_need_not_be_made_safe_before_it() -> None:
    """In torch 0·inf is NaN unless the model guards the argument."""
    guarded = """(double[3] x) => (double l) <double zero = {0.0}, double one = {1.0}> {
      c = Greater(x, zero)  safe = Where(c, x, one)  g = Log(safe)  y = Where(c, g, zero)
      l = ReduceSum<keepdims=0>(y) }"""
    plain = guarded.replace("Log(safe)", "Log(x)")
    data = np.array([2.0, 0.0, -1.0])
    for text in (guarded, plain):
        found = outputs(build_gradient_graph(proto(text), "x", loss="l"), x=data)
        assert found["x_grad"].tolist() == [0.5, 0, 0]


def test_chains_deeper_than_the_stack() -> None:
    count = 1500
    names = ["x", *(f"v{i}" for i in range(count))]
    nodes = [helper.make_node("Sin", [names[i]], [names[i + 1]]) for i in range(count)]
    value = helper.make_tensor_value_info
    ends = [value("x", TensorProto.DOUBLE, []), value(names[-1], TensorProto.DOUBLE, [])]
    model = helper.make_model(
        helper.make_graph(nodes, "deep", ends[:1], ends[1:]),
        opset_imports=[helper.make_opsetid("", 21)],
        ir_version=10,
    )
    of = build_gradient_graph(model, "x", loss=names[-1])
    assert [node.op_type for node in of.graph.node].count("Cos") == count


@pytest.mark.parametrize("trips", [0, 2])
@pytest.mark.parametrize("inner", [True, False])
def test_a_branch_in_a_loop_in_a_branch_that_captures_on_two_levels(
    inner: bool, trips: int
) -> None:
    text = """(bool c, bool d, int64 n, double[3] x, double[3] w) => (double l) {
      a = Mul(x, w)
      y = If (c) <then_branch = t () => (double[3] r) {
          b = Sin(a)
          r = Loop (n, , b) <body = bo (int64 i, bool go, double[3] v) => (bool on, double[3] u) {
            on = Identity(go)  k = Mul(v, w)
            u = If (d) <then_branch = tt () => (double[3] p)
                          { q = Mul(k, a)  z = Mul(q, b)  p = Mul(z, x) },
                        else_branch = te () => (double[3] s) { s = Sub(k, b) }> }> },
        else_branch = e () => (double[3] o) { o = Mul(a, a) }>
      l = ReduceSum<keepdims=0>(y) }"""

    def expected(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        a = x * w
        b = v = torch.sin(a)
        for _ in range(trips):
            k = v * w
            v = k * a * b * x if inner else k - b
        return v.sum()

    agrees_once(text, ["x", "w"], expected, c=True, d=inner, n=trips, x=X, w=W)


@pytest.mark.parametrize("opset", [13, 21])
@pytest.mark.parametrize(
    ("repeats", "rows", "columns"), [("{2, 0}", 2, 0), ("{0, 1}", 2, 3), ("{2, 1}", 0, 3)]
)
def test_copies_of_nothing(opset: int, repeats: str, rows: int, columns: int) -> None:
    text = f"(double[{rows},3] x) => (double[A,B] y) <int64[2] r = {repeats}> {{ y = Tile(x, r) }}"
    d_y = np.ones((int(repeats[1]) * rows, columns))
    found = run(differentiated(text, opset=opset), x=np.ones((rows, 3)), d_y=d_y)["x_grad"]
    assert found.shape == (rows, 3) and not found.any()


def test_products_of_batches_of_nothing() -> None:
    text = "(double[N,M,4,3] x, double[3,1] w) => (double[K,L,4,1] y) { y = MatMul(x, w) }"
    feeds = {"x": np.ones((5, 0, 4, 3)), "w": np.ones((3, 1)), "d_y": np.ones((5, 0, 4, 1))}
    found = run(differentiated(text), **feeds)
    assert found["x_grad"].shape == (5, 0, 4, 3) and found["w_grad"].tolist() == [[0]] * 3


def test_products_over_nothing() -> None:
    text = "(double[N,M,K] x, double[K,3] w) => (double[N,M,3] y) { y = MatMul(x, w) }"
    feeds = {"x": np.ones((2, 1, 0)), "w": np.ones((0, 3)), "d_y": np.ones((2, 1, 3))}
    found = run(differentiated(text), **feeds)
    assert found["x_grad"].shape == (2, 1, 0) and found["w_grad"].shape == (0, 3)


@pytest.mark.parametrize("opset", [11, 21])
def test_nothing_flattened(opset: int) -> None:
    text = "(double[0,2,0,3] x) => (double[0,0] y) { y = Flatten<axis=2>(x) }"
    found = run(differentiated(text, opset=opset), x=np.ones((0, 2, 0, 3)), d_y=np.ones((0, 0)))
    assert found["x_grad"].shape == (0, 2, 0, 3)


def test_sizes_of_a_pool_are_remembered_beside_a_loop() -> None:
    """A Loop whose body declares no rank is found out about anew when the file is read."""
    text = """(double[N,2,4,4] x, double[1,3] s) => (double l) <int64 n = {2}, bool c = {1}> {
      y = MaxPool<kernel_shape=[2, 2], strides=[2, 2]>(x)  p = Mul(y, y)
      u, t = Loop(n, c, s, s) <body = b (int64 i, bool k, double[] a, double[] e)
        => (bool o, double[] r, double[] f) {
          m = Mul(e, e)  r = Tanh(m)  f = Identity(e)  o = Identity(k) }>
      v = Mul(u, t)  w = ReduceSum<keepdims=0>(v)  q = ReduceSum<keepdims=0>(p)  l = Add(q, w) }"""

    def reference(x: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        pooled = torch.nn.functional.max_pool2d(x, 2)
        return (pooled * pooled).sum() + (torch.tanh(s * s) * s).sum()

    random = np.random.default_rng(0)
    x, s = random.normal(size=(1, 2, 4, 4)), random.normal(size=(1, 3))
    Twice(text, "x", "s").agrees(reference, x=x, s=s)


@pytest.mark.parametrize("opset", [8, 9, 12])
def test_places_of_maxima_that_are_counted_down_the_columns(opset: int) -> None:
    text = """(double[1,1,2,3] x) => (double[1,1,1,2] y, int64[1,1,1,2] i) {
      y, i = MaxPool<kernel_shape=[2, 2], storage_order=1>(x) }"""
    x = np.array([[[[5.0, 1.0, 2.0], [0.0, 4.0, 6.0]]]])
    of = build_gradient_graph(proto(text, opset), "x", "y")
    found = outputs(of, x=x, y_grad=np.array([[[[2.0, 3.0]]]]))
    assert found["i"].tolist() == [[[[0, 5]]]]
    assert found["x_grad"].tolist() == [[[[2, 0, 0], [0, 0, 3]]]]
    x[0, 0, 0, 1] = 7.0
    assert outputs(of, x=x, y_grad=np.array([[[[2.0, 3.0]]]]))["x_grad"][0, 0, 0, 1] == 5
