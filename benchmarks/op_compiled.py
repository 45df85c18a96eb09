"""Peers that torch compiles, by several processes into its cache before any is measured."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator

import torch

import op_row
from op_row import Choice, Row

PROCESSES = 8
Family = Callable[[], Iterator[Row]]


def compile_ahead(families: list[Family], chosen: Choice, processes: int = PROCESSES) -> None:
    """Compile the peers of the chosen rows; each process makes all rows and compiles some peers."""
    start = time.perf_counter()
    context = multiprocessing.get_context("spawn")
    workers = [
        context.Process(target=_compile, args=(families, chosen, index, processes, op_row.DEVICE))
        for index in range(processes)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    print(f"peers compiled in {time.perf_counter() - start:.0f} s", flush=True)


def _compile(families: list[Family], chosen: Choice, index: int, count: int, device: str) -> None:
    op_row.DEVICE, op_row.COMPILING = device, True
    number = 0
    for family in families:
        for row in family():
            if row in chosen:
                if number % count == index:
                    row.compile()
                number += 1
            torch.cuda.empty_cache()
