import gc

import pytest

from onnxtrain.graph.later import collecting_later


def test_garbage_is_not_collected_meanwhile_and_is_again_afterwards():
    assert gc.isenabled()
    with pytest.raises(ValueError, match="stop"), collecting_later():
        assert not gc.isenabled()
        raise ValueError("stop")
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off():
    gc.disable()
    try:
        with collecting_later():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
