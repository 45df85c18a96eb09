"""What a wrapped module gives and takes for the module."""

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from onnxtrain import ORTModule
from onnxtrain.errors import OptionError
from ortmodule.modules import Tied, rows


class TestStandsForTheModule:
    def test_names(self) -> None:
        plain = Tied()
        wrapped = ORTModule(plain)
        assert [*wrapped.state_dict()] == [*plain.state_dict()]
        assert [n for n, _ in wrapped.named_parameters()] == [
            n for n, _ in plain.named_parameters()
        ]
        assert [*wrapped.children()] == [*plain.children()]
        assert wrapped.module is plain and wrapped.table is plain.table
        assert repr(wrapped) == f"ORTModule({plain!r})"
        with pytest.raises(AttributeError, match="'Tied' object has no attribute 'nothing'"):
            wrapped.nothing  # noqa: B018

    def test_attributes_that_are_set(self) -> None:
        class Scaled(nn.Linear):
            factor = 2.0

            def forward(self, x: Tensor) -> Tensor:
                return super().forward(x) * self.factor

        plain = Scaled(4, 4)
        wrapped, x = ORTModule(plain), rows(2)
        first = wrapped(x)
        wrapped.factor = 4.0
        assert plain.factor == 4.0
        torch.testing.assert_close(wrapped(x), first * 2)

    def test_types(self) -> None:
        wrapped = ORTModule(nn.Linear(4, 4))
        wrapped(rows(2))
        assert wrapped.double()(rows(2).double()).dtype is torch.float64

    def test_weights_that_are_loaded(self) -> None:
        first, second, x = ORTModule(nn.Linear(4, 4)), nn.Linear(4, 4), rows(2)
        first(x)
        first.load_state_dict(second.state_dict())
        torch.testing.assert_close(first(x), second(x))

    @pytest.mark.parametrize("assign", [False, True])
    def test_weights_of_a_module_that_has_a_wrapped_one(self, assign: bool) -> None:
        def made() -> nn.Module:
            body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
            return nn.ModuleDict({"body": ORTModule(body), "head": ORTModule(nn.Linear(4, 2))})

        first, second = made(), made()
        second["body"](rows(3))
        assert [*first.state_dict()][:2] == ["body.0.weight", "body.0.bias"]
        assert not torch.equal(first["head"].weight, second["head"].weight)
        first.load_state_dict(second.state_dict(), assign=assign)
        torch.testing.assert_close(first.state_dict(), second.state_dict(), rtol=0, atol=0)
        x = rows(3)
        expected, found = (m.eval()["head"](m["body"](x)) for m in (second, first))
        torch.testing.assert_close(found, expected)
        assert len([*first.modules()]) == 5
        with pytest.raises(RuntimeError, match=r"size mismatch for body\.0\.weight"):
            first.load_state_dict({**second.state_dict(), "body.0.weight": torch.ones(2, 2)})

    @pytest.mark.parametrize("again", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
    def test_copies(self, again: Callable[[ORTModule], ORTModule]) -> None:
        wrapped, x = ORTModule(nn.Linear(4, 4)), rows(2)
        expected = wrapped(x)
        other = again(wrapped)
        assert other.weight is not wrapped.weight
        torch.testing.assert_close(other(x), expected)

    def test_what_cannot_be_wrapped(self) -> None:
        with pytest.raises(OptionError, match=r"wraps a torch\.nn\.Module, not function"):
            ORTModule(rows)
        with pytest.raises(OptionError, match="DistributedDataParallel"):
            ORTModule(nn.DataParallel(nn.Linear(4, 4)))
        with pytest.raises(OptionError, match="before it is wrapped"):
            ORTModule(nn.Linear(4, 4)).add_module("more", nn.ReLU())
