"""What waits for the backward pass in fewer bits: which values, where, and what that changes."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
import torch
from torch import Tensor

from onnxtrain import Trainer
from onnxtrain.cli.sizes import Sizes
from onnxtrain.errors import OptionError
from onnxtrain.kernels import gist
from onnxtrain.runtime.lifetimes import live_bytes
from onnxtrain.transforms.compress import CODECS, EXACT, compress
from onnxtrain.types import DataType

FLOAT = int(DataType.FLOAT)
ROUNDED: dict[str, Callable[[Tensor], Tensor]] = {
    "pack16": lambda x: gist.unpack16(gist.pack16(x), to=FLOAT),
    "msfp15": lambda x: gist.unpack_msfp15(gist.pack_msfp15(x), to=FLOAT),
    "pack8": lambda x: gist.unpack8(gist.pack8(x), to=FLOAT),
}


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(0, 0.5, shape).astype(np.float32)


def parsed(
    nodes: str, x: str, y: str, weights: dict[str, np.ndarray], opset: int = 17
) -> onnx.ModelProto:
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": {opset}]> g ({x} x) => ({y} y) {{{nodes}}}'
    )
    pairs = weights.items()
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in pairs)
    for number, node in enumerate(model.graph.node):
        node.name = f"{node.op_type}_{number}"
    return model


def trainer(model: onnx.ModelProto, codec: str | None, **options: object) -> Trainer:
    given = {"lr": 0.01, "seed": 5, "device": "cpu", **options}
    return Trainer(model, loss=lambda o, b: (o["y"] * b["c"]).sum(), compress=codec, **given)


def graph_of(trainer: Trainer) -> ir.Graph:
    return trainer.module.runner(training=True).model.graph


def encoders(graph: ir.Graph) -> dict[str, str]:
    """Which values are encoded, and how."""
    found = [node for node in graph if node.op_type.endswith("Encoder")]
    read = [node.inputs[0].producer() for node in found]
    arranged = [n.inputs[0].producer() if n.op_type == "Passes" else n for n in read]
    assert all(node.op_type == "InMemoryOrder" for node in arranged)
    pairs = zip(arranged, found, strict=True)
    return {str(a.inputs[0].name): n.op_type.removesuffix("Encoder") for a, n in pairs}


def trained(
    one: Trainer, batch: dict[str, np.ndarray], steps: int = 3
) -> tuple[list[float], dict[str, np.ndarray]]:
    losses = [float(one.step(batch)) for _ in range(steps)]
    return losses, {name: np.asarray(value).copy() for name, value in one.parameters.items()}


def is_same(a: tuple[list[float], dict], b: tuple[list[float], dict]) -> bool:
    return a[0] == b[0] and all(np.array_equal(a[1][name], b[1][name]) for name in a[1])


TWO_LAYERS = "h = MatMul(x, w) \n y = MatMul(h, v)"


@pytest.mark.parametrize("codec", ROUNDED)
def test_a_product_has_the_gradient_of_what_was_kept(codec: str) -> None:
    weights = {"w": drawn(16, 24), "v": drawn(24, 8)}
    model = parsed(TWO_LAYERS, "float[N,16]", "float[N,8]", weights)
    batch = {"x": drawn(6, 16), "c": drawn(6, 8)}
    plain, rounded = (trainer(model, one).gradients(batch) for one in (None, codec))
    assert torch.equal(plain["w"], rounded["w"]), "x is not kept by the step"
    x, c, w = (torch.from_numpy(a) for a in (batch["x"], batch["c"], weights["w"]))
    assert torch.equal(rounded["v"], (ROUNDED[codec](x @ w).T @ c))
    assert not torch.equal(plain["v"], rounded["v"])


def test_only_the_sign_is_kept_where_nothing_else_is_asked() -> None:
    """A pool stands between the Relu and the product, which reads the pool's result."""
    nodes = """
        h = Conv<kernel_shape = [3, 3]>(x, w) \n r = Relu(h)
        p = AveragePool<kernel_shape = [2, 2]>(r) \n f = Flatten(p) \n y = MatMul(f, v)
    """
    weights = {"w": drawn(5, 2, 3, 3), "v": drawn(45, 3)}
    model = parsed(nodes, "float[N,2,6,6]", "float[N,3]", weights)
    batch = {"x": drawn(7, 2, 6, 6), "c": drawn(7, 3)}
    exact = trainer(model, EXACT)
    assert encoders(graph_of(exact)) == {"r": "GistPack1"}
    assert is_same(trained(trainer(model, None), batch), trained(exact, batch))
    assert encoders(graph_of(trainer(model, "pack8"))) == {"r": "GistPack1", "f": "GistPack8"}


def test_what_is_no_number_is_let_through_as_it_is_without_codes() -> None:
    """Logarithms of negative numbers: a step that makes nothing of them must not look sound."""
    nodes = """
        h = MatMul(x, w) \n l = Log(h) \n r = Relu(l) \n c = Reshape(r, flat)
        p = AveragePool<kernel_shape = [4], strides = [4]>(c) \n y = Flatten(p)
    """
    weights = {"w": drawn(16, 24), "flat": np.array([-1, 1, 24])}
    model = parsed(nodes, "float[N,16]", "float[N,6]", weights)
    batch = {"x": drawn(7, 16), "c": drawn(7, 6)}
    plain, exact = (trainer(model, codec).gradients(batch)["w"] for codec in (None, EXACT))
    assert encoders(graph_of(trainer(model, EXACT))) == {"r": "GistPack1"}
    assert torch.equal(plain, exact)


DROPPED = "h = MatMul(x, w) \n d = Dropout<seed = 3>(h, ratio, on) \n y = MatMul(d, v)"
ON = {"ratio": np.float32(0.25), "on": np.bool_(True)}


@pytest.mark.parametrize(("opset", "width"), [(17, 24), (17, 7), (13, 7)])
@pytest.mark.parametrize("samples", [1, 5, 64])
def test_masks_take_a_bit_whatever_their_size(opset: int, width: int, samples: int) -> None:
    """Bytes of bits do not tell how many rows of seven there were."""
    weights = {"w": drawn(16, width), "v": drawn(width, 8), **ON}
    model = parsed(DROPPED, "float[N,16]", "float[N,8]", weights, opset)
    batch = {"x": drawn(samples, 16), "c": drawn(samples, 8)}
    exact = trainer(model, EXACT)
    assert list(encoders(graph_of(exact)).values()) == ["GistPack1"]
    assert is_same(trained(trainer(model, None), batch), trained(exact, batch))


@pytest.mark.parametrize("shape", ["float[N,M]", "float[4,8]", "float[N,8]"])
def test_sizes_of_any_kind(shape: str) -> None:
    model = parsed(DROPPED, shape, "float[A,B]", {"w": drawn(8, 8), "v": drawn(8, 8), **ON})
    batch = {"x": drawn(4, 8), "c": drawn(4, 8)}
    assert is_same(trained(trainer(model, None), batch), trained(trainer(model, EXACT), batch))


def test_what_a_view_is_of_is_kept_once() -> None:
    nodes = """
        h = MatMul(x, w) \n t = Tanh(h) \n a = Reshape(t, flat) \n y1 = MatMul(a, v)
        b = Transpose<perm = [1, 0]>(t) \n c = Reshape(b, flat) \n y2 = MatMul(c, v)
        y = Add(y1, y2)
    """
    weights = {"w": drawn(12, 16), "v": drawn(16, 4), "flat": np.array([-1, 16])}
    model = parsed(nodes, "float[16,12]", "float[16,4]", weights)
    graph = graph_of(trainer(model, "pack16"))
    assert encoders(graph) == {"t": "GistPack16"}
    assert sum(node.op_type == "GistPack16Decoder" for node in graph) == 1


def test_who_needs_the_digits_has_them() -> None:
    """A quotient by rounded numbers may be infinite, and so may what Exp gives.

    A gradient in the middle of a product is near zero.
    """
    nodes = """
        h = MatMul(x, w) \n e = Exp(h) \n z = Softplus(e) \n q = Div(one, z)
        m = MatMul(q, v) \n t = Tanh(m) \n y = MatMul(t, u)
    """
    weights = {"w": drawn(12, 16), "v": drawn(16, 4), "u": drawn(4, 4), "one": drawn(16)}
    model = parsed(nodes, "float[N,12]", "float[N,4]", weights)
    assert set(encoders(graph_of(trainer(model, "pack8")))) == {"t"}
    split = graph_of(trainer(parsed(TWO_LAYERS, "float[N,12]", "float[N,4]", weights), "pack8"))
    assert set(encoders(split)) == {"h"}
    handed = {value.name for node in split for value in node.outputs if node.op_type == "YieldOp"}
    assert handed and not handed & set(encoders(split))


def test_attention_is_left_alone() -> None:
    import zoo

    example = zoo.example("transformer")
    one = Trainer(example.model, loss="cross_entropy", device="cpu", compress="pack8")
    attention = [node for node in graph_of(one) if node.op_type == "FlashAttentionGrad"]
    assert attention and encoders(graph_of(one))
    for node, value in itertools.product(attention, range(7)):
        given = node.inputs[value]
        maker = None if given is None else given.producer()
        assert maker is None or not maker.op_type.endswith("Decoder")


def test_results_of_the_model_are_not_encoded() -> None:
    model = parsed("y = MatMul(x, w)", "float[N,12]", "float[N,16]", {"w": drawn(12, 16)})
    one = Trainer(model, loss="mse", outputs=["y"], device="cpu", compress="pack8")
    assert not encoders(graph_of(one))


DEEP, ROWS = 12, 4096


@pytest.mark.parametrize(("codec", "bits"), [("pack16", 16), ("msfp15", 8), ("pack8", 8)])
def test_less_is_alive(codec: str, bits: int) -> None:
    """Beside codes the step has three values as they are: one decoded, and two gradients."""
    weights, nodes = {"last": drawn(64, 3)}, "h0 = Identity(x)"
    for n in range(DEEP):
        weights[f"w{n}"] = drawn(64, 64) + np.float32(n)
        nodes += f"\n p{n} = MatMul(h{n}, w{n}) \n h{n + 1} = Tanh(p{n})"
    nodes += f"\n y = MatMul(h{DEEP}, last)"
    model = parsed(nodes, f"float[{ROWS},64]", f"float[{ROWS},3]", weights)
    layer, peaks = ROWS * 64 * 4, {}
    for one in (None, codec):
        runner = trainer(model, one).module.runner(training=True)
        sizes = Sizes(runner.model, runner.plan)
        peaks[one] = max(held for _, held in live_bytes(runner.plan.block, sizes.of))
    weights_too = 4 * sum(array.size for array in weights.values())
    assert peaks[None] > DEEP * layer
    assert peaks[codec] <= (DEEP * bits / 32 + 3) * layer + weights_too


def test_other_codecs_are_refused() -> None:
    model = parsed(TWO_LAYERS, "float[N,4]", "float[N,4]", {"w": drawn(4, 4), "v": drawn(4, 4)})
    for wrong in ("gzip", ["gzip"]):
        with pytest.raises(OptionError, match=r"'gzip'[^\n]*\n  have  'exact', .*, or None"):
            trainer(model, wrong)
    assert compress(ir.from_proto(model), None) == 0
    assert next(iter(CODECS)) == EXACT and {*ROUNDED, EXACT} == set(CODECS)
