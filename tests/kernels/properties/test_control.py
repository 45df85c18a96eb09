"""Accumulated and forgotten gradients, events, collectives of one process, calls into torch."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.properties.judge import judge, place
from kernels.properties.strategies import (
    Draw,
    Shape,
    float_types,
    layouts,
    numbers,
    row,
    scalar,
    shapes,
)
from onnxtrain.distributed.groups import ALONE
from onnxtrain.kernels.collective.adasum import adasum_all_reduce
from onnxtrain.kernels.collective.reduce import megatron_f, megatron_g, nccl_all_reduce
from onnxtrain.kernels.collective.shares import nccl_all_gather, nccl_reduce_scatter
from onnxtrain.kernels.control import (
    in_place_accumulator,
    in_place_accumulator_v2,
    record_event,
    reset_events,
    wait_event,
)
from onnxtrain.kernels.dtypes import to_torch
from onnxtrain.kernels.interop.registry import qualified_name
from onnxtrain.testing.case import Case
from onnxtrain.testing.case import given as fixed
from onnxtrain.testing.cases.interop import ScaledProduct
from onnxtrain.testing.close import mismatch
from onnxtrain.types import DataType

Tensor = torch.Tensor


@st.composite
def accumulators(draw: Draw) -> tuple[Case, Any]:
    """A row of InPlaceAccumulator: a buffer, a value of any type, a signal or none."""
    shape = draw(shapes())
    signal = draw(st.sampled_from([None, True, False]))
    given_signal = None if signal is None else fixed(torch.tensor([signal]), DataType.BOOL)
    value = fixed(draw(numbers(shape)), draw(st.sampled_from([None, DataType.FLOAT16])))
    added = signal is not False

    def reference(old: Tensor, value: Tensor, *_: Any) -> Tensor:
        return old + value if added else old

    inputs = [draw(numbers(shape)), value, given_signal]
    return row("InPlaceAccumulator", inputs, reference), signal


@given(drawn=accumulators(), dtype=float_types, layout=layouts)
def test_in_place_accumulator(drawn: Any, dtype: DataType, layout: int, device: str) -> None:
    judge(drawn[0], dtype, device, layout)


@given(
    data=st.data(),
    shape=shapes(),
    overwrite=st.sampled_from([None, True, False]),
    dtype=float_types,
    layout=layouts,
)
def test_in_place_accumulator_v2(
    data: Any,
    shape: Shape,
    overwrite: bool | None,
    dtype: DataType,
    layout: int,
    device: str,
) -> None:
    def reference(buffer: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
        return torch.tensor([True]), value if overwrite else buffer + value

    flag = None if overwrite is None else scalar(overwrite, DataType.BOOL, vector=True)
    inputs = [data.draw(numbers(shape)), data.draw(numbers(shape)), flag]
    case = row("InPlaceAccumulatorV2", inputs, reference, outputs=2)
    judge(case, dtype, device, layout)


@given(data=st.data(), shape=shapes(), count=st.integers(1, 6), dtype=float_types, layout=layouts)
def test_accumulating_many_times_gives_the_sum(
    data: Any, shape: Shape, count: int, dtype: DataType, layout: int, device: str
) -> None:
    kind = to_torch(dtype)
    values = [data.draw(numbers(shape)).to(kind).to(device) for _ in range(count)]
    buffer = place(torch.full(shape, 9.0, dtype=kind, device=device), layout, shared=False)
    total = torch.zeros(shape, dtype=kind, device=device)
    expected = torch.zeros_like(total)
    for index, value in enumerate(values):
        flag, new = in_place_accumulator_v2(buffer.tensor, value, [index == 0])
        total = in_place_accumulator(total, value)
        expected = expected + value
        assert flag.tolist() == [True] and new is buffer.tensor
    assert torch.equal(buffer.tensor, expected) and torch.equal(total, expected)
    assert not buffer.touched(may_change=True)
    exact = sum(v.double() for v in values)
    steps = count * float(sum(v.double().abs() for v in values).max()) if total.numel() else 0.0
    assert mismatch(total, exact, steps * torch.finfo(kind).eps) is None


@given(data=st.data(), shape=shapes(), dtype=float_types, layout=layouts)
def test_zero_gradient(data: Any, shape: Shape, dtype: DataType, layout: int, device: str) -> None:
    signal = fixed(data.draw(numbers(data.draw(shapes()))), DataType.FLOAT)
    inputs = [data.draw(numbers(shape)) / 0.0, signal]
    case = row("ZeroGradient", inputs, lambda old, _: torch.zeros(old.shape))
    judge(case, dtype, device, layout)


@given(
    data=st.data(),
    sizes=st.lists(shapes(), min_size=1, max_size=3),
    number=st.one_of(st.just(-1), st.integers(0, 4095)),
)
def test_events_hand_their_inputs_on(
    data: Any, sizes: list[Shape], number: int, device: str
) -> None:
    values = [data.draw(numbers(shape)).to(device) for shape in sizes]
    wanted = (True,) * len(values)
    reset_events()
    for out in (
        record_event(number, *values, wanted=wanted),
        wait_event([number], *values, wanted=wanted),
    ):
        assert all(a is b for a, b in zip(out, values, strict=True))


@given(number=st.one_of(st.integers(max_value=-2), st.integers(min_value=4096)))
def test_an_event_that_does_not_exist_is_named(number: int) -> None:
    for call in (record_event, wait_event):
        with pytest.raises(ValueError, match=f"event {number} is out of range"):
            call(number, torch.ones(1), wanted=(True,))


COLLECTIVES = {
    "NcclAllReduce": nccl_all_reduce,
    "NcclAllGather": nccl_all_gather,
    "NcclReduceScatter": nccl_reduce_scatter,
    "AdasumAllReduce": adasum_all_reduce,
}


@pytest.mark.parametrize("op", COLLECTIVES)
@given(
    data=st.data(),
    sizes=st.lists(shapes(), min_size=1, max_size=4),
    dtype=float_types,
    layout=layouts,
)
def test_alone_a_collective_is_the_identity(
    op: str, data: Any, sizes: list[Shape], dtype: DataType, layout: int, device: str
) -> None:
    inputs = [data.draw(numbers(shape)) for shape in sizes]
    kind = "reduce_algo" if op == "AdasumAllReduce" else "group_type"
    attributes = {kind: data.draw(st.integers(0, 2 if op == "AdasumAllReduce" else 4))}
    case = row(op, inputs, lambda *xs, **_: xs, attributes=attributes, outputs=len(inputs))
    dtype = DataType.FLOAT if dtype == DataType.BFLOAT16 else dtype
    judge(case, dtype, device, layout)
    values = [x.to(device) for x in inputs]
    out = COLLECTIVES[op](*values, groups=ALONE)
    assert all(map(torch.equal, out, values))


@given(data=st.data(), shape=shapes(), dtype=float_types, layout=layouts)
def test_alone_tensor_parallelism_is_the_identity(
    data: Any, shape: Shape, dtype: DataType, layout: int, device: str
) -> None:
    x = data.draw(numbers(shape))
    dtype = DataType.FLOAT if dtype == DataType.BFLOAT16 else dtype
    judge(row("MegatronF", [x], lambda x: x), dtype, device, layout)
    judge(row("MegatronG", [x], lambda x, **_: x, attributes={"group_type": 4}), dtype, device)
    assert megatron_f(x) is x and torch.equal(megatron_g(x, groups=ALONE), x)


@given(data=st.data(), shape=shapes(2, 2), factor=st.sampled_from([0.5, -2.0, 0.0]), layout=layouts)
def test_python_op(data: Any, shape: Shape, factor: float, layout: int, device: str) -> None:
    attributes = {
        "func_name": qualified_name(ScaledProduct),
        "input_convention": "dcd",
        "input_tensor_types": [1, 1],
        "input_tensor_ranks": [2, 2],
        "input_float_scalars": [factor],
        "input_float_scalar_positions": [1],
        "output_tensor_types": [1, 1],
        "output_tensor_ranks": [2, 2],
    }
    case = row(
        "PythonOp",
        [data.draw(numbers(shape)), data.draw(numbers(shape))],
        lambda a, b, **_: (torch.zeros(()), factor * a * b, 2 * a),
        attributes=attributes,
        outputs=3,
        empty=[0],
    )
    judge(case, DataType.FLOAT, device, layout)
