"""Biases that are zero and stay zero, as exporters write them where a layer has none."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxtrain.transforms.fusion.reading import is_op
from onnxtrain.transforms.fusion.report import Fused, Report

_BIAS = 2
"""Position of the bias among the inputs of all of these."""
_LARGEST = 1 << 20


def drop_zero_biases(graph: ir.Graph, report: Report) -> None:
    """Leave out constants of nothing but zeros that convolutions and Gemm would add."""
    for node in graph:
        if not is_op(node, "Conv", "ConvTranspose", "Gemm") or len(node.inputs) <= _BIAS:
            continue
        value = node.inputs[_BIAS]
        tensor = None if value is None else value.const_value
        if tensor is None or tensor.size > _LARGEST or np.any(tensor.numpy()):
            continue
        node.replace_input_with(_BIAS, None)
        report.fused.append(Fused("zero bias", str(node.name), (str(node.name),)))
