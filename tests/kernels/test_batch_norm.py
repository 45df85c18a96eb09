"""The running variance, which depends on the provider, and what batch normalization refuses."""

import pytest
import torch

from onnxtrain.kernels.nn.batch_norm import (
    batch_norm_internal,
    batch_normalization,
    batch_normalization_grad,
)


def _inputs(device: str, *shape: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(shape, generator=generator)
    channels = [torch.rand(shape[1], generator=generator) for _ in range(4)]
    return [t.to(device) for t in (x, *channels)]


def test_the_running_variance_is_unbiased_on_cuda_only(device: str) -> None:
    x, *rest = _inputs(device, 4, 3, 5)
    *_, old = rest
    outputs = batch_norm_internal(x, *rest, momentum=0.75)
    spread = x.var((0, 2), correction=1 if device == "cuda" else 0)
    torch.testing.assert_close(outputs[2], 0.75 * old + 0.25 * spread)
    training = batch_normalization(x, *rest, momentum=0.75, training_mode=1)
    biased = x.var((0, 2), correction=0)
    torch.testing.assert_close(training[2], 0.75 * old + 0.25 * biased)


def test_the_variance_of_one_element_is_zero(device: str) -> None:
    inputs = _inputs(device, 1, 3)
    outputs = batch_norm_internal(*inputs, momentum=0.75)
    torch.testing.assert_close(outputs[2], 0.75 * inputs[4])
    torch.testing.assert_close(outputs[0], inputs[2].expand(1, 3), rtol=0, atol=1e-4)


def test_bound_statistics_are_overwritten(device: str) -> None:
    inputs = _inputs(device, 4, 3)
    expected = batch_norm_internal(*inputs)
    outputs = batch_norm_internal(*inputs, update=True)
    assert outputs[1] is inputs[3] and outputs[2] is inputs[4]
    torch.testing.assert_close(outputs[1:3], expected[1:3])


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_vectors_may_be_one_number_expanded(
    dtype: torch.dtype, layout: torch.memory_format, device: str
) -> None:
    """Layers without parameters of their own are exported with such scales."""
    x, dy = (torch.randn(3, 16, 5, 4).to(device, dtype).to(memory_format=layout) for _ in range(2))
    memory = torch.full((32,), float("nan"), device=device, dtype=dtype)
    numbers = memory[::8].copy_(torch.tensor([1.5, 0.5, 0.25, 2.0]))
    spread = [number.expand(16) for number in numbers.split(1)]
    dense = [number.contiguous() for number in spread]
    for mode in (0, 1):
        found, expected = (
            batch_normalization(x, *vectors, training_mode=mode)[0] for vectors in (spread, dense)
        )
        torch.testing.assert_close(found, expected)
    for vectors in ([spread[0], *dense[2:]], [dense[0], *spread[2:]]):
        gradients = batch_normalization_grad(dy, x, *vectors, epsilon=1e-5)
        plain = batch_normalization_grad(dy, x, dense[0], *dense[2:], epsilon=1e-5)
        torch.testing.assert_close(gradients, plain)


@pytest.mark.parametrize(("index", "name"), [(1, "scale"), (2, "B"), (3, "mean"), (4, "var")])
def test_parameters_of_another_size_are_refused(index: int, name: str) -> None:
    inputs = _inputs("cpu", 4, 3)
    inputs[index] = torch.ones(2)
    with pytest.raises(ValueError, match=f"invalid input {name}: its shape is \\(2,\\)"):
        batch_normalization(*inputs)
    x, scale, _, mean, var = inputs
    if name != "B":
        with pytest.raises(ValueError, match="X has 3 channels"):
            batch_normalization_grad(x, x, scale, mean, var, epsilon=1e-5)
