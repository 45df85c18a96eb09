"""Collectives among two and four real processes, and what they refuse."""

import functools
from typing import Any

import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest
import torch

from onnxtrain.distributed.groups import ALONE, Groups
from onnxtrain.distributed.layout import GroupType, Mesh
from onnxtrain.gradients.engine import backward
from onnxtrain.graph.loading.load import load_model
from onnxtrain.graph.prepare import prepare
from onnxtrain.kernels.collective.adasum import adasum_all_reduce
from onnxtrain.kernels.collective.reduce import nccl_all_reduce
from onnxtrain.kernels.collective.shares import nccl_all_gather, nccl_reduce_scatter
from onnxtrain.runtime.options import SessionOptions
from onnxtrain.runtime.session import InferenceSession
from onnxtrain.testing.processes import WorldError, run_world

HEAD = '<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]> main '
DTYPES = ["float32", "float64", "float16", "bfloat16"]


def drawn(rank: int, *shapes: tuple[int, ...], dtype: str = "float32") -> list[torch.Tensor]:
    """What a rank begins with."""
    generator = torch.Generator().manual_seed(rank)
    return [torch.randn(s, generator=generator).to(getattr(torch, dtype)) for s in shapes]


def floats(tensors: Any) -> list[Any]:
    return [tensor.double().tolist() for tensor in tensors]


def run_model(groups: Groups, text: str, feeds: dict[str, Any]) -> list[torch.Tensor]:
    model = onnx.parser.parse_model(HEAD + text)
    return InferenceSession(model, SessionOptions(groups=groups)).run_torch(None, feeds)


SHAPES: list[tuple[int, ...]] = [(3, 4), (), (0, 2), (5,)]


def all_reduce(groups: Groups, kind: int, dtype: str) -> list[Any]:
    own = drawn(groups.rank, *SHAPES, dtype=dtype)
    before = [tensor.clone() for tensor in own]
    out = nccl_all_reduce(*own, group_type=kind, groups=groups)
    assert all(map(torch.equal, own, before))
    assert [(t.shape, t.dtype) for t in out] == [(t.shape, t.dtype) for t in own]
    return floats(out)


@pytest.mark.multi
@pytest.mark.parametrize("dtype", DTYPES)
def test_all_reduce_of_two(dtype: str) -> None:
    results = run_world(2, all_reduce, 0, dtype)
    pairs = zip(drawn(0, *SHAPES, dtype=dtype), drawn(1, *SHAPES, dtype=dtype), strict=True)
    assert results == [floats(a + b for a, b in pairs)] * 2


@pytest.mark.multi
@pytest.mark.parametrize("kind", GroupType)
def test_all_reduce_of_each_kind_of_group(kind: GroupType) -> None:
    mesh = Mesh(4, 2, 2, local_size=2)
    results = run_world(4, all_reduce, int(kind), "float64", mesh=mesh)
    for rank, result in enumerate(results):
        members = [drawn(r, *SHAPES, dtype="float64") for r in mesh.ranks(kind, rank)]
        for ours, parts in zip(result, zip(*members, strict=True), strict=True):
            true = sum(part.numpy() for part in parts)
            np.testing.assert_allclose(np.reshape(ours, true.shape), true, rtol=1e-14)


MODEL = """(float[3] x, float[2, 2] w) => (float[3] y, float[2, 2] v) {
  y, v = com.microsoft.NcclAllReduce<group_type = 1>(x, w)
}"""


def through_a_session(groups: Groups) -> list[Any]:
    x, w = drawn(groups.rank, (3,), (2, 2))
    return floats(run_model(groups, MODEL, {"x": x, "w": w}))


@pytest.mark.multi
def test_a_session_hands_its_groups_to_kernels() -> None:
    results = run_world(2, through_a_session)
    pairs = zip(drawn(0, (3,), (2, 2)), drawn(1, (3,), (2, 2)), strict=True)
    assert results == [floats(a + b for a, b in pairs)] * 2


def without_groups(groups: Groups) -> None:
    nccl_all_reduce(torch.ones(2), groups=None)


@pytest.mark.multi
def test_a_session_without_groups_in_a_world_of_two_is_refused() -> None:
    with pytest.raises(WorldError, match=r"no process groups, but torch.distributed runs 2"):
        run_world(2, without_groups)


OWNED: list[tuple[int, ...]] = [(5, 10), (14,), (2, 8)]
"""Of two ranks, the first owns the first two of these, the second the last."""


def gathered(groups: Groups, dtype: str) -> tuple[list[Any], list[Any]]:
    own = drawn(groups.rank, *OWNED, dtype=dtype)
    before = [tensor.clone() for tensor in own]
    gather = nccl_all_gather(*own, groups=groups)
    scatter = nccl_reduce_scatter(*own, groups=groups)
    assert all(map(torch.equal, own, before))
    return floats(gather), floats(scatter)


@pytest.mark.multi
@pytest.mark.parametrize("dtype", DTYPES)
def test_owners_gather_and_sum(dtype: str) -> None:
    results = run_world(2, gathered, dtype)
    a, b = drawn(0, *OWNED, dtype=dtype), drawn(1, *OWNED, dtype=dtype)
    total = [x + y for x, y in zip(a, b, strict=True)]
    assert [gather for gather, _ in results] == [floats([a[0], a[1], b[2]])] * 2
    assert results[0][1] == floats([total[0], total[1], a[2]])
    assert results[1][1] == floats([b[0], b[1], total[2]])


def gathered_by_four(groups: Groups) -> tuple[list[Any], list[Any]]:
    own = drawn(groups.rank, (31,), (1,), (32,), (20,), (12,), (30,))
    return (
        floats(nccl_all_gather(*own, group_type=1, groups=groups)),
        floats(nccl_reduce_scatter(*own, group_type=1, groups=groups)),
    )


@pytest.mark.multi
def test_four_owners() -> None:
    shapes = [(31,), (1,), (32,), (20,), (12,), (30,)]
    owners = [0, 0, 1, 2, 2, 3]
    members = [drawn(rank, *shapes) for rank in range(4)]
    results = run_world(4, gathered_by_four)
    for rank, (gather, scatter) in enumerate(results):
        assert gather == floats(members[owner][i] for i, owner in enumerate(owners))
        for index, owner in enumerate(owners):
            total = functools.reduce(torch.add, [m[index].double() for m in members])
            expected = total if owner == rank else members[rank][index]
            np.testing.assert_allclose(scatter[index], expected.numpy(), rtol=1e-5, atol=1e-6)


def crossing(groups: Groups) -> None:
    nccl_reduce_scatter(torch.ones(50), torch.ones(30), groups=groups)


@pytest.mark.multi
def test_every_rank_refuses_a_tensor_of_two_owners() -> None:
    with pytest.raises(WorldError) as caught:
        run_world(2, crossing)
    assert str(caught.value).count("a single rank must be responsible for the entire tensor") == 2


def adasum_pair(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    dot, aa, bb = float(a.flatten() @ b.flatten()), float((a * a).sum()), float((b * b).sum())
    return (1 - dot / (2 * aa) if aa else 1) * a + (1 - dot / (2 * bb) if bb else 1) * b


def adasum_tree(members: list[torch.Tensor]) -> torch.Tensor:
    while len(members) > 1:
        members = [adasum_pair(a, b) for a, b in zip(members[::2], members[1::2], strict=True)]
    return members[0]


def adasum(groups: Groups, values: list[Any], dtype: str, algo: int) -> list[Any]:
    own = [torch.tensor(v, dtype=getattr(torch, dtype)) for v in values[groups.rank]]
    before = [tensor.clone() for tensor in own]
    out = adasum_all_reduce(*own, reduce_algo=algo, groups=groups)
    assert all(map(torch.equal, own, before))
    return floats(out)


@pytest.mark.multi
@pytest.mark.parametrize("algo", [0, 1])
def test_adasum_of_two_known_pairs(algo: int) -> None:
    values = [[[4, 5, 6], [4, 5, 6, 7]], [[7, 8, 9], [8, 9, 10, 11]]]
    first, second = run_world(2, adasum, values, "float32", algo)
    assert first == second
    np.testing.assert_allclose(first[0], [5.6301, 6.5235, 7.4169], atol=5e-5)
    np.testing.assert_allclose(first[1], [6.2643, 7.1228, 7.9812, 8.8397], atol=1e-4)


@pytest.mark.multi
def test_adasum_of_four_known_vectors() -> None:
    values = [[[1, 0, 2, 0]], [[1, 1, 0, 0]], [[0, 2, 0, 1]], [[-1, 0, 1, 1]]]
    results = run_world(4, adasum, values, "float32", 1)
    assert all(result == results[0] for result in results)
    np.testing.assert_allclose(results[0][0], [0.7107, 2.2913, 2.3494, 1.5659], atol=5e-5)


MIXED: list[tuple[int, ...]] = [(3, 5), (), (7,), (0,), (2, 2, 2), (1,)]


def adasum_of_many(groups: Groups, dtype: str) -> list[Any]:
    return floats(adasum_all_reduce(*drawn(groups.rank, *MIXED, dtype=dtype), groups=groups))


@pytest.mark.multi
@pytest.mark.parametrize("dtype", DTYPES)
def test_adasum_takes_products_over_each_of_many_tensors(dtype: str) -> None:
    results = run_world(4, adasum_of_many, dtype)
    members = [[t.double() for t in drawn(rank, *MIXED, dtype=dtype)] for rank in range(4)]
    eps = torch.finfo(getattr(torch, dtype)).eps
    for result in results:
        for index, ours in enumerate(result):
            true = adasum_tree([member[index] for member in members]).numpy()
            np.testing.assert_allclose(ours, true, rtol=4 * eps, atol=8 * eps)


@pytest.mark.multi
def test_adasum_of_orthogonal_equal_and_zero_gradients() -> None:
    values = [[[1, 0], [3, -4], [0, 0], [0, 0]], [[0, 2], [3, -4], [5, 6], [0, 0]]]
    results = run_world(2, adasum, values, "float64", 0)
    assert results == [[[1, 2], [3, -4], [5, 6], [0, 0]]] * 2


def hierarchical(groups: Groups) -> list[Any]:
    own = [torch.tensor([4.0, 5, 6]), torch.tensor([7.0, 8, 9])][groups.rank % 2]
    local = nccl_all_reduce(own * (1 + groups.rank // 2), group_type=2, groups=groups)
    return floats(adasum_all_reduce(*local, reduce_algo=2, groups=groups))


@pytest.mark.multi
def test_hierarchical_adasum_on_one_machine_is_a_sum() -> None:
    assert run_world(2, hierarchical) == [[[11, 13, 15]]] * 2


@pytest.mark.multi
def test_hierarchical_adasum_combines_machines() -> None:
    results = run_world(4, hierarchical, mesh=Mesh(4, 4, local_size=2))
    true = adasum_pair(torch.tensor([11.0, 13, 15]), 2 * torch.tensor([11.0, 13, 15]))
    assert all(result == results[0] for result in results)
    np.testing.assert_allclose(results[0][0], true.numpy(), rtol=1e-6)


@pytest.mark.multi
def test_adasum_of_three_is_refused() -> None:
    with pytest.raises(WorldError, match=r"non-power-of-2 number of ranks, there are 3"):
        run_world(3, adasum, [[[1.0]]] * 3, "float32", 0)


def test_an_unknown_algorithm_is_refused() -> None:
    with pytest.raises(ValueError, match="reduce_algo 3 is unknown"):
        adasum_all_reduce(torch.ones(2), reduce_algo=3, groups=ALONE)


@pytest.mark.parametrize("kind", [-1, 6])
@pytest.mark.parametrize("op", [nccl_all_reduce, nccl_all_gather, nccl_reduce_scatter])
def test_an_unknown_group_is_refused(op: Any, kind: int) -> None:
    with pytest.raises(ValueError, match=f"group_type {kind} is unknown"):
        op(torch.ones(2), group_type=kind, groups=None)


LAYER = """(float[2, 4] x, float[4, 3] a, float[3, 4] b) => (float[2, 4] y) {
  f = com.microsoft.MegatronF(x)
  h = MatMul(f, a)
  r = Relu(h)
  p = MatMul(r, b)
  y = com.microsoft.MegatronG<group_type = 4>(p)
}"""


def megatron(groups: Groups, shared: list[torch.Tensor]) -> list[Any]:
    """Each rank holds three of six hidden units; x and dy are the same on both."""
    x, a, b, dy = shared
    part = slice(3 * groups.rank, 3 * groups.rank + 3)
    model = prepare(load_model(onnx.parser.parse_model(HEAD + LAYER)))
    graph = model.graph
    seed = ir.val("dy", ir.DataType.FLOAT, [2, 4])
    graph.inputs.append(seed)
    grads = backward(graph, list(graph.inputs[:3]), {graph.outputs[0]: seed})
    graph.outputs.extend(grads[value] for value in graph.inputs[:3])
    session = InferenceSession(model, SessionOptions(groups=groups))
    feeds = {"x": x, "a": a[:, part], "b": b[part], "dy": dy}
    return [tensor.tolist() for tensor in session.run_torch(None, feeds)]


@pytest.mark.multi
def test_a_divided_layer_is_the_whole_layer() -> None:
    shared = drawn(7, (2, 4), (4, 6), (6, 4), (2, 4))
    results = run_world(2, megatron, shared, mesh=Mesh(2, 1, 2))
    x, a, b = (tensor.requires_grad_() for tensor in shared[:3])
    y = (x @ a).relu() @ b
    y.backward(shared[3])
    for rank, (ours, dx, da, db) in enumerate(results):
        part = slice(3 * rank, 3 * rank + 3)
        for value, true in ((ours, y), (dx, x.grad), (da, a.grad[:, part]), (db, b.grad[part])):
            np.testing.assert_allclose(value, true.detach().numpy(), rtol=1e-5, atol=1e-6)
