import pytest

from gradients.emit import differentiated
from onnxtrain.errors import NoGradientError

LAYER = "(float[S,B,2] x, float[1,3,2] w, float[1,3,3] r) => (float[S,1,B,3] y) {{ y = {} }}"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("RNN<hidden_size=3, layout=1>(x, w, r)", "layout 1"),
        ('RNN<hidden_size=3, activations=["Relu"]>(x, w, r)', "activations relu"),
    ],
)
def test_what_cannot_be_differentiated_is_refused(call: str, message: str) -> None:
    with pytest.raises(NoGradientError, match=message):
        differentiated(LAYER.format(call))
