"""Names in messages."""

from onnxtrain.graph.names import listed, nearest, trainable
from onnxtrain.types import DataType


def test_names_like_the_wanted_one_come_first():
    names = ["conv.weight", "fc1.bias", "fc1.weight", "fc2.weight"]
    assert nearest(["fc2.weigth"], names) == "fc2.weight, fc1.weight, conv.weight, fc1.bias"
    assert nearest(["FC1.BIAS"], names).startswith("fc1.bias, ")


def test_names_like_none_that_is_wanted_keep_their_order():
    assert nearest(["zz"], ["b", "a", "c"]) == "b, a, c"
    assert nearest([], ["b", "a"]) == "b, a"
    assert nearest(["zz"], []) == "none"


def test_what_blocks_made_comes_last_unless_it_is_meant():
    names = ["onnx::pow_exponent::3", "w"]
    assert nearest(["zz"], names) == "w, onnx::pow_exponent::3"
    assert nearest(["onnx::pow_exponent::4"], names) == "onnx::pow_exponent::3, w"


def test_few_of_many_names_are_shown():
    names = [f"layer{n}.weight" for n in range(500)]
    shown = nearest(["layer321.weights"], names)
    assert shown.startswith("layer321.weight, ") and shown.endswith(" and 492 more")
    assert shown.count(",") == 7


def test_few_of_many_texts_are_listed():
    assert listed(map(str, range(3))) == "0, 1, 2"
    assert listed(map(str, range(10))) == "0, 1, 2, 3, 4, 5, 6, 7 and 2 more"
    assert listed([]) == ""


def test_only_floating_point_that_no_block_made_could_be_trained():
    typed = [
        ("w", DataType.FLOAT),
        ("onnx::MatMul_12", DataType.BFLOAT16),
        ("onnx::pow_exponent::3", DataType.FLOAT),
        ("shape", DataType.INT64),
        ("unknown", None),
    ]
    assert trainable(typed) == ["w", "onnx::MatMul_12", "unknown"]
