"""Modules that torch runs itself, and what is said of them."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from onnxtrain import ORTModule
from onnxtrain.errors import NoGradientError
from ortmodule.modules import Convolutional, images, rows


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        return y * 2 if y.sum() > 0 else y


def test_torch_runs_what_cannot_be_exported(capfd: pytest.CaptureFixture[str]) -> None:
    plain = Branching()
    wrapped = ORTModule(copy.deepcopy(plain))
    with pytest.warns(UserWarning, match="torch runs Branching itself: .*data-dependent") as told:
        for _ in range(2):
            x = rows(3)
            torch.testing.assert_close(wrapped(x), plain(x))
    assert [warning.filename for warning in told] == [__file__]
    assert "def forward" not in capfd.readouterr().err  # the exporter would print its graph


@pytest.mark.usefixtures("strict")
def test_unless_that_is_forbidden() -> None:
    with pytest.raises(Exception, match="data-dependent"):
        ORTModule(Branching())(rows(3))


@pytest.mark.usefixtures("strict")
def test_a_function_that_cannot_be_a_node_is_named() -> None:
    class Odd(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> tuple[Tensor, int]:
            return x * 2, 3

        @staticmethod
        def backward(ctx: Any, grad: Tensor, _: Any) -> Tensor:
            return grad

    class Calls(Branching):
        def forward(self, x: Tensor) -> Tensor:
            return Odd.apply(self.linear(x))[0]

    with pytest.raises(NoGradientError, match=r"Odd takes no tensor, or gives something else"):
        ORTModule(Calls())(rows(3))


def counted(wrapped: ORTModule) -> list[Any]:
    """What gets an entry from now on when the one session of a module runs."""
    (session,) = wrapped._all_sessions()
    run, runs = session.run, []

    def noted(tensors: Any) -> Any:
        runs.append(tensors)
        return run(tensors)

    session.run = noted
    return runs


def test_too_many_kinds_of_arguments_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxtrain.ortmodule.module.MOST", 1)
    wrapped, x = ORTModule(Convolutional()), images(2)
    with pytest.warns(UserWarning, match="arguments of more than 1 kinds") as told:
        for scale in (1.0, 2.0, 3.0):
            wrapped(x, scale)
    assert len(told) == 1
    runs = counted(wrapped)
    wrapped(x, 1.0)
    wrapped(x, 2.0)
    assert len(runs) == 1, "what was exported serves as before"


def test_a_failure_leaves_what_was_exported() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    wrapped, x = ORTModule(module), rows(3)
    wrapped(x)
    module[1].p = 1.0  # which no Dropout of ONNX has
    with pytest.warns(UserWarning, match="ratio is 1.0"):
        assert not wrapped(x).any()
    module[1].p = 0.5
    runs = counted(wrapped)
    assert wrapped(x).any() and len(runs) == 1
