"""SparseAttention gives what onnxruntime gives.

onnxruntime wants the caches that come in and go out to be the same memory. It mixes up sequences of
different lengths, so each of these runs there on its own.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import helper

from onnxtrain.runtime.session import InferenceSession
from onnxtrain.testing.cases.ms_sparse import ONE, TWO, listed
from onnxtrain.types import MS

ort = pytest.importorskip("onnxruntime", minversion="1.31", reason="schemas differ before 1.31")

Array = npt.NDArray[Any]
Feeds = dict[str, Array]
N, K, H, BLOCK, ROOM = 4, 2, 16, 16, 64
"""Heads of queries and of keys, features of a head, positions of a block and of the cache."""
HELD = ["query", "key", "value", "past_key", "past_value"]
INPUTS = [*HELD, "rows", "columns", "total", "lengths", "cos", "sin"]
PER_SEQUENCE = {*HELD, "lengths"}


@dataclasses.dataclass(frozen=True)
class Call:
    """New positions of two sequences."""

    name: str
    layouts: list[list[list[int]]]
    new: int
    lengths: tuple[int, int]
    packed: bool = False
    options: dict[str, Any] = dataclasses.field(default_factory=dict)

    def feeds(self) -> Feeds:
        random = np.random.default_rng(0)

        def floats(*shape: int) -> Array:
            return random.standard_normal(shape).astype(np.float32)

        heads = {"query": N + 2 * K} if self.packed else {"query": N, "key": K, "value": K}
        feeds = {name: floats(2, self.new, count * H) for name, count in heads.items()}
        feeds |= {f"past_{name}": floats(2, K, ROOM, H) for name in ("key", "value")}
        rows, columns = listed(self.layouts)
        whole = {"rows": rows, "columns": columns, "total": [max(self.lengths)]}
        whole["lengths"] = list(self.lengths)
        feeds |= {name: np.asarray(value, np.int32) for name, value in whole.items()}
        if self.options.get("do_rotary"):
            feeds |= {name: floats(ROOM, H // 2) for name in ("cos", "sin")}
        return feeds

    def model(self, feeds: Feeds) -> onnx.ModelProto:
        names = [name if name in feeds else "" for name in INPUTS]
        sizes = {"num_heads": N, "kv_num_heads": K, "sparse_block_size": BLOCK}
        outputs = ["y", "keys", "values"]
        node = helper.make_node(
            "SparseAttention", names, outputs, domain=MS, **sizes, **self.options
        )
        values = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
            for name, x in feeds.items()
        ]
        results = [onnx.ValueInfoProto(name=name) for name in outputs]
        graph = helper.make_graph([node], "one", values, results)
        imports = [helper.make_opsetid("", 21), helper.make_opsetid(MS, 1)]
        return helper.make_model(graph, opset_imports=imports, ir_version=10)


def theirs(call: Call, feeds: Feeds) -> list[Array]:
    session = ort.InferenceSession(
        call.model(feeds).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    held = {name: ort.OrtValue.ortvalue_from_numpy(x.copy()) for name, x in feeds.items()}
    binding = session.io_binding()
    for name, value in held.items():
        binding.bind_ortvalue_input(name, value)
    binding.bind_output("y")
    binding.bind_ortvalue_output("keys", held["past_key"])
    binding.bind_ortvalue_output("values", held["past_value"])
    session.run_with_iobinding(binding)
    y = binding.get_outputs()[0].numpy().copy()
    return [y, *(held[name].numpy().copy() for name in ("past_key", "past_value"))]


def alone(feeds: Feeds, b: int) -> Feeds:
    """One sequence as a call of its own."""
    one = {name: x[b : b + 1] if name in PER_SEQUENCE else x for name, x in feeds.items()}
    return {**one, "total": feeds["lengths"][b : b + 1]}


ROTARY = {"do_rotary": 1}
CALLS = [
    Call("first", ONE, 40, (40, 40)),
    Call("layouts-packed", TWO, 50, (50, 50), packed=True),
    Call("next", TWO, 1, (50, 40), options={"scale": 0.3}),
    Call("rotary", TWO, 40, (40, 40), options=ROTARY),
    Call("rotary-next", ONE, 1, (64, 17), options={**ROTARY, "rotary_interleaved": 1}),
    Call("rotary-several", TWO, 5, (50, 50), options=ROTARY),
]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
def test_same_as_onnxruntime(call: Call) -> None:
    feeds = call.feeds()
    ours = InferenceSession(call.model(feeds)).run(None, feeds)
    each = [theirs(call, alone(feeds, b)) for b in range(2)]
    for our, *parts in zip(ours, *each, strict=True):
        np.testing.assert_allclose(our, np.concatenate(parts), rtol=1e-5, atol=1e-5)


def test_short_sequences_see_no_padding() -> None:
    call = Call("padded", ONE, 40, (40, 23))
    feeds = call.feeds()
    changed = {name: feeds[name].copy() for name in ("key", "value")}
    for x in changed.values():
        x[1, 23:] = 7.0
    runs = [
        InferenceSession(call.model(feeds)).run(None, fed)[0] for fed in (feeds, feeds | changed)
    ]
    assert np.isfinite(runs[0]).all()
    np.testing.assert_array_equal(runs[0][1, :23], runs[1][1, :23])
    assert np.abs(runs[0][1, 39] - runs[1][1, 39]).max() < 1e-6
