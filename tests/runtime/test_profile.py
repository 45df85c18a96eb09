import json
import pathlib

import torch

from onnxtrain.runtime.options import SessionOptions
from onnxtrain.runtime.profile import Profiler
from onnxtrain.runtime.program import Program
from onnxtrain.runtime.session import InferenceSession
from runtime.small import REGISTRY, model, plan

TEXT = "(float[2] x) => (float[2] w) { y = Neg(x)  z = Abs(y)  w = Sub(y, z) }"


def test_the_trace_has_one_event_per_node_and_run(tmp_path: pathlib.Path) -> None:
    options = SessionOptions(enable_profiling=True, profile_file_prefix=str(tmp_path / "trace"))
    runs = InferenceSession(model(TEXT), options, registry=REGISTRY)
    for _ in range(2):
        assert runs.run_torch(None, {"x": torch.ones(2)})[0].tolist() == [-2, -2]
    path = pathlib.Path(runs.end_profiling())
    assert path.parent == tmp_path and path.suffix == ".json"
    events = json.loads(path.read_text())["traceEvents"]
    nodes = [e for e in events if e["tid"] == "host"]
    assert [e["name"] for e in nodes] == ["Neg_y", "Abs_z", "Sub_w"] * 2
    assert [e["cat"] for e in nodes[:3]] == ["Neg", "Abs", "Sub"]
    assert all(e["ph"] == "X" and e["dur"] >= 0 and e["pid"] == 0 for e in events)
    whole = [e for e in events if e["tid"] == "run"]
    for run, first, last in zip(whole, nodes[::3], nodes[2::3], strict=True):
        assert run["ts"] <= first["ts"]
        assert last["ts"] + last["dur"] <= run["ts"] + run["dur"] + 1e-3
    assert nodes[0]["args"]["output"] == "Neg -> float[2]"


def test_two_traces_do_not_overwrite_each_other(tmp_path: pathlib.Path) -> None:
    profiler = Profiler(Program(plan(TEXT), torch.device("cpu")))
    profiler(torch.ones(2))
    prefix = str(tmp_path / "trace")
    assert profiler.write(prefix) != profiler.write(prefix)


def test_totals_are_by_operator_largest_first() -> None:
    profiler = Profiler(Program(plan(TEXT), torch.device("cpu")))
    profiler(torch.ones(2))
    totals = profiler.totals()
    assert totals.keys() == {"Neg", "Abs", "Sub"}
    assert list(totals.values()) == sorted(totals.values(), reverse=True)


def test_without_profiling_there_is_no_trace() -> None:
    runs = InferenceSession(model(TEXT), registry=REGISTRY)
    assert runs.end_profiling() == ""
