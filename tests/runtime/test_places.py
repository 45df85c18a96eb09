"""Operators that move elements, on strings."""

from typing import Any

import numpy as np
import onnx.parser
import pytest

from onnxtrain.errors import NoKernelError
from onnxtrain.graph.loading.load import load_model
from onnxtrain.graph.prepare import prepare
from onnxtrain.kernels.library import default_registry
from onnxtrain.runtime.lower import LowerOptions, lower
from onnxtrain.runtime.session import InferenceSession
from onnxtrain.types import CUDA

WORDS = np.array([["a", "b", "c"], ["d", "e", "a"]], object)


def parsed(body: str, outputs: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 21]> main (string[2,3] x) => ({outputs}) {{ {body} }}'
    )


def run(body: str, outputs: str = "string[N] y") -> list[Any]:
    return InferenceSession(parsed(body, outputs)).run(None, {"x": WORDS})


MOVES = {
    "y = Transpose(x)": WORDS.T,
    "y = Concat<axis=0>(x, x)": np.concatenate([WORDS, WORDS]),
    "s = Constant<value_ints=[3,2]>()  y = Reshape(x, s)": WORDS.reshape(3, 2),
    "i = Constant<value_ints=[2,0]>()  y = Gather<axis=1>(x, i)": WORDS[:, [2, 0]],
    "n = Constant<value_ints=[1,2]>()  y = Tile(x, n)": np.tile(WORDS, (1, 2)),
    "p = Constant<value_ints=[0,0,0,1]>()  y = Pad(x, p)": np.pad(
        WORDS, ((0, 0), (0, 1)), constant_values=""
    ),
    "p = Constant<value_ints=[0,0,0,1]>()  v = Constant<value_string='z'>()  y = Pad(x, p, v)": (
        np.pad(WORDS, ((0, 0), (0, 1)), constant_values="z")
    ),
    "z = Constant<value_strings=['a','b','z']>()  c = Equal(x, z)  y = Where(c, x, z)": np.array(
        [["a", "b", "z"], ["a", "b", "z"]], object
    ),
    "y = Identity(x)": WORDS,
}


@pytest.mark.parametrize("body", MOVES)
def test_strings_are_moved(body: str) -> None:
    (y,) = run(body.replace("'", '"'), "string[A,B] y")
    np.testing.assert_array_equal(y, MOVES[body])
    assert y.dtype == object


def test_outputs_that_are_numbers_stay_numbers() -> None:
    (y,) = run("y = Shape(x)", "int64[2] y")
    np.testing.assert_array_equal(y, [2, 3])


def test_several_outputs() -> None:
    left, right = run("l, r = Split<axis=1, num_outputs=2>(x)", "string[2,2] l, string[2,1] r")
    np.testing.assert_array_equal(left, WORDS[:, :2])
    np.testing.assert_array_equal(right, WORDS[:, 2:])


def test_sequences_of_strings() -> None:
    (y,) = run("s = SplitToSequence<axis=0>(x)  i = Constant<value_int=1>()  y = SequenceAt(s, i)")
    np.testing.assert_array_equal(y, WORDS[1:])


@pytest.mark.parametrize("op", ["ScatterElements", "ScatterND"])
def test_strings_are_not_reduced(op: str) -> None:
    i = "i = Constant<value = int64[2,1] {1, 0}>()"
    with pytest.raises(NoKernelError, match=f"{op} of strings with reduction 'min', node 'n'"):
        run(f'{i}  [n] y = {op}<reduction="min">(x, i, x)', "string[2,3] y")


def test_an_output_is_never_the_caller_s_array() -> None:
    (y,) = run("y = Identity(x)", "string[2,3] y")
    y[0, 0] = "changed"
    assert WORDS[0, 0] == "a"


def test_on_a_gpu_strings_stay_on_the_host() -> None:
    model = prepare(
        load_model(parsed("t = Transpose(x)  y = Concat<axis=0>(t, t)", "string[6,2] y"))
    )
    plan = lower(model, default_registry(), LowerOptions(CUDA))
    assert {step.kernel.op for step in plan.block.walk()} == {"Transpose", "Concat"}
    assert plan.inputs[0].host
