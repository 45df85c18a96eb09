"""Products of 16-bit matrices, on processors with and without instructions for them."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from onnxtrain.kernels import precision
from onnxtrain.kernels.loss.projected import Projection
from onnxtrain.kernels.math.einsum import einsum
from onnxtrain.kernels.math.matmul import fused_matmul, gemm, matmul
from onnxtrain.kernels.ms.fused import gemm_fast_gelu
from onnxtrain.kernels.nn.conv import conv, conv_grad
from onnxtrain.kernels.nn.conv_transpose import conv_transpose, conv_transpose_grad

ALL = (True, True, True)
Call = Callable[..., Tensor | tuple[Tensor | None, ...]]
CALLS: dict[str, tuple[Call, list[tuple[int, ...]]]] = {
    "MatMul": (matmul, [(3, 20, 30), (30, 40)]),
    "FusedMatMul": (lambda a, b: fused_matmul(a, b, alpha=0.3, transB=1), [(2, 20, 30), (40, 30)]),
    "Gemm": (lambda a, b, c: gemm(a, b, c, alpha=0.5, beta=2.0), [(20, 30), (30, 40), (40,)]),
    "Gemm, turned": (lambda a, b: gemm(a, b, transA=1, transB=1), [(30, 20), (40, 30)]),
    "Einsum": (lambda a, b: einsum(a, b, equation="bij,bjk->bik"), [(2, 20, 30), (2, 30, 40)]),
    "GemmFastGelu": (gemm_fast_gelu, [(20, 30), (30, 40), (40,)]),
    "Conv": (conv, [(2, 8, 9, 9), (6, 8, 3, 3), (6,)]),
    "ConvGrad": (
        lambda *xs: conv_grad(*xs, pads=[1, 0, 1, 2], wanted=ALL),
        [(2, 6, 9, 9), (2, 8, 9, 9), (6, 8, 3, 3)],
    ),
    "ConvTranspose": (conv_transpose, [(2, 8, 9, 9), (8, 6, 3, 3), (6,)]),
    "ConvTransposeGrad": (
        lambda *xs: conv_transpose_grad(*xs, wanted=ALL),
        [(2, 6, 11, 11), (2, 8, 9, 9), (8, 6, 3, 3)],
    ),
}


def results(call: Call, inputs: list[Tensor]) -> list[Tensor]:
    found = call(*inputs)
    return [found] if isinstance(found, Tensor) else [one for one in found if one is not None]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CALLS)
def test_results_are_rounded_once_without_instructions(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, shapes = CALLS[name]
    torch.manual_seed(0)
    inputs = [torch.randn(shape).to(dtype) for shape in shapes]
    true = results(call, [x.double() for x in inputs])
    asked = []
    monkeypatch.setattr(precision, "multiplies", lambda kind: asked.append(kind))
    found = results(call, inputs)
    assert set(asked) == {dtype}
    for ours, exact in zip(found, true, strict=True):
        assert ours.dtype is dtype and ours.shape == exact.shape
        half_a_step = torch.finfo(dtype).eps / 2 * exact.abs() * (1 + 1e-3)
        assert ((ours.double() - exact).abs() <= half_a_step + 1e-4 * half_a_step.max()).all()


def test_instructions_are_used_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "multiplies", lambda kind: True)
    monkeypatch.setattr(precision, "widen", lambda x: pytest.fail("was computed in float32"))
    a = torch.randn(8, 8).to(torch.bfloat16)
    assert torch.equal(matmul(a, a), torch.matmul(a, a))


def test_a_sum_in_place_is_rounded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "multiplies", lambda kind: False)
    torch.manual_seed(0)
    a, b, c = (torch.randn(16, 16).to(torch.bfloat16) for _ in range(3))
    true = torch.addmm(c.double(), a.double(), b.double()).to(torch.bfloat16)
    found = gemm(a, b, c, out=c)
    assert found is c and torch.equal(c, true)


def test_other_types_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "multiplies", lambda kind: False)
    assert not precision.lacks_products(torch.ones(1))
    assert not precision.lacks_products(torch.ones(1, dtype=torch.float64))
    assert not precision.lacks_products(torch.ones(1, dtype=torch.bfloat16, device="meta"))
    assert precision.lacks_products(torch.ones(1, dtype=torch.bfloat16))


def test_scores_of_a_loss_are_multiplied_likewise(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    rows, w = torch.randn(6, 8).to(torch.float16), torch.randn(10, 8).to(torch.float16)
    labels, weights = torch.randint(0, 10, (6,)), torch.ones(6)
    asked = []
    monkeypatch.setattr(precision, "multiplies", lambda kind: asked.append(kind))
    loss = Projection(rows, w, None, labels, None, -100)
    each, dx, dw, _ = loss.at_once(torch.tensor(1.0), labels, None, weights)
    scores = (rows.double() @ w.double().mT).to(torch.float16).double()
    assert len(asked) == 3
    torch.testing.assert_close(
        each.double(), torch.nn.functional.cross_entropy(scores, labels, reduction="none")
    )
    assert dx.dtype is dw.dtype is torch.float16
