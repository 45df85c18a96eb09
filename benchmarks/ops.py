"""Operators bound by memory, against torch, in one run: time and share of a copy's speed.

On a GPU each is measured as it is called, by a host that is ahead of the device, and replayed from
a CUDA graph, as in a recorded step, short ones many times in a row: by itself such a call takes
several times as long to begin and to end as to run, and that changes from one graph to the next.
On a CPU shapes are smaller, and portable kernels are measured. A copy of as many bytes as must be
moved is measured too: small ones do not reach the speed of large ones.

Rows that were about as fast as their best peer when they were last saved can be measured again,
in many turns: what one turn says of them is chance. Such a row is behind its peer if it is in more
turns than chance would have it, however little it is.

python benchmarks/ops.py [--save] [--only softmax loss] [--close] [--rows "Gelu .* bfloat16"]
                         [--behind 3] [--compile] [--device cpu]
"""

from __future__ import annotations

import argparse
import functools
import sys
from typing import Any

import torch

import op_row
from newest import last_of_each, on_gpu
from onnxtrain.kernels import fast
from op_anchors import at_copies, geometric_mean, summary
from op_compiled import compile_ahead
from op_recorded import recorded
from op_row import Call, Choice, Key, Row
from op_rows import (
    bias_softmax_rows,
    gather_rows,
    loss_rows,
    norm_rows,
    optimizer_rows,
    softmax_forward_rows,
    softmax_rows,
)
from op_rows_activation import activation_rows, bias_alone_rows, weighted_loss_rows
from op_rows_codec import codec_rows
from op_rows_image import batch_norm_rows, conv_rows, pool_rows
from op_rows_step import (
    column_rows,
    dropout_rows,
    forward_rows,
    lamb_rows,
    linear_loss_rows,
    norm_grad_rows,
    update_rows,
)
from op_rows_tensor import concat_rows
from op_rows_update import list_rows, one_rows
from op_timing import in_turn, in_turns, is_behind, on_host, shortest, turns_ahead
from report import append, needs_gpu, read, table

FAMILIES = {
    "forward": forward_rows,
    "norm_grad": norm_grad_rows,
    "column": column_rows,
    "update": update_rows,
    "lamb": lamb_rows,
    "dropout": dropout_rows,
    "linear_loss": linear_loss_rows,
    "softmax_forward": softmax_forward_rows,
    "softmax": softmax_rows,
    "bias_softmax": bias_softmax_rows,
    "norm": norm_rows,
    "loss": loss_rows,
    "gather": gather_rows,
    "optimizer": optimizer_rows,
    "batch_norm": batch_norm_rows,
    "pool": pool_rows,
    "conv": conv_rows,
    "codec": codec_rows,
    "activation": activation_rows,
    "bias_alone": bias_alone_rows,
    "weighted_loss": weighted_loss_rows,
    "concat": concat_rows,
    "list": list_rows,
    "one": one_rows,
}
UNCOMPILED = {"update", "lamb", "gather", "optimizer", "conv", "concat", "list", "one"}
"""Families without peers that torch.compile makes."""


OURS, DEFAULT = "", "torch"
"""Names of our call among those of the peers, and of what torch's modules and optimizers run."""
SHORT, IN_A_ROW, ROUNDS = 0.015, 32, 9
"""Milliseconds below which calls are replayed in a row, how many, and how often all are timed."""
ABOUT, TURNS = 0.05, 15
"""How far from a peer's speed rows are close to it, and how often such are measured in turn."""
TIMES = {
    "turns ahead": ("ms", "peer ms"),
    "turns ahead recorded": ("recorded ms", "peer recorded ms"),
}
"""Their columns with the times of ours and of the best peer."""
KEY = "operator", "shape", "type"
COUNTS = {"turns ahead": "called", "turns ahead recorded": "replayed"}
"""Columns with the turns in which ours took no longer than the best peer."""
MEANS = {
    "times faster": "the best peer",
    "times torch": "torch's own operators",
    "times default": "those of torch that it runs unasked",
    "times faster recorded": "the best peer, replayed from a CUDA graph",
    "times torch recorded": "torch's own operators, replayed from a CUDA graph",
}


class WrongError(Exception):
    """A result that is not what it should be, whose speed says nothing."""


def replayed(row: Row, turns: int = 0) -> dict[str, list[float]]:
    """Milliseconds of what can be recorded, in every turn: "" is ours."""
    if not row.alike or op_row.DEVICE == "cpu":
        return {}
    calls = graphs(row, 1)
    times = in_turns(calls, rounds=turns, warmup=2, rep=8) if calls else {}
    if times and min(shortest(times).values()) < SHORT:
        times = in_turns(graphs(row, IN_A_ROW), rounds=turns or ROUNDS, warmup=1, rep=4)
        times = {name: [ms / IN_A_ROW for ms in found] for name, found in times.items()}
    return times


def graphs(row: Row, times: int) -> dict[str, Call]:
    """What replays so many calls of ours and of each peer, if it can be recorded."""
    calls = {OURS: row.ours, **row.peers}
    found = {name: recorded(call, times) for name, call in calls.items()}
    return {name: call for name, call in found.items() if call is not None}


def error(found: Any, true: Any) -> float:
    pairs = zip(found, true, strict=False) if isinstance(true, list) else [(found, true)]
    return max(((a.double() - b.double()).norm() / b.double().norm()).item() for a, b in pairs)


def close_ones(rows: list[dict[str, str]]) -> frozenset[Key]:
    """Names, shapes and types of rows that were last about as fast as the best peer."""
    columns = "times faster", "times faster recorded"
    return frozenset(
        (row["operator"], row["shape"], row["type"])
        for row in last_of_each(on_gpu(rows), *KEY)
        if any(abs(float(row[column]) - 1) <= ABOUT for column in columns if row.get(column))
    )


def measured(row: Row, speed: float, turns: int = 0) -> dict[str, Any]:
    if op_row.DEVICE != "cpu":
        # indices of the row before may be of the same kind, and lie otherwise
        fast.load("gather.slots").KINDS.forget()
    wrong = float("nan")
    if row.truth is not None:
        true = row.truth()
        wrong = error(row.ours(), true)
        allowed = 2 * max(error(peer(), true) for peer in row.peers.values()) + 1e-6
        if not wrong <= allowed:
            raise WrongError(
                f"{row.name} {row.shape} {row.dtype}: error {wrong}, allowed {allowed}"
            )
        del true
    both = in_turns({OURS: row.ours, **row.peers}, turns), replayed(row, turns)
    times, again = map(shortest, both)
    ours, best = times[OURS], best_peer(times)
    # a host that is behind is part of the one, what torch sends before a replay of the other
    on_device = min(ours, again.get(OURS, ours))
    return {
        **dict(zip(KEY, row.key, strict=True)),
        "MB moved": round(row.bytes / 1e6, 3),
        "ms": round(ours, 5),
        "of copy": round(row.bytes / (on_device * 1e-3) / speed, 3),
        "copy ms": round(copied(row.bytes), 4),
        "best peer": best,
        "peer ms": round(times[best], 5),
        "times faster": ratio(times),
        "times torch": ratio(eager(times)),
        "host ms": "" if op_row.DEVICE == "cpu" else round(on_host(row.ours), 3),
        "recorded ms": round(again[OURS], 5) if OURS in again else "",
        "peer recorded ms": round(again[best_peer(again)], 5) if len(again) > 1 else "",
        "times faster recorded": ratio(again),
        "times torch recorded": ratio(eager(again)),
        "times default": ratio({name: times[name] for name in (OURS, DEFAULT) if name in times}),
        "error": f"{wrong:.1e}",
        "turns": turns or "",
        **{name: ahead(each) if turns else "" for name, each in zip(COUNTS, both, strict=True)},
    }


def ahead(turns: dict[str, list[float]]) -> int | str:
    """In how many turns ours took no longer than the peer that is best in all of them."""
    if OURS not in turns or len(turns) < 2:
        return ""
    return turns_ahead(turns[OURS], turns[best_peer(shortest(turns))])


def print_behind(rows: list[dict[str, Any]]) -> None:
    """Name the rows that a peer was faster in than chance would have it."""
    for column, how in COUNTS.items():
        counted = [row for row in rows if row["turns"] and row[column] != ""]
        behind = [row for row in counted if is_behind(row[column], row["turns"])]
        print(f"{how}: {len(behind)} of {len(counted)} rows that were counted are behind a peer")
        for row in behind:
            print(f"  {_named(row)}: ahead in {row[column]} of {row['turns']} turns")


def print_steadily_behind(rows: list[dict[str, str]], runs: int) -> None:
    """Name the rows that were behind in each of so many last runs in which they were counted.

    In one run a row may be behind for where its tensors lie, and ahead in the next.
    """
    every: dict[Key, list[dict[str, str]]] = {}
    for row in on_gpu(rows):
        if row.get("turns"):
            every.setdefault(tuple(row[name] for name in KEY), []).append(row)
    for column, how in COUNTS.items():
        counted = [found[-runs:] for found in every.values() if len(found) >= runs]
        counted = [last for last in counted if all(row[column] for row in last)]
        behind = [
            last
            for last in counted
            if all(is_behind(int(row[column]), int(row["turns"])) for row in last)
        ]
        print(f"{how}: {len(behind)} of {len(counted)} rows are behind a peer in all {runs} runs")
        for last in behind:
            ours, peers = ([float(row[name]) for row in last] for name in TIMES[column])
            speed = min(peer / own for own, peer in zip(ours, peers, strict=True))
            turns = ", ".join(row[column] for row in last)
            print(
                f"  {_named(last[0])}: ahead in {turns} turns, {speed:.4f} times its speed or more"
            )


def _named(row: dict[str, Any]) -> str:
    return " ".join(row[name] for name in KEY)


def best_peer(times: dict[str, float]) -> str:
    return min(times.keys() - {OURS}, key=times.__getitem__)


def eager(times: dict[str, float]) -> dict[str, float]:
    """Ours and peers that are torch's own operators."""
    others = {"torch.compile", "Liger"}
    return {name: ms for name, ms in times.items() if name not in others}


def ratio(times: dict[str, float]) -> float | str:
    """How many times the best peer's speed ours is; nothing if one of both was not measured."""
    if OURS not in times or len(times) < 2:
        return ""
    return round(times[best_peer(times)] / times[OURS], 2)


def print_means(rows: list[dict[str, Any]]) -> None:
    for column, of in MEANS.items():
        found = [row[column] for row in rows if row[column]]
        if found:
            mean = geometric_mean(found)
            print(f"geometric mean of {len(found)} rows: {mean:.2f} times the speed of {of}")
            if anchors := summary(rows, column):
                print(f"  {anchors}")
    for column in ("times torch", "times default"):
        if within := at_copies(rows, column):
            print(
                f"anchors if none took longer than a copy of as many bytes: {within:.2f} {column}"
            )


def copy_speed() -> float:
    """Bytes read and written a second by a large copy."""
    moved = 8 << (26 if op_row.DEVICE == "cpu" else 28)
    return moved / (copied(moved) * 1e-3)


@functools.cache
def copied(moved: int) -> float:
    """Milliseconds of a copy that reads and writes so many bytes, of numbers that are random."""
    source = torch.randn(max(1, moved // 8), device=op_row.DEVICE)
    target = torch.empty_like(source)
    return in_turn({OURS: lambda: target.copy_(source)})[OURS]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--only", choices=FAMILIES, nargs="+", default=list(FAMILIES))
    parser.add_argument("--close", action="store_true", help="only those that peers come close to")
    parser.add_argument("--rows", default="", help="only those in which this pattern is found")
    parser.add_argument(
        "--behind", type=int, metavar="RUNS", help="measure nothing: name rows behind in all runs"
    )
    parser.add_argument("--compile", action="store_true", help="also peers by torch.compile")
    parser.add_argument("--device", choices=["cuda", "cpu"])
    args = parser.parse_args()
    if args.behind:
        print_steadily_behind(read("ops"), args.behind)
        return
    if args.device == "cuda":
        needs_gpu()
    op_row.DEVICE = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    turns = TURNS if args.close or args.rows else 0
    chosen = Choice(close_ones(read("ops")) if args.close else None, args.rows)
    if args.compile:
        compile_ahead([FAMILIES[name] for name in args.only if name not in UNCOMPILED], chosen)
        op_row.COMPILING = True
    torch.manual_seed(0)
    speed = copy_speed()
    print(f"copy: {speed / 1e12:.3g} TB/s")
    rows, wrong = [], []
    for name in args.only:
        found = []
        for row in FAMILIES[name]():
            if row not in chosen:
                continue
            row.compile()
            try:
                found.append(measured(row, speed, turns))
            except WrongError as error:
                wrong.append(str(error))
            else:
                print(found[-1], flush=True)
        rows += found
        if args.save:  # what was measured is kept if a later family fails
            measure = {"copy TB/s": float(f"{speed / 1e12:.3g}")}
            append("ops", [{**measure, **row} for row in found], op_row.DEVICE)
    if rows:
        print(table(rows))
        print_means(rows)
    if turns:
        print_behind(rows)
    if wrong:
        sys.exit("\n".join(["wrong results:", *wrong]))


if __name__ == "__main__":
    main()
