from __future__ import annotations

import copy
from collections import namedtuple

import pytest
import torch

from onnxtrain.errors import OptionError, SaveError
from onnxtrain.utils.hooks import (
    GlobalSubscriberManager,
    StatisticsSubscriber,
    inspect_activation,
    merge_activation_summary,
)
from onnxtrain.utils.hooks._statistics_subscriber import statistics
from onnxtrain.utils.hooks._subscriber_base import RuntimeStates, SubscriberBase
from onnxtrain.utils.hooks._subscriber_manager import no_increase_global_step


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 3)
        self.rest = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(3, 2))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"y": self.rest(inspect_activation("middle", self.first(x)))}


class Recorder(SubscriberBase):
    """Notes all calls."""

    def __init__(self, start_step=None, end_step=None) -> None:
        super().__init__(start_step=start_step, end_step=end_step)
        self.seen: list[tuple[str, int, int, object]] = []

    def note(self, what, run_rtx, module, more=None):
        states = run_rtx.global_states
        index = states.module_to_module_index[module]
        self.seen.append((what, states.execution_step, index, more))
        assert isinstance(run_rtx, RuntimeStates)

    def pre_forward_module_apply_impl(self, run_rtx, module, args, kwargs):
        self.note("module", run_rtx, module, (len(args), [*kwargs]))
        return args, kwargs

    def pre_forward_tensor_apply_impl(self, run_rtx, module, tensor_index, tensor):
        self.note("argument", run_rtx, module, tensor_index)
        return tensor

    def post_forward_module_apply_impl(self, run_rtx, module, args, outputs):
        self.note("done", run_rtx, module, type(outputs).__name__)
        return args, outputs

    def post_forward_tensor_apply_impl(self, run_rtx, module, tensor_index, tensor):
        self.note("result", run_rtx, module, tensor_index)
        return tensor

    def post_forward_outmost_module_apply_impl(self, run_rtx, module, args, outputs):
        self.note("end", run_rtx, module)
        return args, outputs


class Watching(StatisticsSubscriber):
    """Keeps what would be written."""

    def __init__(self, *steps: int | None) -> None:
        super().__init__("nowhere", *steps)
        self.seen: list[tuple[str, int, str]] = []
        self.depths: dict[str, int] = {}
        self.grads: dict[str, torch.Tensor] = {}

    def module_post_forward_impl(self, activation, depth, name, step):
        self.seen.append(("forward", step, name))
        self.depths[name] = depth

    def module_pre_backward_impl(self, activation, depth, name, step):
        self.seen.append(("backward", step, name))
        self.grads[name] = activation


@pytest.fixture(autouse=True)
def nobody_left():
    yield
    GlobalSubscriberManager.unsubscribe()


def train(model: torch.nn.Module, steps: int) -> None:
    for _ in range(steps):
        model(torch.ones(5, 4))["y"].sum().backward()


def test_every_module_is_seen_forward_and_backward():
    watching, model = Watching(), Model()
    GlobalSubscriberManager.subscribe(model, [watching])
    train(model, 1)
    forward = [name for way, _, name in watching.seen if way == "forward"]
    assert forward == ["first_0", "middle", "rest.0_0", "rest.1_0", "rest_0", "Model_0"]
    assert {name for way, _, name in watching.seen if way == "backward"} == set(forward)
    assert torch.equal(watching.grads["Model_0"], torch.ones(5, 2))
    assert watching.depths == {
        "first_0": 2, "middle": -1, "rest.0_0": 3, "rest.1_0": 3, "rest_0": 2, "Model_0": 1,
    }  # fmt: skip


def test_methods_of_a_subscriber_are_called_in_their_order():
    class Named(torch.nn.Linear):
        def forward(self, x, *, scale, other=None):
            return namedtuple("Found", ["y", "n"])(super().forward(x) * scale, 3)

    class Outer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Named(4, 3)

        def forward(self, x):
            return [self.inner(x, scale=x[0, 0]).y, x]

    recorder, model = Recorder(start_step=1), Outer()
    GlobalSubscriberManager.subscribe(model, [recorder])
    for _ in range(2):
        model(torch.ones(5, 4))
    assert recorder.seen == [
        ("module", 1, 0, (1, [])),
        ("argument", 1, 0, 0),
        ("module", 1, 1, (1, ["scale"])),
        ("argument", 1, 1, 0),
        ("argument", 1, 1, 0),  # those with names are counted for themselves
        ("done", 1, 1, "Found"),
        ("result", 1, 1, 0),
        ("done", 1, 0, "list"),
        ("result", 1, 0, 0),
        ("result", 1, 0, 1),
        ("end", 1, 0, None),
    ]
    assert GlobalSubscriberManager.get_run_context().global_states.execution_step == 2


def test_subscribers_change_what_they_give_back():
    class Doubling(SubscriberBase):
        def __init__(self):
            super().__init__(None, 1)

        def pre_forward_tensor_apply_impl(self, run_rtx, module, tensor_index, tensor):
            return tensor * 2

        def post_forward_module_apply_impl(self, run_rtx, module, args, outputs):
            return args, outputs + 1

    model, x = torch.nn.ReLU(), torch.ones(3)
    GlobalSubscriberManager.subscribe(model, [Doubling(), Recorder()])
    assert model(x).tolist() == [3, 3, 3]
    assert model(x).tolist() == [1, 1, 1]
    assert GlobalSubscriberManager.get_subscriber(Doubling)._end_step == 1
    with pytest.raises(OptionError, match="no subscriber Watching\n  have  Doubling, Recorder"):
        GlobalSubscriberManager.get_subscriber(Watching)


def test_results_may_be_changed_in_place():
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(inplace=True))
    plain, x = copy.deepcopy(model), torch.randn(5, 4)
    plain(x).sum().backward()
    GlobalSubscriberManager.subscribe(model, [Watching()])
    model(x).sum().backward()
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(p.grad, q.grad)


def test_steps_are_chosen():
    watching, model = Watching(1, 3), Model()
    GlobalSubscriberManager.subscribe(model, [watching])
    with no_increase_global_step():
        train(model, 2)
    assert watching.seen == []
    train(model, 4)
    assert {step for _, step, _ in watching.seen} == {1, 2}


def test_one_model_at_a_time():
    first, second = Watching(), Watching()
    model = Model()
    GlobalSubscriberManager.subscribe(model, [first])
    train(model, 1)
    before = len(first.seen)
    other = Model()
    GlobalSubscriberManager.subscribe(other, [second])
    train(model, 1)
    assert {name for _, _, name in second.seen} == {"middle"}  # which the code of the model shows
    train(other, 1)
    assert len(first.seen) == before and {step for _, step, _ in second.seen} == {0}
    for wrong in ([], [3]):
        with pytest.raises(OptionError, match="subscriber"):
            GlobalSubscriberManager.subscribe(model, wrong)
    with pytest.raises(OptionError, match=r"torch\.nn\.Module, not str"):
        GlobalSubscriberManager.subscribe("model", [first])


def test_copies_are_watched_as_well():
    watching, model = Watching(), Model()
    GlobalSubscriberManager.subscribe(model, [watching])
    train(copy.deepcopy(model), 1)
    assert ("backward", 0, "rest.1_0") in watching.seen


def test_nobody_watches_after_unsubscribe():
    watching, model = Watching(), Model()
    GlobalSubscriberManager.subscribe(model, [watching])
    GlobalSubscriberManager.unsubscribe()
    train(model, 1)
    assert watching.seen == []


def test_training_is_not_changed():
    torch.manual_seed(0)
    model, other = Model(), Model()
    other.load_state_dict(model.state_dict())
    train(other, 1)
    GlobalSubscriberManager.subscribe(model, [Recorder(), Watching()])
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
