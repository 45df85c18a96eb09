import os
import pathlib
import resource

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

from graph.text import proto
from onnxtrain.errors import ModelError
from onnxtrain.graph.loading.external import data_files
from onnxtrain.graph.loading.load import load_model

TEXT = "(float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }"


@pytest.fixture
def external(tmp_path: pathlib.Path) -> pathlib.Path:
    """A model whose weight lies in a file beside it."""
    path = tmp_path / "model.onnx"
    stored = proto(TEXT)
    weight = numpy_helper.from_array(np.array([1, 2], np.float32), "w")
    stored.graph.initializer[0].CopyFrom(weight)
    onnx.save(
        stored,
        path,
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=0,
    )
    return path


def moved(path: pathlib.Path, location: str) -> pathlib.Path:
    """The same model, whose weight is said to be somewhere else."""
    stored = onnx.load(path, load_external_data=False)
    for entry in stored.graph.initializer[0].external_data:
        if entry.key == "location":
            entry.value = location
    path.write_bytes(stored.SerializeToString())
    return path


def test_every_form_gives_the_same_model(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(proto(TEXT), path)
    for source in (path, str(path), path.read_bytes(), proto(TEXT)):
        loaded = load_model(source)
        assert [node.op_type for node in loaded.graph] == ["Add"]
        assert loaded.graph.initializers["w"].const_value.numpy().tolist() == [1, 2]


def test_an_ir_model_is_taken_as_it_is() -> None:
    given = ir.from_proto(proto(TEXT))
    assert load_model(given) is given


def test_other_objects_are_refused() -> None:
    with pytest.raises(ModelError, match="cannot take a int for a model"):
        load_model(3)  # type: ignore[arg-type]


def test_a_missing_file_is_named(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ModelError, match=r"there is no file '.*none\.onnx'"):
        load_model(tmp_path / "none.onnx")


def test_a_folder_is_no_model(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ModelError, match="cannot read"):
        load_model(tmp_path)


@pytest.mark.parametrize("data", [b"not a model at all", b"\x08\x0a\xff", b""])
def test_bytes_that_are_no_model_are_refused(data: bytes) -> None:
    with pytest.raises(ModelError, match="is not an ONNX model"):
        load_model(data)


def test_an_empty_file_is_called_empty(tmp_path: pathlib.Path) -> None:
    (tmp_path / "model.onnx").touch()
    with pytest.raises(ModelError, match="is not an ONNX model: it is empty"):
        load_model(tmp_path / "model.onnx")


def test_a_truncated_file_is_refused(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "m.onnx"
    whole = proto(TEXT).SerializeToString()
    for size in range(1, len(whole) - 1, 7):
        path.write_bytes(whole[:size])
        with pytest.raises(ModelError):
            load_model(path)


def test_a_model_without_opsets_is_refused() -> None:
    bare = proto(TEXT)
    bare.ClearField("opset_import")
    with pytest.raises(ModelError, match="it has no graph or no opset import"):
        load_model(bare)


def test_external_data_is_found_beside_the_model(
    external: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(external.parent.parent)
    loaded = load_model(external)
    assert loaded.graph.initializers["w"].const_value.numpy().tolist() == [1, 2]


def test_external_data_takes_one_handle_of_the_system_for_a_file(tmp_path: pathlib.Path) -> None:
    stored = proto(TEXT)
    for index in range(64):
        array = np.full(2, index, np.float32)
        stored.graph.initializer.append(numpy_helper.from_array(array, f"w{index}"))
    path = tmp_path / "model.onnx"
    outside = {"save_as_external_data": True, "location": "weights.bin", "size_threshold": 0}
    onnx.save(stored, path, **outside)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = os.open(os.devnull, os.O_RDONLY)
    os.close(used)
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 16, before[1]))
    try:
        loaded = load_model(path)
        arrays = [loaded.graph.initializers[f"w{n}"].const_value.numpy() for n in range(64)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert [array.tolist() for array in arrays] == [[n, n] for n in range(64)]


@pytest.mark.parametrize(
    "array",
    [
        np.arange(-3, 4).astype(ml_dtypes.int4),
        np.arange(7).astype(ml_dtypes.bfloat16),
        np.zeros((0, 3), np.float32),
        np.arange(6).reshape(2, 3),
    ],
    ids=lambda array: array.dtype.name,
)
def test_external_data_of_all_types(array: np.ndarray, tmp_path: pathlib.Path) -> None:
    stored = proto(TEXT)
    tensor = ir.to_proto(ir.Tensor(array, name="v"))
    data, tensor.data_location = tensor.raw_data, onnx.TensorProto.EXTERNAL
    tensor.ClearField("raw_data")
    tensor.external_data.add(key="location", value="v.bin")
    tensor.external_data.add(key="offset", value="0")
    stored.graph.initializer.append(tensor)
    (tmp_path / "v.bin").write_bytes(data)
    (tmp_path / "model.onnx").write_bytes(stored.SerializeToString())
    held = load_model(tmp_path / "model.onnx").graph.initializers["v"].const_value
    assert held.numpy().dtype == array.dtype
    np.testing.assert_array_equal(held.numpy(), array)
    np.testing.assert_array_equal(np.asarray(held), array)
    assert held.tobytes() == data


def test_external_data_of_functions_is_found_beside_the_model(
    external: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = onnx.load(external, load_external_data=False)
    weight = stored.graph.initializer.pop()
    body = [
        helper.make_node("Constant", [], ["w"], value=weight),
        helper.make_node("Add", ["a", "w"], ["b"]),
    ]
    imports = [helper.make_opsetid("", 17)]
    stored.functions.append(helper.make_function("own", "More", ["a"], ["b"], body, imports))
    node = stored.graph.node[0]
    (given,) = (name for name in node.input if name != "w")
    node.CopyFrom(helper.make_node("More", [given], list(node.output), domain="own"))
    stored.opset_import.add(domain="own", version=1)
    external.write_bytes(stored.SerializeToString())
    monkeypatch.chdir(external.parent.parent)
    loaded = load_model(external)
    (function,) = loaded.functions.values()
    assert function[0].attributes["value"].as_tensor().numpy().tolist() == [1, 2]
    assert data_files(loaded) == {external.parent.resolve() / "weights.bin"}


def test_external_data_needs_a_path(external: pathlib.Path) -> None:
    with pytest.raises(ModelError, match="without a path there is no folder to look in"):
        load_model(external.read_bytes())


def test_missing_external_data_is_named(external: pathlib.Path) -> None:
    (external.parent / "weights.bin").unlink()
    with pytest.raises(ModelError, match=r"external data file 'weights\.bin' is missing"):
        load_model(external)


def test_truncated_external_data_is_refused(external: pathlib.Path) -> None:
    data = external.parent / "weights.bin"
    data.write_bytes(data.read_bytes()[:5])
    with pytest.raises(ModelError, match="is truncated: tensor 'w' ends at byte 8, the file at 5"):
        load_model(external)


@pytest.mark.parametrize("location", ["../secret.bin", "a/../../secret.bin"])
def test_external_data_outside_the_folder_is_refused(external: pathlib.Path, location: str) -> None:
    with pytest.raises(ModelError, match="outside the model's folder"):
        load_model(moved(external, location))


def test_external_data_with_other_names_outside_is_refused(external: pathlib.Path) -> None:
    os.link(external.parent / "weights.bin", external.parent / "other.bin")
    os.link(external.parent / "weights.bin", external.parent.parent / "outside.bin")
    with pytest.raises(ModelError, match=r"'weights\.bin' has other names too \(hard links\)") as e:
        load_model(external)
    assert "cp weights.bin copy && mv copy weights.bin" in str(e.value)
    os.unlink(external.parent.parent / "outside.bin")
    load_model(external)


def test_external_data_with_other_names_beside_it_is_loaded(external: pathlib.Path) -> None:
    os.link(external.parent / "weights.bin", external.parent / "other.bin")
    held = load_model(external).graph.initializers["w"].const_value
    assert held is not None and held.numpy().tolist() == [1, 2]


def test_absolute_paths_of_external_data_are_refused(external: pathlib.Path) -> None:
    inside = str(external.parent / "weights.bin")
    with pytest.raises(ModelError, match="outside the model's folder"):
        load_model(moved(external, inside))


def test_links_out_of_the_folder_are_refused(external: pathlib.Path) -> None:
    outside = external.parent.parent / "outside.bin"
    outside.write_bytes(np.ones(2, np.float32).tobytes())
    (external.parent / "link.bin").symlink_to(outside)
    with pytest.raises(ModelError, match="outside the model's folder"):
        load_model(moved(external, "link.bin"))


@pytest.mark.parametrize("data", ["linked", "not linked"])
def test_links_to_a_model_and_its_data_are_followed(external: pathlib.Path, data: str) -> None:
    """Caches of downloaded models are like the first, links into a folder of work the second."""
    blobs, links = external.parent / "blobs", external.parent / "links"
    blobs.mkdir(), links.mkdir()
    name = {"linked": "0a1b", "not linked": "weights.bin"}[data]
    (external.parent / "weights.bin").rename(blobs / name)
    external.rename(blobs / "2c3d")
    (links / "m.onnx").symlink_to("../blobs/2c3d")
    if data == "linked":
        (links / "weights.bin").symlink_to("../blobs/0a1b")
    [tensor] = [v.const_value for v in load_model(links / "m.onnx").graph.initializers.values()]
    assert tensor is not None and tensor.numpy().tolist() == [1, 2]


def test_a_model_that_is_a_link_does_not_open_other_folders(external: pathlib.Path) -> None:
    blobs, links = external.parent / "blobs", external.parent / "links"
    blobs.mkdir(), links.mkdir()
    moved(external, "../weights.bin").rename(blobs / "2c3d")
    (links / "m.onnx").symlink_to("../blobs/2c3d")
    with pytest.raises(ModelError, match="outside the model's folder"):
        load_model(links / "m.onnx")


def test_external_data_of_attributes_is_checked_too(tmp_path: pathlib.Path) -> None:
    stored = proto("() => (float[2] y) { y = Constant <value = float[2] {1, 2}> () }")
    tensor = stored.graph.node[0].attribute[0].t
    tensor.CopyFrom(numpy_helper.from_array(np.ones(2, np.float32)))
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../x.bin")
    path = tmp_path / "m.onnx"
    path.write_bytes(stored.SerializeToString())
    with pytest.raises(ModelError, match="outside the model's folder"):
        load_model(path)


def test_a_domain_that_everybody_knows_need_not_be_imported():
    text = "(float[2] x, float[2] b) => (float[2] y) { y = com.microsoft.BiasGelu(x, b) }"
    stored = proto(text, com_microsoft=1)
    del stored.opset_import[1:]
    assert load_model(stored).opset_imports["com.microsoft"] == 1
    assert len(stored.opset_import) == 1, "the given model was changed"


def test_a_tensor_with_too_few_bytes():
    stored = proto("(float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }")
    (tensor,) = stored.graph.initializer
    tensor.CopyFrom(numpy_helper.from_array(np.ones(2, np.float32), "w"))
    tensor.raw_data = tensor.raw_data[:-4]
    with pytest.raises(ModelError, match="'w' should have 8 bytes, but the file holds 4"):
        load_model(stored)


def test_the_first_cause_of_an_invalid_model_is_told():
    stored = proto("(float[2] x) => (float[2] y) { y = Neg(x) }")
    stored.graph.node.append(stored.graph.node[0])
    with pytest.raises(ModelError, match="Output 'y' is redeclared"):
        load_model(stored)
