"""Gradient graphs as a user asks for them: names, seeds, sums, and gradients of gradients."""

import os
import pathlib
import subprocess
import sys
import textwrap

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch

from graph.text import proto
from onnxtrain import Trainer
from onnxtrain.errors import GraphError, LossError, ParameterError, SaveError
from onnxtrain.gradients import GradientGraphBuilder, build_gradient_graph
from onnxtrain.runtime.session import InferenceSession

LINE = """(float[2] x) => (float l) <float[2] w = {3.0, 4.0}> {
    a = Mul(x, w)  b = Mul(a, a)  l = ReduceSum<keepdims=0>(b)
}"""
"""l = sum((w x)^2)."""


def inputs(of: onnx.ModelProto) -> list[str]:
    return [value.name for value in of.graph.input]


def outputs(of: onnx.ModelProto) -> list[str]:
    return [value.name for value in of.graph.output]


def run(of: onnx.ModelProto, dtype: type = np.float32, **feeds: object) -> dict[str, np.ndarray]:
    arrays = {name: np.asarray(value, dtype) for name, value in feeds.items()}
    return dict(zip(outputs(of), InferenceSession(of).run(None, arrays), strict=True))


def test_a_loss_is_differentiated_by_weights_inputs_and_inner_values() -> None:
    of = build_gradient_graph(proto(LINE), ["w", "x", "a"], loss="l")
    onnx.checker.check_model(of)
    assert inputs(of) == ["x"] and outputs(of) == ["l", "w_grad", "x_grad", "a_grad"]
    assert "w" in {tensor.name for tensor in of.graph.initializer}
    found = run(of, x=[1, 2])
    assert found["l"] == 73
    assert found["w_grad"].tolist() == [6, 32]
    assert found["x_grad"].tolist() == [18, 64]
    assert found["a_grad"].tolist() == [6, 16]


def test_the_model_that_was_given_stays_as_it_is() -> None:
    given = proto(LINE)
    before = given.SerializeToString()
    as_ir = ir.from_proto(given)
    build_gradient_graph(given, "w", loss="l")
    build_gradient_graph(as_ir, "w", loss="l")
    assert given.SerializeToString() == before
    assert len(list(as_ir.graph)) == 3 and len(as_ir.graph.outputs) == 1


@pytest.mark.parametrize(("kind", "dtype"), [("double", np.float64), ("float16", np.float16)])
def test_the_seed_has_the_type_and_shape_of_the_loss(kind: str, dtype: type) -> None:
    text = f"""({kind}[3] x) => ({kind}[1,1] l) <int64[1] z = {{0}}> {{
        a = Mul(x, x)  s = ReduceSum(a)  l = Unsqueeze(s, z)
    }}"""
    of = build_gradient_graph(proto(text), "x", loss="l")
    found = run(of, dtype, x=[1, 2, 3])["x_grad"]
    assert found.dtype == dtype and found.tolist() == [2, 4, 6]


def test_without_a_loss_the_gradients_of_the_ys_are_inputs_and_the_products_are_summed() -> None:
    text = "(float[2] x) => (float[2] y, float[2] z) { y = Mul(x, x)  z = Neg(x) }"
    of = build_gradient_graph(proto(text), ["x"], ["y", "z"])
    assert inputs(of) == ["x", "y_grad", "z_grad"]
    found = run(of, x=[2, 3], y_grad=[1, 10], z_grad=[100, 1000])
    assert found["x_grad"].tolist() == [4 - 100, 60 - 1000]


def test_a_y_upstream_of_another_gets_its_own_gradient_added() -> None:
    text = "(float[2] x) => (float[2] y, float[2] z) { y = Mul(x, x)  z = Neg(y) }"
    of = build_gradient_graph(proto(text), ["x", "y"], ["y", "z"])
    assert outputs(of) == ["y", "z", "x_grad", "y_grad.2"]
    found = run(of, x=[2, 3], y_grad=[1, 1], z_grad=[10, 100])
    assert found["y_grad.2"].tolist() == [-9, -99]
    assert found["x_grad"].tolist() == [-36, -594]


def test_a_loss_and_ys_go_together() -> None:
    of = build_gradient_graph(proto(LINE), "x", ["a", "l"], loss="l")
    assert inputs(of) == ["x", "a_grad"]
    assert run(of, x=[1, 2], a_grad=[1, 1])["x_grad"].tolist() == [18 + 3, 64 + 4]


def test_the_gradient_of_a_y_by_itself_is_what_came_in() -> None:
    of = build_gradient_graph(proto("(float[2] x) => (float[2] y) { y = Neg(x) }"), "y", "y")
    onnx.checker.check_model(of)
    assert run(of, x=[0, 0], y_grad=[3, 4])["y_grad.2"].tolist() == [3, 4]


def test_the_gradient_of_the_loss_by_itself_is_one() -> None:
    of = build_gradient_graph(proto(LINE), "l", loss="l")
    assert run(of, x=[1, 2])["l_grad.2"] == 1


def test_the_result_can_be_differentiated_again_and_again() -> None:
    text = "(float x) => (float y) { a = Mul(x, x)  b = Mul(a, x)  y = Mul(b, x) }"
    first = build_gradient_graph(proto(text), "x", loss="y")
    second = build_gradient_graph(first, "x", loss="x_grad")
    third = build_gradient_graph(second, "x", loss="x_grad.2")
    onnx.checker.check_model(third)
    assert outputs(third) == ["y", "x_grad", "x_grad.2", "x_grad.3"]
    assert len({node.name for node in third.graph.node}) == len(third.graph.node)
    found = run(third, x=2)
    assert [float(found[name]) for name in outputs(third)] == [16, 32, 48, 48]


def test_a_penalty_on_the_gradient_of_a_loop_is_trained() -> None:
    """The loop is differentiated twice, the second time as it comes out of a file."""
    text = """(float[3,4] x, int64 n) => (float l) <float[4] m = {0.1, 0.2, 0.3, 0.4}> {
        last = Loop(n, , x) <body = b (int64 i, bool go, float[3,4] s) => (bool on, float[3,4] t) {
            q = Mul(s, x) u = Add(q, m) t = Tanh(u) on = Identity(go)
        }>
        square = Mul(last, last) l = ReduceSum<keepdims=0>(square)
    }"""
    of = build_gradient_graph(proto(text), "x", loss="l")
    trainer = Trainer(
        of, loss=lambda found, _: found["x_grad"].square().sum(), outputs=["x_grad"],
        optimizer="sgd", lr=1.0, trainable=["m"], device="cpu",
    )  # fmt: skip
    rows = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    loss = trainer.step({"x": rows, "n": np.array(3)})
    x = torch.from_numpy(rows).requires_grad_()
    m = torch.tensor([0.1, 0.2, 0.3, 0.4], requires_grad=True)
    s = x
    for _ in range(3):
        s = torch.tanh(s * x + m)
    (dx,) = torch.autograd.grad(s.square().sum(), x, create_graph=True)
    penalty = dx.square().sum()
    penalty.backward()
    assert float(loss) == pytest.approx(penalty.item(), rel=1e-5)
    found = torch.from_numpy(np.asarray(trainer.parameters["m"]))
    torch.testing.assert_close(found, (m - m.grad).detach(), rtol=1e-5, atol=1e-5)


def test_a_hessian_times_a_vector() -> None:
    first = build_gradient_graph(proto(LINE), "w", loss="l")
    second = build_gradient_graph(first, ["w", "x"], "w_grad")
    assert inputs(second) == ["x", "w_grad_grad"]
    found = run(second, x=[1, 2], w_grad_grad=[1, 10])
    assert found["w_grad.2"].tolist() == [2, 80]
    assert found["x_grad"].tolist() == [12, 320]


def test_a_penalty_on_the_gradient_of_a_network() -> None:
    text = """(float[3,4] x) => (float p) <float[4,2] w = {%s}> {
        a = MatMul(x, w)  h = Tanh(a)  s = Softmax(h)  q = Mul(s, s)  p = ReduceSum<keepdims=0>(q)
    }"""
    rng = np.random.default_rng(0)
    weights, x = rng.normal(size=(4, 2)).astype(np.float32), rng.normal(size=(3, 4))
    x = x.astype(np.float32)
    given = proto(text % ", ".join(map(repr, weights.ravel().tolist())))
    second = build_gradient_graph(build_gradient_graph(given, "x", loss="p"), "w", "x_grad")
    seed = rng.normal(size=(3, 4)).astype(np.float32)
    found = run(second, x=x, x_grad_grad=seed)["w_grad"]

    leaf, w = torch.tensor(x, requires_grad=True), torch.tensor(weights, requires_grad=True)
    p = torch.tanh(leaf @ w).softmax(-1).square().sum()
    (first,) = torch.autograd.grad(p, leaf, create_graph=True)
    (want,) = torch.autograd.grad(first, w, torch.tensor(seed))
    np.testing.assert_allclose(found, want.numpy(), rtol=1e-5, atol=1e-6)


def test_names_of_gradients_that_are_taken_are_numbered() -> None:
    text = "(float x, float x_grad) => (float y) { y = Mul(x, x_grad) }"
    of = build_gradient_graph(proto(text), "x", loss="y")
    assert run(of, x=2, x_grad=5)["x_grad.2"] == 5


def test_unknown_names_are_refused_with_what_there_is() -> None:
    with pytest.raises(ParameterError, match="no value 'v'") as refused:
        build_gradient_graph(proto(LINE), ["w", "v"], loss="l")
    assert "inputs  x\n  weights  w\n  inner values  a, b, l" in str(refused.value)
    with pytest.raises(GraphError, match="no value 'k'"):
        build_gradient_graph(proto(LINE), "w", loss="k")
    with pytest.raises(GraphError, match="no value 'k'"):
        build_gradient_graph(proto(LINE), "w", "k")
    with pytest.raises(GraphError, match="nothing to differentiate"):
        build_gradient_graph(proto(LINE), "w")


def test_a_loss_of_many_elements_is_refused() -> None:
    with pytest.raises(LossError, match="loss 'b' must be a scalar"):
        build_gradient_graph(proto(LINE), "w", loss="b")


def test_whole_numbers_have_no_gradient() -> None:
    text = "(int64[2] i) => (int64[2] y, float[2] f) { y = Neg(i)  f = Cast<to=1>(i) }"
    with pytest.raises(ParameterError, match=r"'i' is tensor\(int64\), which has no gradient"):
        build_gradient_graph(proto(text), "i", "f")
    with pytest.raises(GraphError, match=r"'y' is tensor\(int64\)"):
        build_gradient_graph(proto(text), "f", "y")


def test_an_x_that_nothing_depends_on_is_refused_or_left_out() -> None:
    text = "(float x, float v) => (float y, float z) { y = Neg(x)  z = Neg(v) }"
    with pytest.raises(ParameterError, match="no gradient for 'v': 'y' does not depend on it"):
        build_gradient_graph(proto(text), ["x", "v"], loss="y")
    of = build_gradient_graph(proto(text), ["x", "v"], loss="y", allow_unused=True)
    assert outputs(of) == ["y", "z", "x_grad"]


def test_external_data_comes_along(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(proto(LINE), path, save_as_external_data=True, size_threshold=0)
    assert (build := build_gradient_graph(path, "w", loss="l")).graph.initializer[0].raw_data
    assert run(build, x=[1, 2])["w_grad"].tolist() == [6, 32]


def test_the_builder_of_the_reference(tmp_path: pathlib.Path) -> None:
    builder = GradientGraphBuilder(proto(LINE).SerializeToString(), {"l"}, {"w", "x"}, "l")
    with pytest.raises(GraphError, match="no gradient graph yet"):
        builder.get_model()
    builder.build()
    made = onnx.load_from_string(builder.get_model())
    assert outputs(made) == ["l", "w_grad", "x_grad"]
    builder.save(tmp_path / "grad.onnx")
    assert run(onnx.load(tmp_path / "grad.onnx"), x=[1, 2])["w_grad"].tolist() == [6, 32]
    with pytest.raises(SaveError, match="cannot save"):
        builder.save(tmp_path)


@pytest.mark.skipif(os.name != "posix", reason="needs a limit on the size of files")
def test_the_builder_keeps_the_old_file_if_the_disk_is_full(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "grad.onnx"
    path.write_bytes(b"old")
    code = f"""
        import resource
        from onnxtrain.errors import SaveError
        from onnxtrain.gradients import GradientGraphBuilder

        builder = GradientGraphBuilder({proto(LINE).SerializeToString()!r}, ["l"], ["w"], "l")
        builder.build()
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        try:
            builder.save({str(path)!r})
        except SaveError:
            raise SystemExit(7)
    """
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=False)
    assert run.returncode == 7
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def test_the_builder_without_a_loss_takes_gradients() -> None:
    builder = GradientGraphBuilder(proto(LINE).SerializeToString(), {"b"}, {"w"}, "", None)
    builder.build()
    assert inputs(onnx.load_from_string(builder.get_model())) == ["x", "b_grad"]


def test_gradient_graphs_need_no_torch() -> None:
    code = "import onnxtrain.gradients, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


BODIES = """<ir_version: 10, opset_import: ["": 21, "own": 1]>
main (double[2] x, bool c) => (double l) <double[2] w = {1.0, 3.0}> {
  a = own.Layer(x)
  b = own.Layer(a)
  y = If (c) <then_branch = t () => (double[2] p) <double[2] w = {0.5, -0.5}> {
                one = Constant <value = int64 {1}> ()
                yes = Constant <value = bool {1}> ()
                p = Loop (one, yes, b) <body = o (int64 i, bool go, double[2] s)
                    => (bool on, double[2] r) <double[2] v = {2.0, 7.0}> {
                  on = Identity(go)
                  sv = Mul(s, v)
                  r = Mul(sv, w)
                }>
              },
              else_branch = e () => (double[2] q) { q = Mul(b, w) }>
  l = ReduceSum<keepdims=0>(y)
}
<domain: "own", opset_import: ["": 21]> Layer (a) => (b) {
  w = Constant <value = double[2] {2.0, 4.0}> ()
  m = Mul(a, w)
  b = Sin(m)
}"""
"""Weights of the name w in the graph, in a branch and in a function that is called twice."""


@pytest.mark.parametrize("condition", [True, False])
def test_weights_in_bodies_and_functions_have_gradients(condition: bool) -> None:
    names = ["w", "w_2", "v", "w_3"]
    of = build_gradient_graph(onnx.parser.parse_model(BODIES), names, loss="l")
    onnx.checker.check_model(of, full_check=True)
    assert outputs(of) == ["l", *(f"{name}_grad" for name in names)]
    x = np.array([0.3, -0.8])
    found = InferenceSession(of).run(None, {"x": x, "c": np.asarray(condition)})
    w, inner, v, layer = leaves = [
        torch.tensor(values, dtype=torch.float64, requires_grad=True)
        for values in ([1, 3], [0.5, -0.5], [2, 7], [2, 4])
    ]
    b = torch.sin(torch.sin(torch.tensor(x) * layer) * layer)
    loss = (b * v * inner if condition else b * w).sum()
    want = torch.autograd.grad(loss, leaves, materialize_grads=True)
    for ours, theirs in zip(found, [loss, *want], strict=True):
        np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=1e-12)


def test_weights_in_bodies_are_named_when_one_is_not_found() -> None:
    with pytest.raises(ParameterError, match="weights in bodies  w_2, v, w_3"):
        build_gradient_graph(onnx.parser.parse_model(BODIES), "u", loss="l")
