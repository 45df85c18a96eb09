"""Transformer operators of com.microsoft give what onnxruntime gives, in every form of its inputs.

Forms that onnxruntime's CPU kernels refuse (masks of rank 4, packed keys, rotation inside
Attention) are compared with torch by the table of operators.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from onnxtrain.errors import NodeError
from onnxtrain.graph.loading.load import load_model
from onnxtrain.graph.prepare import prepare
from onnxtrain.runtime.session import InferenceSession
from onnxtrain.types import MS

ort = pytest.importorskip("onnxruntime", minversion="1.31", reason="schemas differ before 1.31")

Array = npt.NDArray[Any]
B, S, N, K, H = 2, 3, 4, 2, 16
"""Sequences, positions, heads of queries, heads of keys, and features of a head."""
_random = np.random.default_rng(0)


def floats(*shape: int) -> Array:
    return _random.standard_normal(shape).astype(np.float32)


def ints(values: Any) -> Array:
    return np.asarray(values, np.int32)


def flags(*shape: int) -> Array:
    return ints(_random.random(shape) > 0.4)


@dataclasses.dataclass(frozen=True)
class Row:
    """One node with its inputs and how many outputs it has."""

    op: str
    name: str
    inputs: Sequence[Array | None]
    attributes: dict[str, Any]
    outputs: int = 1

    def __str__(self) -> str:
        return f"{self.op}-{self.name}"

    def model(self) -> tuple[onnx.ModelProto, dict[str, Array]]:
        feeds = {f"x{i}": x for i, x in enumerate(self.inputs) if x is not None}
        names = ["" if x is None else f"x{i}" for i, x in enumerate(self.inputs)]
        outputs = [f"y{i}" for i in range(self.outputs)]
        node = helper.make_node(self.op, names, outputs, domain=MS, **self.attributes)
        values = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
            for name, x in feeds.items()
        ]
        results = [onnx.ValueInfoProto(name=name) for name in outputs]
        if self.op == "MultiHeadAttention" and self.outputs == 4:
            results[3] = helper.make_tensor_value_info("y3", onnx.TensorProto.FLOAT, None)
        graph = helper.make_graph([node], "one", values, results)
        imports = [helper.make_opsetid("", 21), helper.make_opsetid(MS, 1)]
        return helper.make_model(graph, opset_imports=imports, ir_version=10), feeds


ROWS: list[Row] = []


def row(op: str, name: str, *inputs: Array | None, outputs: int = 1, **attributes: Any) -> None:
    ROWS.append(Row(op, name, inputs, attributes, outputs))


def attention(name: str, *more: Array | None, outputs: int = 1, **attributes: Any) -> None:
    x = [floats(B, S, 6), floats(6, 3 * N * H), floats(3 * N * H)]
    row("Attention", name, *x, *more, outputs=outputs, num_heads=N, **attributes)


PAST = floats(2, B, N, 2, H)
attention("plain")
attention("present", outputs=2)
attention("scale", scale=0.3)
attention("lengths", ints([2, 3]))
attention("ends-and-starts", ints([2, 3, 0, 1]))
attention("lengths-and-offsets", ints([2, 3, 0, 3, 6, 0, 2, 5]))
attention("mask", flags(B, S))
attention("closed-mask", ints(np.zeros((B, S))))
attention("mask-of-pairs", flags(B, S, S), mask_filter_value=-3.0)
attention("mask-of-pairs-causal", flags(B, S, S), mask_filter_value=-3.0, unidirectional=1)
attention("causal", unidirectional=1)
attention("past", None, PAST, outputs=2)
attention("past-causal", None, PAST, outputs=2, unidirectional=1)
attention("past-mask-causal", flags(B, S + 2), PAST, outputs=2, unidirectional=1)
attention("bias-of-heads", None, None, floats(1, N, S, S))
attention("bias-of-batch", ints([2, 3]), None, floats(B, 1, S, S))
attention("bias-causal", None, None, floats(B, N, S, S), unidirectional=1)
row("Attention", "sizes", floats(B, S, 6), floats(6, 8 + 8 + 12), floats(28), num_heads=N,
    qkv_hidden_sizes=[8, 8, 12])  # fmt: skip


def quantized(name: str, *more: Array | None, outputs: int = 1, **attributes: Any) -> None:
    x = _random.integers(0, 255, (B, S, 6)).astype(np.uint8)
    # more than 7 bits overflow in onnxruntime on processors that add pairs of products in 16 bits
    w = _random.integers(-64, 64, (6, 3 * N * H)).astype(np.int8)
    scales = [np.float32(0.01), np.float32(0.02)]
    row("QAttention", name, x, w, floats(3 * N * H), *map(np.asarray, scales), *more,
        outputs=outputs, num_heads=N, **attributes)  # fmt: skip


ZEROS = [np.asarray(120, np.uint8), np.asarray(3, np.int8)]
quantized("plain")
quantized("zero-points", None, *ZEROS)
quantized("mask", ints([2, 3]), *ZEROS)
quantized("past", None, *ZEROS, PAST, outputs=2, unidirectional=1)


def multi(name: str, *inputs: Array | None, outputs: int = 1, **attributes: Any) -> None:
    row("MultiHeadAttention", name, *inputs, outputs=outputs, num_heads=N, **attributes)


L, HV = 5, 8
Q, KEYS, VALUES = floats(B, S, N * H), floats(B, L, N * H), floats(B, L, N * HV)
SAME = [Q, floats(B, S, N * H), floats(B, S, N * H)]
CACHE = [floats(B, N, 2, H), floats(B, N, 2, H)]
multi("plain", Q, KEYS, VALUES)
multi("present", Q, KEYS, VALUES, outputs=3)
multi("bias", Q, KEYS, VALUES, floats(2 * N * H + N * HV), outputs=3)
multi("scale", Q, KEYS, VALUES, scale=0.3)
multi("lengths", Q, KEYS, VALUES, None, ints([2, 5]))
multi("lengths-and-offsets", Q, KEYS, VALUES, None, ints([2, 5, 0, 3, 6, 0, 2, 7]))
multi("mask", Q, KEYS, VALUES, None, flags(B, L))
multi("mask-of-pairs", Q, KEYS, VALUES, None, flags(B, S, L))
multi("attention-bias", Q, KEYS, VALUES, None, None, floats(1, N, S, L))
multi("mask-and-bias", Q, KEYS, VALUES, None, flags(B, L), floats(B, 1, S, L))
multi("cross", Q, floats(B, N, L, H), floats(B, N, L, H))
multi("cross-bias", Q, floats(B, N, L, H), floats(B, N, L, H), floats(3 * N * H))
multi("causal", *SAME, unidirectional=1)
multi("past", *SAME, None, None, None, *CACHE, outputs=3)
multi("past-causal", *SAME, None, None, None, *CACHE, outputs=3, unidirectional=1)
multi("past-mask", *SAME, None, flags(B, S + 2), None, *CACHE, outputs=3)
multi("past-bias", *SAME, floats(3 * N * H), None, floats(1, 1, S, S + 2), *CACHE, outputs=3)
multi("shared", *[x[:, :1] for x in SAME], None, None, None, floats(B, N, 8, H),
      floats(B, N, 8, H), ints([2]), outputs=3)  # fmt: skip
multi("scores", Q, KEYS, VALUES, floats(2 * N * H + N * HV), flags(B, L), floats(1, N, S, L),
      outputs=4)  # fmt: skip
multi("scores-causal", *SAME, outputs=4, unidirectional=1)
# of several queries, onnxruntime puts all but the last one elsewhere on a CPU than on a GPU
multi("one-query-causal", Q[:, :1], KEYS, VALUES, outputs=4, unidirectional=1)
multi("one-query-causal-mask", Q[:, :1], KEYS, VALUES, None, flags(B, L), unidirectional=1)
multi("shorter-causal", Q, KEYS[:, :2], VALUES[:, :2], unidirectional=1)


def group(
    name: str,
    lengths: Sequence[int],
    total: int,
    *more: Array | None,
    past: Sequence[Array | None] = (None, None),
    new: int = S,
    outputs: int = 3,
    packed: bool = False,
    size: int = H,
    **attributes: Any,
) -> None:
    batch = len(lengths)
    parts = [floats(batch, new, count * size) for count in (N, K, K)]
    inputs = [np.concatenate(parts, -1), None, None] if packed else parts
    row("GroupQueryAttention", name, *inputs, *past, ints(lengths), ints(total), *more,
        outputs=outputs, num_heads=N, kv_num_heads=K, **attributes)  # fmt: skip


def caches(length: int, batch: int = B) -> list[Array]:
    return [floats(batch, K, length, H) for _ in range(2)]


ANGLES, HALF_ANGLES = [floats(10, H // 2) for _ in "cs"], [floats(10, H // 4) for _ in "cs"]
group("first", [2, 2], 3)
group("alone", [2, 2], 3, outputs=1)
group("padded", [1, 2], 3)
group("packed", [1, 2], 3, packed=True)
group("scale", [2, 2], 3, scale=0.3)
group("next", [4, 4], 5, past=caches(4), new=1)
group("next-ragged", [4, 2], 5, past=caches(4), new=1)
group("next-in-buffer", [4, 2], 5, past=caches(8), new=1)
group("next-many", [6], 7, past=caches(4, 1))
group("first-in-buffer", [2, 1], 3, past=caches(8))
for window in (1, 2, 5):
    group(f"window-{window}", [2, 2], 3, local_window_size=window)
group("window-next", [6, 4], 7, past=caches(8), new=1, local_window_size=2)
group("softcap", [2, 2], 3, softcap=0.5)
group("smooth", [2, 1], 3, smooth_softmax=1)
group("sink", [2, 2], 3, None, None, None, None, floats(N))
group("sink-window", [6, 4], 7, None, None, None, None, floats(N), past=caches(8), new=1,
      local_window_size=2, softcap=2.0)  # fmt: skip
group("bias", [2, 2], 3, None, None, None, floats(1, N, S, 3))
group("bias-next", [4, 2], 5, None, None, None, floats(B, 1, 1, 5), past=caches(8), new=1)
group("both-ways", [1, 2], 3, causal=0)
for shown in (1, 2):
    group(f"scores-{shown}", [2, 2], 3, None, None, None, floats(1, N, S, 3), outputs=4,
          qk_output=shown, softcap=0.5)  # fmt: skip
    group(f"scores-next-{shown}", [6, 6], 7, past=caches(8), new=1, outputs=4, qk_output=shown,
          local_window_size=2)  # fmt: skip
for turn in (0, 1):
    group(f"rotary-{turn}", [1, 2], 3, *ANGLES, do_rotary=1, rotary_interleaved=turn)
    group(f"rotary-half-{turn}", [1, 2], 3, *ANGLES, size=2 * H, do_rotary=1,
          rotary_interleaved=turn)  # fmt: skip
group("rotary-next", [4, 2], 5, *ANGLES, past=caches(8), new=1, do_rotary=1)
group("rotary-many", [6], 7, *ANGLES, past=caches(8, 1), do_rotary=1)
group("rotary-packed", [1, 2], 3, *ANGLES, packed=True, do_rotary=1)
group("rotary-positions", [1, 2], 3, *ANGLES, np.array([[3, 1, 7], [0, 9, 2]]), do_rotary=1)
group("rotary-positions-next", [4, 2], 5, *ANGLES, np.array([[7], [1]]), past=caches(8), new=1,
      do_rotary=1)  # fmt: skip

IDS = _random.integers(0, 10, (B, S))
for turn in (0, 1):
    for ids in (IDS, np.array([3])):
        for x in (floats(B, N, S, H), floats(B, S, N * H)):
            row("RotaryEmbedding", f"{x.ndim}-{ids.ndim}-{turn}", x, ids, *ANGLES,
                interleaved=turn)  # fmt: skip
row("RotaryEmbedding", "scaled", floats(B, S, N * H), IDS, *ANGLES, scale=2.0)
row("RotaryEmbedding", "part", floats(B, S, N * H), IDS, *HALF_ANGLES, num_heads=N,
    rotary_embedding_dim=H // 2)  # fmt: skip
row("RotaryEmbedding", "long-packed", floats(1, 14, N * H), _random.integers(0, 10, (1, 14)),
    *ANGLES, num_heads=N, is_packed_batching=1)  # fmt: skip

WORDS = [ints(_random.integers(0, 9, (B, S))), ints(_random.integers(0, 2, (B, S)))]
TABLES, SCALE = [floats(9, 6), floats(5, 6), floats(2, 6)], [floats(6), floats(6)]
EMBED = "EmbedLayerNormalization"
row(EMBED, "all", *WORDS, *TABLES, *SCALE, flags(B, S), outputs=3)
row(EMBED, "odd-mask", *WORDS, *TABLES, *SCALE, ints([[2, 0, 1], [1, 1, 3]]), outputs=3)
row(EMBED, "no-mask", *WORDS, *TABLES, *SCALE, outputs=3, epsilon=0.25)
row(EMBED, "no-segments", WORDS[0], None, *TABLES[:2], None, *SCALE, outputs=2)
POSITIONS = ints(_random.integers(0, 5, (B, S)))
row(EMBED, "positions", *WORDS, *TABLES, *SCALE, None, POSITIONS, outputs=2)
row(EMBED, "positions-of-one", *WORDS, *TABLES, *SCALE, None, POSITIONS[:1], outputs=2)

HIDDEN, WIDE = floats(B, S, 6), [floats(6) for _ in range(3)]
for name, skip in (("full", floats(B, S, 6)), ("batch", floats(1, S, 6)), ("rows", floats(S, 6))):
    row("SkipLayerNormalization", name, HIDDEN, skip, *WIDE)
SUMMED = Row("SkipLayerNormalization", "sum", [HIDDEN, floats(B, S, 6), *WIDE], {}, 4)
row("SkipLayerNormalization", "gamma-alone", HIDDEN, floats(B, S, 6), WIDE[0], epsilon=0.25)
row("SkipSimplifiedLayerNormalization", "bias", HIDDEN, floats(B, S, 6), *WIDE[:2])
row("SkipSimplifiedLayerNormalization", "plain", HIDDEN, floats(B, S, 6), WIDE[0])
row("Gelu", "plain", HIDDEN)
row("FastGelu", "bias", HIDDEN, WIDE[0])
row("BiasGelu", "plain", HIDDEN, WIDE[0])
row("QuickGelu", "alpha", HIDDEN, alpha=0.7)
row("FusedMatMul", "transposed", floats(2, 3, 4), floats(2, 5, 4), transB=1, alpha=0.5)
row("FusedMatMul", "batch", floats(3, 2, 4), floats(2, 4, 5), transBatchA=1)
row("Trilu", "upper", floats(2, 3, 4), np.array(1), upper=1)
row("Trilu", "lower", floats(3, 4), np.array(-1), upper=0)


def theirs(case: Row) -> list[Array]:
    model, feeds = case.model()
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return list(session.run(None, feeds))


@pytest.mark.parametrize("case", ROWS, ids=str)
def test_same_as_onnxruntime(case: Row) -> None:
    model, feeds = case.model()
    declared = prepare(load_model(model)).graph.outputs
    results = zip(InferenceSession(model).run(None, feeds), theirs(case), declared, strict=True)
    for ours, true, value in results:
        assert ours.dtype == true.dtype
        assert value.shape is not None
        assert all(d in (n, None) for d, n in zip(_sizes(value.shape), true.shape, strict=True))
        assert ours.shape == true.shape
        np.testing.assert_allclose(ours, true, rtol=1e-5, atol=1e-5)


def _sizes(shape: ir.Shape) -> list[int | None]:
    return [dim if isinstance(dim, int) else None for dim in shape]


def test_only_sizes_of_caches_need_a_run() -> None:
    for case in ROWS:
        grown = case.op == "GroupQueryAttention" and case.inputs[3] is not None
        shapes = [value.shape for value in prepare(load_model(case.model()[0])).graph.outputs]
        assert all(shape is not None and (grown or shape.is_static()) for shape in shapes), case


REFUSED = {
    "cache_indirection is not supported": Row(
        "MultiHeadAttention",
        "beams",
        [*SAME, None, None, None, *CACHE, ints([2]), ints(np.zeros((1, 2, 8)))],
        {"num_heads": N},
        3,
    ),
    "sliding_window_cache is not supported": Row(
        "GroupQueryAttention",
        "sliding",
        [*[floats(B, 1, n * H) for n in (N, K, K)], *caches(4), ints([6, 2]), ints(7)],
        {"num_heads": N, "kv_num_heads": K, "sliding_window_cache": 1, "local_window_size": 3},
        3,
    ),
    "quantized caches are not supported": Row(
        "GroupQueryAttention",
        "quantized",
        [*[floats(B, 1, n * H) for n in (N, K, K)], *caches(4), ints([4, 4]), ints(5)],
        {"num_heads": N, "kv_num_heads": K, "k_quant_type": "PER_TENSOR"},
        3,
    ),
    "total_sequence_length is 5, but without a past it must be 3": Row(
        "GroupQueryAttention",
        "total",
        [*[floats(B, S, n * H) for n in (N, K, K)], None, None, ints([4, 4]), ints(5)],
        {"num_heads": N, "kv_num_heads": K},
        1,
    ),
    "the mask has shape [2, 4], but it must be [2, 3] or [2, 3, 3]": Row(
        "MultiHeadAttention", "mask", [*SAME, None, flags(B, S + 1)], {"num_heads": N}
    ),
    "a mask of rank 1 has 3 values, but a batch of 2 needs 2, 4 or 8": Row(
        "MultiHeadAttention", "mask", [*SAME, None, flags(3)], {"num_heads": N}
    ),
    "a cache of 4 positions has no room for 5": Row(
        "MultiHeadAttention",
        "room",
        [*SAME, None, None, None, floats(B, N, 4, H), floats(B, N, 4, H), ints([2])],
        {"num_heads": N},
        3,
    ),
    "cannot be stacked as the present": Row(
        "Attention",
        "present",
        [floats(B, S, 6), floats(6, 28), floats(28)],
        {"num_heads": N, "qkv_hidden_sizes": [8, 8, 12]},
        2,
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_done_is_refused(message: str) -> None:
    model, feeds = REFUSED[message].model()
    with pytest.raises(NodeError, match=re.escape(message)):
        InferenceSession(model).run(None, feeds)


def test_the_past_counts_even_if_the_present_is_not_asked_for() -> None:
    inputs = [*SAME, None, None, None, *CACHE]
    alone, asked = (
        Row("MultiHeadAttention", "past", inputs, {"num_heads": N}, n).model() for n in (1, 3)
    )
    y = InferenceSession(alone[0]).run(None, alone[1])[0]
    np.testing.assert_array_equal(y, InferenceSession(asked[0]).run(None, asked[1])[0])


def test_the_sum_of_a_skip_is_an_output() -> None:
    model, feeds = SUMMED.model()
    ours, true = InferenceSession(model).run(None, feeds), theirs(SUMMED)
    np.testing.assert_allclose(ours[0], true[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(ours[3], true[3], rtol=1e-6, atol=1e-6)
