"""A Chrome trace with one row per node: the same step, with a clock around every call."""

from __future__ import annotations

import json
import pathlib
import time
from typing import Any

import torch

from onnxtrain.runtime.program import Program


class Profiler:
    """Runs a program and times each of its steps.

    On a CUDA device a step's time is the device's own, between two events; the trace has one row
    for the host's calls and one for the device's work.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._cuda = program.device.type == "cuda"
        self._origin = time.perf_counter()
        self.start_ns = time.time_ns()
        self.events: list[dict[str, Any]] = []
        self._run = program.with_hook(self._before, self._after)
        self._open: list[tuple[float, Any]] = []
        self._pending: list[tuple[dict[str, Any], Any, Any]] = []
        self._start_event: Any = None

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        """Run once and record."""
        if self._cuda:
            torch.cuda.synchronize()
            self._start_event = torch.cuda.Event(enable_timing=True)
            self._start_event.record()
        begin = self._now()
        results = self._run(*args)
        if self._cuda:
            torch.cuda.synchronize()
            self._resolve(begin)
        self._record("step", begin, self._now() - begin, "run", {})
        return results

    def _now(self) -> float:
        return (time.perf_counter() - self._origin) * 1e6

    def _before(self, index: int) -> None:
        event = None
        if self._cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
        self._open.append((self._now(), event))

    def _after(self, index: int) -> None:
        begin, first = self._open.pop()
        step = self._program.steps[index]
        details = {"op": step.kernel.op, "output": step.comment, "kernel": step.kernel.place}
        self._record(step.node, begin, self._now() - begin, "host", details)
        if self._cuda:
            last = torch.cuda.Event(enable_timing=True)
            last.record()
            self._pending.append((self.events[-1], first, last))

    def _record(self, name: str, begin: float, took: float, row: str, args: Any) -> None:
        self.events.append(
            {
                "name": name,
                "ph": "X",
                "ts": begin,
                "dur": took,
                "pid": 0,
                "tid": row,
                "cat": args.get("op", row),
                "args": args,
            }
        )

    def _resolve(self, begin: float) -> None:
        """Turn the pairs of device events into a row of their own."""
        for event, first, last in self._pending:
            start = begin + self._start_event.elapsed_time(first) * 1e3
            took = first.elapsed_time(last) * 1e3
            self._record(event["name"], start, took, "device", event["args"])
        self._pending.clear()

    def totals(self) -> dict[str, float]:
        """Microseconds by operator, of the device's row where there is one."""
        row = "device" if self._cuda else "host"
        sums: dict[str, float] = {}
        for event in self.events:
            if event["tid"] == row:
                sums[event["cat"]] = sums.get(event["cat"], 0.0) + event["dur"]
        return dict(sorted(sums.items(), key=lambda item: -item[1]))

    def write(self, prefix: str) -> str:
        """Write the trace beside ``prefix`` and give its path."""
        stamp, count = f"{prefix}_{time.strftime('%Y-%m-%d_%H-%M-%S')}", 1
        path = pathlib.Path(f"{stamp}.json")
        while path.exists():
            count += 1
            path = pathlib.Path(f"{stamp}_{count}.json")
        path.write_text(json.dumps({"traceEvents": self.events, "displayTimeUnit": "ms"}))
        return str(path)
