"""What a Trainer and a Module do on the CPU they do on a GPU."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch

from onnxtrain import OrtValue, Trainer
from training.small import batch_of, load_module, load_optimizer, mlp, model_of, normal

BATCHES = [batch_of(seed=seed) for seed in range(6)]


@pytest.fixture(autouse=True)
def exact_products():
    """TF32 would make the comparison one of precisions."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


def noisy_net(rate: float) -> onnx.ModelProto:
    """Batch normalisation, Dropout and a second output."""
    return model_of(
        """(float[N,4] x) => (float[N,3] y, float[N,8] features) {
            h = MatMul(x, w1)
            n = BatchNormalization(h, scale, shift, mean, var)
            features = Tanh(n)
            d = Dropout(features, rate)
            y = MatMul(d, w2)
        }""",
        {
            "w1": normal(4, 8, seed=1),
            "scale": np.ones(8, np.float32),
            "shift": np.zeros(8, np.float32),
            "mean": np.zeros(8, np.float32),
            "var": np.ones(8, np.float32),
            "rate": np.float32(rate),
            "w2": normal(8, 3, seed=2),
        },
    )


def function(outputs, batch):
    entropy = torch.nn.functional.cross_entropy(outputs["y"], batch["labels"])
    return entropy + outputs["features"].square().mean()


LOSSES = pytest.mark.parametrize("loss", ["cross_entropy", function], ids=["name", "function"])


@LOSSES
def test_training_is_the_same(device, loss):
    here = Trainer(noisy_net(0.0), loss=loss, device=device, lr=0.01)
    there = Trainer(noisy_net(0.0), loss=loss, device="cpu", lr=0.01)
    for batch in BATCHES:
        torch.testing.assert_close(here.step(batch).cpu(), there.step(batch), rtol=1e-4, atol=1e-5)
    for name, parameter in there.state.parameters:
        if name == "var" and device == "cuda":
            continue  # there the running variance takes the unbiased one, as in the reference
        found = here.state.parameters[name].data
        np.testing.assert_allclose(found, parameter.data, rtol=1e-3, atol=1e-4, err_msg=name)
    assert {str(t.device.type) for t in here.parameters.values()} == {device}
    here.state.parameters["var"] = there.state.parameters["var"].data
    predicted = here.predict(BATCHES[0])["y"]
    assert predicted.device.type == device
    expected = there.predict(BATCHES[0])["y"]
    torch.testing.assert_close(predicted.cpu(), expected, rtol=1e-3, atol=1e-4)


@LOSSES
def test_training_goes_on_bit_for_bit(device, loss, tmp_path):
    options = {"loss": loss, "device": device}
    whole, again = (Trainer(noisy_net(0.5), seed=seed, **options) for seed in (1, 2))
    for batch in BATCHES[:3]:
        whole.step(batch)
    whole.checkpoint(tmp_path / "here")
    again.resume(tmp_path / "here")
    for batch in BATCHES[3:]:
        assert float(again.step(batch)) == float(whole.step(batch))


@LOSSES
def test_gradients_leave_everything_alone(device, loss):
    quiet, asked = (Trainer(noisy_net(0.5), loss=loss, device=device, seed=4) for _ in range(2))
    first = asked.gradients(BATCHES[0])
    second = asked.gradients(BATCHES[0])
    for name, grad in first.items():
        torch.testing.assert_close(grad, second[name], rtol=1e-5, atol=1e-7)
    for batch in BATCHES[:2]:
        torch.testing.assert_close(asked.step(batch), quiet.step(batch))


def test_what_is_saved_on_one_device_is_loaded_on_another(device, tmp_path):
    trainer = Trainer(mlp(), loss="cross_entropy", device=device)
    trainer.step(BATCHES[0])
    trainer.checkpoint(tmp_path / "here")
    other = Trainer(mlp(), loss="cross_entropy", device="cpu")
    other.resume(tmp_path / "here")
    for name, tensor in trainer.parameters.items():
        assert torch.equal(tensor.cpu(), other.parameters[name])
    trainer.save(tmp_path / "model.onnx")
    again = Trainer(tmp_path / "model.onnx", loss="cross_entropy", device="cpu")
    for name, tensor in trainer.parameters.items():
        assert torch.equal(tensor.cpu(), again.parameters[name])


def test_a_module_takes_arrays_values_and_tensors(device, folder):
    module = load_module(folder, device=device)
    optimizer = load_optimizer(folder, module)
    x, labels = BATCHES[0].values()
    loss, scores = module(x, labels)
    assert isinstance(scores, np.ndarray)
    values = [OrtValue.ortvalue_from_numpy(value, device) for value in (x, labels)]
    assert module(*values)[1].device_name() == device
    assert module(torch.tensor(x), torch.tensor(labels))[1].device.type == device
    flat = module.get_contiguous_parameters()
    assert flat.device_name() == device
    module.copy_buffer_to_parameters(flat.numpy(), trainable_only=False)
    optimizer.step()
    assert float(module(x, labels)[0]) != float(loss)
    module.state.parameters["fc1.bias"] = np.zeros(5, np.float32)
    np.testing.assert_array_equal(module.state.parameters["fc1.bias"].data, np.zeros(5))
