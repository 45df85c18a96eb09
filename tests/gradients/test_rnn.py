import pytest

from gradients.emit import emitted

LAYER = (
    "(float[S,B,2] x, float[1,{n},2] w, float[1,{n},3] r) => (float[S,1,B,3] y) {{ y = {call} }}"
)
BLOCKS = {"RNN": 3, "GRU": 9, "LSTM": 12}


def _operators(op: str, options: str = "", lengths: str = "") -> set[str]:
    call = f"{op}<hidden_size=3{options}>(x, w, r{lengths})"
    text = LAYER.format(n=BLOCKS[op], call=call)
    if lengths:
        text = text.replace(") =>", ", int32[B] k) =>", 1)
    return {line.split("(")[0] for line in emitted(text, "x")}


@pytest.mark.parametrize(
    ("op", "operator"), [("RNN", "GRUGrad"), ("GRU", "GRUGrad"), ("LSTM", "LSTMGrad")]
)
def test_plain_layers_have_a_gradient_operator(op: str, operator: str) -> None:
    assert f"ms.{operator}" in _operators(op)
    assert f"ms.{operator}" in _operators(op, ', direction="reverse"')


@pytest.mark.parametrize("op", BLOCKS)
@pytest.mark.parametrize(
    "options", [", layout=1", ", clip=0.5", ', activations=["Relu", "Relu", "Relu"]']
)
def test_torch_differentiates_what_they_cannot_do(op: str, options: str) -> None:
    names = {"RNN": '["Relu"]', "GRU": '["Relu", "Relu"]'}.get(op, '["Relu", "Relu", "Relu"]')
    if "activations" in options:
        options = f", activations={names}"
    assert _operators(op, options) == {"VectorJacobian"}


@pytest.mark.parametrize("op", BLOCKS)
def test_torch_differentiates_layers_with_lengths(op: str) -> None:
    assert _operators(op, lengths=", , k") == {"VectorJacobian"}
