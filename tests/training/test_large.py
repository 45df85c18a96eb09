"""A model over 2 GB: read, trained for a step and written without a second copy in memory."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import numpy as np
import onnx
import pytest

ROWS, COLUMNS = 2**25 + 2**20, 16
TABLE_BYTES = ROWS * COLUMNS * 4
ROOM = 1536 * 2**20
"""For Python and its packages, besides one copy of the table."""
STEP = """
import resource, sys
import numpy as np
from onnxtrain import Trainer

resource.setrlimit(resource.RLIMIT_DATA, (int(sys.argv[2]),) * 2)
folder = sys.argv[1]
loss = lambda outputs, batch: (outputs["y"] - 1).square().mean()
trainer = Trainer(f"{folder}/model.onnx", loss=loss, device="cpu", trainable=["w"], lr=0.5)
trainer.step({"i": np.arange(4)})
trainer.save(f"{folder}/trained.onnx")
"""


def write_model(folder: pathlib.Path) -> None:
    """A table of zeros, which takes no room on disk, and a small weight."""
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> large (int64[N] i) => (float[N,3] y) {'
        " x = Gather(table, i) h = MatMul(x, v) y = Add(h, w) }"
    )
    table = proto.graph.initializer.add(
        name="table",
        data_type=onnx.TensorProto.FLOAT,
        dims=[ROWS, COLUMNS],
        data_location=onnx.TensorProto.EXTERNAL,
    )
    place = {"location": "table.bin", "offset": "0", "length": str(TABLE_BYTES)}
    for key, value in place.items():
        table.external_data.add(key=key, value=value)
    for name, shape in {"v": (COLUMNS, 3), "w": (3,)}.items():
        array = np.zeros(shape, np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    with open(folder / "table.bin", "wb") as handle:
        handle.truncate(TABLE_BYTES)
    (folder / "model.onnx").write_bytes(proto.SerializeToString())


@pytest.mark.slow
@pytest.mark.skipif(
    "ONNXTRAIN_LARGE" not in os.environ, reason="writes 2 GB; set ONNXTRAIN_LARGE to run it"
)
@pytest.mark.skipif(sys.platform != "linux", reason="limits memory as Linux can")
def test_a_model_over_two_gigabytes_trains_and_is_written(tmp_path: pathlib.Path):
    write_model(tmp_path)
    assert TABLE_BYTES > 2**31
    limit = str(TABLE_BYTES + ROOM)
    subprocess.run([sys.executable, "-c", STEP, str(tmp_path), limit], check=True)
    saved = onnx.load(tmp_path / "trained.onnx", load_external_data=False)
    assert [t.name for t in saved.graph.initializer] == ["table", "v", "w"]
    assert (tmp_path / "trained.onnx.data").stat().st_size == TABLE_BYTES  # small ones are inside
    onnx.load_external_data_for_model(saved, str(tmp_path))
    by_name = {t.name: t for t in saved.graph.initializer}
    np.testing.assert_allclose(onnx.numpy_helper.to_array(by_name["w"]), 0.5, rtol=1e-3)
    (tmp_path / "trained.onnx.data").unlink()
