import numpy as np
import pytest
import torch

from gradients.against import Twice
from gradients.emit import differentiated, run

NAMES = {"mul": "prod", "max": "amax", "min": "amin", "add": "sum"}


@pytest.mark.parametrize("reduction", NAMES)
@pytest.mark.parametrize("data", [[1.0, 2.0, 3.0], [2.0, 2.0, 0.0]])
@pytest.mark.parametrize("updates", [[2.0, 2.0, 5.0, 1.0], [0.0, 2.0, 0.0, 0.0]])
def test_places_that_are_written_more_than_once(
    reduction: str, data: list[float], updates: list[float]
) -> None:
    of = differentiated(
        "(double[3] x, int64[4] i, double[4] u) => (double[3] y) "
        f'{{ y = ScatterElements<reduction="{reduction}">(x, i, u) }}'
    )
    indices, d_y = np.array([0, 0, 2, 0]), np.array([1.0, 10.0, 100.0])
    found = run(of, x=data, i=indices, u=updates, d_y=d_y)
    leaves = [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (data, updates)]
    y = leaves[0].scatter_reduce(0, torch.tensor(indices), leaves[1], NAMES[reduction])
    expected = torch.autograd.grad(y, leaves, torch.tensor(d_y))
    for name, true in zip("xu", expected, strict=True):
        np.testing.assert_allclose(found[f"{name}_grad"], true.numpy(), rtol=1e-12)


@pytest.mark.parametrize("op", ["ScatterElements", "ScatterND"])
@pytest.mark.parametrize("zeros", [0, 1, 2, 3])
def test_products_with_zeros_are_right_twice(op: str, zeros: int) -> None:
    shape = "[5]" if op == "ScatterElements" else "[5,1]"
    text = f"""(double[3] x, double[5] u, int64{shape} i) => (double l) {{
        y = {op}<reduction="mul">(x, i, u)  s = Mul(y, y)  t = Add(s, y)
        l = ReduceSum<keepdims=0>(t) }}"""
    places = [0, 0, 2, 0, 2]
    updates = np.array([2.0, 3.0, 0.0, 5.0, 7.0])
    updates[[0, 1, 3][:zeros]] = 0

    def loss(x: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        products = list(x)
        for place, update in zip(places, u, strict=True):
            products[place] = products[place] * update
        return sum(p * p + p for p in products)

    indices = np.array(places).reshape((5,) if op == "ScatterElements" else (5, 1))
    for x in ([1.5, 2.0, 4.0], [0.0, 0.0, 0.0]):
        Twice(text, "x", "u").agrees(loss, x=np.array(x), u=updates, i=indices)


def test_rows_taken_twice_add_up() -> None:
    of = differentiated(
        "(double[2,2,1] x, int64[3] i) => (double[3,1] y) "
        "{ y, dims = com.microsoft.FlattenAndUnpad(x, i) }"
    )
    found = run(of, x=np.ones((2, 2, 1)), i=np.array([3, 0, 3]), d_y=[[1.0], [2.0], [4.0]])
    assert found["x_grad"].ravel().tolist() == [2, 0, 0, 5]
