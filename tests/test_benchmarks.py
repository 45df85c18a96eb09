"""What benchmarks do with their figures: keep them, choose the newest, and show them."""

import csv
import functools
import pathlib
import subprocess
import sys

import pytest
import torch

ROOT = pathlib.Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))

import growth  # noqa: E402
import newest  # noqa: E402
import op_timing  # noqa: E402
import page  # noqa: E402
import report  # noqa: E402

GPU = {"date": "2026-01-02", "device": "a GPU", "torch": "2.11"}


@pytest.fixture
def results(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """An empty folder of results, and a page of its own."""
    monkeypatch.setattr(report, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(report, "conditions", lambda on=None: GPU)
    monkeypatch.setattr(page, "PAGE", tmp_path / "page.md")
    page.PAGE.write_text(f"before\n{page.BEGIN}\nold\n{page.END}\nbehind\n")
    return tmp_path


def operator(name: str, faster: float, **more: object) -> dict[str, object]:
    row = {"operator": name, "shape": "(8, 8)", "type": "float32", "ms": 0.1, "of copy": 0.8}
    row |= {"MB moved": 320.0, "copy TB/s": 4.0}
    return {
        **row,
        "best peer": "torch",
        "peer ms": 0.2,
        "times faster": faster,
        "times torch": faster,
        **more,
    }


def step(model: str, way: str, ms: float) -> dict[str, object]:
    more = {"peak GB": 1.5, "reserved GB": 2.5, "tokens or images/s": 10.0, "first s": 3.0}
    return {"model": model, "way": way, "ms": ms, **more}


def grown() -> list[dict[str, object]]:
    times = {1: (3.0, 6.0), 2: (5.0, 6.0), 4: (10.0, 9.0)}
    found = [
        (size, {"ms": times[size.batch][0], "torch ms": times[size.batch][1], "peak GB": 1.0})
        for size in growth.sizes(growth.BASE, "batch", (1, 2, 4))
    ]
    return [{**row, "reserved GB": 2.0} for row in growth.growth("batch", found)]


def test_a_new_column_stands_behind_the_old_ones(results: pathlib.Path) -> None:
    report.append("some", [{"a": 1}])
    report.append("some", [{"b": 2, "a": 3}])
    with (results / "results" / "some.csv").open(newline="") as file:
        lines = list(csv.reader(file))
    assert lines[0] == [*GPU, "a", "b"]
    assert [line[len(GPU) :] for line in lines[1:]] == [["1", ""], ["3", "2"]]


def test_saving_keeps_every_row_as_it_was(results: pathlib.Path) -> None:
    for path in (ROOT / "benchmarks" / "results").glob("*.csv"):
        (results / "results").mkdir(exist_ok=True)
        (results / "results" / path.name).write_bytes(path.read_bytes())
        before = report.read(path.stem)
        report.append(path.stem, [{}])
        after = report.read(path.stem)
        assert before == after[:-1] and after[-1]["device"] == GPU["device"]


def test_only_one_size_is_varied() -> None:
    assert [size.depth for size in growth.sizes(growth.BASE, "depth", (2, 4))] == [2, 4]
    for axis, values in growth.VALUES.items():
        assert growth.BASE in growth.sizes(growth.BASE, axis, values), "measured once for all"


def test_growth_since_the_row_before() -> None:
    first, second, third = grown()
    assert first["ms grew"] == first["size grew"] == "" and first["ms per unit"] == 3
    assert second["ms grew"] == 5 / 3 and second["size grew"] == 2 and second["ms per unit"] == 2.5
    assert third["torch ms grew"] == 1.5 and third["to torch"] == 10 / 9
    assert "sequence" not in growth.shown(third) and growth.shown(third)["value"] == 4


def test_the_last_row_of_each_kind() -> None:
    rows = [{"name": name, "ms": ms} for name, ms in [("a", "1"), ("b", "2"), ("a", "3")]]
    assert [row["ms"] for row in newest.last_of_each(rows, "name")] == ["3", "2"]


def test_ways_of_one_run_are_compared() -> None:
    ways = ["ours", "torch", "ours", "torch", "ours"]  # the last run was without its peer
    rows = [{"model": "m", "way": way, "ms": str(ms)} for ms, way in enumerate(ways)]
    assert [row["ms"] for row in newest.last_runs(rows, "model", "way")] == ["2", "3"]
    assert newest.last_runs(rows[:1], "model", "way") == []


def test_another_machine_is_left_out() -> None:
    rows = [{"device": device} for device in ("old GPU", "new GPU", "CPU x86_64")]
    assert newest.on_gpu(rows) == [{"device": "new GPU"}]
    assert newest.on_gpu(rows[2:]) == []
    assert newest.on_cpu(rows) == rows[2:]


def test_days_are_named() -> None:
    rows = [{**GPU, "date": "2026-01-05"}, GPU]
    assert newest.where_and_when(rows) == "a GPU, 2026-01-02 to 2026-01-05, torch 2.11"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("16384", "16,384"),
        ("0.0123456", "0.0123"),
        ("1234.6", "1,235"),
        ("9.999", "10.00"),
        ("0.0", "0"),
        ("B8", "B8"),
        ("", ""),
    ],
)
def test_numbers_are_short(text: str, expected: str) -> None:
    assert page.short(text) == expected


def test_the_page_is_written_between_its_marks(results: pathlib.Path) -> None:
    report.append("ops", [operator("Slow", 0.5), operator("Quick", 1.0)])
    report.append("ops", [operator("Quick", 2.0)])
    page.write()
    text = page.PAGE.read_text()
    assert text.startswith("before\n") and text.endswith("\nbehind\n") and "old" not in text
    assert "All together: 1.00 times the speed" in text
    assert "| Quick | 1 | torch | 2.00x | 2.00x to 2.00x | 80% to 80% |" in text
    assert "models.png" not in text, "there are no figures for it"
    page.write()
    assert page.PAGE.read_text() == text


def test_every_picture_is_drawn(results: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    import pictures

    planned = ("nodes", "prepare s", "gradient s", "session s", "trainer s")
    report.append("ops", [operator("Quick", 2.0), operator("Quick", 1.0, type="bfloat16")])
    report.append("models", [step("gpt2", "onnxtrain", 1.0), step("gpt2", "torch eager", 2.0)])
    report.append("scaling", grown())
    losses = {"onnxtrain": 2.0, "torch bfloat16": 2.0, "torch float32": 2.02}
    curves = [{"model": "gpt2", "step": step, **losses} for step in (0, 1)]
    report.append("curves", curves)
    report.append("curves", [{**row, "onnxtrain": 2.1, "start": 1} for row in curves])
    assert [path.name for path in pictures.draw(results / "some")] == [
        "kernels.png", "models.png", "curves.png", "scaling.png",
    ]  # fmt: skip
    compared = "2.05 | 2.05 | 2.00 | 2.500% | 1.000% | 5.000% | 0.000%"
    assert f"| gpt2 | 2 | 2 | {compared} |" in page.section()
    assert capsys.readouterr().out == "no figures for planning.png\n"
    more = {"weights": 1, "trainer ms per node": 1.0}
    report.append("planning", [{**dict.fromkeys(planned, n), **more} for n in (10, 100)])
    drawn = pictures.draw(results / "all")
    assert [path.name for path in drawn] == [part[1] for part in page.PARTS if part[1]]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)
    assert all(f"images/{path.name}" in page.section() for path in drawn)


def test_speed_is_that_of_recorded_calls_if_it_is_known() -> None:
    row = {"times faster": "3", "times faster recorded": "2", "times torch": "4"}
    assert newest.times(row, "faster") == 2
    assert newest.times({**row, "times torch recorded": ""}, "torch") == 4


def test_the_documentation_shows_the_newest_results() -> None:
    shown = page.halves()[1]
    assert shown == page.section() + "\n", "python -m benchmarks pictures writes it again"


@pytest.mark.parametrize("name", ["nothing", ""])
def test_benchmarks_are_named(name: str) -> None:
    command = [sys.executable, "-m", "benchmarks", *name.split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and " scaling" in done.stderr and "growth" not in done.stderr


def test_a_row_of_an_operator_that_only_a_peer_cannot_record(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import op_row
    import ops
    from op_row import Row

    times = {"": [0.3, 0.2], "torch": [0.4, 0.5], "torch.compile": [0.1, 0.2]}
    graphs = {"": [0.1, 0.1], "torch": [0.3, 0.3]}
    monkeypatch.setattr(ops, "in_turns", lambda calls, *turns: times)
    monkeypatch.setattr(ops, "replayed", lambda row, turns: graphs)
    monkeypatch.setattr(ops, "copied", {200: 0.05}.get)
    monkeypatch.setattr(ops, "on_host", lambda call: 0.03)
    monkeypatch.setattr(op_row, "DEVICE", "cuda")
    row = Row("Gelu", "(8, 8)", torch.float32, 200, lambda: None, {})
    found = ops.measured(row, speed=1e6)
    assert (found["ms"], found["of copy"], found["best peer"]) == (0.2, 2.0, "torch.compile")
    assert (found["copy ms"], found["host ms"]) == (0.05, 0.03)
    assert [found[column] for column in ops.MEANS] == [0.5, 2.0, 2.0, 3.0, 3.0]
    assert (found["recorded ms"], found["peer recorded ms"]) == (0.1, 0.3)
    assert [found[column] for column in ops.COUNTS] == ["", ""], "only what was asked for counts"
    counted = ops.measured(row, speed=1e6, turns=2)
    assert [counted[column] for column in ("turns", *ops.COUNTS)] == [2, 1, 2]
    monkeypatch.setattr(ops, "replayed", lambda row, turns: {"": [0.1]})
    alone = ops.measured(row, speed=1e6)
    assert [alone[column] for column in ops.MEANS] == [0.5, 2.0, 2.0, "", ""]
    faster = {"": [0.2], "torch index_add": [0.3]}
    monkeypatch.setattr(ops, "in_turns", lambda calls, *turns: {**times, **faster})
    asked = ops.measured(row, speed=1e6)
    assert (asked["times torch"], asked["times default"]) == (1.5, 2.0)
    monkeypatch.setattr(ops, "in_turns", lambda calls, *turns: faster)
    assert ops.measured(row, speed=1e6)["times default"] == ""
    assert alone["recorded ms"] == 0.1
    ops.print_means([found, {**found, "times faster": 2.0}, alone])
    assert "geometric mean of 3 rows: 0.79 times" in capsys.readouterr().out


def test_rows_that_peers_come_close_to_are_chosen_by_their_last_figures() -> None:
    import ops

    def saved(shape: str, faster: float, replayed: float | str, device: str = "GPU") -> dict:
        row = {"operator": "Gelu", "shape": shape, "type": "float32", "device": device}
        return {**row, "times faster": str(faster), "times faster recorded": str(replayed)}

    rows = [
        saved("(1,)", 1.0, 1.0),
        saved("(2,)", 0.96, 1.3),
        saved("(3,)", 1.3, 1.04),
        saved("(4,)", 1.02, ""),
        saved("(5,)", 1.2, ""),
        saved("(1,)", 1.1, 1.2),
        saved("(6,)", 1.0, "", "CPU"),
    ]
    assert {shape for _, shape, _ in ops.close_ones(rows)} == {"(2,)", "(3,)", "(4,)"}


SMALL = {
    "batch_norm": [(3, 4, 5, 6)],
    "pool": [(2, 3, 9, 8)],
    "conv": [(2, 4, 6, 6)],
    "codec": [(2, 4, 8, 8)],
    "activation": [(12, 16)],
    "bias_alone": [(2, 3, 4, 8)],
    "weighted_loss": [(20, 30)],
    "concat": [(3, 4, 5)],
    "one": (8, 16),
}


@pytest.mark.parametrize("family", SMALL)
def test_operators_and_their_peers_tell_the_truth(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the CPU, where rows that are small enough are served by portable kernels."""
    import op_row
    import ops

    monkeypatch.setattr(op_row, "DEVICE", "cpu")
    rows = list(ops.FAMILIES[family](SMALL[family]))
    assert rows
    for row in rows:
        truth = row.truth()
        for name, call in {"ours": row.ours, **row.peers}.items():
            allowed = 1e-6 if row.dtype is torch.float32 else 4e-3 if name == "ours" else 1e-2
            assert ops.error(call(), truth) <= allowed, (row.name, name)
        assert row.peers, "there is something to compare with"


ON_CPU = [
    "forward",
    "norm_grad",
    "column",
    "update",
    "dropout",
    "bias_softmax",
    "norm",
    "loss",
    "gather",
    "optimizer",
]


def test_operators_are_measured_on_a_cpu(
    results: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Shapes are cut to what a CPU takes no minutes for, results are compared as on a GPU."""
    import op_row
    import op_timing
    import ops

    monkeypatch.setattr(op_row, "DEVICE", "cuda")
    monkeypatch.setattr(op_row, "MOST_ON_CPU", 1 << 12)
    monkeypatch.setattr(op_timing, "milliseconds", lambda call, **effort: 1.0)
    monkeypatch.setattr(ops, "copy_speed", lambda: 2e10)
    monkeypatch.setattr(sys, "argv", ["ops", "--device", "cpu", "--save", "--only", *ON_CPU])
    ops.main()
    rows = report.read("ops")
    assert len(rows) == capsys.readouterr().out.count("{'operator'") > 100
    assert {row["recorded ms"] for row in rows} == {""} and {row["copy TB/s"] for row in rows} == {
        "0.02"
    }
    assert "(16384, 4096)" not in {row["shape"] for row in rows}


def test_calls_on_a_cpu_are_timed_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    import op_row
    import op_timing

    monkeypatch.setattr(op_row, "DEVICE", "cpu")
    calls: list[int] = []
    assert 0 < op_timing.milliseconds(lambda: calls.append(1), rep=1) < 1
    assert len(calls) > op_timing.FEWEST


def test_anchors_are_rows_of_the_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    import op_anchors
    import ops

    shapes = [(name, shape) for name, found in op_anchors.ANCHORS.items() for shape in found]
    known = {(row["operator"], row["shape"]) for row in report.read("ops")}
    operator, ending = op_anchors.HANDED_OVER
    served = [shape for name, shape in shapes if name == operator and shape.endswith(ending)]
    assert len(served) == 3
    assert {*shapes} <= known
    rows = [
        {
            "operator": name,
            "shape": shape,
            **dict.fromkeys(ops.MEANS, 1.0 if shape in served else 2.0),
        }
        for name, shape in [*shapes, ("Gelu", "(8, 8)")]
    ]
    ops.print_means(rows)
    counts = f"over {len(shapes)} rows, 2.00 times over the {len(shapes) - 3} that"
    assert counts in capsys.readouterr().out
    assert op_anchors.summary(rows[-1:], "times faster") == ""


def test_means_if_no_anchor_took_longer_than_a_copy() -> None:
    import op_anchors

    known = {"operator": "AdamW", "shape": "124M parameters", "times torch": 2.0}
    slow, quick = {**known, "ms": 3.0, "copy ms": 1.5}, {**known, "ms": 1.0, "copy ms": 2.0}
    other = {**slow, "shape": "another"}
    assert op_anchors.at_copies([slow, quick, other], "times torch") == pytest.approx(8**0.5)
    assert op_anchors.at_copies([other], "times torch") is None


def test_the_speed_of_a_wrong_result_is_not_measured() -> None:
    import ops
    from op_row import Row

    one = torch.ones(3)
    row = Row("Gelu", "(3)", one.dtype, 12, lambda: 2 * one, {"torch": lambda: one}, lambda: one)
    with pytest.raises(ops.WrongError, match=r"Gelu \(3\) .* error 1"):
        ops.measured(row, speed=1e6)


def test_rows_that_are_behind_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    import ops

    base = {"shape": "(8, 8)", "type": "float32", "turns": 15}
    rows = [
        {**base, "operator": "Slow", "turns ahead": 2, "turns ahead recorded": ""},
        {**base, "operator": "Even", "turns ahead": 7, "turns ahead recorded": 15},
        {**base, "operator": "Once", "turns": "", "turns ahead": "", "turns ahead recorded": ""},
    ]
    ops.print_behind(rows)
    assert capsys.readouterr().out.splitlines() == [
        "called: 1 of 2 rows that were counted are behind a peer",
        "  Slow (8, 8) float32: ahead in 2 of 15 turns",
        "replayed: 0 of 1 rows that were counted are behind a peer",
    ]


def test_a_row_is_behind_if_it_is_in_most_turns() -> None:
    assert op_timing.turns_ahead([1.0, 2.0, 3.0], [1.0, 1.9, 3.1]) == 2
    assert [op_timing.is_behind(ahead, 15) for ahead in (0, 3, 4, 15)] == [True, True, False, False]
    assert not op_timing.is_behind(0, 3), "three turns say nothing"


def test_turns_of_calls_are_taken_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([5.0, 7.0, 4.0, 8.0, 6.0, 3.0])
    monkeypatch.setattr(op_timing, "milliseconds", lambda call: call() or next(times))
    called: list[str] = []
    calls = {name: functools.partial(called.append, name) for name in ("ours", "peer")}
    found = op_timing.in_turns(calls, 3)
    assert found == {"ours": [5.0, 4.0, 6.0], "peer": [7.0, 8.0, 3.0]}
    assert called == ["ours", "peer"] * 3
    assert op_timing.shortest(found) == {"ours": 4.0, "peer": 3.0}
