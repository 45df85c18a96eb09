"""What dropout draws: the table only has rows in which nothing is random."""

import pytest
import torch

from onnxtrain.kernels.activation import mask as masks
from onnxtrain.kernels.activation.dropout import dropout_grad
from onnxtrain.runtime.options import SessionOptions
from onnxtrain.runtime.session import InferenceSession
from onnxtrain.testing.case import Case, given, normal
from onnxtrain.testing.model import draw, evaluate, feeds_of, one_node_model
from onnxtrain.types import MS, DataType

TRAINING = given(True, constant=True)
SHAPE = (37, 11)


def _ratio(value):
    return given(value, DataType.FLOAT, constant=True)


def _case(op, ratio=0.25, **attributes):
    """A node in training mode, with a bias of zeros where the operator takes one."""
    zeros = [given(torch.zeros(SHAPE[-1])), None] if "Bias" in op else []
    inputs = [normal(*SHAPE), *zeros, _ratio(ratio), TRAINING]
    domain = "" if op == "Dropout" else MS
    return Case(op, inputs, attributes=attributes, domain=domain, outputs=2)


def _run(op, dtype=DataType.FLOAT, **options):
    case = _case(op, **options)
    inputs = draw(case, dtype)
    output, mask = evaluate(case, inputs)
    if "Bitmask" in op:
        mask = masks.unpack(mask, inputs[0])
    return inputs[0], output, mask


DROPOUTS = ["Dropout", "BitmaskDropout", "BiasDropout", "BitmaskBiasDropout"]


@pytest.mark.parametrize("op", DROPOUTS)
@pytest.mark.parametrize(
    "dtype", [DataType.FLOAT, DataType.FLOAT16, DataType.BFLOAT16, DataType.DOUBLE]
)
def test_kept_elements_are_scaled_and_others_are_zero(op, dtype):
    x, output, mask = _run(op, dtype, ratio=0.5, seed=3)
    assert torch.equal(output, torch.where(mask, x * 2, 0))
    assert 0 < mask.sum() < mask.numel()


@pytest.mark.parametrize("op", DROPOUTS)
def test_the_same_seed_gives_the_same_mask_in_every_form(op):
    _, _, first = _run("Dropout", seed=11)
    _, _, other = _run(op, seed=11)
    assert torch.equal(first, other)
    _, _, different = _run(op, seed=12)
    assert not torch.equal(first, different)


@pytest.mark.parametrize("op", DROPOUTS)
@pytest.mark.parametrize("attributes", [{"seed": 5}, {}])
def test_the_share_of_dropped_elements_is_the_ratio(op, attributes):
    _, _, mask = _run(op, ratio=0.25, **attributes)
    assert abs((~mask).double().mean() - 0.25) < 0.07


def _session_masks(seed, attributes, runs=2):
    case = _case("Dropout", **attributes)
    inputs = draw(case, DataType.FLOAT)
    model = one_node_model(case, inputs)
    session = InferenceSession(model, SessionOptions(seed=seed), ["CPUExecutionProvider"])
    return [session.run_torch(None, feeds_of(case, inputs))[1].clone() for _ in range(runs)]


def test_without_a_seed_the_session_s_generator_decides():
    first, second = _session_masks(1, {})
    again, _ = _session_masks(1, {})
    other, _ = _session_masks(2, {})
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert not torch.equal(first, other)


def test_with_a_seed_the_session_s_generator_does_not_matter():
    first, second = _session_masks(1, {"seed": 9})
    other, _ = _session_masks(2, {"seed": 9})
    assert torch.equal(first, second)
    assert torch.equal(first, other)


def test_a_seeded_mask_is_the_same_on_every_device(device):
    x = torch.zeros(1000, device=device)
    mask = masks.keep_mask(x, 0.3, 77, None)
    assert mask.device == x.device
    assert torch.equal(mask.cpu(), masks.keep_mask(x.cpu(), 0.3, 77, None))
    assert torch.equal(masks.unpack(masks.pack(mask), x), mask)


def test_seeded_numbers_are_those_of_philox():
    drawn = masks._uniform(8, 42, torch.device("cpu"))
    known = [0.612960, 0.468587, 0.073232, 0.340862, 0.010059, 0.126250, 0.232066, 0.711613]
    torch.testing.assert_close(drawn, torch.tensor(known), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("counter", "seed", "words"),
    [
        ([0] * 4, 0, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([0xFFFFFFFF] * 4, 2**64 - 1, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    ],
)
def test_philox_gives_the_published_words(counter, seed, words):
    assert [int(w) for w in masks._philox([torch.tensor([c]) for c in counter], seed)] == words


def test_no_mask_at_all_is_packed_wherever_it_lies() -> None:
    """Torch calls it contiguous, and cannot view it in another type."""
    assert masks.pack(torch.ones(8, dtype=torch.bool)[4:4:2]).shape == (0,)


@pytest.mark.parametrize("count", [1, 8, 31, 32, 33, 100])
def test_packed_masks_unpack(count):
    mask = torch.rand(count, generator=torch.Generator().manual_seed(count)) < 0.5
    words = masks.pack(mask)
    assert words.dtype == torch.uint32
    assert words.shape == (-(-count // 32),)
    assert torch.equal(masks.unpack(words, mask), mask)
    assert sum(int(w).bit_count() for w in words) == int(mask.sum())


def test_a_packed_mask_starts_at_the_lowest_bit():
    assert masks.pack(torch.tensor([True, False, True, True, False])).tolist() == [13]


def test_a_packed_mask_of_the_wrong_size_is_refused():
    with pytest.raises(ValueError, match="mask has 1 words, 2 hold 40 elements"):
        masks.unpack(torch.zeros(1, dtype=torch.uint32), torch.zeros(40))


@pytest.mark.parametrize("ratio", [1.0, -0.5, 2.0, float("nan")])
def test_a_ratio_outside_its_range_is_refused(ratio):
    with pytest.raises(ValueError, match=r"outside range \[0, 1\)"):
        dropout_grad(torch.ones(3), torch.ones(3, dtype=torch.bool), ratio)


def test_what_is_dropped_has_no_gradient_even_if_it_is_not_finite():
    dy = torch.tensor([float("nan"), float("inf"), 1.0])
    dx = dropout_grad(dy, torch.tensor([False, False, True]), 0.5)
    assert dx.tolist() == [0, 0, 2]


def test_bias_dropout_adds_the_residual_after_dropping():
    inputs = [normal(6, 8), normal(8), normal(6, 8), _ratio(0.5), TRAINING]
    case = Case("BiasDropout", inputs, attributes={"seed": 1}, domain=MS, outputs=2)
    x, bias, residual, *_ = values = draw(case, DataType.FLOAT)
    output, mask = evaluate(case, values)
    torch.testing.assert_close(output, torch.where(mask, (x + bias) * 2, 0) + residual)
    assert 0 < mask.sum() < mask.numel()


def test_bias_softmax_dropout_drops_the_softmax():
    inputs = [normal(4, 50), normal(50), _ratio(0.5)]
    attributes = {"axis": 1, "is_inner_broadcast": 1, "seed": 1}
    case = Case("BiasSoftmaxDropout", inputs, attributes=attributes, domain=MS, outputs=3)
    output, mask, softmax = evaluate(case, draw(case, DataType.FLOAT))
    torch.testing.assert_close(output, torch.where(mask, softmax * 2, 0))
    assert 0 < mask.sum() < mask.numel()
