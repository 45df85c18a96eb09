import numpy as np
import onnx
import pytest
import torch

from gradients.emit import differentiated, run
from onnxtrain import InferenceSession
from onnxtrain.gradients import build_gradient_graph

LAYER = "(float[N,4] x, float[4] s) => (float[N,4] y) { y = LayerNormalization(x, s) }"
NORMS = {
    "batch": "BatchNormalization(z, s, s, s, s)",
    "group": "GroupNormalization<num_groups=2>(z, s, s)",
    "instance": "InstanceNormalization(z, s, s)",
    "neighbours": "LRN<size=3>(z)",
}
BATCH = (
    "({t}[N,2,3] x, {t}[2] s, {t}[2] b, {t}[2] m, {t}[2] v) => ({t}[N,2,3] y) "
    "{{ y{more} = {op}(x, s, b, m, v) }}"
)


def test_statistics_are_added_and_a_bias_may_be_missing() -> None:
    of = differentiated(LAYER)
    assert [v.name for v in of.graph[0].outputs] == ["y", "y_mean", "y_inv_std_dev"]


def test_statistics_that_are_there_are_used() -> None:
    text = LAYER.replace("y =", "y, mean, inv =")
    of = differentiated(text)
    assert [v.name for v in of.graph[0].outputs] == ["y", "mean", "inv"]
    assert [v.name for v in of.graph[1].inputs if v is not None][3:] == ["mean", "inv"]


def _batch(op: str, more: str = "") -> dict[str, np.ndarray]:
    of = differentiated(BATCH.format(t="double", op=op, more=more))
    generator = np.random.default_rng(0)
    feeds = {name: generator.normal(size=(2,)) for name in "sbm"}
    feeds |= {"v": generator.uniform(0.5, 1.5, 2), "x": generator.normal(size=(4, 2, 3))}
    d_y = generator.normal(size=(4, 2, 3))
    return feeds | {"d_y": d_y} | run(of, **feeds, d_y=d_y)


def _expected(found: dict[str, np.ndarray], training: bool) -> list[torch.Tensor]:
    x, s, b, m, v = (torch.tensor(found[n], requires_grad=True) for n in "xsbmv")
    if training:
        y = torch.nn.functional.batch_norm(x, None, None, s, b, training=True)
    else:
        wide = [p[:, None] for p in (s, b, m, v)]
        y = (x - wide[2]) / torch.sqrt(wide[3] + float(np.float32(1e-5))) * wide[0] + wide[1]
    leaves = [x, s, b] if training else [x, s, b, m, v]
    return list(torch.autograd.grad(y, leaves, torch.tensor(found["d_y"])))


def test_given_statistics_have_gradients_too() -> None:
    found = _batch("BatchNormalization")
    for name, true in zip("xsbmv", _expected(found, training=False), strict=True):
        np.testing.assert_allclose(found[f"{name}_grad"], true.numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("op", "more"),
    [
        ("BatchNormalization<training_mode=1>", ", rm, rv"),
        ("com.microsoft.BatchNormInternal", ""),
        ("com.microsoft.BatchNormInternal", ", rm, rv, sm, si"),
    ],
)
def test_batch_statistics_are_differentiated(op: str, more: str) -> None:
    found = _batch(op, more)
    for name, true in zip("xsb", _expected(found, training=True), strict=True):
        np.testing.assert_allclose(found[f"{name}_grad"], true.numpy(), rtol=1e-6, atol=1e-9)
    assert "m_grad" not in found and "v_grad" not in found


def test_half_precision_data_with_wide_parameters() -> None:
    text = BATCH.format(t="float", op="BatchNormalization", more="")
    text = text.replace("float[N,2,3]", "float16[N,2,3]")
    of = differentiated(text)
    generator = np.random.default_rng(0)
    feeds = {name: generator.uniform(0.5, 1.5, 2).astype(np.float32) for name in "sbmv"}
    x, d_y = (generator.normal(size=(4, 2, 3)).astype(np.float16) for _ in range(2))
    found = run(of, x=x, d_y=d_y, **feeds)
    assert found["x_grad"].dtype == np.float16 and found["s_grad"].dtype == np.float32
    wide = {
        name: value.astype(np.float64) for name, value in (feeds | {"x": x, "d_y": d_y}).items()
    }
    for name, true in zip("xsbmv", _expected(wide, training=False), strict=True):
        np.testing.assert_allclose(found[f"{name}_grad"], true.numpy(), rtol=2e-3, atol=1e-6)


def test_what_is_added_to_the_gradient_of_a_norm_is_differentiated_too() -> None:
    """The joined operator has the gradients of the two that it stands for."""
    head = """<ir_version: 9, opset_import: ["" : 20, "com.microsoft" : 1, "onnxtrain" : 1]>
        g (double[3,5] dy, double[3,5] x, double[5] scale, double[3,5] r)
        => (double[3,5] dx, double[5] ds) { y, inv = SimplifiedLayerNormalization(x, scale) """
    joined = f"""{head} dx, ds =
        onnxtrain.SimplifiedLayerNormalizationGradAdd<axis=-1>(dy, x, scale, inv, r) }}"""
    apart = f"""{head} d, ds =
        com.microsoft.SimplifiedLayerNormalizationGrad<axis=-1>(dy, x, scale, inv)
        dx = Add(d, r) }}"""
    random, names = np.random.default_rng(0), ["dy", "x", "scale", "r"]
    feeds = {name: random.normal(size=(5,) if name == "scale" else (3, 5)) for name in names}
    feeds |= {"dx_grad": random.normal(size=(3, 5)), "ds_grad": random.normal(size=5)}
    found, expected = (
        InferenceSession(
            build_gradient_graph(onnx.parser.parse_model(text), names, ["dx", "ds"])
        ).run(None, feeds)
        for text in (joined, apart)
    )
    assert len(found) == 6
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("shape", [(0, 4, 3), (2, 4, 0), (0, 4, 2, 0)])
def test_files_may_declare_that_there_is_nothing(norm: str, shape: tuple[int, ...]) -> None:
    dims = ",".join(map(str, shape))
    of = differentiated(
        f"(double[{dims}] x, double[4] s) => (double[{dims}] y) "
        f"{{ u = ReduceSum<keepdims=0>(s)  z = Mul(x, u)  y = {NORMS[norm]} }}"
    )
    found = run(of, x=np.zeros(shape), s=np.ones(4), d_y=np.zeros(shape))
    assert found["x_grad"].shape == shape
    assert found["s_grad"].tolist() == [0, 0, 0, 0]
