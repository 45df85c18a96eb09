"""Files that are something else than ONNX models."""

from __future__ import annotations

import gzip

import pytest

from graph.text import proto
from onnxtrain.errors import ModelError
from onnxtrain.graph.loading.load import load_model

MODEL = proto("(float[2] x) => (float[2] y) { y = Neg(x) }")


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"PK\x03\x04\x00\x00\x08\x08", "it is a zip archive"),
        (gzip.compress(MODEL.SerializeToString(), mtime=0), "it is compressed with gzip"),
        (b"\x18\x00\x00\x00ORTM\x00\x00", "ORT format.*take the .onnx file"),
        (b"\x1c\x00\x00\x00TFL3\x00\x00", "TensorFlow Lite"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "git lfs pull"),
        (b"<!DOCTYPE html><html></html>", "a web page"),
        (str(MODEL).encode(), "the text form of a model"),
        (b"\xff\xff\xff\xff\xff\xff", "or it is truncated"),
    ],
)
def test_what_a_file_is_instead(data, told):
    with pytest.raises(ModelError, match=told):
        load_model(data)
