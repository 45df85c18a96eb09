from __future__ import annotations

import collections

import pytest
import torch

from onnxtrain import utils

Pair = collections.namedtuple("Pair", ["left", "right"])


def test_there_and_back():
    a, b, c = torch.ones(2), torch.zeros(1), torch.arange(3)
    data = {"x": a, "n": [b, 3, None, "s", True], "t": (2.5, Pair(c, ()))}
    tensors, schema = utils.extract_data_and_schema(data)
    assert [t is u for t, u in zip(tensors, (a, b, c), strict=True)] == [True] * 3
    assert schema["n"][1:] == [3, None, "s", True]
    assert (schema["x"].tensor_idx, schema["t"][1].left.name) == (0, "t-1-0")
    again = utils.unflatten_data_using_schema([c, b, a], schema)
    assert again["x"] is c and again["t"][1].left is a and again["t"][1].right == ()
    assert isinstance(again["t"][1], Pair) and again["n"][1:] == data["n"][1:]


def test_one_tensor_alone():
    x = torch.ones(2)
    tensors, schema = utils.extract_data_and_schema(x)
    assert tensors == [x] and utils.unflatten_data_using_schema(tensors, schema) is x


def test_other_mappings_keep_their_type():
    data = collections.OrderedDict(b=torch.ones(1), a=1)
    tensors, schema = utils.extract_data_and_schema(data)
    again = utils.unflatten_data_using_schema(tensors, schema)
    assert isinstance(again, collections.OrderedDict) and list(again) == ["b", "a"]


def test_numbers_as_tensors():
    tensors, schema = utils.extract_data_and_schema([2, "s", 0.5, True], constant_as_tensor=True)
    assert [t.item() for t in tensors] == [2, 0.5, True]
    assert schema[1] == "s"


def test_refusals():
    with pytest.raises(TypeError, match="'0-x' is a set, which cannot be flattened"):
        utils.extract_data_and_schema([{"x": {1}}])
    _, schema = utils.extract_data_and_schema([torch.ones(1)])
    with pytest.raises(ValueError, match="1 slots, there are 2 tensors"):
        utils.unflatten_data_using_schema([torch.ones(1)] * 2, schema)
