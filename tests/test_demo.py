import re
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime

from onnxtrain.demo import digits
from onnxtrain.demo.model import digits_cnn


def test_the_network_is_the_same_for_the_same_seed():
    assert digits_cnn(3) == digits_cnn(3)
    assert digits_cnn(3) != digits_cnn(4)


def test_the_network_has_the_operators_that_are_shown():
    ops = {node.op_type for node in digits_cnn().graph.node}
    assert ops == {
        "BatchNormalization", "Conv", "Dropout", "Flatten", "Gemm", "MaxPool", "Relu",
    }  # fmt: skip


def test_no_image_is_both_trained_on_and_judged_by():
    training, held_out = digits.load()
    assert (len(training["image"]), len(held_out["image"])) == (1437, 360)
    assert np.bincount(held_out["labels"]).min() >= 34
    assert training["image"].max() == 1.0
    again, _ = digits.load()
    np.testing.assert_array_equal(training["image"], again["image"])


def test_the_demo_trains_writes_and_agrees_with_onnxruntime(tmp_path):
    command = [sys.executable, "-m", "onnxtrain.demo", "--out", str(tmp_path), "--device", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert float(re.search(r"held-out accuracy +([\d.]+)% of 360", done.stdout)[1]) >= 97
    assert "360 of 360 predictions identical" in done.stdout
    assert "\x1b" not in done.stdout
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    onnx.checker.check_model(onnx.load(tmp_path / "digits-trained.onnx"), full_check=True)
    session = onnxruntime.InferenceSession(tmp_path / "digits-trained.onnx")
    _, held_out = digits.load()
    (logits,) = session.run(None, {"image": held_out["image"]})
    assert (logits.argmax(axis=1) == held_out["labels"]).mean() >= 0.97


def test_a_demo_that_learns_too_little_fails(tmp_path):
    command = [sys.executable, "-m", "onnxtrain.demo", "--out", str(tmp_path), "--epochs", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert "error: expected an accuracy of 97%" in done.stderr
