"""Bad files get an error that names them; what is saved is saved whole or not at all."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import onnx
import pytest
import torch
from onnx import TensorProto, helper

import onnxtrain
from onnxtrain import InferenceSession, errors
from onnxtrain.api import CheckpointState, Module, Optimizer
from refusals import LOADED, chain, generate, refused, train
from training.small import load_module, mlp, model_of, normal, write_artifacts

NO_MODELS = {
    "empty": b"",
    "text": b"this is not a model",
    "image": b"\x89PNG\r\n\x1a\n" + bytes(range(256)),
    "half": mlp().SerializeToString()[: mlp().ByteSize() // 2],
    "other message": onnx.TensorProto(name="w", dims=[1]).SerializeToString(),
}


@LOADED
@pytest.mark.parametrize("content", NO_MODELS.values(), ids=NO_MODELS.keys())
def test_a_file_that_is_no_model(load, content, tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with refused(errors.ModelError, str(path), "not an ONNX model"):
        load(path)
    with refused(errors.ModelError, "the given bytes", "not an ONNX model"):
        load(content)


@LOADED
def test_a_file_that_is_not_there(load, tmp_path):
    with refused(errors.ModelError, f"there is no file '{tmp_path / 'none.onnx'}'"):
        load(tmp_path / "none.onnx")
    with refused(errors.ModelError, f"cannot read '{tmp_path}'"):
        load(tmp_path)
    with refused(errors.ModelError, "cannot take a int for a model", "give a path"):
        load(3)


def test_every_truncation_of_a_model_is_refused():
    content = mlp().SerializeToString()
    for length in range(0, len(content), 7):
        with pytest.raises(errors.OnnxTrainError):
            InferenceSession(content[:length])


@pytest.mark.parametrize(("dims", "words"), [([2, 3], "6 elements, but"), ([-1, 5], "-1, 5]")])
def test_a_tensor_without_all_of_its_numbers(dims, words):
    model = chain(helper.make_node("Add", ["m", "w"], ["y"]))
    model.graph.initializer.append(helper.make_tensor("w", TensorProto.FLOAT, [5], range(5)))
    model.graph.initializer[-1].dims[:] = dims
    with refused(errors.ModelError, "tensor 'w' should have", words, "the file holds 5"):
        InferenceSession(model)


def test_artifacts_of_a_file_that_is_no_model(tmp_path):
    (tmp_path / "model.onnx").write_bytes(NO_MODELS["half"])
    with refused(errors.ModelError, "model.onnx", "not an ONNX model"):
        generate(str(tmp_path / "model.onnx"), tmp_path)
    assert os.listdir(tmp_path) == ["model.onnx"]


def other_model() -> onnx.ModelProto:
    """Another shape, another name, and one weight more."""
    return model_of(
        """(float[N,4] x) => (float[N,3] y) {
            h = Gemm<transB=1>(x, fc1__weight, fc1__bias)
            y = Gemm<transB=1>(h, fc3__weight)
        }""",
        {
            "fc1.weight": normal(7, 4),
            "fc1.bias": normal(7),
            "fc3.weight": normal(3, 7),
        },
    )


def test_a_checkpoint_of_another_model(tmp_path):
    mine = write_artifacts(tmp_path / "mine")
    names = [t.name for t in other_model().graph.initializer]
    other = write_artifacts(
        tmp_path / "other", other_model(), requires_grad=names, frozen_params=[]
    )
    words = "the checkpoint belongs to another model"
    with refused(errors.CheckpointError, words, "no trainable parameter 'fc2.weight'"):
        load_module(mine, tmp_path / "other" / "checkpoint")
    with refused(errors.CheckpointError, words, "no trainable parameter 'fc3.weight'"):
        load_module(other, tmp_path / "mine" / "checkpoint")
    state = CheckpointState.load_checkpoint(mine / "checkpoint")
    state.parameters["fc2.bias"].tensor = torch.zeros(4)
    with refused(errors.CheckpointError, words, "'fc2.bias' has shape [4], the model declares"):
        Module(mine / "training_model.onnx", state)
    state.parameters["fc2.bias"].tensor = torch.zeros(3, dtype=torch.float64)
    with refused(errors.CheckpointError, words, "'fc2.bias' is double, the model declares float"):
        Module(mine / "training_model.onnx", state)
    more = write_artifacts(tmp_path / "more", requires_grad=list(names[:2]), frozen_params=[])
    with refused(errors.CheckpointError, words, "the model does not train its 'fc2.weight'"):
        load_module(more, tmp_path / "mine" / "checkpoint")


def test_a_checkpoint_of_another_trainer(tmp_path):
    train(other_model()).checkpoint(tmp_path / "other")
    trainer = train(mlp())
    with refused(errors.CheckpointError, str(tmp_path / "other"), "another model", "'fc3.weight'"):
        trainer.resume(tmp_path / "other")


@pytest.mark.parametrize("content", [b"", b"words", b"\0" * 64, mlp().SerializeToString()])
def test_a_file_that_is_no_checkpoint(content, tmp_path):
    path = tmp_path / "checkpoint"
    path.write_bytes(content)
    with refused(errors.CheckpointError, f"cannot load checkpoint '{path}'"):
        CheckpointState.load_checkpoint(path)
    with refused(errors.CheckpointError, f"cannot load checkpoint '{path}'"):
        train(mlp()).resume(path)
    for load in (CheckpointState.load_checkpoint, train(mlp()).resume):
        with refused(errors.CheckpointError, "cannot load checkpoint", "none", "No such file"):
            load(tmp_path / "none")


@pytest.mark.parametrize("kind", ["native", "odtc"])
def test_every_truncation_of_a_checkpoint_is_refused(kind, tmp_path):
    trainer = train(mlp())
    if kind == "native":
        trainer.checkpoint(tmp_path / "whole")
        load = trainer.resume
    else:
        CheckpointState.save_checkpoint(trainer.state, tmp_path / "whole", True)
        load = CheckpointState.load_checkpoint
    content = (tmp_path / "whole").read_bytes()
    before = {name: tensor.clone() for name, tensor in trainer.parameters.items()}
    padding = 8
    for length in range(0, len(content) - padding, max(1, len(content) // 60)):
        (tmp_path / "cut").write_bytes(content[:length])
        with pytest.raises(errors.CheckpointError, match="cut"):
            load(tmp_path / "cut")
    assert all(torch.equal(tensor, before[name]) for name, tensor in trainer.parameters.items())


def test_an_optimizer_model_that_is_none(tmp_path):
    folder = write_artifacts(tmp_path)
    module = load_module(folder)
    with refused(errors.ModelError, "not an optimizer model", "unknown input 'x'", "params"):
        Optimizer(folder / "eval_model.onnx", module)
    (tmp_path / "cut.onnx").write_bytes(b"\x08")
    with refused(errors.ModelError, "cut.onnx", "not an ONNX model"):
        Optimizer(tmp_path / "cut.onnx", module)


def external_model(folder: pathlib.Path, location: str) -> pathlib.Path:
    """A model that says that its weight lies at a place."""
    model = chain(helper.make_node("Neg", ["m"], ["y"], name="neg"))
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    folder.mkdir(exist_ok=True)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    return folder / "model.onnx"


@LOADED
@pytest.mark.parametrize("how", ["absolute", "parent", "inner parent", "link", "linked folder"])
def test_external_data_outside_the_folder_of_the_model(load, how, tmp_path):
    secret = tmp_path / "secret.bin"
    secret.write_bytes(normal(3).tobytes())
    folder = tmp_path / "model"
    folder.mkdir()
    location = {
        "absolute": str(secret),
        "parent": "../secret.bin",
        "inner parent": "inner/../../secret.bin",
        "link": "data.bin",
        "linked folder": "inner/secret.bin",
    }[how]
    if how == "link":
        (folder / "data.bin").symlink_to(secret)
    elif how == "linked folder":
        (folder / "inner").symlink_to(tmp_path)
    path = external_model(folder, location)
    with refused(errors.ModelError, "'fc1.bias'", "outside the model's folder", location):
        load(path)


@LOADED
def test_external_data_that_is_missing_or_too_short(load, tmp_path):
    path = external_model(tmp_path, "data.bin")
    with refused(errors.ModelError, str(path), "'data.bin' is missing"):
        load(path)
    (tmp_path / "data.bin").write_bytes(b"\0" * 5)
    with refused(errors.ModelError, "'data.bin' is truncated", "'fc1.bias' ends at byte 12"):
        load(path)
    with refused(errors.ModelError, "'fc1.bias'", "'data.bin'", "load the model from its path"):
        load(path.read_bytes())


SAVES = ("model", "resumable", "checkpoint", "exported")
FULL_DISK = """
import resource, sys
from training.small import *
from onnxtrain import Trainer
from onnxtrain.api import CheckpointState
from onnxtrain.errors import SaveError

folder, out = map(pathlib.Path, sys.argv[1:])
trainer = Trainer(mlp(), loss="cross_entropy", device="cpu")
trainer.step(batch_of())
module = load_module(folder)
load_optimizer(folder, module)
saves = {
    "model": trainer.save,
    "resumable": trainer.checkpoint,
    "checkpoint": lambda path: CheckpointState.save_checkpoint(module.state, path, True),
    "exported": lambda path: module.export_model_for_inferencing(path, ["y"]),
}
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
for name, save in saves.items():
    try:
        save(out / name)
    except SaveError as error:
        print(error)
"""


def save_without_room(folder: pathlib.Path, out: pathlib.Path) -> str:
    """What saves say in a process whose files may not grow beyond 100 bytes."""
    source = pathlib.Path(onnxtrain.__file__).parents[1]
    paths = [str(source), str(pathlib.Path(__file__).parent)]
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, folder, out],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit on the size of files")
@pytest.mark.parametrize("before", [None, b"what was there before"], ids=["new", "old"])
def test_a_full_disk_while_saving(before, tmp_path):
    folder = write_artifacts(tmp_path / "artifacts")
    out = tmp_path / "out"
    out.mkdir()
    for name in SAVES if before is not None else ():
        (out / name).write_bytes(before)
    said = save_without_room(folder, out)
    for name in SAVES:
        assert f"cannot save '{out / name}': File too large" in said
    assert said.count("what was there before is untouched") == len(SAVES)
    assert sorted(os.listdir(out)) == (sorted(SAVES) if before is not None else [])
    assert before is None or all((out / name).read_bytes() == before for name in SAVES)


def test_a_folder_that_is_not_there(tmp_path):
    trainer = train(mlp())
    for save in (trainer.save, trainer.checkpoint):
        with refused(errors.SaveError, f"cannot save '{tmp_path / 'none' / 'file'}'"):
            save(tmp_path / "none" / "file")
        with refused(errors.SaveError, f"cannot save '{tmp_path}'"):
            save(tmp_path)
    assert not os.listdir(tmp_path)
