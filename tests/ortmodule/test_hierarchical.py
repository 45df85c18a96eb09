"""Modules of which the largest parts that can be exported run in onnxtrain, and torch the rest."""

import copy
import inspect
import io
import logging
import pathlib
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from onnxtrain import ORTModule
from onnxtrain.ortmodule import DebugOptions, LogLevel
from onnxtrain.ortmodule.experimental.hierarchical_ortmodule import HierarchicalORTModule, Part
from ortmodule.modules import total

INFO = DebugOptions(log_level=LogLevel.INFO)


@pytest.fixture
def said() -> Iterator[list[tuple[str, str]]]:
    """Levels and texts of what is logged."""
    found: list[tuple[str, str]] = []
    handler = logging.Handler()
    handler.emit = lambda record: found.append((record.levelname, record.getMessage()))  # type: ignore[method-assign]
    logger = logging.getLogger("onnxtrain.ortmodule")
    logger.addHandler(handler)
    yield found
    logger.removeHandler(handler)


class Branching(nn.Module):
    """Looks at a value, which no graph can."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh())
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.inner(x))
        return y * 2 if y.sum() > 0 else y


class Whole(nn.Module):
    """One of its parts branches, others are in lists, and one is called by another method."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.layers = nn.ModuleList([Branching(), nn.Linear(4, 4)])
        self.named = nn.ModuleDict({"one": nn.Linear(4, 4)})
        self.coder = Coder()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        assert isinstance(self.layers[0], Branching)
        return self.coder.encode(self.named["one"](x)), x


class Coder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def encode(self, x: Tensor) -> Tensor:
        return self.linear(x)


def rows(n: int = 3) -> Tensor:
    return torch.randn(n, 4, requires_grad=True)


def where(wrapped: HierarchicalORTModule) -> set[str]:
    """Paths of what has been exported."""
    found = {""} if any(wrapped._all_sessions()) else set()
    for path, module in wrapped.module.named_modules():
        part = module.__dict__.get("forward")
        if isinstance(part, Part) and any(part._all_sessions()):
            found.add(path)
    return found


def same_steps(plain: nn.Module, wrapped: nn.Module, *calls: tuple[Any, ...]) -> None:
    """Results, gradients of everything and buffers are those of torch."""
    for args in calls:
        given = [[a.detach().clone().requires_grad_(a.requires_grad) for a in args] for _ in "ab"]
        for module, own in zip((plain, wrapped), given, strict=True):
            module.zero_grad()
            own.append(module(*own))
            total(own[-1]).backward()
        torch.testing.assert_close(given[1][-1], given[0][-1])
        for mine, theirs in zip(given[1][:-1], given[0][:-1], strict=True):
            torch.testing.assert_close(mine.grad, theirs.grad)
        pairs = zip(wrapped.named_parameters(), plain.named_parameters(), strict=True)
        for (name, p), (other, q) in pairs:
            assert name == other
            torch.testing.assert_close(p.grad, q.grad)
    torch.testing.assert_close(wrapped.state_dict(), plain.state_dict())


def test_the_largest_parts_are_exported(said: list[tuple[str, str]]) -> None:
    plain = Whole()
    wrapped = HierarchicalORTModule(copy.deepcopy(plain), INFO)
    same_steps(plain, wrapped, (rows(),), (rows(),), (rows(7),))
    assert where(wrapped) == {"first", "layers.0.inner", "layers.1", "named.one", "coder.linear"}
    assert ("INFO", "'layers.0.inner' (Sequential) runs in onnxtrain") in said
    assert ("INFO", "'layers.0.act' (ReLU) is run by torch: it has no parameters") in said
    first, second = [text.splitlines()[0] for level, text in said if level == "WARNING"]
    assert first.startswith("Whole is run by torch, and its parts are tried: GuardOnData")
    assert second.startswith("'layers.0' (Branching) is run by torch, and its parts are tried: G")


def test_a_module_that_can_be_exported_is_one_part(said: list[tuple[str, str]]) -> None:
    plain = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    wrapped = HierarchicalORTModule(copy.deepcopy(plain), INFO)
    same_steps(plain, wrapped, (rows(),), (rows(),))
    assert where(wrapped) == {""}
    assert ("INFO", "Sequential runs in onnxtrain") in said
    assert all("forward" not in vars(part) for part in wrapped.module.modules())


def test_it_stands_for_the_module() -> None:
    module = Odd(nn.Linear(4, 4))
    names = list(module.state_dict())
    parts = dict(module.named_modules())
    wrapped = HierarchicalORTModule(module)
    wrapped(rows())
    assert wrapped.module is module and isinstance(wrapped, ORTModule)
    assert list(wrapped.state_dict()) == names
    assert dict(wrapped.named_modules()) == parts
    assert [p is q for p, q in zip(wrapped.parameters(), module.parameters(), strict=True)]
    assert wrapped.parts[0] is module.parts[0] and isinstance(wrapped.parts[0], nn.Linear)
    assert repr(wrapped) == f"HierarchicalORTModule({module!r})"


def test_modes_of_training() -> None:
    plain = Odd(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
    wrapped = HierarchicalORTModule(copy.deepcopy(plain))
    same_steps(plain, wrapped, (rows(),))
    for module in (plain, wrapped):
        module.eval()
    assert not wrapped.parts[0][1].training
    same_steps(plain, wrapped, (rows(),))
    x = rows()
    with torch.no_grad():
        torch.testing.assert_close(wrapped(x), plain(x))
    for module in (plain, wrapped):
        module.train()
    same_steps(plain, wrapped, (rows(),))


class Repeated(nn.Module):
    """Calls one part with arguments of several kinds, as often as it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.part = Scaled()

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 1e9:
            return x
        y = self.part(self.part(x), factor=2.0)
        return self.part(y[None], torch.ones(4))[0]


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor, shift: Tensor | None = None, factor: float = 1.0) -> Tensor:
        y = self.linear(x) * factor
        return y if shift is None else y + shift


def test_equal_reasons_are_warned_of_once(said: list[tuple[str, str]]) -> None:
    class Looking(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            y = super().forward(x)
            return y if y.sum() > 1e9 else y + 1

    HierarchicalORTModule(nn.Sequential(Looking(4, 4), Looking(4, 4)), INFO)(rows())
    levels = [level for level, text in said if "(Looking) is run by torch: GuardOn" in text]
    assert levels == ["WARNING", "INFO"]


def test_one_part_called_in_several_ways() -> None:
    plain = Repeated()
    wrapped = HierarchicalORTModule(copy.deepcopy(plain))
    same_steps(plain, wrapped, (rows(),), (rows(5),))
    assert len([*wrapped.module.part.forward._all_sessions()]) == 3


class Odd(nn.Module):
    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x if x.sum() > 1e9 else x + 1


def test_a_part_that_is_there_twice() -> None:
    shared = nn.Linear(4, 4)
    plain = Odd(shared, nn.Tanh(), shared)
    wrapped = HierarchicalORTModule(copy.deepcopy(plain))
    same_steps(plain, wrapped, (rows(),))
    assert where(wrapped) == {"parts.0"}
    assert wrapped.parts[0] is wrapped.parts[2]


def test_parts_that_are_wrapped_already() -> None:
    plain = Odd(nn.Linear(4, 4), Odd(nn.Linear(4, 4)))
    inner = HierarchicalORTModule(copy.deepcopy(plain.parts[1]))
    nested = Odd(ORTModule(copy.deepcopy(plain.parts[0])), inner)
    wrapped = HierarchicalORTModule(nested)
    same_steps(plain, wrapped, (rows(),), (rows(),))
    assert where(wrapped) == {"parts.1.parts.0"} and any(nested.parts[0]._all_sessions())
    # and where the outer one can be exported, with what is in it
    outer = nn.Sequential(HierarchicalORTModule(nn.Linear(4, 4)), nn.Tanh())
    twin = nn.Sequential(copy.deepcopy(outer[0].module), nn.Tanh())
    once = HierarchicalORTModule(outer)
    same_steps(twin, once, (rows(),))
    assert where(once) == {""} and not any(outer[0]._all_sessions())


def test_hooks_of_parts_run_in_every_call() -> None:
    plain = Odd(nn.Linear(4, 4))
    wrapped = HierarchicalORTModule(copy.deepcopy(plain))
    seen: list[Any] = []
    for module in (plain, wrapped.module):
        module.parts[0].register_forward_hook(lambda module, args, result: result * 3)
        module.parts[0].register_full_backward_hook(lambda *args: seen.append(args[0]))
    same_steps(plain, wrapped, (rows(),), (rows(),))
    assert where(wrapped) == {"parts.0"}
    assert seen == [plain.parts[0], wrapped.parts[0]] * 2


class Computed(nn.Linear):
    """A hook computes a weight before each call, as that of ``torch.nn.utils.weight_norm``."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.raw = nn.Parameter(torch.linspace(-1, 1, sizes[1]))
        self.register_forward_pre_hook(compute)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.scale


def compute(module: Computed, args: Any) -> None:
    module.scale = module.raw.exp()


def test_weights_that_a_hook_computes() -> None:
    plain = Odd(Computed(4, 4))
    wrapped = HierarchicalORTModule(copy.deepcopy(plain))
    for _ in range(2):
        same_steps(plain, wrapped, (rows(),))
        for module in (plain, wrapped):
            torch.optim.SGD(module.parameters(), 0.1).step()
    with torch.no_grad():
        torch.testing.assert_close(wrapped(x := rows()), plain(x))
    assert where(wrapped) == {"parts.0"}
    assert len([*wrapped.parts[0].forward._all_sessions()]) == 2


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_around_parts(reentrant: bool) -> None:
    class Again(Odd):
        def forward(self, x: Tensor) -> Tensor:
            y = checkpoint(lambda t: self.parts[0](t).tanh(), x, use_reentrant=reentrant)
            return super().forward(y)

    plain = Again(nn.Linear(4, 4), nn.Linear(4, 4))
    wrapped = HierarchicalORTModule(copy.deepcopy(plain))
    same_steps(plain, wrapped, (rows(),), (rows(),))
    assert where(wrapped) == {"parts.0", "parts.1"}


def test_arguments_of_other_classes() -> None:
    class Setting:
        factor = 2.0

    class Takes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor, setting: Setting) -> Tensor:
            return self.linear(x) * setting.factor

    plain = Takes()
    wrapped, x = HierarchicalORTModule(copy.deepcopy(plain)), rows()
    torch.testing.assert_close(wrapped(x, Setting()), plain(x, Setting()))
    assert where(wrapped) == {"linear"}


@pytest.mark.parametrize("again", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m)), "torch"])
def test_copies_have_parts_of_their_own(again: Callable[..., Any] | str) -> None:
    wrapped = HierarchicalORTModule(Odd(nn.Linear(4, 4)))
    wrapped(rows())
    if callable(again):
        other = again(wrapped)
    else:
        file = io.BytesIO()
        torch.save(wrapped, file)
        other = torch.load(io.BytesIO(file.getvalue()), weights_only=False)
    with torch.no_grad():
        other.parts[0].weight.zero_()
    plain = Odd(nn.Linear(4, 4))
    plain.load_state_dict(other.state_dict())
    same_steps(plain, other, (rows(),))
    assert where(other) == {"parts.0"}
    assert wrapped.parts[0].weight.any()


def test_another_type_is_decided_anew() -> None:
    plain = Odd(nn.Linear(4, 4))
    wrapped = HierarchicalORTModule(copy.deepcopy(plain))
    wrapped(rows())
    part = wrapped.parts[0].forward
    same_steps(plain.double(), wrapped.double(), (rows().double(),))
    assert wrapped.parts[0].forward is not part and where(wrapped) == {"parts.0"}


def test_a_forward_function_of_an_instance_is_kept() -> None:
    module = Odd(nn.Linear(4, 4))
    own = module.parts[0].forward
    module.parts[0].forward = lambda x: own(x) * 5
    expected = module(x := rows())
    wrapped = HierarchicalORTModule(module)
    torch.testing.assert_close(wrapped(x), expected)
    assert where(wrapped) == {"parts.0"}
    wrapped._forget()
    torch.testing.assert_close(module(x), expected)
    assert not isinstance(module.parts[0].forward, Part)


def test_states_of_onnxruntime_are_loaded() -> None:
    plain = Odd(nn.Linear(4, 4), nn.BatchNorm1d(4))
    state = {f"_original_module.{name}": value for name, value in plain.state_dict().items()}
    wrapped = HierarchicalORTModule(Odd(nn.Linear(4, 4), nn.BatchNorm1d(4)))
    wrapped.load_state_dict(state)
    torch.testing.assert_close(wrapped.state_dict(), plain.state_dict())
    around = nn.ModuleDict({"a": HierarchicalORTModule(Odd(nn.Linear(4, 4), nn.BatchNorm1d(4)))})
    around.load_state_dict({f"a.{name}": value for name, value in state.items()})
    torch.testing.assert_close(around["a"].state_dict(), plain.state_dict())
    with pytest.raises(RuntimeError, match="Missing key"):
        wrapped.load_state_dict(dict(list(state.items())[1:]))


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("whole", [True, False])
def test_exporters_see_the_torch_module(strict: bool, whole: bool) -> None:
    class Takes(nn.Sequential):
        def forward(self, x: Tensor, other: object = None) -> Tensor:
            return super().forward(x)

    wrapped, x = HierarchicalORTModule(Takes(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))), rows()
    wrapped(x) if whole else wrapped(x, object())
    before = where(wrapped)
    assert before == ({""} if whole else {"0", "2"})
    exported = torch.export.export(wrapped, (x.detach(),), strict=strict)
    called = [node.target for node in exported.graph.nodes if node.op == "call_function"]
    linear, tanh = torch.ops.aten.linear.default, torch.ops.aten.tanh.default
    assert called == [linear, tanh, linear] and where(wrapped) == before
    torch.testing.assert_close(exported.module()(x), wrapped(x))


def test_signatures_of_parts_are_found() -> None:
    wrapped = HierarchicalORTModule(Repeated())
    wrapped(rows())
    assert [*inspect.signature(wrapped.part.forward).parameters] == ["x", "shift", "factor"]


def test_models_of_parts_are_saved(tmp_path: pathlib.Path) -> None:
    options = DebugOptions(save_onnx=True, onnx_prefix="mine", save_path=str(tmp_path))
    HierarchicalORTModule(Odd(nn.Linear(4, 4)), options)(rows())
    assert sorted(path.name for path in tmp_path.glob("*.onnx")) == [
        "mine_parts_0_execution_model_training.onnx",
        "mine_parts_0_torch_exported_training.onnx",
    ]


@pytest.mark.usefixtures("strict")
def test_what_torch_runs_is_no_error() -> None:
    plain = Odd(nn.Linear(4, 4))
    same_steps(plain, HierarchicalORTModule(copy.deepcopy(plain)), (rows(),))
