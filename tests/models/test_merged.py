"""A model that was never trained, whose equal tensors an exporter wrote once, trains like any."""

from __future__ import annotations

import pathlib

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import torch
from followed import follow

from onnxtrain import Trainer

FRESH = """<ir_version: 8, opset_import: ["": 17]>
main (float[N, 3] x) => (float[N, 3] y)
<float[3] "a.weight" = {1, 1, 1}, float[3] "a.bias" = {0, 0, 0}> {
    "a.mean" = Identity("a.bias")
    "a.var" = Identity("a.weight")
    "b.weight" = Identity("a.weight")
    "b.bias" = Identity("a.bias")
    "b.mean" = Identity("a.bias")
    "b.var" = Identity("a.weight")
    h = BatchNormalization(x, "a.weight", "a.bias", "a.mean", "a.var")
    r = Relu(h)
    y = BatchNormalization(r, "b.weight", "b.bias", "b.mean", "b.var")
}"""
"""What an exporter makes of two batch normalisations with a Relu between them."""


class Normalisations(torch.nn.Sequential):
    def __init__(self) -> None:
        norm = torch.nn.BatchNorm1d
        super().__init__(norm(3), torch.nn.ReLU(), norm(3))


def loss(outputs: dict[str, torch.Tensor], batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return (outputs["y"] - batch["goal"]).square().mean()


def test_layers_train_apart_and_statistics_move_as_in_torch(tmp_path: pathlib.Path) -> None:
    batch = {"x": 3 * torch.rand(8, 3), "goal": torch.rand(8, 3)}
    trainer = Trainer(onnx.parser.parse_model(FRESH), loss=loss, optimizer="sgd", lr=0.1)
    peer = Normalisations()
    steps = torch.optim.SGD(peer.parameters(), lr=0.1)
    for _ in range(3):
        trainer.step(batch)
        steps.zero_grad()
        loss({"y": peer(batch["x"])}, batch).backward()
        steps.step()
    trainer.save(tmp_path / "trained.onnx")
    stored = onnx.load(tmp_path / "trained.onnx")
    found = {t.name: onnx.numpy_helper.to_array(t) for t in stored.graph.initializer}
    names = {"weight": "weight", "bias": "bias", "mean": "running_mean"}
    expected = {
        f"{layer}.{own}": getattr(norm, name).detach().numpy()
        for layer, norm in (("a", peer[0]), ("b", peer[2]))
        for own, name in names.items()
    }
    assert found.keys() == {*expected, "a.var", "b.var"}
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5)
    onnxruntime.InferenceSession(tmp_path / "trained.onnx").run(None, {"x": batch["x"].numpy()})


class Groups(torch.nn.Module):
    """Normalisations that begin equal: of groups, which learn, and of channels, which do not."""

    def __init__(self) -> None:
        super().__init__()
        norm = torch.nn.GroupNorm
        self.learned = torch.nn.Sequential(norm(2, 4), torch.nn.SiLU(), norm(2, 4))
        channels = torch.nn.InstanceNorm2d
        self.plain = torch.nn.Sequential(channels(4), torch.nn.SiLU(), channels(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.plain(self.learned(x) + x)


def test_what_was_computed_from_equal_parameters_is_trained_apart_and_nothing_else_is() -> None:
    torch.manual_seed(0)
    module = Groups().eval()
    x, target = torch.rand(2, 2, 4, 5, 5)
    program = torch.onnx.export(module, (x,), input_names=["x"], dynamo=True, verbose=False)
    assert program is not None
    trainer = Trainer(program.model_proto, loss="mse", optimizer="sgd", lr=0.5, device="cpu")
    follow(trainer, module, x, target, lr=0.5)
    chosen = Trainer(program.model_proto, loss="mse", trainable="learned.2.*", device="cpu")
    assert len(chosen.parameters) == 2
