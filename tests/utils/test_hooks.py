from __future__ import annotations

import pytest
import torch

from onnxtrain.errors import OptionError, SaveError
from onnxtrain.utils.hooks import (
    GlobalSubscriberManager,
    StatisticsSubscriber,
    SubscriberBase,
    inspect_activation,
    merge_activation_summary,
)
from onnxtrain.utils.hooks.statistics import statistics


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 3)
        self.rest = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(3, 2))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"y": self.rest(inspect_activation("middle", self.first(x)))}


class Recorder(SubscriberBase):
    def __init__(self, *steps: int | None) -> None:
        super().__init__(*steps)
        self.seen: list[tuple[str, int, str]] = []
        self.grads: dict[str, torch.Tensor] = {}

    def on_activation(self, step, name, tensor):
        self.seen.append(("forward", step, name))

    def on_gradient(self, step, name, grad):
        self.seen.append(("backward", step, name))
        self.grads[name] = grad


@pytest.fixture(autouse=True)
def nobody_left():
    yield
    GlobalSubscriberManager.unsubscribe()


def train(model: torch.nn.Module, steps: int) -> None:
    for _ in range(steps):
        model(torch.ones(5, 4))["y"].sum().backward()


def test_every_module_is_seen_forward_and_backward():
    recorder, model = Recorder(), Model()
    GlobalSubscriberManager.subscribe(model, [recorder])
    train(model, 1)
    forward = [name for way, _, name in recorder.seen if way == "forward"]
    assert forward == ["first_0", "middle", "rest.0_0", "rest.1_0", "rest_0", "Model_0"]
    assert {name for way, _, name in recorder.seen if way == "backward"} == set(forward)
    assert torch.equal(recorder.grads["Model_0"], torch.ones(5, 2))


def test_steps_are_chosen():
    recorder, model = Recorder(1, 3), Model()
    GlobalSubscriberManager.subscribe(model, [recorder])
    train(model, 4)
    assert {step for _, step, _ in recorder.seen} == {1, 2}


def test_one_model_at_a_time():
    GlobalSubscriberManager.subscribe(Model(), [Recorder()])
    with pytest.raises(OptionError, match="watched already"):
        GlobalSubscriberManager.subscribe(Model(), [Recorder()])


def test_nobody_watches_after_unsubscribe():
    recorder, model = Recorder(), Model()
    GlobalSubscriberManager.subscribe(model, [recorder])
    GlobalSubscriberManager.unsubscribe()
    train(model, 1)
    assert recorder.seen == []


def test_training_is_not_changed():
    torch.manual_seed(0)
    model, other = Model(), Model()
    other.load_state_dict(model.state_dict())
    train(other, 1)
    GlobalSubscriberManager.subscribe(model, [Recorder()])
    train(model, 1)
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(p.grad, q.grad)


def test_statistics_are_written(tmp_path):
    model = Model()
    folder = tmp_path / "out"
    GlobalSubscriberManager.subscribe(model, [StatisticsSubscriber(str(folder), end_step=2)])
    train(model, 3)
    assert sorted(path.name for path in folder.iterdir()) == ["step_0", "step_1"]
    files = {path.name for path in (folder / "step_1").iterdir()}
    assert {"first_0_forward", "first_0_backward", "rest.1_0_forward"} <= files
    text = (folder / "step_0" / "Model_0_backward").read_text().splitlines()
    assert text[:4] == ["shape: [5, 2]", "dtype: torch.float32", "min: 1", "max: 1"]
    with pytest.raises(SaveError, match="exists"):
        StatisticsSubscriber(str(folder))
    StatisticsSubscriber(str(folder), override_output_dir=True)
    assert not folder.exists()


def written(folder, steps):
    """The statistics of a model that trained so many steps."""
    torch.manual_seed(0)
    model = Model()
    GlobalSubscriberManager.subscribe(model, [StatisticsSubscriber(str(folder))])
    train(model, steps)
    GlobalSubscriberManager.unsubscribe()
    return folder


def test_statistics_of_two_runs_in_one_order(tmp_path, capsys):
    one, other, output = (
        written(tmp_path / "one", 2),
        written(tmp_path / "other", 2),
        tmp_path / "c",
    )
    names = (one / "step_0" / "order.txt").read_text().split()
    assert {*names} == {path.name for path in (one / "step_0").iterdir()} - {"order.txt"}
    assert names.index("first_0_forward") < names.index("first_0_backward")
    (other / "step_0" / "order.txt").write_text("\n".join(reversed(names)) + "\n")
    (other / "step_1" / names[0]).unlink()
    given = ["--pt_dir", str(one), "--ort_dir", str(other), "--output_dir", str(output)]
    merge_activation_summary.main(given)
    assert capsys.readouterr().err == f"there is no '{other / 'step_1' / names[0]}'\n"
    texts = [(one / "step_0" / name).read_text() for name in names]
    for kind in ("merge_pt", "merge_ort"):
        assert sorted(path.name for path in (output / kind).iterdir()) == [
            "step_0_.txt", "step_1_.txt",
        ]  # fmt: skip
        assert (output / kind / "step_0_.txt").read_text() == "\n".join([*texts, ""])
    short, long = (
        (output / kind / "step_1_.txt").read_text() for kind in ("merge_ort", "merge_pt")
    )
    assert long.endswith(short) and len(short) < len(long)
    with pytest.raises(SaveError, match="--overwrite"):
        merge_activation_summary.main(given)
    merge_activation_summary.main([*given, "--overwrite"])


def test_what_is_no_run_is_told(tmp_path):
    run = written(tmp_path / "run", 1)
    with pytest.raises(OptionError, match="has no folders of steps"):
        merge_activation_summary.merge(run, tmp_path / "none", tmp_path / "c")
    for output in (run, tmp_path):
        with pytest.raises(OptionError, match="write somewhere else"):
            merge_activation_summary.merge(run, run, output, overwrite=True)
    (run / "step_0" / "order.txt").unlink()
    with pytest.raises(OptionError, match=r"no step in .* has 'order.txt'"):
        merge_activation_summary.merge(run, run, tmp_path / "c")
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("bucket", [2, 100])
def test_numbers(bucket):
    values = torch.tensor([1.0, -3.0, 0.0, torch.inf, torch.nan, 2.0])
    found = statistics(values, bucket)
    finite = values[values.isfinite()].double()
    counts = {key: found.pop(key) for key in ("negative", "positive", "zero", "inf", "nan")}
    assert counts == {"negative": 1, "positive": 3, "zero": 1, "inf": 1, "nan": 1}
    expected = [finite.min(), finite.max(), finite.mean(), finite.std(correction=0)]
    assert list(found.values()) == pytest.approx([float(e) for e in expected])
