"""Products of float32 matrices on a CPU by oneDNN, where MKL leaves instructions unused."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from onnxtrain.kernels import products
from onnxtrain.kernels.math.matmul import fused_matmul, gemm, matmul

if not torch.backends.mkldnn.is_available():
    pytest.skip("torch was built without oneDNN", allow_module_level=True)

M, K, N = 33, 20, 17


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """oneDNN serves all sizes here; shapes of what it multiplied."""
    found: list[tuple[int, ...]] = []
    serves = products.serves

    def noted(a: Tensor, b: Tensor, added: Tensor | None = None) -> bool:
        served = serves(a, b, added)
        if served:
            found.append((*a.shape, b.shape[1]))
        return served

    monkeypatch.setattr(products, "WORTH", 1)
    monkeypatch.setattr(products, "NARROW", 1)
    monkeypatch.setattr(products, "wins", lambda: True)
    monkeypatch.setattr(products, "serves", noted)
    return found


FORMS: dict[str, Callable[[int, int], Tensor]] = {
    "dense": torch.randn,
    "turned": lambda rows, columns: torch.randn(columns, rows).t(),
    "with gaps": lambda rows, columns: torch.randn(rows, columns + 3)[:, 2:-1],
    "turned, with gaps": lambda rows, columns: torch.randn(columns, rows + 5).t()[5:],
    "every third": lambda rows, columns: torch.randn(rows, 3, columns)[:, 1],
    "one row": lambda rows, columns: torch.randn(1, columns).expand(rows, -1),
}


def near(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("left", FORMS)
@pytest.mark.parametrize("right", FORMS)
@pytest.mark.parametrize("large", [1, 1 << 20])
def test_however_matrices_lie(
    left: str,
    right: str,
    large: int,
    called: list[tuple[int, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(products, "LARGE", large)
    a, b, row = FORMS[left](M, K), FORMS[right](K, N), torch.randn(N)
    near(products.product(a, b), a.double() @ b.double())
    near(products.product(a, b, row), a.double() @ b.double() + row)
    assert called == [(M, K, N)] * 2


@pytest.mark.parametrize("form", FORMS)
def test_the_right_matrix_has_no_gaps(form: str) -> None:
    b = FORMS[form](K, N)
    found = products.dense(b)
    assert found.is_contiguous() or found.t().is_contiguous()
    assert torch.equal(found, b) and (found is b) == (form in ("dense", "turned"))


ADDED = {
    "nothing": lambda: None,
    "a row": lambda: torch.randn(N),
    "a row with gaps": lambda: torch.randn(2 * N)[1::2],
    "one number in a row": lambda: torch.randn(1).expand(N),
    "a matrix of a row": lambda: torch.randn(1, N),
    "a column": lambda: torch.randn(M, 1),
    "a matrix": lambda: torch.randn(M, N),
    "a turned matrix": lambda: torch.randn(N, M).t(),
    "a number": lambda: torch.randn(()),
}


@pytest.mark.parametrize("added", ADDED)
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (0.5, 1.0), (1.0, 2.0), (1.0, 0.0)])
@pytest.mark.parametrize("turned", [False, True])
def test_gemm(
    added: str, alpha: float, beta: float, turned: bool, called: list[tuple[int, ...]]
) -> None:
    a, b, c = torch.randn(K, M) if turned else torch.randn(M, K), torch.randn(N, K), ADDED[added]()
    options = {"alpha": alpha, "beta": beta, "transA": int(turned), "transB": 1}
    left = a.t() if turned else a
    expected = alpha * (left.double() @ b.double().t())
    expected = expected if c is None else expected + beta * c.double()
    near(gemm(a, b, c, **options), expected)
    if c is not None and c.shape == (M, N):
        room = c.clone(memory_format=torch.preserve_format)
        assert gemm(a, b, room, **options, out=room) is room
        near(room, expected)


def test_rows_in_several_axes(called: list[tuple[int, ...]]) -> None:
    a, b = torch.randn(3, 4, 5, K), torch.randn(K, N)
    near(matmul(a, b), a.double() @ b.double())
    assert called == [(60, K, N)]
    moved = a.movedim(0, 2)
    near(fused_matmul(moved, b.t().contiguous(), transB=1), moved.double() @ b.double())
    row = torch.randn(N)
    near(products.of_rows(a, b, row), a.double() @ b.double() + row)
    near(products.of_rows(a[0, 0, 0], b), a[0, 0, 0].double() @ b.double())


def test_what_is_left_to_torch(called: list[tuple[int, ...]]) -> None:
    a, b = torch.randn(M, K), torch.randn(K, N)
    for pair in ((a.double(), b.double()), (a[:0], b), (a[:, :0], b[:0])):
        near(products.product(*pair), pair[0].double() @ pair[1].double())
    weight = b.clone().requires_grad_()
    products.product(a, weight).sum().backward()
    assert weight.grad is not None and not called


@pytest.mark.parametrize("shape", [(N,), (1, N), (M, N), (M, 1), ()])
def test_autograd_sees_what_is_added(shape: tuple[int, ...], called: list[tuple[int, ...]]) -> None:
    a, b, c = torch.randn(M, K), torch.randn(K, N), torch.randn(shape, requires_grad=True)
    dy = torch.randn(M, N)
    found = [gemm(a, b, c)]
    if shape == (N,):
        found.append(products.of_rows(a, b, c))
    for y in found:
        (grad,) = torch.autograd.grad(y, c, dy)
        near(grad, dy.double().sum_to_size(shape))


def test_small_products_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "wins", lambda: True)
    a, b = torch.randn(256, 128), torch.randn(128, 128)
    assert products.serves(a, b) and not products.serves(a[:255], b)
    thin = torch.randn(1 << 13, 64)
    assert products.serves(thin, torch.randn(64, 16))
    assert not products.serves(thin, torch.randn(64, 15))


@pytest.mark.parametrize(
    ("capability", "maker", "expected"),
    [
        ("AVX512", "AuthenticAMD", True),
        ("AVX512", "GenuineIntel", False),
        ("AVX2", "AuthenticAMD", False),
        ("AVX512", "", False),
    ],
)
def test_processors_that_mkl_knows_less_of(
    capability: str, maker: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    monkeypatch.setattr(products, "maker", lambda: maker)
    products.wins.cache_clear()
    assert products.wins() is expected
    products.wins.cache_clear()


def test_who_made_the_processor(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = tmp_path / "cpuinfo"
    told.write_text("processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel\t: 2\n")
    monkeypatch.setattr(products, "_CPUINFO", told)
    assert products.maker() == "AuthenticAMD"
    told.write_text("processor\t: 0\nCPU implementer\t: 0x41\n")
    assert products.maker() == ""
    monkeypatch.setattr(products, "_CPUINFO", tmp_path / "nothing")
    monkeypatch.setenv("PROCESSOR_IDENTIFIER", "AMD64 Family 25 Model 33 Stepping 0, AuthenticAMD")
    assert products.maker() == "AuthenticAMD"
    monkeypatch.delenv("PROCESSOR_IDENTIFIER")
    assert products.maker() == ""
