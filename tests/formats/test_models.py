"""Models as files: what lies in a file of its own, and what stays inside."""

from __future__ import annotations

import pathlib

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from onnxtrain.formats.models import save_model

X = np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32)


def with_shapes() -> onnx.ModelProto:
    """A weight of 4 KiB, numbers that shapes depend on, and words."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        shapes (float[2,4] x) => (float[2,4,64] y, string[2] words) {
            row = Reshape(x, shape)
            large = Resize<mode="nearest">(row, , scales)
            y = Mul(large, w)
            words = Gather(names, first)
        }"""
    )
    weight = np.random.default_rng(1).normal(size=(2, 4, 64)).astype(np.float32)
    arrays = {
        "shape": np.array([0, 0, 1]),
        "scales": np.array([1, 1, 64], np.float32),
        "w": weight,
        "first": np.array([1, 0]),
        "names": np.array(["a", "ä"], object),
    }
    model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in arrays.items())
    return model


def run(path: pathlib.Path) -> list[np.ndarray]:
    onnx.checker.check_model(str(path), full_check=True)
    return onnxruntime.InferenceSession(path).run(None, {"x": X})


def outside(path: pathlib.Path) -> list[str]:
    """Initializers of a file that lie in another one."""
    graph = onnx.load(path, load_external_data=False).graph
    return [tensor.name for tensor in graph.initializer if tensor.external_data]


def test_a_large_model_has_its_shapes_and_words_inside(tmp_path):
    onnx.save(with_shapes(), tmp_path / "model.onnx")
    save_model(ir.from_proto(with_shapes()), tmp_path / "large.onnx", external_bytes=2000)
    assert outside(tmp_path / "large.onnx") == ["w"]
    for wanted, got in zip(run(tmp_path / "model.onnx"), run(tmp_path / "large.onnx"), strict=True):
        np.testing.assert_array_equal(wanted, got)


@pytest.mark.parametrize("limit", [2000, None])
def test_what_lay_outside_and_is_small_comes_inside(limit, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    first, second = tmp_path / "model.onnx", tmp_path / "elsewhere" / "model.onnx"
    given = with_shapes()
    given.graph.initializer.pop()
    del given.graph.output[1], given.graph.node[-1]
    onnx.save(given, first, save_as_external_data=True, location="all.bin", size_threshold=0)
    model = ir.load(first)
    save_model(model, second, external_bytes=limit)
    assert outside(second) == ([] if limit is None else ["w"])
    save_model(model, first, external_bytes=limit)
    np.testing.assert_array_equal(run(first)[0], run(second)[0])


def test_constants_of_nodes_bodies_and_functions_come_inside(tmp_path):
    given = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17, "own": 1]>
        nodes (float[2,4] x) => (float[2,4] y) {
            yes = Constant<value=bool {1}>()
            a = Add(x, one)
            b = own.More(a)
            y = If(yes) <
                then_branch = first () => (float[2,4] f) { f = Add(b, three) },
                else_branch = other () => (float[2,4] g) { g = Identity(b) }
            >
        }
        <domain: "own", opset_import: ["": 17]> More (u) => (v) { v = Add(u, two) }"""
    )
    body = given.graph.node[-1].attribute[0].g
    holders = {"one": given.graph, "two": given.functions[0], "three": body}
    for offset, (name, holder) in enumerate(holders.items()):
        tensor = onnx.TensorProto(name=name, dims=[1], data_type=1, data_location=1)
        for key, value in (("location", "all.bin"), ("offset", 4 * offset), ("length", 4)):
            tensor.external_data.add(key=key, value=str(value))
        holder.node.insert(0, helper.make_node("Constant", [], [name], value=tensor))
    (tmp_path / "all.bin").write_bytes(np.array([1, 2, 3], np.float32).tobytes())
    (tmp_path / "model.onnx").write_bytes(given.SerializeToString())
    model = ir.load(tmp_path / "model.onnx")
    for function in model.functions.values():
        ir.external_data.set_base_dir(function.graph, tmp_path)
    (tmp_path / "elsewhere").mkdir()
    path = tmp_path / "elsewhere" / "model.onnx"
    save_model(model, path)
    assert [file.name for file in path.parent.iterdir()] == ["model.onnx"]
    np.testing.assert_array_equal(run(path)[0], X + np.float32(1) + np.float32(2) + np.float32(3))
