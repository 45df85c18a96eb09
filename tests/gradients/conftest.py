"""Rules that several tests of gradients need."""

from collections.abc import Iterator

import pytest

from onnxtrain.gradients import rules


@pytest.fixture
def weigh() -> Iterator[None]:
    """A rule that needs all elements of a sequence."""

    @rules.gradient("Weigh", domain="own.domain")
    def rule(op, node, dy):  # type: ignore[no-untyped-def]
        return [None, op.emit("WeighGrad", [dy, node.inputs[0]], _domain="own.domain")]

    yield
    rules.remove_rules("own.domain", "Weigh")
