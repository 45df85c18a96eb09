"""Maximum pools that are joined with their gradients, and exchanged with Relus in front of them."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

from onnxtrain import Trainer
from onnxtrain.transforms import backward, recipe
from onnxtrain.transforms.backward import join

PLAIN = "kernel_shape = [2, 2], strides = [2, 2]"
PADDED = "kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]"


def model(nodes: str, *outputs: str, x: str = "float[n,2,9,8]", opset: int = 17) -> onnx.ModelProto:
    shown = ", ".join(f"float[a,b,c,d] {name}" for name in outputs or ("y",))
    text = f'<ir_version: 8, opset_import: ["": {opset}]> g ({x} x) => ({shown}) {{{nodes}}}'
    made = onnx.parser.parse_model(text)
    random = np.random.default_rng(0)
    w = random.normal(size=(5, 2, 3, 3)).astype(np.float32)
    # no image has anything positive in the first channel, and the second is flat
    w[0], w[1] = -np.abs(w[0]), 0
    made.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    return made


def trained(
    made: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch, *without: str, samples: int = 3
) -> tuple[list[str], list[float], dict[str, np.ndarray]]:
    monkeypatch.setattr(recipe, "join", lambda model, **_: join(model, without=without))
    shape = (samples, *(d.dim_value for d in made.graph.input[0].type.tensor_type.shape.dim[1:]))
    x = np.abs(np.random.default_rng(1).normal(size=shape)).astype(np.float32)
    one = Trainer(made, loss=lambda o, b: sum(y.square().sum() for y in o.values()), device="cpu")
    losses = [float(one.step({"x": x})) for _ in range(3)]
    ops = [step.kernel.op for step in one.module.runner(training=True).plan.block.steps]
    return ops, losses, {name: np.asarray(value) for name, value in one.parameters.items()}


def same(a: tuple, b: tuple) -> bool:
    return a[1] == b[1] and all(np.array_equal(a[2][name], b[2][name]) for name in b[2])


@pytest.mark.parametrize("window", [PLAIN, PADDED])
@pytest.mark.parametrize("samples", [1, 40])
def test_both_give_the_same_bits(
    window: str, samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = model(f"c = Conv(x, w) \n r = Relu(c) \n y = MaxPool<{window}>(r)")
    names = [step.__name__ for step in backward.ON_CPU]
    plain = trained(made, monkeypatch, *names, samples=samples)
    assert {"MaxPool", "MaxPoolGrad"} < {*plain[0]} and plain[1][2] < plain[1][0]
    for left_out in ([], *([name] for name in names)):
        found = trained(made, monkeypatch, *left_out, samples=samples)
        joined, exchanged = (name not in left_out for name in ("join_pools", "pool_first"))
        assert ("MaxPoolInPlanesGrad" in found[0]) == ("MaxPoolInPlanes" in found[0]) == joined
        order = [op for op in found[0] if op == "Relu" or op in ("MaxPool", "MaxPoolInPlanes")]
        assert (order[0] != "Relu") == exchanged
        assert same(found, plain), left_out


@pytest.mark.parametrize(
    ("nodes", "outputs"),
    [
        (f"r = Relu(c) \n y = MaxPool<{PLAIN}>(r)", ("y", "r")),
        (f"r = Relu(c) \n m = MaxPool<{PLAIN}>(r) \n e = Exp(r) \n y = Add(m, one)", ("y", "e")),
        (f"r = LeakyRelu(c) \n y = MaxPool<{PLAIN}>(r)", ("y",)),
        (f"r = Relu(c) \n y = AveragePool<{PLAIN}>(r)", ("y",)),
    ],
    ids=["result", "read twice", "another activation", "another pool"],
)
def test_relus_that_stay(
    nodes: str, outputs: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = model(f"c = Conv(x, w) \n {nodes}", *outputs)
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(1, np.float32), "one"))
    ops, *_ = trained(made, monkeypatch)
    pools = [op for op in ops if "Pool" in op and not op.endswith("Grad")]
    relu = next(op for op in ops if op.endswith("Relu"))
    assert ops.index(relu) < ops.index(pools[0])


@pytest.mark.parametrize(
    "window",
    [
        "kernel_shape = [2, 2], ceil_mode = 1",
        'kernel_shape = [2, 2], auto_pad = "SAME_UPPER"',
        "kernel_shape = [2, 2], pads = [0, 0, 1, 1]",
        "kernel_shape = [2, 2], pads = [1, 1, 1, 1], dilations = [2, 2]",
        "kernel_shape = [2, 2], storage_order = 1",
    ],
)
def test_windows_that_stay(window: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = model(f"c = Conv(x, w) \n r = Relu(c) \n y = MaxPool<{window}>(r)")
    ops, *_ = trained(made, monkeypatch)
    assert "MaxPoolGrad" in ops and ops.index("Relu") < ops.index("MaxPool")


def test_places_that_are_asked_for_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    made = model(f"c = Conv(x, w) \n y, p = MaxPool<{PLAIN}>(c) \n z = Cast<to = 1>(p)", "y", "z")
    assert "MaxPoolGrad" in trained(made, monkeypatch)[0]


def test_lines_and_volumes_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    made = model("c = Mul(x, s) \n y = MaxPool<kernel_shape = [2]>(c)", x="float[n,2,9]")
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(9, np.float32), "s"))
    assert "MaxPoolGrad" in trained(made, monkeypatch)[0]
