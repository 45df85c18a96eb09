"""Tensors that say they are on cuda:0, and run every operator on the CPU after it was judged.

All of this leans on how torch dispatches operators, parts of which are not public.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from pretended import graphs, kernels, limits
from pretended.rules import READS, Call, judge

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")
MEMORY = {"aten::resize_", "aten::resize_as_", "aten::set_"}
"""Give a tensor other memory."""


class Pretended(Tensor):
    """Looks like a tensor on cuda:0.

    Attributes:
        inner: The one on the CPU that has its values.
    """

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Pretended:
        made = Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=CUDA,
        )
        torch._C._set_conj(made, inner.is_conj())
        torch._C._set_neg(made, inner.is_neg())
        made.inner = inner
        return made

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"Pretended({self.inner})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Pretended:
        if id(self) not in memo:
            memo[id(self)] = copy = Pretended(self.inner.clone()).requires_grad_(self.requires_grad)
            if isinstance(self, torch.nn.Parameter):
                copy._is_param = True
        return memo[id(self)]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})

    __torch_function__ = torch._C._disabled_torch_function_impl

    def data_ptr(self) -> int:
        """What tells who shares memory."""
        return self.inner.data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        """What tells who shares memory, and how much there is."""
        return self.inner.untyped_storage()

    def tolist(self) -> Any:
        READS.add("tolist")
        return self.inner.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        if force:
            return self.cpu().numpy()
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    @property
    def __cuda_array_interface__(self) -> Any:
        limits.stop("storage")

    def __dlpack__(self, *given: Any, **options: Any) -> Any:
        limits.stop("storage")

    def __dlpack_device__(self) -> Any:
        limits.stop("storage")


def on_host(value: Any) -> Any:
    """What a tensor on the device holds; nobody counts this as a read."""
    return value.inner if isinstance(value, Pretended) else value


def run(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Judge an operator and run it on the CPU; on the device are its results if they would be."""
    if isinstance(func, HigherOrderOperator):
        return func(*args, **kwargs)
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    there = [t for t in tensors if isinstance(t, Pretended)]
    if _tracing() or any(isinstance(t, FakeTensor) for t in tensors):
        if there:
            limits.stop("tracing")
        return func(*args, **kwargs)
    device = kwargs.get("device")
    if not there and (device is None or device.type != "cuda"):
        return func(*args, **kwargs)
    here = [t for t in tensors if not isinstance(t, Pretended)]
    call = Call(func, args, kwargs, there, here, device and device.type)
    judge(call)
    if func._schema.name in MEMORY:
        limits.stop("storage")
    own_args, own_kwargs = tree_map(_cpu, (tuple(args), dict(kwargs)))
    work = kernels.KERNELS.get(func, func)
    graphs.before(func, own_args, own_kwargs)
    try:
        results = work(*own_args, **own_kwargs)
    except NotImplementedError:
        limits.stop("kernels")
    graphs.after(work, func, own_args, own_kwargs, results, here)
    if call.downloads or call.device == "cpu":
        return results
    if torch.Tag.inplace_view in func.tags:
        with no_dispatch():  # what says that it is on the device becomes a view of itself, too
            func(*args, **kwargs)
    known = {id(t.inner): t for t in there} | {id(t): t for t in here}
    return tree_map(lambda value: _there(value, known), results)


def _tracing() -> bool:
    """Whether operators run on tensors without memory, which torch makes by itself."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None


def _cpu(value: Any) -> Any:
    if isinstance(value, torch.device):
        return CPU
    return on_host(value)


def _there(value: Any, known: Mapping[int, Tensor]) -> Any:
    """A result on the device; one of the arguments if it was written into."""
    if not isinstance(value, Tensor) or isinstance(value, Pretended):
        return value
    same = known.get(id(value))
    if same is None:
        return Pretended(value)
    if same.shape != value.shape or same.stride() != value.stride():
        limits.stop("storage")
    return same


class _Operators(TorchDispatchMode):
    """Sees operators that make the first tensor on the device."""

    supports_higher_order_operators = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


class _Functions(TorchFunctionMode):
    """Sees functions that would not come to an operator."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "pin_memory" or kwargs.get("pin_memory"):
            limits.stop("pinned")
        if name in ("tensor", "as_tensor", "new_tensor"):
            return self._from_values(func, name, args, kwargs)
        if name == "cuda":
            return args[0].to(CUDA)
        return func(*args, **kwargs)

    def _from_values(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Values are put together on the host and copied."""
        device = kwargs.get("device")
        if name == "new_tensor":
            source, *args = args
            kwargs = {"dtype": source.dtype, **kwargs}
            device, func = source.device if device is None else device, torch.tensor
        values, *rest = args
        if name == "as_tensor" and isinstance(values, Tensor):
            return func(values, *rest, **kwargs)
        if any(isinstance(leaf, Pretended) for leaf in tree_leaves(values)):
            READS.add(f"{name} of numbers on the device")
            values = tree_map(on_host, values)
        elif hasattr(values, "__cuda_array_interface__"):
            limits.stop("storage")
        if device is None or torch.device(device).type != "cuda":
            return func(values, *rest, **kwargs)
        return func(values, *rest, **{**kwargs, "device": CPU}).to(CUDA)


@contextmanager
def tensors_on_cuda() -> Iterator[None]:
    """With: this thread can make tensors that say they are on cuda:0."""
    with _Operators(), _Functions():
        yield
