"""What a GPU refuses: every rule looks at a call of an operator before it is made."""

from __future__ import annotations

import collections
import dataclasses
import re
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tag, Tensor
from torch.utils._pytree import tree_leaves

INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}
"""Take indices that lie on the host, and masks."""
MASKS = {torch.bool, torch.uint8}
SCALARS = {"fill", "fill_", "masked_fill", "masked_fill_", "index_fill", "index_fill_", "copy_"}
"""Not elementwise, but take a number that lies on the host."""
READ = {"histc", "is_nonzero"}
"""Wait for a device without saying so in their tags."""
PRODUCTS = {"mm", "addmm", "addmm_", "bmm", "baddbmm", "addbmm", "dot", "mv", "addmv"}
"""Have no kernels for whole numbers on a GPU."""
CONTIGUOUS = {"native_group_norm": 1, "native_group_norm_backward": 2}
"""Wants so many of its first tensors without gaps and in order."""
OF_THE_CPU = re.compile(r"mkldnn|onednn|nnpack|fbgemm|for_cpu|quantized")
"""Known by their names: torch cannot say which kernels a GPU would have."""


class Mistake(RuntimeError):
    """What is an error on a GPU."""


@dataclasses.dataclass(frozen=True)
class Call:
    """An operator that is about to run, at least a part of it on the device.

    Attributes:
        func: The operator.
        args: What is given by position.
        kwargs: What is given by name.
        there: Tensors on the device.
        here: Tensors on the host.
        device: Of the result, if it is asked for: "cpu" or "cuda".
    """

    func: Any
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    there: list[Tensor]
    here: list[Tensor]
    device: str | None

    @property
    def name(self) -> str:
        """Without its namespace and overload."""
        return str(self.func._schema.name.split("::")[-1])

    @property
    def copies(self) -> bool:
        """Whether it copies from one place to another, which all others must not."""
        return self.name in ("_to_copy", "copy_")

    @property
    def downloads(self) -> bool:
        """Whether it copies from the device to the host."""
        if self.name == "copy_":
            return not _is_in(self.args[0], self.there)
        return self.name == "_to_copy" and bool(self.there) and self.device == "cpu"

    @property
    def uploads(self) -> bool:
        """Whether it copies from the host to the device."""
        if self.name == "copy_":
            return bool(self.here) and not self.downloads
        return self.name == "_to_copy" and not self.there


class Reads:
    """How often the host has waited for the device, by place.

    Attributes:
        counted: The places.
        forbidden: Whether a read is an error, as torch's debug mode for synchronization wants it.
        recording: Whether a graph is recorded, where it always is.
    """

    def __init__(self) -> None:
        self.counted: collections.Counter[str] = collections.Counter()
        self.forbidden = False
        self.recording = False

    def add(self, what: str) -> None:
        """Count one."""
        if self.recording:
            raise Mistake(f"the host waits for the device while a graph is recorded: {what}")
        if self.forbidden:
            raise Mistake(f"called a synchronizing CUDA operation: {what}")
        self.counted[f"{what} at {_place()}"] += 1


READS = Reads()


def judge(call: Call) -> None:
    """Raise what a GPU raises; count reads of the host."""
    _only_of_the_cpu(call)
    if call.uploads:
        _uploaded(call)
        return
    if call.here and call.there and not call.copies:
        _mixed(call)
    if call.there:
        _unsupported(call)
        if what := _read(call):
            READS.add(what)


def _only_of_the_cpu(call: Call) -> None:
    if OF_THE_CPU.search(str(call.func)):
        raise Mistake(f"{call.func} runs on a CPU only, its tensors are on cuda:0")


def _uploaded(call: Call) -> None:
    """No memory is pinned here, so that a device cannot read it by itself."""
    if READS.recording:
        raise Mistake("a graph is recorded, but memory that is not pinned is copied to a device")
    later = call.args[2:] == (True,) or call.kwargs.get("non_blocking")
    if READS.forbidden and not later:
        raise Mistake("called a synchronizing CUDA operation: a copy to the device")


def _mixed(call: Call) -> None:
    """Numbers of the host go into elementwise operators, indices into what takes them."""
    wrong = call.here
    if call.name in INDEXED and _is_in(call.args[0], call.there):
        indices = [i for i in tree_leaves(call.args[1]) if isinstance(i, Tensor)]
        if READS.recording and any(_is_in(i, call.here) for i in indices):
            raise Mistake(f"a graph is recorded, but indices of {call.func} lie on the host")
        wrong = [t for t in wrong if not _is_in(t, indices) and t.ndim]
    elif Tag.pointwise in call.func.tags or call.name in SCALARS or "_foreach" in call.name:
        wrong = [t for t in wrong if t.ndim]
        if call.func._schema.is_mutable and _is_in(call.args[0], call.here):
            wrong = [call.args[0]]
    if wrong:
        shapes = ", ".join(str(tuple(t.shape)) for t in wrong)
        raise Mistake(f"{call.func} mixes devices: {shapes} on cpu, others on cuda:0")


def _unsupported(call: Call) -> None:
    first = call.there[0].dtype
    if call.name in PRODUCTS and not first.is_floating_point and not first.is_complex:
        raise Mistake(f"{call.func} is not implemented on CUDA for {first}")
    wanted = call.args[: CONTIGUOUS.get(call.name, 0)]
    if not all(t.is_contiguous() for t in wanted):
        raise Mistake(f"{call.func} on CUDA wants its inputs to be contiguous")


def _read(call: Call) -> str | None:
    """What the host must wait for."""
    tags, name = call.func.tags, call.name
    if call.downloads:
        return "a copy to the host"
    if name in INDEXED:
        masks = (i for i in tree_leaves(call.args[1]) if isinstance(i, Tensor))
        return f"{name} by a mask" if any(i.dtype in MASKS for i in masks) else None
    if name == "repeat_interleave" and call.kwargs.get("output_size") is not None:
        return None
    if Tag.dynamic_output_shape in tags:
        return f"the shape that {name} gives depends on values"
    return name if Tag.data_dependent_output in tags or name in READ else None


def _is_in(tensor: object, tensors: Sequence[Tensor]) -> bool:
    return any(tensor is other for other in tensors)


def _place() -> str:
    """The innermost line of the package, or of a program that it wrote."""
    for frame in reversed(traceback.extract_stack()):
        _, found, inside = frame.filename.rpartition("/onnxtrain/")
        if found or frame.filename.startswith("<onnxtrain"):
            return f"{inside}:{frame.lineno} {frame.line}"
    return "a line outside of onnxtrain"
