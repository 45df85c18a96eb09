"""Compiles launches of the Triton kernels for a GPU that is not there.

python tests/kernels/compile_for.py 89 bfloat16

The driver is a stand-in: kernels are compiled down to machine code and not run, so that a version
of Triton, or the instructions and the memory of a GPU, that do not suffice for one are seen.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from kernels.torn import torn_sums
from onnxtrain.kernels.fast import load
from onnxtrain.kernels.fast.common.launcher import types_of
from onnxtrain.kernels.math.chain import parsed

SHARED = {75: 64 << 10, 80: 163 << 10, 86: 99 << 10, 89: 99 << 10, 120: 99 << 10}
"""Bytes of memory that a program may have, where these are not 227 KB."""
_FOR_ITSELF = re.compile(r"tt\.load [^:]*isVolatile = true[^:]*: !tt\.ptr")
"""A number that each thread reads for itself; they might go on by different ones."""
compiled: set[str] = set()


class StandIn:
    """What Triton asks a driver for before it compiles."""

    def __init__(self, capability: int) -> None:
        self.target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _device: int) -> int:
        return 0


def stand_in(capability: int) -> None:
    """Compile for a GPU from now on, and launch nothing."""
    room = SHARED.get(capability, 227 << 10)
    driver.set_active(StandIn(capability))
    compile_and_run = JITFunction.run

    def compile_only(self: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        kernel = compile_and_run(self, *arguments, grid=grid, warmup=True, **options)
        types = types_of(self, arguments, options)
        if types != (*kernel.src.signature.values(),):
            raise RuntimeError(f"a launcher of {self.__name__} would be made for {types}")
        if _FOR_ITSELF.search(kernel.asm["ttir"]):
            raise RuntimeError(f"threads of {self.__name__} each read a number that may change")
        if torn := torn_sums(kernel.asm["ptx"]):
            raise RuntimeError(f"lanes of {self.__name__} leave different sums {torn} in one place")
        if options.get("launch_pdl") and "griddepcontrol.wait" not in kernel.asm["ptx"]:
            raise RuntimeError(f"{self.__name__} is launched early and never waits")
        needed = kernel.metadata.shared
        if needed > room:
            raise RuntimeError(f"{self.__name__} needs {needed} bytes of shared memory of {room}")
        compiled.add(f"{self.__module__.rpartition('.')[2]}.{self.__name__}")
        return SimpleNamespace(run=lambda *_: None, function=0, packed_metadata=(4, 1, 0))

    JITFunction.run = compile_only
    stream = SimpleNamespace(cuda_stream=0, stream_id=0)
    torch.cuda.current_stream = lambda *_: stream
    torch.cuda.is_current_stream_capturing = lambda: False
    torch.cuda.get_device_capability = lambda *_: divmod(capability, 10)
    load("common.launch").shared_memory = load("norm_grad").shared_memory = lambda _: room
    for name in ("batch_norm_clusters", "batch_norm_held", "softmax_columns"):
        load(name).largest = lambda _: 16 if capability >= 90 else 1


def calls(dtype: torch.dtype) -> Iterator[Callable[[], Any]]:
    """Something of every kernel, for one type of the data."""

    def new(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=dtype)

    x, row, wide = new(64, 768), new(768), torch.zeros(64)
    yield from _softmaxes(new)
    yield from _normalizations(x, row, wide)
    yield from _losses(new(64, 1000), new(2, 50304), wide)
    yield from _elements(x, row)
    yield from _chains(x, row, new(2, 64, 8, 8))
    yield from _codecs(x)
    yield from _images(new)
    yield from _places(new)
    yield from _recurrent(new)
    yield from _optimizers(x)


def _softmaxes(new: Callable[..., Tensor]) -> Iterator[Callable[[], Any]]:
    forward, backward, biased = load("softmax"), load("softmax_grad"), load("bias_softmax")
    rows = [((64, 128), 1), ((2, 40000), 1), ((64, 77), 1), ((64, 5), 1), ((2, 40001), 1)]
    for shape, axis in [*rows, ((2, 64, 256), 1), ((2, 9000, 40), 1)]:
        t = new(*shape)
        yield lambda t=t, axis=axis: forward.softmax(t, axis, log=False)
        yield lambda t=t, axis=axis: backward.softmax_grad(t, t, axis, log=True)
    for size in (1024, 2048):  # for clusters
        t = new(1, size, 1 << 22 >> 10)
        yield lambda t=t: backward.softmax_grad(t, t, 1, log=False)
    t = new(64, 128)
    yield lambda: biased.bias_softmax(t, t[:4], True)
    yield lambda: biased.bias_softmax_dropout(t, t[:4], True, 0.1, 7, None)
    yield lambda: biased.softmax_dropout_grad(t, t > 0, t, 0.1)


def _normalizations(x: Tensor, row: Tensor, wide: Tensor) -> Iterator[Callable[[], Any]]:
    forward, backward = load("norm"), load("norm_grad")
    yield lambda: forward.normalize(x, row, row, 1e-5, centred=True, skip=x)
    short, long = (torch.zeros(shape, dtype=x.dtype) for shape in ((1 << 19, 3), (4, 5000)))
    yield lambda: forward.normalize(short, short[0], short[0], 1e-5, centred=True)
    yield lambda: forward.normalize(long, long[0], None, 1e-5, centred=False)
    wider = torch.zeros(4, 5000)
    yield lambda: forward.normalize(wider, wider[0], wider[0], 1e-5, centred=True)
    yield lambda: forward.normalize(x, row, None, 1e-5, centred=False, skip=x)
    lines = x.repeat(32, 1)
    yield lambda: forward.normalize(lines, row, row, 1e-5, centred=True)
    yield lambda: backward.norm_grad(x, x, row, wide, wide, x, summed=True)
    yield lambda: backward.norm_grad(x, x, row, None, wide, x)
    groups, planes, one = load("group_norm"), x.view(4, 48, 16, 16), torch.ones(4, 8)
    for image in (planes, planes.contiguous(memory_format=torch.channels_last)):
        yield lambda image=image: groups.normalize(image, row, row, 8, 1e-5)
        yield lambda image=image: groups.grad(image, image, row, one, one)
        for kind in ("relu", "swish"):
            given = image, row, row, 8, 1e-5, kind
            back = image, image, row, one, one, row, kind
            yield lambda given=given: groups.normalize(*given)
            yield lambda back=back: groups.grad(*back)
    many = torch.zeros(2, 96, 80, 80, dtype=x.dtype).contiguous(memory_format=torch.channels_last)
    each = torch.ones(2, 32)
    for kind in ("none", "swish"):
        given = many, row[:96], row[:96], 32, 1e-5, kind
        back = many, many, row[:96], each, each, row[:96], kind
        yield lambda given=given: groups.normalize(*given)
        yield lambda back=back: groups.grad(*back)
    tiny, each = x.view(-1)[:144].view(2, 8, 3, 3), torch.ones(2, 8)
    yield lambda: groups.normalize(tiny, row[:8], row[:8], 8, 1e-5)
    yield lambda: groups.grad(tiny, tiny, row[:8], each, each)
    yield lambda: backward.norm_grad(long, long, long[0], wide[:4], wide[:4], long)


def _losses(scores: Tensor, long: Tensor, wide: Tensor) -> Iterator[Callable[[], Any]]:
    quick = load("cross_entropy")
    for t in (scores, long):
        labels = torch.zeros(len(t), dtype=torch.int64)
        to = quick.Labels(labels, torch.ones(t.shape[1]), -1, "mean")
        yield lambda t=t, to=to: quick.loss(t, to, t.dtype)
        yield lambda t=t, to=to: quick.grad(wide[0], t, to)
        yield lambda t=t, to=to: quick.loss_and_grad(t, to, wide[0], torch.float32)
    yield lambda: load("labels").total_weight(to, 2000, 1000)


def _elements(x: Tensor, row: Tensor) -> Iterator[Callable[[], Any]]:
    points, sums, drops = load("pointwise"), load("columns"), load("dropout")
    for kind in ("none", "tanh", "quick"):
        yield lambda kind=kind: points.gelu_grad(x, x, row, kind)
    sides = x[:, :384], x[:, 384:]
    dy = x.view(-1, 384)[:64]
    for kind in ("gelu", "gelu_tanh", "swish", "sigmoid", "relu"):
        yield lambda kind=kind: load("gated").gated(x, x, kind, 1.0)
        yield lambda kind=kind: load("gated").gated(*sides, kind, 1.0)
        yield lambda kind=kind: load("gated").gated_grad(x, x, x, kind, 1.0)
        yield lambda kind=kind: load("gated").gated_grad(dy, *sides, kind, 1.0, into=sides)
    heads = x.view(4, 16, 12, 64).transpose(1, 2)
    half = heads[0, 0, :, :32]
    for inverse in (False, True):
        yield lambda inverse=inverse: load("rotate").rotate(heads, heads[0], heads[0, 0], inverse)
        for angles in (heads[0, 0], half):
            all_of = heads, angles, angles, inverse, True
            yield lambda all_of=all_of: load("rotate").rotate(*all_of)
    yield lambda: load("rotate").rotate(heads, half, half, False)
    yield lambda: load("rotate").rotate(x[:2, :2], x[0, :2], x[0, :2], False)
    yield lambda: sums.column_sums(x, 768)
    yield lambda: sums.gelu_grad_and_sums(x, x, row, "tanh")
    yield lambda: load("sums").side_by_side([x, x])
    yield lambda: load("sums").drop_grad(x, x > 0, 0.1)
    yield lambda: drops.drop(x, 0.1, 7, None, bias=row, residual=x)
    yield lambda: drops.drop_grad(x, x > 0, 0.1)


def _chains(x: Tensor, row: Tensor, image: Tensor) -> Iterator[Callable[[], Any]]:
    """Kernels that are generated: inputs as the output, as its last axis, and spread otherwise."""
    chains, channels = load("generated"), image[:, :, :1, :1]
    last = image.contiguous(memory_format=torch.channels_last)
    every = "Mul 0 1; Sigmoid 2; SigmoidGrad 2 3; Sqrt 4; Div 5 0; Greater 5 6; Where 7 0 6"
    for inputs in ([x, x], [x, row], [x.t(), row[:64]], [image, channels], [last, channels]):
        yield lambda inputs=inputs: chains.run(parsed(every), inputs)


def _codecs(x: Tensor) -> Iterator[Callable[[], Any]]:
    quick, octets = load("gist"), torch.zeros(64, 768, dtype=torch.uint8)
    for encode in (quick.pack1, quick.pack_msfp15, quick.positive, quick.to_byte):
        yield lambda encode=encode: encode(x)
    for decode in (quick.unpack1, quick.unpack_msfp15, quick.of_byte):
        yield lambda decode=decode: decode(octets, x.dtype)


def _images(new: Callable[..., Tensor]) -> Iterator[Callable[[], Any]]:
    norm, pool, vector = load("batch_norm"), load("pool"), torch.ones(64)
    for shape in ((2, 64, 4, 4), (64, 64, 4, 4), (64, 64, 32, 32), (25, 64, 55, 55)):
        for order in (torch.contiguous_format, torch.channels_last):
            t = new(*shape).to(memory_format=order)
            yield lambda t=t: norm.train(t, vector, vector, 1e-5)
            yield lambda t=t: norm.grad(t, t, vector, vector, vector)
    held, t, results = load("batch_norm_held"), new(64, 64, 32, 32), (new(4), vector, vector)
    yield lambda: held.train(t, vector, vector, 1e-5, False, None, None)
    yield lambda: held.grad(results, t, t, (vector,) * 4, False)
    dy, found = new(2, 8, 7, 7), torch.zeros(2, 8, 7, 7, dtype=torch.int64)
    pairs = (3, 3), (2, 2), (1, 1)
    yield lambda: pool.max_pool_grad(dy, found, (2, 8, 14, 14), *pairs)
    yield lambda: pool.max_pool_grad(dy, found, (2, 8, 23, 23), (5, 5), (3, 3), (0, 0))
    yield lambda: pool.average_pool_grad(dy, (2, 8, 14, 14), *pairs, True)


def _places(new: Callable[..., Tensor]) -> Iterator[Callable[[], Any]]:
    segments, scatter = load("gather.segments"), load("scatter")
    indices, rows = torch.zeros(1000, dtype=torch.int64), new(1000, 768)
    many = indices.repeat(5), rows.repeat(5, 1)
    yield lambda: segments.sum_rows(*many, 5000)
    yield lambda: segments.sum_rows(indices, rows, 5000)
    yield lambda: segments.sum_rows(indices, rows, 50)
    yield lambda: load("gather.slots").sum_rows(indices, rows, new(5000, 768))
    for count in (7, 9):
        yield lambda n=count: load("beside").concat([new(4096, 1024)] * n, 1)
    for picks in (8, 1000):
        at = torch.zeros(64, picks, dtype=torch.int64)
        yield lambda at=at, n=picks: scatter.add_at_last(new(64, n), at, 64, 4096, repeatable=True)
    at = torch.zeros(64, 1000, dtype=torch.int64)
    yield lambda: scatter.add_at_last(new(64, 1000), at, 64, 1 << 20)


def _recurrent(new: Callable[..., Tensor]) -> Iterator[Callable[[], Any]]:
    """Steps of layers; memories of states are wide."""
    quick, wide, x = load("recurrent"), torch.zeros(8, 64), new(8, 256)
    state, gates, bias = new(8, 64), new(8, 256), torch.zeros(64)
    for kept in (None, (state, gates)):
        yield lambda kept=kept: quick.lstm_step(state, wide, x, gates, kept)
    three = gates[:, :192].contiguous()
    for last in (None, three):
        yield lambda last=last: quick.gru_step(state, wide, x[:, :192], three, bias, last)
    for dy in (None, state):
        kept = gates, state, state
        yield lambda dy=dy, kept=kept: quick.lstm_step_back(x, wide, state, dy, kept)
        kept = three, state, wide
        yield lambda dy=dy, kept=kept: quick.gru_step_back(x, x, wide, state, dy, kept)


def _optimizers(x: Tensor) -> Iterator[Callable[[], Any]]:
    many, wholes = load("many"), [torch.zeros(64, 768) for _ in "1234"]
    lists = [[t] for t in wholes]
    yield lambda: many.adamw(*lists, lr=1e-3, step=1)
    yield lambda: many.sgd(lists[0], [x], lr=1e-3, copies=[x.clone()])
    for function in (many.norm, many.all_finite):
        yield lambda function=function: function([x])
    yield lambda: many.clip([x], 1.0)
    rate, step = torch.ones(1), torch.ones(1, dtype=torch.int64)
    yield lambda: many.adam_numbers(rate, step, (0.9, 0.999), 1e-8, False, True)
    adam = load("adam")
    form = adam.Form(0.9, 0.999, 1e-8, 0.01, 1.0, True, False)
    both = [adam.Lists(wholes[0], x, wholes[2], wholes[3], x)] * 2
    yield lambda: adam.adam(*both, adam.Scalars(rate, step, None, None, None), form)
    yield lambda: _lamb([[wholes[0]], [x], *lists[2:], [x]], rate, step)


def _lamb(lists: list[list[Tensor]], rate: Tensor, step: Tensor) -> None:
    quick, flat = load("many_lamb"), load("common.flat").Flat.of(lists[0])
    part = load("common.chunks").part_of(lists, (lists[0][0].numel(),), flat.starts)
    results = quick.Results(*(items[0].reshape(-1) for items in lists))
    fixed = torch.zeros(1, quick.NUMBERS, dtype=torch.float64)
    quick.lamb(part, results, fixed, quick.Scalars(rate, step, None, None, None), (0.0, 10.0))


def main() -> None:
    capability, dtype = int(sys.argv[1]), getattr(torch, sys.argv[2])
    stand_in(capability)
    for call in calls(dtype):
        call()
    print(*sorted(compiled))


if __name__ == "__main__":
    main()
