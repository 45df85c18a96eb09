"""Products whose operands turn out to be vectors, matrices or batches of them in the run."""

from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

from gradients.against import Twice
from gradients.emit import agrees_with_differences
from graph.text import proto
from onnxtrain.gradients import build_gradient_graph

SHAPES = {
    "vectors": ((4,), (4,)),
    "vector-matrix": ((4,), (4, 5)),
    "matrix-vector": ((3, 4), (4,)),
    "matrices": ((3, 4), (4, 5)),
    "square-vector": ((4, 4), (4,)),
    "vector-batch": ((4,), (2, 4, 5)),
    "batch-vector": ((2, 3, 4), (4,)),
    "matrix-batch": ((3, 4), (2, 4, 5)),
    "batch-matrix": ((2, 3, 4), (4, 5)),
    "broadcast": ((2, 1, 3, 4), (5, 4, 2)),
    "vector-nothing": ((4,), (0, 4, 5)),
    "nothing": ((0,), (0, 3)),
}


def _drawn(*shapes: tuple[int, ...]) -> list[Any]:
    rng = np.random.default_rng(3)
    return [rng.normal(size=shape) for shape in shapes]


@pytest.mark.parametrize("known", ["", "a", "b"])
@pytest.mark.parametrize("name", SHAPES)
def test_operands_whose_rank_only_a_run_tells(name: str, known: str) -> None:
    of_a, of_b = SHAPES[name]
    counts = [
        len(of) if operand in known else operand for operand, of in (("a", of_a), ("b", of_b))
    ]
    twice = Twice(
        f"""(double[N] x, double[M] w, int64[{counts[0]}] s, int64[{counts[1]}] t) => (double l) {{
            a = Reshape<allowzero=1>(x, s) b = Reshape<allowzero=1>(w, t)
            y = MatMul(a, b) z = Sin(y) l = ReduceSum<keepdims=0>(z) }}""",
        "x",
        "w",
    )

    def loss(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x.reshape(of_a) @ w.reshape(of_b)).sin().sum()

    x, w = (value.ravel() for value in _drawn(of_a, of_b))
    twice.agrees(loss, x=x, w=w, s=np.array(of_a), t=np.array(of_b))


@pytest.mark.parametrize("whole", [False, True])
def test_branches_that_give_a_vector_or_a_matrix(whole: bool) -> None:
    twice = Twice(
        """(bool c, double[4,4] x, double[4,4] w) => (double l)
        <int64 one = {1}> {
            a = If(c) <then_branch = yes () => (double[4,4] r) { r = Neg(x) },
                       else_branch = no () => (double[4] q) { q = Gather<axis=0>(x, one) }>
            b = If(c) <then_branch = yes2 () => (double[4] r2) { r2 = Gather<axis=0>(w, one) },
                       else_branch = no2 () => (double[4,4] q2) { q2 = Neg(w) }>
            y = MatMul(a, b) s = Sin(y) l = ReduceSum<keepdims=0>(s) }""",
        "x",
        "w",
    )

    def loss(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (-x @ w[1] if whole else x[1] @ -w).sin().sum()

    x, w = _drawn((4, 4), (4, 4))
    twice.agrees(loss, c=whole, x=x, w=w)


@pytest.mark.parametrize("opset", [7, 9, 11, 13])
@pytest.mark.parametrize("name", ["vectors", "vector-batch", "batch-vector", "broadcast"])
def test_old_opsets_find_vectors_too(name: str, opset: int) -> None:
    a, b = _drawn(*SHAPES[name])
    text = "(double[] a, double[] b) => (double[] y) { y = MatMul(a, b) }"
    agrees_with_differences(text, opset=opset, a=a, b=b, d_y=np.cos(a @ b))


@pytest.mark.parametrize("ranks", ["known", "unknown"])
@pytest.mark.parametrize("trans", [(1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("name", SHAPES)
def test_only_matrices_are_transposed(name: str, trans: tuple[int, int], ranks: str) -> None:
    feeds = [
        np.ascontiguousarray(x.swapaxes(-1, -2)) if flag and x.ndim > 1 else x
        for x, flag in zip(_drawn(*SHAPES[name]), trans, strict=True)
    ]
    kinds = [list(x.shape) if ranks == "known" else [] for x in feeds]
    text = f"""(double{kinds[0]} a, double{kinds[1]} b) => (double[] y) {{
        y = com.microsoft.FusedMatMul<transA={trans[0]}, transB={trans[1]}, alpha=0.5>(a, b) }}"""
    d_y = np.cos(np.matmul(*_drawn(*SHAPES[name])))
    agrees_with_differences(text, a=feeds[0], b=feeds[1], d_y=d_y)


def test_weights_of_an_operand_without_a_rank_need_no_operator_of_training() -> None:
    text = """(double[] a, double[4,5] w) => (double l)
        { y = MatMul(a, w) l = ReduceSum<keepdims=0>(y) }"""
    of = build_gradient_graph(proto(text), ["w"], loss="l")
    a = np.arange(4.0)
    theirs = onnxruntime.InferenceSession(of.SerializeToString())
    (found,) = theirs.run(["w_grad"], {"a": a, "w": np.ones((4, 5))})
    assert found.tolist() == np.repeat(a[:, None], 5, axis=1).tolist()
