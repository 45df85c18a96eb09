"""Which rows of the operators' benchmark are measured, and which are behind a peer in all runs."""

import pathlib
import sys

import pytest
import torch

sys.path.append(str(pathlib.Path(__file__).parents[1] / "benchmarks"))

import op_compiled
import op_row
import ops
from op_row import COMPILED, Choice, Row


def gelu(shape: str, dtype: torch.dtype = torch.float32) -> Row:
    return Row("Gelu", shape, dtype, 0, lambda: None, {})


def counted(shape: str, called: int | str, replayed: int | str = 15, turns: int | str = 15) -> dict:
    return {
        "operator": "Gelu",
        "shape": shape,
        "type": "float32",
        "device": "GPU",
        "turns": str(turns),
        "turns ahead": str(called),
        "turns ahead recorded": str(replayed),
        "ms": "0.1",
        "peer ms": "0.099",
        "recorded ms": "0.2",
        "peer recorded ms": "0.199",
    }


def test_rows_are_chosen_by_their_keys_and_by_a_pattern() -> None:
    rows = [gelu("(1, 2)"), gelu("(3, 4)"), gelu("(3, 4)", torch.bfloat16)]
    assert all(row in Choice() for row in rows)
    known = Choice(frozenset([rows[0].key, rows[2].key]))
    assert [row in known for row in rows] == [True, False, True]
    named = Choice(pattern=r"^Gelu \(3, .* float32$")
    assert [row in named for row in rows] == [False, True, False]
    assert [row in Choice(known.keys, named.pattern) for row in rows] == [False] * 3


def test_torch_compiles_nothing_before_it_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda call, dynamic: compiled.append(call) or call)
    plain = op_row.with_compiled({}, lambda: 1)
    monkeypatch.setattr(op_row, "COMPILING", True)
    both = op_row.with_compiled({"torch": lambda: 0}, lambda: 2, lambda x: x + 3)
    assert plain == {} and [*both] == ["torch", COMPILED] and not compiled
    assert [both[COMPILED](), both[COMPILED]()] == [5, 5] and len(compiled) == 2


def test_a_peer_that_cannot_be_compiled_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> None:
        raise NotImplementedError

    monkeypatch.setattr(op_row, "COMPILING", True)
    monkeypatch.setattr(torch, "compile", lambda call, dynamic: call)
    bad, good = gelu("(1,)"), gelu("(2,)")
    bad.peers = op_row.with_compiled({}, refused)
    good.peers = op_row.with_compiled({}, lambda: 1)
    bad.compile(), good.compile()
    assert (bad.peers, [*good.peers]) == ({}, [COMPILED])


def test_processes_share_the_chosen_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []
    monkeypatch.setattr(op_row, "COMPILING", False)  # and put back afterwards
    monkeypatch.setattr(op_row, "DEVICE", "cpu")
    monkeypatch.setattr(Row, "compile", lambda self: compiled.append(self.shape))
    rows = [gelu(f"({n},)") for n in range(7)]
    for index in range(2):
        op_compiled._compile([lambda: iter(rows)], Choice(pattern=r"\([1-5],"), index, 2, "cpu")
        compiled.append("next")
    assert compiled == ["(1,)", "(3,)", "(5,)", "next", "(2,)", "(4,)", "next"]


def test_a_row_is_behind_if_it_is_in_all_runs(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        counted("(ahead,)", 0),
        *(counted("(once,)", ahead) for ahead in (0, 9, 1)),
        *(counted("(always,)", ahead, 8) for ahead in (15, 3, 0)),
        counted("(uncounted,)", "", "", ""),
        counted("(ahead,)", 15),
        *(counted("(replayed,)", 15, ahead) for ahead in (2, 2)),
        *(counted("(called,)", 15, "") for _ in range(2)),
    ]
    ops.print_steadily_behind(rows, 2)
    assert capsys.readouterr().out.splitlines() == [
        "called: 1 of 5 rows are behind a peer in all 2 runs",
        "  Gelu (always,) float32: ahead in 3, 0 turns, 0.9900 times its speed or more",
        "replayed: 1 of 4 rows are behind a peer in all 2 runs",
        "  Gelu (replayed,) float32: ahead in 2, 2 turns, 0.9950 times its speed or more",
    ]
