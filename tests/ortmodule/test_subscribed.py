"""Subscribers of modules that run as programs."""

import copy
import pathlib
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from onnxtrain import ORTModule
from onnxtrain.utils.hooks import (
    GlobalSubscriberManager,
    StatisticsSubscriber,
    inspect_activation,
)

pytestmark = pytest.mark.usefixtures("strict")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"y": self.second(inspect_activation("middle", self.first(x)).tanh())}


@pytest.fixture(autouse=True)
def nobody_left() -> Iterator[None]:
    yield
    GlobalSubscriberManager.unsubscribe()


def written(module: nn.Module, folder: pathlib.Path, x: torch.Tensor) -> dict[str, str]:
    """Texts of files that are written in the steps 1 and 2 of four."""
    watching = StatisticsSubscriber(str(folder), start_step=1, end_step=3)
    GlobalSubscriberManager.subscribe(module, [watching])
    for _ in range(3):
        module(x)["y"].square().sum().backward()
    with torch.no_grad():
        module(x)
    assert GlobalSubscriberManager.get_run_context().global_states.execution_step == 4
    paths = (path for path in folder.rglob("*") if path.is_file() and path.name != "order.txt")
    return {str(path.relative_to(folder)): path.read_text() for path in paths}


@pytest.mark.parametrize("before", [False, True])
def test_statistics_are_those_of_torch(tmp_path: pathlib.Path, before: bool) -> None:
    """Also of a module that has been exported before somebody looks."""
    torch.manual_seed(0)
    plain, x = Model().double(), torch.randn(3, 4, dtype=torch.float64)
    wrapped = ORTModule(copy.deepcopy(plain))
    if before:
        wrapped(x)
    theirs = written(plain, tmp_path / "torch", x)
    ours = written(wrapped, tmp_path / "ours", x)
    assert ours == theirs
    assert {path.partition("/")[0] for path in ours} == {"step_1", "step_2"}
    names = {f"{name}_{way}" for name in ("first_0", "middle") for way in ("forward", "backward")}
    assert {f"step_2/{name}" for name in names} <= ours.keys()
    GlobalSubscriberManager.unsubscribe()
    wrapped(x)
    assert len([*(tmp_path / "ours").iterdir()]) == 2


def test_steps_without_gradients_are_counted(tmp_path: pathlib.Path) -> None:
    wrapped = ORTModule(Model())
    GlobalSubscriberManager.subscribe(wrapped, [StatisticsSubscriber(str(tmp_path / "a"))])
    with torch.no_grad():
        for _ in range(2):
            wrapped(torch.ones(3, 4))
    assert (tmp_path / "a" / "step_1" / "second_0_forward").exists()
