"""Types, tables, ranges and memory."""

from __future__ import annotations

import logging
from logging.handlers import BufferingHandler

import onnx
import pytest
import torch

from onnxtrain import utils


@pytest.mark.parametrize(
    ("name", "dtype", "number"),
    [
        ("Float", torch.float32, onnx.TensorProto.FLOAT),
        ("Half", torch.float16, onnx.TensorProto.FLOAT16),
        ("BFloat16", torch.bfloat16, onnx.TensorProto.BFLOAT16),
        ("Long", torch.int64, onnx.TensorProto.INT64),
        ("Byte", torch.uint8, onnx.TensorProto.UINT8),
        ("Bool", torch.bool, onnx.TensorProto.BOOL),
    ],
)
def test_types_there_and_back(name, dtype, number):
    assert utils.pytorch_scalar_type_to_pytorch_dtype(name) == dtype
    assert utils.pytorch_type_to_onnx_dtype(dtype) == number
    assert utils.pytorch_type_to_onnx_dtype(name) == number
    assert utils.onnx_dtype_to_pytorch_dtype(number) == dtype


def test_an_unknown_scalar_type():
    with pytest.raises(RuntimeError, match="unknown scalar type 'Quaternion'"):
        utils.pytorch_scalar_type_to_pytorch_dtype("Quaternion")


def test_tables_are_as_wide_as_their_cells():
    table = utils.PTable()
    table.add_row(["a", "bb"])
    row = table.add_row(["ccc", "d"])
    # as onnxruntime-training 1.19.2 prints it
    assert table.get_string() == "a    bb  \nccc  d   \n"
    note = utils.PTable(sortable=True)
    note.add_row(["z", "1"])
    note.add_row(["y", "2"])
    row.append_annotation_table(note)
    assert table.get_string() == "a    bb  \nccc  d   \ny    2   \nz    1   \n"
    with pytest.raises(ValueError, match="a row of 1 cells in a table of 2"):
        table.add_row(["x"])


def test_ranges_are_allowed_without_a_gpu():
    utils.torch_nvtx_range_push("here")
    utils.torch_nvtx_range_pop()

    @utils.nvtx_function_decorator
    def double(x: int) -> int:
        """Twice."""
        return 2 * x

    assert double(4) == 8 and double.__doc__ == "Twice."


def test_memory_of_a_module(monkeypatch):
    module = torch.nn.Linear(1024, 256)
    logger, kept = logging.getLogger("onnxtrain.utils.profiling"), BufferingHandler(10)
    monkeypatch.setattr(logger, "handlers", [kept])
    logger.setLevel(logging.INFO)
    line = utils.log_memory_usage("forward", step_info="step 3: ", module=module)
    logger.setLevel(logging.NOTSET)
    assert [record.getMessage() for record in kept.buffer] == [line]
    assert line.startswith("step 3: forward | ") and "parameters: 1.0 MiB" in line
    assert "gradients: 0.0 MiB" in line
