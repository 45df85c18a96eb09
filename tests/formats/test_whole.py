"""Files that are written anew keep what onnx-ir has no place for, and the order of metadata."""

from __future__ import annotations

import pathlib

import onnx
import pytest
from onnx import helper

from onnxtrain.formats import models
from onnxtrain.training.trainer import Trainer
from onnxtrain.transforms.lora import LoraConfig
from training.small import mlp

PROPS = {"zebra": "1", "ape": "2", "mole": "3"}
NEW = "onnxruntime.new"


def given() -> onnx.ModelProto:
    """A model with metadata in no order and a step of gradient descent for one weight."""
    model = mlp()
    model.ir_version = 10
    helper.set_model_props(model, PROPS)
    holders = [model.graph, model.graph.node[0], model.graph.input[0], model.graph.initializer[0]]
    for holder in holders:
        for key, value in PROPS.items():
            holder.metadata_props.add(key=key, value=value)
    info = model.training_info.add()
    info.algorithm.name = "descend"
    weight = model.graph.initializer[0]
    step = helper.make_node("Sub", [weight.name, "slope"], [NEW])
    info.algorithm.node.append(step)
    info.algorithm.output.add(name=NEW)
    info.update_binding.add(key=weight.name, value=NEW)
    return model


def check(path: pathlib.Path, tensor: bool = True) -> None:
    found = onnx.load(path, load_external_data=False)
    assert list(found.training_info) == list(given().training_info)
    weight = given().graph.initializer[0].name
    (stored,) = [one for one in found.graph.initializer if one.name == weight]
    holders = [found, found.graph, found.graph.node[0], found.graph.input[0]]
    for holder in [*holders, stored] if tensor else holders:
        assert {entry.key: entry.value for entry in holder.metadata_props} == PROPS
        assert [entry.key for entry in holder.metadata_props] == list(PROPS)


@pytest.mark.parametrize("large", [False, True])
def test_a_trained_model_keeps_them(large, tmp_path, monkeypatch):
    if large:
        monkeypatch.setattr(models, "EXTERNAL_BYTES", 1)
    trainer = Trainer(given(), loss="cross_entropy", device="cpu")
    trainer.save(tmp_path / "trained.onnx")
    assert (tmp_path / "trained.onnx.data").exists() == large
    check(tmp_path / "trained.onnx")


def test_a_model_for_adapters_keeps_them(tmp_path):
    trainer = Trainer(given(), loss="cross_entropy", device="cpu", lora=LoraConfig(2))
    trainer.save_adapter(tmp_path / "a.onnx_adapter", tmp_path / "base.onnx")
    check(tmp_path / "base.onnx")


def test_metadata_in_bodies_and_functions_keeps_its_order(tmp_path):
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 17, "own": 1]>
        nodes (float[2] x, bool yes) => (float[2] y) {
            a = own.More(x)
            y = If(yes) <
                then_branch = first () => (float[2] f) { f = Neg(a) },
                else_branch = other () => (float[2] g) { g = Identity(a) }
            >
        }
        <domain: "own", opset_import: ["": 17]> More (u) => (v) { v = Add(u, u) }"""
    )
    body = model.graph.node[1].attribute[0].g
    holders = [model.functions[0], model.functions[0].node[0], body, body.node[0]]
    for holder in holders:
        for key, value in PROPS.items():
            holder.metadata_props.add(key=key, value=value)
    from onnxtrain.graph.loading.load import load_model

    models.save_model(load_model(model), tmp_path / "model.onnx")
    found = onnx.load(tmp_path / "model.onnx")
    body = found.graph.node[1].attribute[0].g
    for holder in [found.functions[0], found.functions[0].node[0], body, body.node[0]]:
        assert [entry.key for entry in holder.metadata_props] == list(PROPS)


def test_training_information_of_a_weight_that_is_gone_is_left_out(tmp_path):
    from onnxtrain.graph.loading.load import load_model

    model = given()
    model.training_info[0].update_binding[0].key = "gone"
    models.save_model(load_model(model), tmp_path / "model.onnx")
    assert not onnx.load(tmp_path / "model.onnx").training_info
