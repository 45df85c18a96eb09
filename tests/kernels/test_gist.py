"""Codecs: known bytes, what comes back, and where the shape of packed bits comes from."""

import math
from typing import Any

import onnx.parser
import pytest
import torch

from onnxtrain.kernels import gist
from onnxtrain.runtime.session import InferenceSession
from onnxtrain.types import DataType

FLOAT, BOOL, FLOAT16 = int(DataType.FLOAT), int(DataType.BOOL), int(DataType.FLOAT16)
INF, NAN = float("inf"), float("nan")
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]


def codes(text: str) -> list[int]:
    return list(bytes.fromhex(text))


@pytest.mark.parametrize(
    ("values", "encoded", "decoded"),
    [
        (
            [1, -0.5, 0.25, 3, -2, 0.1, 0, 1.99],
            "10 48 04 30 60 02 00 A0",
            [1, -0.5, 0.25, 3, -2, 0.125, 0, 2],
        ),
        (
            [1, 1.5, -1.25, 0.75, 0.015625, 0.0078125, -0.02, -0.0],
            "A0 B0 E8 98 81 80 C1 00",
            [1, 1.5, -1.25, 0.75, 0.03125, 0, -0.03125, 0],
        ),
        (
            [63.9, 1, 2, 4, 8, 16, 32, -0.001],
            "3F 01 82 04 08 10 20 C0",
            [63, 1, 2, 4, 8, 16, 32, 0],
        ),
        ([1, 2, INF, 4, 5, 6, 7, 8], "00 00 00 00 00 00 00 00", [0] * 8),
        ([NAN, 2, 3, 4, 5, 6, 7, 8], "00 00 00 00 00 00 00 00", [0] * 8),
    ],
)
def test_bytes_of_a_tile(values: list[float], encoded: str, decoded: list[float]) -> None:
    code = gist.pack_msfp15(torch.tensor(values, dtype=torch.float32))
    assert code.tolist() == codes(encoded)
    assert gist.unpack_msfp15(code, to=FLOAT).tolist() == decoded


def test_elements_beyond_the_last_tile_share_its_exponent() -> None:
    x = torch.tensor([1.0] * 8 + [1.0] * 7 + [40.0] + [0.5, -36.0, 100.0])
    back = gist.unpack_msfp15(gist.pack_msfp15(x), to=FLOAT)
    assert back.tolist() == [1.0] * 8 + [2.0] * 7 + [40.0] + [0.0, -36.0, 100.0]


def test_the_smallest_shared_exponents_give_denormal_numbers() -> None:
    x = torch.tensor([2.0**-126] + [2.0**-126 * 1.5] * 7)
    assert gist.unpack_msfp15(gist.pack_msfp15(x), to=FLOAT).tolist() == x.tolist()
    tile = torch.tensor([0x81, 1, 0, 0, 0, 0, 0, 0x41], dtype=torch.uint8)
    assert gist.unpack_msfp15(tile, to=FLOAT).tolist() == [2.0**-131] * 2 + [0.0] * 5 + [
        -(2.0**-131)
    ]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(8,), (9,), (3, 7), (2, 3, 16)])
def test_a_tile_is_off_by_half_a_step_at_most(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    back = gist.unpack_msfp15(gist.pack_msfp15(x), to=FLOAT).to(torch.float64).flatten()
    sizes = [8] * (x.numel() // 8 - 1) + [8 + x.numel() % 8]
    for true, ours in zip(
        x.to(torch.float64).flatten().split(sizes), back.split(sizes), strict=True
    ):
        step = 2.0 ** (math.floor(math.log2(float(true.abs().max()))) - 5)
        saturated = true.abs() >= 63.5 * step
        assert ((ours - true).abs() <= torch.where(saturated, step, step / 2)).all()


@pytest.mark.parametrize("shape", [(), (1,), (7,), (2, 3)])
def test_fewer_elements_than_a_tile_are_single_bytes(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    assert torch.equal(gist.pack_msfp15(x), gist.pack8(x))
    back = gist.unpack_msfp15(gist.pack_msfp15(x), to=FLOAT)
    assert back.shape == x.shape and ((back - x).abs() <= x.abs() / 8).all()


def test_every_byte_comes_back() -> None:
    every = torch.arange(256, dtype=torch.uint8)
    values = gist.unpack8(every, to=FLOAT)
    number = ~torch.isnan(values)
    assert int(number.sum()) == 256 - 6
    assert torch.equal(gist.pack8(values[number]), every[number])
    assert torch.isnan(gist.unpack8(gist.pack8(values), to=FLOAT)[~number]).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_byte_saturates_and_keeps_infinity(dtype: torch.dtype) -> None:
    x = torch.tensor([1e6, -1e30, 61440.0, INF, -INF, NAN, 2.0**-17, 0.75 * 2**-16, -0.0])
    back = gist.unpack8(gist.pack8(x.to(dtype)), to=FLOAT).tolist()
    assert back[:5] == [57344.0, -57344.0, 57344.0, INF, -INF] and math.isnan(back[5])
    assert back[6:] == [0.0, 2.0**-16, 0.0] and math.copysign(1, back[8]) == -1


def test_a_half_rounds_to_nearest_even() -> None:
    x = torch.tensor([65519.0, 65520.0, 1e-8, 1 / 3, 2049.0, 2051.0])
    back = gist.unpack16(gist.pack16(x), to=FLOAT).tolist()
    assert back == [65504.0, INF, 0.0, 0.333251953125, 2048.0, 2052.0]


def test_bits_are_highest_first_and_the_rest_is_zero() -> None:
    x = torch.tensor([1, 0, 0, 1, 1, 0, 0, 0, -2, 3, 0.5])
    code = gist.pack1(x)
    assert code.tolist() == codes("98 60")
    flat = gist.unpack1(code, to=FLOAT, out_shape=None)
    assert flat.tolist() == [1, 0, 0, 1, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,), (11,), (3, 7), (2, 2, 2), (2, 3, 9)])
def test_bits_come_back_in_the_declared_shape(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    back = gist.unpack1(gist.pack1(x), to=BOOL, out_shape=shape)
    assert torch.equal(back, x > 0)


@pytest.mark.parametrize(
    ("full", "declared"), [((3, 9), (None, 9)), ((5, 16), (None, 16)), ((0, 9), (None, 9))]
)
def test_one_unknown_size_follows_from_the_bytes(full: Any, declared: Any) -> None:
    x = torch.randn(full, generator=torch.Generator().manual_seed(3))
    assert torch.equal(gist.unpack1(gist.pack1(x), to=BOOL, out_shape=declared), x > 0)


@pytest.mark.parametrize("declared", [(None, 3), (None, None), (8,), (17,), (0,)])
def test_a_shape_that_does_not_follow_is_refused(declared: Any) -> None:
    code = torch.zeros(2, dtype=torch.uint8)
    with pytest.raises(ValueError, match="2 bytes of bits do not say which tensor of shape"):
        gist.unpack1(code, to=FLOAT, out_shape=declared)


MODEL = """
<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
main (float[N, 5] x) => (float[N, 5] y) {
  small = com.microsoft.GistPack1Encoder(x)
  y = com.microsoft.GistPack1Decoder<to = 1>(small)
}
"""


def test_the_runtime_hands_the_declared_shape_on() -> None:
    static = InferenceSession(onnx.parser.parse_model(MODEL.replace("N", "3")))
    x = torch.randn(3, 5, generator=torch.Generator().manual_seed(4))
    assert torch.equal(static.run_torch(None, {"x": x})[0], (x > 0).float())


def test_the_runtime_names_the_node_whose_shape_is_open() -> None:
    session = InferenceSession(onnx.parser.parse_model(MODEL))
    with pytest.raises(RuntimeError, match=r"GistPack1Decoder.*do not say which tensor"):
        session.run_torch(None, {"x": torch.ones(8, 5)})
