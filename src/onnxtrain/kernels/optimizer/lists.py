"""Lists of tensors: checked, brought to one type, and updated by few launches."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
from torch import Tensor

from onnxtrain.kernels import fast
from onnxtrain.kernels.optimizer.scaling import scalar

Tensors = list[Tensor]
_shape_of = operator.attrgetter("shape")


def check(weights: Tensors, **others: Tensors | None) -> None:
    """Refuse an empty list, and lists that do not fit the weights."""
    if not weights:
        raise ValueError("invalid count of tensors in Seq<Tensor>: there are no weights")
    shapes = [*map(_shape_of, weights)]
    for key, items in others.items():
        if items is None or [*map(_shape_of, items)] == shapes:
            continue
        name = key.replace("_", " ")
        if len(shapes) != len(items):
            raise ValueError(f"number of weights and {name}s mismatch: {len(shapes)}, {len(items)}")
        index = next(i for i, item in enumerate(items) if item.shape != shapes[i])
        raise ValueError(
            f"shape of weight and {name} mismatch, weight index:{index}, "
            f"{tuple(shapes[index])} and {tuple(items[index].shape)}"
        )


def together(*lists: Tensors, smallest: int = fast.SMALLEST) -> bool:
    """Whether one Triton launch may serve these lists, if all of their tensors lie well."""
    first = lists[0]
    if not first[0].is_cuda or (smallest and sum(map(Tensor.numel, first)) < smallest):
        return False
    return all(fast.ready(items[0], smallest=0) for items in lists)


def filled(lists: Sequence[Tensors]) -> list[Tensors]:
    """The lists without the tensors that have no elements."""
    if all(map(Tensor.numel, lists[0])):
        return [*lists]
    return [[t for t in items if t.numel()] for items in lists]


def common(lists: Sequence[Tensors]) -> torch.dtype:
    """The type that holds the values of all lists."""
    found = lists[0][0].dtype
    for items in lists:
        for dtype in {item.dtype for item in items}:
            found = torch.promote_types(found, dtype)
    return found


def cast(items: Tensors, dtype: torch.dtype) -> Tensors:
    """Contiguous tensors of the type; the same ones if they are that already."""
    if any(item.dtype != dtype for item in items):
        wide = [torch.empty(t.shape, dtype=dtype, device=t.device) for t in items]
        torch._foreach_copy_(wide, items)
        return wide
    return [t if t.is_contiguous() else t.contiguous() for t in items]


def times(items: Tensors, factor: Tensor | None) -> Tensors:
    """Tensors times a factor of one element, in new memory and one type; themselves without it."""
    if factor is None:
        return items
    wide = cast(items, torch.promote_types(common([items]), factor.dtype))
    return list(torch._foreach_mul(wide, scalar(factor, wide[0].dtype)))


def store(items: Tensors, wide: Tensors) -> None:
    """Write results back where they were computed in copies."""
    if any(a is not b for a, b in zip(items, wide, strict=True)):
        torch._foreach_copy_(items, wide)


def write(weights: Tensors, copies: Tensors | None) -> None:
    """Write weights into copies of other types; a weight may be its own copy."""
    pairs = [(c, w) for c, w in zip(copies or (), weights, strict=False) if c is not w]
    if pairs:
        torch._foreach_copy_([c for c, _ in pairs], [w for _, w in pairs])


def fused_adam_w(
    lists: Sequence[Tensors],
    rate: float | Tensor,
    count: Tensor,
    betas: tuple[float, float],
    decay: float,
    epsilon: float,
    skipped: Tensor | None = None,
) -> None:
    """Torch's fused AdamW over [weights, gradients, first moments, second moments].

    The rate is a number, or a float32 tensor of one element which only the device reads; so is
    ``skipped``, which is 1 where nothing is to change.
    """
    wide = lists
    if not _alike(lists):
        work = common(lists)
        wide = [cast(items, work) for items in lists]
    torch._fused_adamw_(  # type: ignore[call-overload]
        *wide,
        [],
        [count] * len(wide[0]),
        lr=rate,
        beta1=betas[0],
        beta2=betas[1],
        weight_decay=decay,
        eps=epsilon,
        amsgrad=False,
        maximize=False,
        found_inf=skipped,
    )
    if wide is not lists:
        for index in (0, 2, 3):
            store(lists[index], wide[index])


def _alike(lists: Sequence[Tensors]) -> bool:
    """Whether all tensors are contiguous and of one type, as they nearly always are."""
    dtype = lists[0][0].dtype
    return all(t.dtype is dtype and t.is_contiguous() for items in lists for t in items)
