"""Triton kernels that take elements from anywhere: indices, rotations, lists of tensors."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.fast import module
from kernels.properties.beside import Tensor, beside, drawn, kinds
from kernels.properties.judge import place
from kernels.properties.strategies import flags, layouts, seeds, shapes
from kernels.test_fast_segments import use
from onnxtrain.kernels.attention import rotate

whole = st.sampled_from([torch.int64, torch.int32])


@pytest.fixture
def short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a few hundred places have several parts, whichever way values are added."""
    scatter = module("scatter")
    sizes = {"PART": 64, "CLEARED": 64, "MANY": 32, "FEW": 8, "FEW_IN_LONG_ROWS": {2: 16, 4: 8}}
    for name, size in sizes.items():
        monkeypatch.setattr(scatter, name, size)


@given(
    rows=st.integers(1, 4),
    size=st.integers(1, 300),
    picks=st.integers(1, 40),
    kind=kinds,
    index=whole,
    repeatable=st.booleans(),
    outside=flags,
    seed=seeds,
    data=st.data(),
)
@pytest.mark.usefixtures("short_parts")
def test_values_added_at_indices(
    rows: int,
    size: int,
    picks: int,
    kind: torch.dtype,
    index: torch.dtype,
    repeatable: bool,
    outside: int,
    seed: int,
    data: Any,
) -> None:
    """Few or many a row, equal, negative and outside; sums are torch's in float64, rounded."""
    dy = data.draw(drawn(rows, picks, kind=kind))
    generator = torch.Generator().manual_seed(seed)
    low, high = -size - outside, min(size, data.draw(st.sampled_from([1, 5, size]))) + outside
    at = torch.randint(low, high, (rows, picks), generator=generator)

    def reference(dy: Tensor) -> Tensor:
        inside = (at >= -size) & (at < size)
        to = torch.where(inside, at % size, 0)
        return dy.new_zeros(rows, size).scatter_add(1, to, torch.where(inside, dy, 0.0))

    given = dy, place(at.to(index), 0).tensor, rows, size
    add = module("scatter").add_at_last
    beside(lambda: add(*given, repeatable=repeatable), reference, (dy,), kind)


@given(
    count=st.integers(2, 70),
    rows=st.integers(1, 90),
    columns=st.integers(1, 40),
    kind=kinds,
    index=whole,
    based=st.booleans(),
    seed=seeds,
    data=st.data(),
)
def test_rows_added_at_indices(
    count: int,
    rows: int,
    columns: int,
    kind: torch.dtype,
    index: torch.dtype,
    based: bool,
    seed: int,
    data: Any,
) -> None:
    """Equal and negative ones, to rows that are there or to none."""
    with pytest.MonkeyPatch.context() as patch:
        use(patch, "cpu")
        patch.setitem(module("gather.segments").COLUMNS, kind.itemsize, 16)
        values = data.draw(drawn(count, columns, kind=kind))
        base = data.draw(drawn(rows, columns, kind=kind)) if based else None
        generator = torch.Generator().manual_seed(seed)
        low = -rows if data.draw(flags) else 0
        high = data.draw(st.sampled_from([1, rows]))
        at = torch.randint(low, high, (count,), generator=generator)

        def reference(values: Tensor, base: Tensor | None) -> Tensor:
            total = values.new_zeros(rows, columns) if base is None else base
            return total.index_add_(0, at % rows, values)

        given = place(at.to(index), 0).tensor, values, rows
        into = None if base is None else base.clone()
        add = module("gather.segments").sum_rows
        beside(lambda: add(*given, into), reference, (values, base), kind)


@given(
    shape=shapes(0, 3, smallest=1, largest=5),
    half=st.integers(1, 20),
    kind=kinds,
    shared=st.booleans(),
    interleaved=flags,
    inverse=flags,
    layout=layouts,
    data=st.data(),
)
def test_rotated_pairs(
    shape: tuple[int, ...],
    half: int,
    kind: torch.dtype,
    shared: bool,
    interleaved: int,
    inverse: int,
    layout: int,
    data: Any,
) -> None:
    """Axes in any order, with gaps or repeated; angles stretched along any of them."""
    features = data.draw(drawn(*shape, 2 * half, kind=kind))
    x = place(features.movedim(-1, 0), 0).tensor.movedim(0, -1).contiguous()
    # only other axes than that of the features are moved
    outer = place(torch.zeros(shape), layout, shared=False).tensor.stride() if shape else ()
    room = 2 * half + layout % 3
    strides = [step * room for step in outer]
    last = sum((n - 1) * step for n, step in zip(shape, strides, strict=True)) + 2 * half
    x = torch.full((last,), float("nan"), dtype=kind).as_strided(x.shape, (*strides, 1)).copy_(x)
    width = half if shared else 2 * half
    stretched = [1 if data.draw(st.booleans()) else n for n in shape]
    stretched = stretched[data.draw(st.integers(0, len(shape))) :]
    cos, sin = (data.draw(drawn(*stretched, width)) for _ in range(2))
    forms = {"inverse": inverse, "interleaved": interleaved}
    quick = module("rotate")
    assert quick.takes(x, cos, sin)
    (y,) = beside(
        lambda: quick.rotate(x, cos, sin, bool(inverse), bool(interleaved)),
        lambda *given: rotate.rotate(*given, **forms),
        (x, cos, sin),
        kind,
    )
    assert y.stride() == torch.empty_like(x).stride()


@given(
    sizes=st.lists(st.integers(0, 2500), min_size=1, max_size=5),
    kinds_of=st.tuples(kinds, kinds),
    data=st.data(),
)
def test_steps_over_many_tensors(sizes: list[int], kinds_of: Any, data: Any) -> None:
    """Of any length, some without elements, with gradients in another type."""
    many, (kind, other) = module("many"), kinds_of
    weights = [data.draw(drawn(size, kind=kind)).clone() for size in sizes]
    gradients = [data.draw(drawn(size, kind=other)).clone() for size in sizes]
    if not any(sizes):
        return

    def stepped(*tensors: Tensor) -> list[Tensor]:
        half = len(tensors) // 2
        return [w - 0.5 * g for w, g in zip(tensors[:half], tensors[half:], strict=True)]

    def norm(*tensors: Tensor) -> Tensor:
        return torch.cat(tensors).norm()

    beside(lambda: many.norm(gradients), norm, gradients, torch.float32)
    before = [t.clone() for t in weights]
    assert many.sgd(weights, gradients, lr=0.5)
    beside(lambda: weights, stepped, [*before, *gradients], kind)
    assert many.all_finite(gradients)
    spoilt = data.draw(st.sampled_from([n for n, size in enumerate(sizes) if size]))
    gradients[spoilt][data.draw(st.integers(0, sizes[spoilt] - 1))] = float("inf")
    assert not many.all_finite(gradients)
