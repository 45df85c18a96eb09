"""One example of an operator, judged: values, memory, types, and what its decorator says."""

import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import Any

import onnx
import torch
from hypothesis import note

from onnxtrain.kernels.dtypes import to_torch
from onnxtrain.testing import claims
from onnxtrain.testing.case import Case
from onnxtrain.testing.close import mismatch
from onnxtrain.testing.model import draw, named, one_node_model
from onnxtrain.testing.poison import poison, poisoned
from onnxtrain.testing.truth import own_errors, truth
from onnxtrain.types import DataType

GUARD = 16
"""Elements around a tensor that nobody may touch."""
FACTS = (
    claims.wrong_changes,
    claims.wrong_updates,
    claims.wrong_inplace,
    claims.wrong_sharing,
    claims.wrong_host_inputs,
    claims.wrong_wanted,
    claims.wrong_empty,
)


@dataclasses.dataclass(frozen=True)
class Placed:
    """A tensor inside of memory of its own, and what that memory held at first."""

    tensor: torch.Tensor
    memory: torch.Tensor
    before: torch.Tensor

    def touched(self, *, may_change: bool = False) -> bool:
        """Whether memory differs from before, outside of the tensor or anywhere."""
        after, before = self.memory.clone(), self.before.clone()
        if may_change:
            for memory in (after, before):
                t = self.tensor
                memory.as_strided(t.shape, t.stride(), t.storage_offset()).zero_()
        return not torch.equal(_bits(after), _bits(before))


def _bits(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(torch.uint8)


def place(x: torch.Tensor, layout: int, *, shared: bool = True) -> Placed:
    """The tensor between guards, with axes in any order, gaps, and strides of 0 where they fit."""
    choose = random.Random(layout)
    order, steps, offset = list(range(x.ndim)), [1] * x.ndim, GUARD
    if layout:
        choose.shuffle(order)
        steps = [choose.choice((1, 1, 2, 3)) for _ in steps]
        offset += choose.randrange(8)
    repeated = [a for a in order if layout and shared and choose.random() < 0.7 and _same(x, a)]
    strides, stride = [0] * x.ndim, 1
    for axis in reversed(order):
        if axis not in repeated:
            strides[axis] = stride * steps[axis]
            stride = strides[axis] * max(x.shape[axis], 1)
    last = sum((n - 1) * s for n, s in zip(x.shape, strides, strict=True) if n)
    memory = poison(torch.empty(offset + last + 1 + GUARD, dtype=x.dtype, device=x.device))
    tensor = memory.as_strided(x.shape, strides, offset)
    target, source = tensor, x
    for axis in repeated:
        target, source = target.narrow(axis, 0, 1), source.narrow(axis, 0, 1)
    target.copy_(source)
    return Placed(tensor, memory, memory.clone())


def _same(x: torch.Tensor, axis: int) -> bool:
    """Whether all slices along an axis are equal."""
    if x.shape[axis] < 2 or not x.numel():
        return False
    return claims.identical(x, x.narrow(axis, 0, 1).expand_as(x))


def judge(
    case: Case,
    dtype: DataType,
    device: str,
    layout: int = 0,
    *,
    exact: bool = True,
    terms: Callable[..., Any] | None = None,
    work: torch.dtype | None = None,
) -> list[Any]:
    """Assert all that must hold of a row in a type; gives the outputs for contiguous inputs.

    Args:
        case: The row.
        dtype: The type under test.
        device: Where the kernel runs.
        layout: How inputs lie in memory.
        exact: Whether the layout must not change a single bit of the results.
        terms: Like the row's reference, but gives for each output the magnitude of the terms that
            are summed. Where they cancel, rounding is relative to them and not to the result.
        work: In which the terms are computed, if not in the type under test.
    """
    inputs = draw(case, dtype)
    note(f"{case} {dict(case.attributes)} {inputs}")
    call = claims.recorded(case, inputs, device=device)
    allowed = _own_errors(case, dtype, inputs, terms, work or to_torch(dtype))
    with poisoned():
        results = call.run(call.inputs())
        _check_values(case, inputs, results, allowed)
        _check_types(case, inputs, results)
        found = {fact.__name__: wrong for fact in FACTS if (wrong := fact(call))}
        assert found == {}
        if layout:
            others = _run_placed(call, layout)
            _check_values(case, inputs, others, allowed)
            assert not exact or claims.identical(others, results), "a layout changes the result"
    return results


def _run_placed(call: claims.Call, layout: int) -> list[Any]:
    """Outputs for inputs in other layouts, which must be left as they are."""
    kept = {*call.kernel.mutates, *call.kernel.updates}
    placed: list[tuple[str, Placed]] = []

    def moved(value: Any, name: str) -> Any:
        if isinstance(value, list) and value and isinstance(value[0], torch.Tensor):
            return [moved(item, name) for item in value]
        if not isinstance(value, torch.Tensor):
            return value
        made = place(value, layout + len(placed), shared=name not in kept)
        placed.append((name, made))
        return made.tensor

    args = [moved(value, call.kernel.input_name(i)) for i, value in enumerate(call.args)]
    results = call.run(args)
    changes = set(call.kernel.mutates)
    wrong = [name for name, made in placed if made.touched(may_change=name in changes)]
    assert not wrong, f"memory of {wrong} was overwritten"
    return results


def _own_errors(
    case: Case,
    dtype: DataType,
    inputs: Sequence[Any],
    terms: Callable[..., Any] | None,
    work: torch.dtype,
) -> list[float]:
    """The error that torch makes, at least one rounding of the largest term."""
    found = own_errors(case, dtype, inputs)
    if terms is None:
        return found
    step = torch.finfo(work).eps
    sizes = truth(dataclasses.replace(case, reference=terms), inputs)
    return [max(own, step * _largest(size)) for own, size in zip(found, sizes, strict=True)]


def _largest(values: torch.Tensor) -> float:
    return float(values.double().abs().max()) if values.numel() else 0.0


def absolute(reference: Callable[..., Any]) -> Callable[..., Any]:
    """The magnitude of a sum of products: the same sum over absolute values."""

    def terms(*inputs: Any, **attributes: Any) -> Any:
        return reference(*[_absolute(value) for value in inputs], **attributes)

    return terms


def _absolute(value: Any) -> Any:
    floating = isinstance(value, torch.Tensor) and value.dtype.is_floating_point
    return value.abs() if floating else value


def _check_values(
    case: Case, inputs: Sequence[Any], results: list[Any], allowed: Sequence[float]
) -> None:
    for index, true, own in zip(named(case), truth(case, inputs), allowed, strict=True):
        if case.compare is None or index in case.compare:
            found = mismatch(results[index], true, own)
            assert found is None, f"output {index} of {case}: {found}"


def _check_types(case: Case, inputs: Sequence[Any], results: list[Any]) -> None:
    """Element types and sizes are those that inference finds for the graph."""
    declared = one_node_model(case, inputs).graph.output
    for index, value in zip(named(case), declared, strict=True):
        if not value.type.HasField("tensor_type") or results[index] is None:
            continue
        tensor = value.type.tensor_type
        if tensor.elem_type != onnx.TensorProto.UNDEFINED:
            assert results[index].dtype == to_torch(tensor.elem_type), f"output {index}"
        if tensor.HasField("shape"):
            sizes = [d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim]
            actual = list(results[index].shape)
            assert len(actual) == len(sizes)
            assert all(s in (None, n) for s, n in zip(sizes, actual, strict=True)), f"{index}"
