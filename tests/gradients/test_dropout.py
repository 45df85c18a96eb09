import numpy as np
import pytest

from gradients.emit import differentiated, emitted, run

TRAINING = "(double[N,64] x, float r, bool t) => (double[N,64] y) { y = Dropout(x, r, t) }"


def test_the_mask_is_added_and_scales_the_gradient() -> None:
    of = differentiated(TRAINING)
    assert [v.name for v in of.graph[0].outputs] == ["y", "y_mask"]
    x, d_y = np.ones((8, 64)), np.full((8, 64), 3.0)
    found = run(of, x=x, r=np.float32(0.25), t=np.True_, d_y=d_y)
    kept = found["y"] != 0
    assert 0 < kept.sum() < kept.size
    np.testing.assert_allclose(found["x_grad"], np.where(kept, 4.0, 0.0), rtol=1e-6)


def test_a_flag_that_a_run_sets_to_false_leaves_the_gradient_alone() -> None:
    feeds = {"x": np.ones((2, 64)), "r": np.float32(0.5), "t": np.False_, "d_y": np.ones((2, 64))}
    assert (run(differentiated(TRAINING), **feeds)["x_grad"] == 1).all()


@pytest.mark.parametrize(
    "call", ["Dropout(x)", "Dropout(x, r)", "Dropout(x, r, t)", "com.microsoft.BitmaskDropout(x)"]
)
def test_dropout_that_does_nothing_has_the_gradient_of_nothing(call: str) -> None:
    text = f"(float[N] x) => (float[N] y) <float r = {{0.5}}, bool t = {{0}}> {{ y = {call} }}"
    assert emitted(text) == ["Identity(d_y) -> x_grad"]


def test_bias_and_residual_of_a_fused_dropout() -> None:
    of = differentiated(
        "(double[N,64] x, double[64] b, double[N,64] z, float r, bool t) => (double[N,64] y) "
        "{ y = com.microsoft.BiasDropout(x, b, z, r, t) }"
    )
    d_y = np.arange(128.0).reshape(2, 64) + 1
    feeds = {"x": np.ones((2, 64)), "b": np.ones(64), "z": np.zeros((2, 64))}
    found = run(of, **feeds, r=np.float32(0.5), t=np.True_, d_y=d_y)
    expected = np.where(found["y"] != 0, 2 * d_y, 0)
    np.testing.assert_allclose(found["x_grad"], expected)
    np.testing.assert_allclose(found["b_grad"], expected.sum(0))
    np.testing.assert_allclose(found["z_grad"], d_y)
