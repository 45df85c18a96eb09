"""Files that are no ONNX models: what they are instead, and what helps."""

from __future__ import annotations

_HEAD = 4096
"""How much of a file is looked at."""
_STARTS = {
    b"PK\x03\x04": "a zip archive (torch.save writes them): unpack it, or export the model",
    b"\x1f\x8b": "compressed with gzip: unpack it",
    b"\x89HDF": "an HDF5 file (Keras): convert it with tf2onnx",
    b"version https://git-lfs": "a pointer of Git LFS: fetch the file itself with 'git lfs pull'",
    b"<!doctype": "a web page: download the file itself",
    b"<html": "a web page: download the file itself",
}
_IDENTIFIERS = {
    b"ORTM": "a model in the ORT format, which is for running: take the .onnx file it was made of",
    b"TFL3": "a TensorFlow Lite model: convert it with tf2onnx",
}
"""What the bytes 4 to 8 of FlatBuffers say."""
_TEXT = "the text form of a model: write it as bytes with onnx.save(onnx.load(path), 'model.onnx')"


def what_it_is(data: bytes) -> str | None:
    """What a file is by its first bytes, and the cure; None if that cannot be told."""
    if not data:
        return "an empty file"
    head = data[:_HEAD]
    for start, text in _STARTS.items():
        if head[: len(start)].lower() == start.lower():
            return text
    if head[4:8] in _IDENTIFIERS:
        return _IDENTIFIERS[head[4:8]]
    return _TEXT if b"ir_version" in head or b"irVersion" in head else None
