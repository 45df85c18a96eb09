"""What ``import onnxtrain`` offers."""

import ast
import importlib
import inspect
import pathlib

import pytest

import onnxtrain
import onnxtrain.api


@pytest.mark.parametrize("name", onnxtrain.__all__)
def test_every_public_name_is_there_and_documented(name: str) -> None:
    value = getattr(onnxtrain, name)
    assert inspect.getdoc(value), f"{name} has no docstring"


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(pathlib.Path(onnxtrain.__file__).read_text())
    blocks = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {
        alias.name
        for block in blocks
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == set(onnxtrain.__all__)


def test_type_checkers_of_users_look_at_the_package() -> None:
    assert pathlib.Path(onnxtrain.__file__).with_name("py.typed").exists()


def test_what_can_be_reached_is_listed() -> None:
    assert set(dir(onnxtrain)) == {*onnxtrain.__all__, "__version__"}
    assert onnxtrain.__all__ == sorted(onnxtrain.__all__)


def test_other_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="module 'onnxtrain' has no attribute 'nothing'"):
        _ = onnxtrain.nothing


def test_modules_of_the_training_api() -> None:
    for module, name in (
        ("checkpoint_state", "CheckpointState"),
        ("lr_scheduler", "LinearLRScheduler"),
        ("module", "Module"),
        ("optimizer", "Optimizer"),
    ):
        found = importlib.import_module(f"onnxtrain.api.{module}")
        assert getattr(found, name) is getattr(onnxtrain.api, name)


@pytest.mark.parametrize(
    ("package", "names"),
    [
        ("loss", ["BCEWithLogitsLoss", "CrossEntropyLoss", "L1Loss", "MSELoss"]),
        ("optim", ["SGD", "AdamW", "AdamWOptimizer", "ClipGradNorm", "SGDOptimizer"]),
    ],
)
def test_modules_inside_of_onnxblock(package: str, names: list[str]) -> None:
    public = importlib.import_module(f"onnxtrain.onnxblock.{package}")
    inner = importlib.import_module(f"onnxtrain.onnxblock.{package}.{package}")
    assert all(getattr(inner, name) is getattr(public, name) for name in names)


@pytest.mark.parametrize(
    ("module", "public", "names"),
    [
        ("utils.ptable", "utils", ["PTable"]),
        ("utils.torch_io_helper", "utils", ["PrimitiveType", "extract_data_and_schema"]),
        ("utils.torch_type_map", "utils", ["pytorch_type_to_onnx_dtype"]),
        ("utils.torch_profile_utils", "utils", ["log_memory_usage", "nvtx_function_decorator"]),
        (
            "experimental.gradient_graph._gradient_graph_tools",
            "experimental",
            ["export_gradient_graph"],
        ),
        ("artifacts", "", ["onnxblock"]),
    ],
)
def test_modules_where_the_reference_has_them(module: str, public: str, names: list[str]) -> None:
    inner = importlib.import_module(f"onnxtrain.{module}")
    outer = importlib.import_module(f"onnxtrain.{public}".rstrip("."))
    assert all(getattr(inner, name) is getattr(outer, name) for name in names)
