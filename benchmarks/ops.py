"""Operators bound by memory on a GPU, against torch, in one run: time and share of a copy's speed.

python benchmarks/ops.py [--save] [--only softmax loss] [--compile]
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import torch

import op_row
from op_row import Call, Row
from op_rows import (
    gather_rows,
    loss_rows,
    norm_rows,
    optimizer_rows,
    softmax_forward_rows,
    softmax_rows,
)
from op_rows_step import (
    column_rows,
    dropout_rows,
    forward_rows,
    linear_loss_rows,
    norm_grad_rows,
    update_rows,
)
from report import append, needs_gpu, table

FAMILIES = {
    "forward": forward_rows,
    "norm_grad": norm_grad_rows,
    "column": column_rows,
    "update": update_rows,
    "dropout": dropout_rows,
    "linear_loss": linear_loss_rows,
    "softmax_forward": softmax_forward_rows,
    "softmax": softmax_rows,
    "norm": norm_rows,
    "loss": loss_rows,
    "gather": gather_rows,
    "optimizer": optimizer_rows,
}


SHORT = 0.05
"""Milliseconds below which a call is measured three times, in turn with its peers."""


def milliseconds(call: Call) -> float:
    import triton.testing

    return float(triton.testing.do_bench(call, warmup=10, rep=60, return_mode="median"))


def in_turn(calls: dict[str, Call]) -> dict[str, float]:
    """Milliseconds of each call; of short ones the best of three, what they share being noise."""
    found = {name: milliseconds(call) for name, call in calls.items()}
    if min(found.values()) < SHORT:
        for _ in range(2):
            found = {name: min(found[name], milliseconds(call)) for name, call in calls.items()}
    return found


def error(found: Any, true: Any) -> float:
    pairs = zip(found, true, strict=False) if isinstance(true, list) else [(found, true)]
    return max(((a.double() - b.double()).norm() / b.double().norm()).item() for a, b in pairs)


def measured(row: Row, speed: float) -> dict[str, Any]:
    wrong = float("nan")
    if row.truth is not None:
        true = row.truth()
        wrong = error(row.ours(), true)
        allowed = 2 * max(error(peer(), true) for peer in row.peers.values()) + 1e-6
        if not wrong <= allowed:
            raise SystemExit(
                f"{row.name} {row.shape} {row.dtype}: error {wrong}, allowed {allowed}"
            )
        del true
    peers = in_turn({"": row.ours, **row.peers})
    ours = peers.pop("")
    best = min(peers, key=peers.__getitem__)
    return {
        "operator": row.name,
        "shape": row.shape,
        "type": str(row.dtype).removeprefix("torch."),
        "MB moved": round(row.bytes / 1e6, 3),
        "ms": round(ours, 4),
        "of copy": round(row.bytes / (ours * 1e-3) / speed, 3),
        "best peer": best,
        "peer ms": round(peers[best], 4),
        "times faster": round(peers[best] / ours, 2),
        "error": f"{wrong:.1e}",
    }


def copy_speed() -> float:
    """Bytes read and written a second by a large copy."""
    source = torch.randn(1 << 28, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / (milliseconds(lambda: target.copy_(source)) * 1e-3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--only", choices=FAMILIES, nargs="+", default=list(FAMILIES))
    parser.add_argument("--compile", action="store_true", help="also peers by torch.compile")
    args = parser.parse_args()
    needs_gpu()
    op_row.compiled_peers = args.compile
    torch.manual_seed(0)
    speed = copy_speed()
    print(f"copy: {speed / 1e12:.2f} TB/s")
    rows = []
    for name, family in FAMILIES.items():
        if name in args.only:
            for row in family():
                rows.append(measured(row, speed))
                print(rows[-1], flush=True)
    print(table(rows))
    ratios = [math.log(row["times faster"]) for row in rows]
    print(f"geometric mean: {math.exp(sum(ratios) / len(ratios)):.2f} times the best peer's speed")
    if args.save:
        print("saved in", append("ops", [{"copy TB/s": round(speed / 1e12, 2), **r} for r in rows]))


if __name__ == "__main__":
    main()
