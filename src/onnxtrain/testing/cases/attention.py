"""Rows of the attention operators; ONNX's reference is the truth."""

from __future__ import annotations

from typing import Any

import torch

from onnxtrain.testing.case import (
    Case,
    Input,
    derived,
    given,
    integers,
    normal,
    only,
    uniform,
)
from onnxtrain.types import FLOATS, DataType

SINGLE = only(DataType.FLOAT)
_Q, _K, _V = normal(2, 4, 3, 8), normal(2, 4, 5, 8), normal(2, 4, 5, 6)
_PAST = [normal(2, 4, 2, 8), normal(2, 4, 2, 6)]


def _attention(
    name: str,
    *inputs: Input | None,
    opset: int | None = None,
    outputs: int = 1,
    dtypes: frozenset[DataType] = SINGLE,
    **attributes: Any,
) -> Case:
    return Case("Attention", inputs, attributes=attributes, outputs=outputs, opset=opset,
                name=name, dtypes=dtypes, gradient=False)  # fmt: skip


def _mask(*shape: int) -> Input:
    """Some pairs closed; the first one of each query is open."""

    def make(generator: torch.Generator) -> torch.Tensor:
        mask = torch.rand(shape, generator=generator) < 0.6
        mask[..., 0] = True
        return mask

    return Input(make, DataType.BOOL, grad=False)


ATTENTION = [
    _attention("plain", _Q, _K, _V, dtypes=FLOATS),
    _attention("plain", _Q, _K, _V, opset=23),
    _attention("packed", normal(2, 3, 32), normal(2, 5, 32), normal(2, 5, 24), q_num_heads=4,
               kv_num_heads=4),
    _attention("shared-heads", _Q, normal(2, 2, 5, 8), normal(2, 2, 5, 6)),
    _attention("scale", _Q, _K, _V, scale=0.3),
    _attention("causal", _Q, _K, _V, is_causal=1, dtypes=FLOATS),
    _attention("bias", _Q, _K, _V, normal(3, 5), dtypes=FLOATS),
    _attention("bias-per-head", _Q, _K, _V, normal(4, 3, 5), is_causal=1),
    _attention("mask", _Q, _K, _V, _mask(2, 1, 3, 5)),
    _attention("mask-of-keys", _Q, _K, _V, _mask(5), opset=24),
    _attention("short-mask", _Q, _K, _V, _mask(3, 4), opset=24),
    _attention("closed-row", _Q, _K, _V, given([[True] * 5, [False] * 5, [True] * 5])),
    _attention("past", _Q, _K, _V, None, *_PAST, outputs=3, is_causal=1),
    _attention("past-shared", _Q, normal(2, 2, 5, 8), normal(2, 2, 5, 6), normal(3, 7),
               normal(2, 2, 2, 8), normal(2, 2, 2, 6), outputs=3),
    _attention("lengths", _Q, _K, _V, None, None, None, given([5, 3]), opset=24),
    _attention("lengths-causal", _Q, _K, _V, None, None, None, given([4, 2]), is_causal=1,
               opset=24),
    _attention("window", _Q, _K, _V, opset=25, left_window_size=1, right_window_size=1),
    _attention("window-past", _Q, _K, _V, None, *_PAST, outputs=3, opset=25, is_causal=1,
               left_window_size=2),
    _attention("softcap", _Q, _K, _V, softcap=2.0, dtypes=FLOATS),
    _attention("rounded-softmax", _Q, _K, _V, softmax_precision=int(DataType.DOUBLE)),
    *(
        _attention(f"scores-{mode}", _Q, _K, _V, normal(3, 5), None, None, outputs=4,
                   qk_matmul_output_mode=mode, softcap=2.0 if mode else 0.0)
        for mode in range(4)
    ),
]  # fmt: skip


def _angles(*shape: int) -> list[Input]:
    """Cosines and sines."""

    def angles(generator: torch.Generator) -> torch.Tensor:
        return torch.rand(shape, generator=generator, dtype=torch.float64) * 6

    pair = [derived(lambda g: angles(g).cos()), derived(lambda g: angles(g).sin())]
    return [item.no_grad() for item in pair]


_IDS = integers(2, 3, high=9)
ROTARY = [
    Case("RotaryEmbedding", [normal(2, 4, 3, 8), *_angles(9, 4), _IDS], gradient=False),
    Case("RotaryEmbedding", [normal(2, 4, 3, 8), *_angles(2, 3, 4)], gradient=False,
         name="no-positions"),
    Case("RotaryEmbedding", [normal(2, 3, 32), *_angles(9, 4), _IDS], name="packed",
         attributes={"num_heads": 4, "interleaved": 1}, gradient=False),
    Case("RotaryEmbedding", [normal(2, 4, 3, 8), *_angles(9, 2), _IDS],
         attributes={"rotary_embedding_dim": 4}, gradient=False),
]  # fmt: skip


def _linear(rule: str, *more: Input | None, heads: int = 2, **attributes: Any) -> Case:
    keys = normal(2, 5, 2 * 4, scale=0.4)
    return Case(
        "LinearAttention",
        [normal(2, 5, heads * 4), keys, normal(2, 5, 2 * 3), *more],
        attributes={"update_rule": rule, "q_num_heads": heads, "kv_num_heads": 2, **attributes},
        outputs=2,
        gradient=False,
    )


_DECAY, _RATE = uniform(2, 5, 2, low=-1.0), uniform(2, 5, 2)
LINEAR = [
    _linear("linear"),
    _linear("gated", None, _DECAY, scale=0.5),
    _linear("delta", normal(2, 2, 4, 3), None, _RATE),
    _linear("gated_delta", normal(2, 2, 4, 3), uniform(2, 5, 8, low=-1.0), uniform(2, 5, 1),
            heads=6),
]  # fmt: skip
_SIGNAL, _FILTER = normal(2, 3, 6), normal(3, 1, 4)
CONV = [
    Case("CausalConvWithState", [_SIGNAL, _FILTER], outputs=2, gradient=False),
    Case("CausalConvWithState", [_SIGNAL, _FILTER, normal(3), normal(2, 3, 3)], outputs=2,
         attributes={"activation": "silu"}, gradient=False),
    Case("CausalConvWithState", [normal(2, 3, 1), normal(3, 1, 1)], outputs=2, gradient=False,
         name="one-tap"),
]  # fmt: skip

CASES: list[Case] = [*ATTENTION, *ROTARY, *LINEAR, *CONV]
