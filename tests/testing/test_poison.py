import pytest
import torch

from onnxtrain.testing.poison import poisoned

SOURCE = torch.ones(3)
MAKERS = {
    "empty": lambda: torch.empty(2, 2),
    "empty_like": lambda: torch.empty_like(SOURCE),
    "empty_strided": lambda: torch.empty_strided((2,), (1,)),
    "new_empty": lambda: SOURCE.new_empty(4),
}


@pytest.mark.parametrize("name", MAKERS)
def test_uninitialised_floats_are_nan(name: str) -> None:
    with poisoned():
        assert torch.isnan(MAKERS[name]()).all()


def test_uninitialised_whole_numbers_are_a_pattern() -> None:
    with poisoned():
        assert torch.empty(2, dtype=torch.int64).tolist() == [0x5A5A5A5A5A5A5A5A] * 2
        assert torch.empty(1, dtype=torch.uint8).tolist() == [0x5A]
        assert torch.empty(1, dtype=torch.bool).tolist() == [True]


def test_torch_is_as_before_afterwards() -> None:
    before = torch.empty, torch.Tensor.new_empty
    with pytest.raises(ZeroDivisionError), poisoned():
        raise ZeroDivisionError
    assert (torch.empty, torch.Tensor.new_empty) == before
