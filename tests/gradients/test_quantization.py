"""Straight through the rounding; scales against torch's learned step sizes."""

import numpy as np
import pytest
import torch

from gradients.emit import differentiated, run

PAIR = (
    "(float[3,4] x, {scale} s) => (float[3,4] y) <{kind}[{zeros}] z = {{{values}}}> "
    "{{ q = {domain}QuantizeLinear{axis}(x, s, z) y = {domain}DequantizeLinear{axis}(q, s, z) }}"
)
GENERATOR = np.random.default_rng(0)
X = (GENERATOR.normal(size=(3, 4)) * 60).astype(np.float32)
D_Y = GENERATOR.normal(size=(3, 4)).astype(np.float32)


def _expected(
    scale: np.ndarray, zero: np.ndarray, limits: tuple[int, int], axis: int | None
) -> list[np.ndarray]:
    x = torch.tensor(X, requires_grad=True)
    s = torch.tensor(scale, requires_grad=True)
    z = torch.tensor(zero, dtype=torch.float32)
    if axis is None:
        y = torch._fake_quantize_learnable_per_tensor_affine(x, s, z, *limits)
    else:
        y = torch._fake_quantize_learnable_per_channel_affine(x, s, z, axis, *limits)
    return [g.numpy() for g in torch.autograd.grad(y, [x, s], torch.tensor(D_Y))]


@pytest.mark.parametrize(("kind", "limits"), [("int8", (-128, 127)), ("uint8", (0, 255))])
@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("domain", ["", "com.microsoft."])
def test_values_and_learned_scales(
    domain: str, kind: str, limits: tuple[int, int], axis: int | None
) -> None:
    count = 1 if axis is None else X.shape[axis]
    scale = GENERATOR.uniform(0.2, 0.9, count).astype(np.float32)
    zero = np.arange(count) + 3
    text = PAIR.format(
        scale=f"float[{count}]",
        kind=kind,
        zeros=count,
        values=", ".join(map(str, zero)),
        axis="" if axis is None else f"<axis={axis}>",
        domain=domain,
    )
    found = run(differentiated(text), x=X, s=scale, d_y=D_Y)
    for name, true in zip("xs", _expected(scale, zero, limits, axis), strict=True):
        np.testing.assert_allclose(found[f"{name}_grad"], true, rtol=2e-5, atol=1e-4)


def test_pairs_of_two_domains_pass_gradients_straight_through() -> None:
    text = (
        "(float[2] x, float s) => (float[2] y) <int16 z = {5}> "
        "{ q = com.microsoft.QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }"
    )
    x = np.float32([1.3, -50000.0])
    found = run(differentiated(text), x=x, s=np.float32(1), d_y=np.ones(2, np.float32))
    assert found["x_grad"].tolist() == [1, 0]
    np.testing.assert_allclose(found["s_grad"], 1 - 1.3 - 32773, rtol=1e-6)


def test_blocks_of_an_axis_have_scales_of_their_own() -> None:
    text = (
        "(float[3,4] x, float[3,2] s) => (float[3,4] y) { q = QuantizeLinear<axis=1, block_size=2,"
        " output_dtype=3>(x, s) y = DequantizeLinear<axis=1, block_size=2>(q, s) }"
    )
    scale = GENERATOR.uniform(0.2, 0.9, (3, 2)).astype(np.float32)
    found = run(differentiated(text), x=X, s=scale, d_y=D_Y)
    wide = np.repeat(scale, 2, 1)
    ratio = X / wide
    inside = (np.round(ratio) >= -128) & (np.round(ratio) <= 127)
    left = np.clip(np.round(ratio), -128, 127) - ratio * inside
    np.testing.assert_allclose(found["x_grad"], D_Y * inside, rtol=1e-5)
    by_block = (D_Y * left).reshape(3, 2, 2).sum(2)
    np.testing.assert_allclose(found["s_grad"], by_block, rtol=2e-5, atol=1e-4)


def test_two_scales_each_have_their_own_part() -> None:
    text = (
        "(float[2] x, float s, float t) => (float[2] y) "
        "{ q = QuantizeLinear<output_dtype=3>(x, s) y = DequantizeLinear(q, t) }"
    )
    x, d_y = np.float32([1.3, -500.0]), np.float32([1.0, 10.0])
    found = run(differentiated(text), x=x, s=np.float32(0.5), t=np.float32(0.25), d_y=d_y)
    np.testing.assert_allclose(found["x_grad"], [0.5, 0.0])
    np.testing.assert_allclose(found["s_grad"], -0.25 * 1.3 / 0.25, rtol=1e-6)
    np.testing.assert_allclose(found["t_grad"], 3 * 1.0 - 128 * 10.0)


def test_short_floating_point_numbers_are_clipped_at_their_largest() -> None:
    text = (
        "(float[3] x, float s) => (float[3] y) "
        "{ q = QuantizeLinear<output_dtype=17>(x, s) y = DequantizeLinear(q, s) }"
    )
    x = np.float32([1.3, 500.0, -300.0])
    found = run(differentiated(text), x=x, s=np.float32(1), d_y=np.ones(3, np.float32))
    assert found["x_grad"].tolist() == [1, 0, 1]


def test_a_scale_taken_from_the_data_moves_with_its_ends() -> None:
    text = (
        "(float[4] x) => (float[4] y) "
        "{ q, s, z = DynamicQuantizeLinear(x) y = DequantizeLinear(q, s, z) }"
    )
    x, d_y = np.float32([-1.0, 0.3, 2.0, 0.77]), np.float32([1.0, 2.0, 3.0, 4.0])
    found = run(differentiated(text), x=x, d_y=d_y)["x_grad"]
    scale = 3 / 255
    steps = np.round(x / scale)
    error = float((d_y * (steps - x / scale)).sum()) / 255
    expected = d_y + np.float32([-error, 0, error, 0])
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_fake_quant_learns_its_scale_and_its_zero_point() -> None:
    text = (
        "(float[3,4] x, float s, float z) => (float[3,4] y) "
        "{ y, mask = com.microsoft.FakeQuant<quant_min=-8, quant_max=7>(x, s, z) }"
    )
    scale, zero = np.float32(9.5), np.float32(2)
    found = run(differentiated(text), x=X, s=scale, z=zero, d_y=D_Y)
    x, s, z = (torch.tensor(np.atleast_1d(v), requires_grad=True) for v in (X, scale, zero))
    y = torch._fake_quantize_learnable_per_tensor_affine(x, s, z, -8, 7)
    for name, true in zip("xsz", torch.autograd.grad(y, [x, s, z], torch.tensor(D_Y)), strict=True):
        expected = true.numpy().reshape(found[f"{name}_grad"].shape)
        np.testing.assert_allclose(found[f"{name}_grad"], expected, rtol=2e-5, atol=1e-4)


def test_a_quantized_weight_passes_the_gradient_on_to_what_made_it() -> None:
    text = (
        "(float[2] w, float s) => (float[2] y) <float three = {3.0}> { x = Mul(w, three) "
        "q = QuantizeLinear<output_dtype=3>(x, s) y = DequantizeLinear(q, s) }"
    )
    found = run(
        differentiated(text, "w"), w=np.float32([1, 2]), s=np.float32(1), d_y=np.ones(2, np.float32)
    )
    assert found["w_grad"].tolist() == [3, 3]


def test_ends_of_a_range_that_tie_share_what_its_scale_gets() -> None:
    of = differentiated("(float[5] x) => (float s) { q, s, z = DynamicQuantizeLinear(x) }")
    x = np.array([3, -1, 3, -1, 2], np.float32)
    found = run(of, x=x, d_s=np.float32(510))["x_grad"]
    np.testing.assert_allclose(found, [1, -1, 1, -1, 0], rtol=1e-6)
