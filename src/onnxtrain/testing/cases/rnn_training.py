"""Rows for recurrent layers that keep their gates, and for their gradients.

The gradients' inputs are random: what the layer kept need not fit its input for the formula.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from onnxtrain.testing.case import Case, Input, normal, uniform
from onnxtrain.types import MS

S, B, X, H = 4, 3, 2, 3
"""Times, samples, inputs, hidden values."""


def _zeros(like: Tensor, *shape: int) -> Tensor:
    return torch.zeros(shape, dtype=like.dtype)


def _lstm(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    lens: None = None,
    h0: Tensor | None = None,
    c0: Tensor | None = None,
    p: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, ...]:
    h = _zeros(x, B, H) if h0 is None else h0[0]
    c = _zeros(x, B, H) if c0 is None else c0[0]
    bias = 0.0 if b is None else b[0, : 4 * H] + b[0, 4 * H :]
    p_i, p_o, p_f = [_zeros(x, H)] * 3 if p is None else p[0].chunk(3)
    kept: tuple[list[Tensor], ...] = ([], [], [])
    for x_t in x:
        i, o, f, g = (x_t @ w[0].T + h @ r[0].T + bias).chunk(4, -1)
        i, f, g = torch.sigmoid(i + p_i * c), torch.sigmoid(f + p_f * c), torch.tanh(g)
        c = f * c + i * g
        o = torch.sigmoid(o + p_o * c)
        h = o * torch.tanh(c)
        for found, value in zip(kept, (h, c, torch.cat([i, o, f, g], -1)), strict=True):
            found.append(value)
    all_h, all_c, gates = (torch.stack(found).unsqueeze(1) for found in kept)
    return all_h, h[None], c[None], all_c, gates


def _gru(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    lens: None = None,
    h0: Tensor | None = None,
    *,
    linear_before_reset: int = 0,
    **_: Any,
) -> tuple[Tensor, ...]:
    h = _zeros(x, B, H) if h0 is None else h0[0]
    wb, rb = (_zeros(x, 3 * H),) * 2 if b is None else b[0].chunk(2)
    r_z, r_r, r_h = r[0].chunk(3)
    rb_z, rb_r, rb_h = rb.chunk(3)
    kept: tuple[list[Tensor], ...] = ([], [])
    for x_t in x:
        z, reset, n = (x_t @ w[0].T + wb).chunk(3, -1)
        z, reset = torch.sigmoid(z + h @ r_z.T + rb_z), torch.sigmoid(reset + h @ r_r.T + rb_r)
        inner = reset * (h @ r_h.T + rb_h) if linear_before_reset else (reset * h) @ r_h.T + rb_h
        n = torch.tanh(n + inner)
        h = (1 - z) * n + z * h
        kept[0].append(h)
        kept[1].append(torch.cat([z, reset, n], -1))
    all_h, gates = (torch.stack(found).unsqueeze(1) for found in kept)
    return all_h, h[None], gates


def _lstm_grad(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    lens: None,
    h0: Tensor | None,
    c0: Tensor | None,
    all_h: Tensor,
    all_c: Tensor,
    gates: Tensor,
    dh_all: Tensor | None = None,
    dh_final: Tensor | None = None,
    dc_final: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, ...]:
    dx, dw, dr, db = torch.zeros_like(x), torch.zeros_like(w), torch.zeros_like(r), _zeros(x, 4 * H)
    dp = _zeros(x, 3 * H)
    gh = _zeros(x, B, H) if dh_final is None else dh_final[0]
    gc = _zeros(x, B, H) if dc_final is None else dc_final[0]
    for t in range(S - 1, -1, -1):
        before_h = all_h[t - 1, 0] if t else (_zeros(x, B, H) if h0 is None else h0[0])
        before_c = all_c[t - 1, 0] if t else (_zeros(x, B, H) if c0 is None else c0[0])
        i, o, f, g = gates[t, 0].chunk(4, -1)
        gh = gh if dh_all is None else gh + dh_all[t, 0]
        th = torch.tanh(all_c[t, 0])
        gc = gc + gh * o * (1 - th * th)
        di, df, dg = gc * g * i * (1 - i), gc * before_c * f * (1 - f), gc * i * (1 - g * g)
        do = gh * th * o * (1 - o)
        da = torch.cat([di, do, df, dg], -1)
        dx[t], gc, gh = da @ w[0], gc * f, da @ r[0]
        dw[0], dr[0], db = dw[0] + da.T @ x[t], dr[0] + da.T @ before_h, db + da.sum(0)
        dp = dp + torch.cat([di * before_c, do * all_c[t, 0], df * before_c], -1).sum(0)
    return dx, dw, dr, torch.cat([db, db])[None], gh[None], gc[None], dp[None]


def _gru_grad(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None,
    lens: None,
    h0: Tensor | None,
    all_h: Tensor,
    gates: Tensor,
    dh_all: Tensor | None = None,
    dh_final: Tensor | None = None,
    *,
    linear_before_reset: int = 0,
    **_: Any,
) -> tuple[Tensor, ...]:
    dx, dw, dr, db = torch.zeros_like(x), torch.zeros_like(w), torch.zeros_like(r), _zeros(x, 6 * H)
    r_z, r_r, r_h = r[0].chunk(3)
    rb_h = _zeros(x, H) if b is None else b[0, 5 * H :]
    gh = _zeros(x, B, H) if dh_final is None else dh_final[0]
    for t in range(S - 1, -1, -1):
        p = all_h[t - 1, 0] if t else (_zeros(x, B, H) if h0 is None else h0[0])
        z, reset, n = gates[t, 0].chunk(3, -1)
        gh = gh if dh_all is None else gh + dh_all[t, 0]
        dz, dn = gh * (p - n) * z * (1 - z), gh * (1 - z) * (1 - n * n)
        d_reset = dn * (p @ r_h.T + rb_h) if linear_before_reset else (dn @ r_h) * p
        d_r = d_reset * reset * (1 - reset)
        inner = dn * reset if linear_before_reset else dn
        da = torch.cat([dz, d_r, dn], -1)
        dx[t], dw[0] = da @ w[0], dw[0] + da.T @ x[t]
        d_rh = inner.T @ (p if linear_before_reset else reset * p)
        dr[0] = dr[0] + torch.cat([dz.T @ p, d_r.T @ p, d_rh])
        db = db + torch.cat([da, dz, d_r, inner], -1).sum(0)
        through = inner @ r_h if linear_before_reset else (dn @ r_h) * reset
        gh = gh * z + dz @ r_z + d_r @ r_r + through
    return dx, dw, dr, db[None], gh[None]


def _layer(gates: int) -> list[Input | None]:
    return [
        normal(S, B, X),
        normal(1, gates * H, X, scale=0.5),
        normal(1, gates * H, H, scale=0.5),
    ]


def _gates(open_: int) -> Input:
    """Gates between 0 and 1, then values between -1 and 1."""

    def make(generator: torch.Generator) -> Tensor:
        gates = uniform(S, 1, B, open_ * H).make(generator)
        return torch.cat([gates, uniform(S, 1, B, H, low=-1).make(generator)], -1)

    return Input(make)


def _row(
    op: str, reference: Any, inputs: list[Input | None], outputs: int, name: str, **more: Any
) -> Case:
    attributes = {"hidden_size": H, **more.pop("attributes", {})}
    return Case(
        op,
        inputs,
        reference,
        attributes,
        domain=MS,
        outputs=outputs,
        gradient=False,
        name=name,
        **more,
    )


_STATE, _ALL = normal(1, B, H), normal(S, 1, B, H)
_NAMES = {"activations": ("sigmoid", "tanh", "tanh")}
_TRAINING = [
    _row("LSTMTraining", _lstm, [*_layer(4)], 5, "least"),
    _row("LSTMTraining", _lstm, [*_layer(4), normal(1, 8 * H), None, _STATE, _STATE], 5, "states"),
    _row(
        "LSTMTraining",
        _lstm,
        [*_layer(4), normal(1, 8 * H), None, _STATE, _STATE, normal(1, 3 * H)],
        5,
        "peepholes",
        attributes=_NAMES,
    ),
    _row("LSTMTraining", _lstm, [*_layer(4)], 5, "no_finals", empty=(1, 2)),
    *(
        _row("GRUTraining", _gru, inputs, 3, f"{name}_{linear}", attributes=attributes)
        for linear in (0, 1)
        for attributes in [{"linear_before_reset": linear}]
        for name, inputs in (
            ("least", [*_layer(3)]),
            ("states", [*_layer(3), normal(1, 6 * H), None, _STATE]),
        )
    ),
]
_GRADS = [
    *(
        _row(
            "LSTMGrad",
            _lstm_grad,
            [*_layer(4), None, *starts, _ALL, _ALL, _gates(3), *grads],
            7,
            name,
            empty=empty,
        )
        for name, starts, grads, empty in (
            ("all", (_STATE, _STATE), (_ALL, _STATE, _STATE), ()),
            ("sequence", (None, None), (_ALL,), ()),
            ("finals", (_STATE, None), (None, _STATE, _STATE), ()),
            ("weights", (_STATE, _STATE), (_ALL, _STATE), (0, 3, 4, 5, 6)),
            ("input", (_STATE, _STATE), (_ALL, _STATE), (1, 2, 6)),
        )
    ),
    *(
        _row(
            "GRUGrad",
            _gru_grad,
            [*_layer(3), bias, None, start, _ALL, _gates(2), *grads],
            5,
            f"{name}_{linear}",
            attributes={"linear_before_reset": linear},
            empty=empty,
        )
        for linear in (0, 1)
        for name, bias, start, grads, empty in (
            ("all", normal(1, 6 * H), _STATE, (_ALL, _STATE), ()),
            ("sequence", None, None, (_ALL,), ()),
            ("final", normal(1, 6 * H), None, (None, _STATE), ()),
            ("weights", normal(1, 6 * H), _STATE, (_ALL,), (0, 4)),
        )
    ),
]

CASES = [*_TRAINING, *_GRADS]
