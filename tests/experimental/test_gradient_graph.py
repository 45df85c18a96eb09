from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch

import onnxtrain
from onnxtrain.errors import ModelError
from onnxtrain.experimental import export_gradient_graph


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    model = network()
    model[0].bias.requires_grad_(False)
    path = tmp_path_factory.mktemp("gradients") / "model.onnx"
    model.eval()
    x, labels = torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])
    export_gradient_graph(model, torch.nn.CrossEntropyLoss(), x, labels, path)
    assert not model.training
    return model, onnx.load(path)


def test_names(exported):
    _, proto = exported
    names = ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert [value.name for value in proto.graph.input] == ["input", "labels", *names]
    trained = [f"{name}_grad" for name in names if name != "0.bias"]
    assert [value.name for value in proto.graph.output] == ["output", "loss", *trained]


def test_values_and_gradients_for_another_batch_size(exported):
    model, proto = exported
    x, labels = torch.randn(7, 4), torch.randint(0, 3, (7,))
    feeds = {"input": x.numpy(), "labels": labels.numpy()}
    feeds |= {name: p.detach().numpy() for name, p in model.named_parameters()}
    output, loss, *grads = onnxtrain.InferenceSession(proto).run(None, feeds)
    expected = model(x)
    truth = torch.nn.functional.cross_entropy(expected, labels)
    np.testing.assert_allclose(output, expected.detach().numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(loss, truth.detach().numpy(), rtol=1e-5)
    wanted = torch.autograd.grad(truth, [p for p in model.parameters() if p.requires_grad])
    for found, grad in zip(grads, wanted, strict=True):
        np.testing.assert_allclose(found, grad.numpy(), rtol=1e-4, atol=1e-6)


def test_the_caller_can_train_with_it(exported):
    model, proto = exported
    session = onnxtrain.InferenceSession(proto)
    x, labels = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32), np.arange(6) % 3
    weights = {name: p.detach().numpy().copy() for name, p in model.named_parameters()}
    names = [name for name in weights if name != "0.bias"]
    losses = []
    for _ in range(20):
        wanted = ["loss", *(f"{name}_grad" for name in names)]
        loss, *grads = session.run(wanted, {"input": x, "labels": labels, **weights})
        losses.append(float(loss))
        weights |= {n: weights[n] - 0.5 * g for n, g in zip(names, grads, strict=True)}
    assert losses[-1] < 0.7 * losses[0]


def test_the_first_axis_is_free(exported):
    _, proto = exported
    values = {value.name: value for value in (*proto.graph.input, *proto.graph.output)}
    for name in ("input", "labels", "output"):
        assert values[name].type.tensor_type.shape.dim[0].dim_param == "batch_size"


def test_old_opsets_are_refused(tmp_path):
    x = torch.zeros(2, 4)
    with pytest.raises(ModelError, match="cannot export opset 12: the oldest is 18"):
        export_gradient_graph(network(), torch.nn.MSELoss(), x, x, tmp_path / "m.onnx", 12)
