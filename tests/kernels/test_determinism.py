"""Deterministic compute: the same bits in every run, and torch's settings left alone."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from onnxtrain.kernels.library import declared_kernels
from onnxtrain.kernels.ordered import combine_at, scanned
from onnxtrain.testing.case import Case, Input, given
from onnxtrain.testing.cases.flash_attention import causal_row, grad_row
from onnxtrain.testing.model import draw, feeds_of, one_node_model, run_model
from onnxtrain.testing.table import runs_on, table, trial_types
from onnxtrain.types import MS, DataType, dtype_name

Tensor = torch.Tensor
RUNS = 3
ORDERED = {(k.domain, k.op) for k in declared_kernels() if "deterministic" in k.needs}
"""Operators with another way for deterministic compute."""


def trials() -> Iterator[Any]:
    """Every row in float and bfloat16; without a GPU those of operators with two ways."""
    for case in table():
        types = trial_types(case)
        wanted = [t for t in (DataType.FLOAT, DataType.BFLOAT16) if t in types] or types[:1]
        for dtype in wanted:
            name = f"{case}-{dtype_name(dtype)}"
            if runs_on(case, "cuda"):
                yield pytest.param("cuda", case, dtype, id=f"cuda-{name}", marks=pytest.mark.gpu)
            if (case.domain, case.op) in ORDERED:
                yield pytest.param("cpu", case, dtype, id=f"cpu-{name}")


def bits(value: Any) -> Any:
    """The memory of a result, in a form that can be compared."""
    if isinstance(value, (list, tuple)):
        return [bits(item) for item in value]
    if isinstance(value, np.ndarray):
        return value.tolist()
    if not isinstance(value, Tensor):
        return value
    octets = value.cpu().clone(memory_format=torch.contiguous_format).reshape(-1)
    return value.dtype, tuple(value.shape), octets.view(torch.uint8).numpy().tobytes()


def settings() -> list[Any]:
    """What torch computes by, for the whole process."""
    cudnn = torch.backends.cudnn
    return [
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
        cudnn.deterministic,
        cudnn.benchmark,
        cudnn.allow_tf32,
        torch.backends.cuda.matmul.allow_tf32,
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
        torch.get_num_threads(),
    ]


def assert_repeats(case: Case, dtype: DataType, device: str) -> None:
    """Three sessions give the same bits and leave torch's settings as they were."""
    inputs = draw(case, dtype)
    model, feeds = one_node_model(case, inputs), feeds_of(case, inputs)
    before = settings()
    results = [bits(run_model(model, feeds, device, deterministic=True)) for _ in range(RUNS)]
    assert settings() == before
    assert all(result == results[0] for result in results[1:])


@pytest.mark.parametrize(("device", "case", "dtype"), list(trials()))
def test_rows_repeat(device: str, case: Case, dtype: DataType) -> None:
    assert_repeats(case, dtype, device)


def spread(*shape: int) -> Tensor:
    """Numbers of very different sizes, whose sum depends on the order of the additions."""
    generator = torch.Generator().manual_seed(sum(shape))
    sizes = torch.randint(-3, 4, shape, generator=generator).double()
    return torch.randn(shape, generator=generator, dtype=torch.float64) * 10.0**sizes


def near_one(*shape: int) -> Tensor:
    """Numbers whose product neither grows nor vanishes soon."""
    generator = torch.Generator().manual_seed(sum(shape))
    return 1 + torch.randn(shape, generator=generator, dtype=torch.float64) * 0.01


def crowded(size: int, *shape: int) -> Input:
    """Indices most of which are one of a few."""
    generator = torch.Generator().manual_seed(size)
    few = torch.randint(min(size, 5), shape, generator=generator)
    any_ = torch.randint(size, shape, generator=generator)
    return given(torch.where(torch.rand(shape, generator=generator) < 0.1, any_, few))


def sizes(*values: int) -> Input:
    return given(torch.tensor(values), constant=True)


def row(op: str, inputs: list[Any], domain: str = MS, **facts: Any) -> Case:
    ready = [i if i is None or isinstance(i, Input) else given(i) for i in inputs]
    return Case(op, ready, domain=domain, gradient=False, **facts)


def _scatter_elements(how: str) -> Callable[[int], Case]:
    values = near_one if how == "mul" else spread
    return lambda n: row(
        "ScatterElements",
        [values(50, 3), crowded(50, n, 3), values(n, 3)],
        "",
        attributes={"reduction": how},
    )


def _scatter_nd(how: str) -> Callable[[int], Case]:
    values = near_one if how == "mul" else spread
    return lambda n: row(
        "ScatterND",
        [values(50, 3), crowded(50, n, 1), values(n, 3)],
        "",
        attributes={"reduction": how},
    )


def _average_pool(rank: int) -> Callable[[int], Case]:
    def made(n: int) -> Case:
        size = max(math.floor(n ** (1 / rank)) // 2, 4)
        out = (size - 3) // 1 + 1
        return row(
            "AveragePoolGrad",
            [spread(2, 3, *[out] * rank), sizes(2, 3, *[size] * rank)],
            "",
            attributes={"kernel_shape": [3] * rank},
            opset=19,
        )

    return made


def _resize(mode: str) -> Callable[[int], Case]:
    return lambda n: row(
        "ResizeGrad",
        [spread(1, 2, n // 8, 8), spread(1, 2, n // 80, 2), None, None],
        attributes={"mode": mode},
    )


def _lamb(n: int) -> Case:
    group = [spread(n), spread(n), spread(n), spread(n).abs(), None]
    lists = {name: [0.5] for name in ("alpha", "beta", "lambda", "epsilon")}
    rate = given(torch.tensor(0.125), DataType.FLOAT)
    first = [None, None, None, rate, given(torch.tensor(3))]
    return row("LambOptimizer", [*first, *group[:4]], attributes=lists, outputs=5)


def _conv(n: int) -> Case:
    side = math.isqrt(n // 10)
    inputs = [spread(2, 4, side, side), spread(2, 3, side, side), spread(4, 3, 3, 3)]
    return row("ConvGrad", inputs, attributes={"pads": [1] * 4}, outputs=3)


def _layer_norm(n: int) -> Case:
    rows = n // 16
    statistics = [given(t, DataType.FLOAT) for t in (spread(rows, 1), near_one(rows, 1))]
    inputs = [spread(rows, 16), spread(rows, 16), spread(16), *statistics]
    return row("LayerNormalizationGrad", inputs, outputs=3)


CROWDED: dict[str, Callable[[int], Case]] = {
    "GatherGrad": lambda n: row("GatherGrad", [sizes(50, 8), crowded(50, n), spread(n, 8)]),
    "GatherGrad-inner": lambda n: row(
        "GatherGrad",
        [sizes(3, 50), crowded(50, n), spread(3, n)],
        attributes={"axis": 1},
    ),
    "GatherGrad-table": lambda n: row("GatherGrad", [sizes(n, 16), crowded(n, n), spread(n, 16)]),
    "GatherElementsGrad": lambda n: row(
        "GatherElementsGrad", [spread(n, 3), sizes(50, 3), crowded(50, n, 3)]
    ),
    "GatherElementsGrad-last": lambda n: row(
        "GatherElementsGrad",
        [spread(3, n), sizes(3, 50), crowded(50, 3, n)],
        attributes={"axis": 1},
    ),
    "GatherNDGrad": lambda n: row("GatherNDGrad", [sizes(50, 3), crowded(50, n, 1), spread(n, 3)]),
    "PadAndUnflatten": lambda n: row(
        "PadAndUnflatten", [spread(n, 3), crowded(50, n), sizes(5, 10)]
    ),
    "FlashAttention": lambda n: causal_row(1, 2, math.isqrt(n), 16),
    "FlashAttentionGrad": lambda n: grad_row(1, 2, math.isqrt(n), 16),
    **{f"ScatterElements-{how}": _scatter_elements(how) for how in ("add", "mul", "max", "min")},
    **{f"ScatterND-{how}": _scatter_nd(how) for how in ("add", "mul", "max", "min")},
    "MaxPoolGrad": lambda n: row(
        "MaxPoolGrad", [spread(1, 1, n), crowded(50, 1, 1, n), sizes(1, 1, 50)], "", opset=19
    ),
    **{f"AveragePoolGrad-{rank}": _average_pool(rank) for rank in (1, 2, 3)},
    **{f"ResizeGrad-{mode}": _resize(mode) for mode in ("nearest", "linear", "cubic")},
    "CumSum": lambda n: row("CumSum", [spread(n), sizes(0)], ""),
    "CumSum-columns": lambda n: row("CumSum", [spread(n // 4, 4), sizes(0)], ""),
    "CumProd": lambda n: row("CumProd", [near_one(n), sizes(0)], "", opset=26),
    "Multinomial": lambda n: row(
        "Multinomial", [spread(1, n)], "", attributes={"sample_size": 64, "seed": 3.0}
    ),
    "LambOptimizer": _lamb,
    "ReduceAllL2": lambda n: row("ReduceAllL2", [spread(n), spread(n // 2, 2), spread(7)]),
    "ReduceSumTraining": lambda n: row("ReduceSumTraining", [spread(n, 3), sizes(0)]),
    "DivGrad": lambda n: row("DivGrad", [spread(n, 3), spread(n, 3), near_one(3)], outputs=2),
    "ConvGrad": _conv,
    "LayerNormalizationGrad": _layer_norm,
}


CROWDED_TRIALS = [
    pytest.param(make, dtype, id=f"{name}-{dtype_name(dtype)}")
    for name, make in CROWDED.items()
    for dtype in (DataType.FLOAT, DataType.BFLOAT16)
    if dtype in trial_types(make(100))
]


@pytest.mark.parametrize(("make", "dtype"), CROWDED_TRIALS)
def test_crowded_sums_repeat(make: Callable[[int], Case], dtype: DataType, device: str) -> None:
    assert_repeats(make(100_000 if device == "cuda" else 2_000), dtype, device)


def _softmax_grad(op: str, size: int) -> Callable[[int], Case]:
    return lambda n: row(op, [spread(n, size), near_one(n, size) / size])


def _cross_entropy(size: int) -> Callable[[int], Case]:
    return lambda n: row(
        "SoftmaxCrossEntropyLoss", [spread(n, size), crowded(size, n)], "", opset=13, outputs=2
    )


LARGE: dict[str, tuple[Callable[[int], Case], int]] = {
    "GatherGrad": (CROWDED["GatherGrad"], 600_000),
    "GatherGrad-table": (CROWDED["GatherGrad-table"], 300_000),
    "GatherElementsGrad-few": (
        lambda n: row(
            "GatherElementsGrad",
            [spread(n, 40), sizes(n, 50), crowded(50, n, 40)],
            attributes={"axis": 1},
        ),
        110_000,
    ),
    "GatherElementsGrad-parts": (
        lambda n: row(
            "GatherElementsGrad",
            [spread(n, 300), sizes(n, 50), crowded(50, n, 300)],
            attributes={"axis": 1},
        ),
        15_000,
    ),
    "GatherElementsGrad-last": (CROWDED["GatherElementsGrad-last"], 1_500_000),
    "LayerNormalizationGrad": (_layer_norm, 5_000_000),
    "SoftmaxGrad": (_softmax_grad("SoftmaxGrad_13", 64), 70_000),
    "SoftmaxGrad-wide": (_softmax_grad("SoftmaxGrad_13", 500_000), 9),
    "LogSoftmaxGrad": (_softmax_grad("LogSoftmaxGrad_13", 64), 70_000),
    "SoftmaxCrossEntropyLoss": (_cross_entropy(64), 70_000),
    "SoftmaxCrossEntropyLoss-wide": (_cross_entropy(50_000), 90),
}
"""Rows with so many elements that kernels for large tensors take them."""


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [DataType.FLOAT, DataType.BFLOAT16])
@pytest.mark.parametrize("name", LARGE)
def test_large_tensors_repeat(name: str, dtype: DataType) -> None:
    make, count = LARGE[name]
    case = make(count)
    assert dtype in trial_types(case)
    assert_repeats(case, dtype, "cuda")


def test_every_operator_with_two_ways_is_tried() -> None:
    tried = {(case.domain, case.op) for make in CROWDED.values() for case in [make(100)]}
    assert ORDERED
    assert not ORDERED - tried


@pytest.mark.parametrize("size", [0, 1, 2, 3, 8, 100])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_an_ordered_scan_is_a_scan(size: int, axis: int, device: str) -> None:
    shape = (3, 2)[:axis] + (size,) + (3, 2)[axis:] if axis >= 0 else (3, 2, size)
    x = near_one(*shape).to(device)
    torch.testing.assert_close(scanned(x, axis, torch.add), x.cumsum(axis))
    torch.testing.assert_close(scanned(x, axis, torch.mul), x.cumprod(axis))


@pytest.mark.parametrize("shape", [(6,), (4, 3), (2, 3, 4)])
@pytest.mark.parametrize("count", [0, 1, 2, 7, 64])
@pytest.mark.parametrize(
    ("combine", "how"),
    [(torch.mul, "prod"), (torch.maximum, "amax"), (torch.minimum, "amin"), (torch.add, "sum")],
)
def test_ordered_scattering_is_scattering(
    shape: tuple[int, ...], count: int, combine: Any, how: str, device: str
) -> None:
    for axis in range(len(shape)):
        index_shape = (*shape[:axis], count, *shape[axis + 1 :])
        generator = torch.Generator().manual_seed(count)
        index = torch.randint(shape[axis], index_shape, generator=generator).to(device)
        total, values = near_one(*shape).to(device), near_one(*index_shape).to(device)
        expected = total.scatter_reduce(axis, index, values, how)
        combine_at(total, axis, index, values, combine)
        torch.testing.assert_close(total, expected)
