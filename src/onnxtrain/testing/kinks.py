"""The page ``docs/kinks.md``: which gradient is taken where a function has none, or several.

``python -m onnxtrain.testing.kinks`` writes the page. A test takes each gradient of it again.
"""

from __future__ import annotations

import dataclasses
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from onnxtrain.testing import gradcheck
from onnxtrain.testing.case import Case, given, shape_input
from onnxtrain.types import DataType

PAGE = pathlib.Path("docs/kinks.md")


@dataclasses.dataclass(frozen=True)
class Kink:
    """One line of the page.

    Attributes:
        case: The operator at the point; all that comes in are ones.
        says: The rule in words.
        torch: The same function in torch, if it has one.
    """

    case: Case
    says: str
    torch: Callable[..., Any] | None = None


def _kink(
    op: str, inputs: list[Any], says: str, function: Any = None, *, outputs: int = 1, **more: Any
) -> Kink:
    made = [x if hasattr(x, "make") else given(x) for x in inputs]
    return Kink(Case(op, made, attributes=more, outputs=outputs), says, function)


_SIDES = [-1.0, 0.0, 1.0]
_TIE = [2.0, 1.0, 2.0]
_ROW = [[[2.0, 1.0, 2.0]]]
_SHARE = "elements that tie share it evenly"
_LEFT = "the slope of the left side"
_ZERO = "zero everywhere"

KINKS = [
    _kink("Abs", [_SIDES], "0 at 0", torch.abs),
    _kink("Relu", [_SIDES], "0 at 0", torch.relu),
    _kink("LeakyRelu", [_SIDES], f"{_LEFT} at 0", lambda x: functional.leaky_relu(x, 0.25),
          alpha=0.25),
    _kink("PRelu", [_SIDES, [0.25]], f"{_LEFT} at 0; none for the slope there", functional.prelu),
    _kink("ThresholdedRelu", [[0.5, 1.0, 2.0]], "0 at the threshold",
          lambda x: functional.threshold(x, 1.0, 0.0), alpha=1.0),
    _kink("Elu", [_SIDES], f"{_LEFT} at 0", lambda x: functional.elu(x, 0.75), alpha=0.75),
    _kink("Selu", [[0.0, 1.0]], f"{_LEFT} at 0", functional.selu),
    _kink("HardSigmoid", [[-1.0, 0.0, 3.0]], "0 at both corners", None, alpha=0.25, beta=0.25),
    _kink("HardSwish", [[-3.0, 0.0, 3.0]], "the slope of the middle at both corners"),
    _kink("Shrink", [[-0.5, 0.5, 1.0]], "0 at both corners",
          lambda x: functional.softshrink(x, 0.5), bias=0.5, lambd=0.5),
    _kink("Clip", [[-1.0, 0.0, 1.0], -1.0, 1.0],
          "passed on at both bounds; a bound gets what is beyond it",
          lambda x, low, high: torch.clamp(x, low, high)),
    _kink("Max", [[1.0, 2.0], [1.0, 3.0]], "operands that tie share it evenly", torch.maximum),
    _kink("Min", [[1.0, 2.0], [1.0, 3.0]], "operands that tie share it evenly", torch.minimum),
    _kink("ReduceMax", [_TIE], _SHARE, lambda x: x.amax(0, keepdim=True)),
    _kink("ReduceMin", [[1.0, 1.0, 2.0]], _SHARE, lambda x: x.amin(0, keepdim=True)),
    _kink("ReduceL1", [_SIDES], "0 at 0", lambda x: x.abs().sum(0, keepdim=True)),
    _kink("ReduceL2", [[0.0, 0.0]], "0 where all are 0",
          lambda x: torch.linalg.vector_norm(x, keepdim=True)),
    _kink("LpNormalization", [[0.0, 0.0]], "passed on where all are 0, as if divided by 1"),
    _kink("MaxPool", [_ROW], "all of it to the first of those that tie",
          lambda x: functional.max_pool1d(x, 3), kernel_shape=(3,)),
    _kink("GlobalMaxPool", [_ROW], _SHARE, lambda x: x.amax(-1, keepdim=True)),
    _kink("LpPool", [[[[0.0, 0.0]]]], "0 where all are 0",
          lambda x: functional.lp_pool1d(x, 2.0, 2), kernel_shape=(2,)),
    _kink("TopK", [_TIE, shape_input(1)], "all of it to the first of those that tie", None,
          outputs=2),
    _kink("Unique", [_TIE], "all of it to the first of those that are equal"),
    _kink("ScatterElements", [[2.0, 0.0], given([0, 0]), [2.0, 1.0]],
          "what was there and what came share it evenly if they tie", None, reduction="max"),
    _kink("Mod", [[4.0, 5.0], [2.0, 2.0]], "1 and minus the quotient also at the jumps",
          torch.remainder),
    _kink("Pow", [[0.0, 0.0, 0.0], [0.0, 1.0, 2.0]],
          "that of the base is 0 if the exponent is 0; that of the exponent is 0 if the base is 0"),
    _kink("Sqrt", [[0.0]], "infinite at 0", torch.sqrt),
    _kink("Sign", [_SIDES], _ZERO, torch.sign),
    _kink("Floor", [[0.5, 1.0]], _ZERO, torch.floor),
    _kink("Ceil", [[0.5, 1.0]], _ZERO, torch.ceil),
    _kink("Round", [[0.5, 1.0]], _ZERO, torch.round),
    _kink("GridSample", [given([[[[0.0, 1.0, 3.0]]]]), given([[[[0.0, 0.0]]]])],
          "on a pixel, the slope towards the next one",
          lambda x, grid: functional.grid_sample(x, grid, align_corners=True), align_corners=1),
]  # fmt: skip


def gradients(kink: Kink) -> list[torch.Tensor]:
    """The gradients of a line."""
    return gradcheck.by_graph(_point(kink))


def by_torch(kink: Kink) -> list[torch.Tensor]:
    """What torch takes there."""
    at = _point(kink)
    function = kink.torch
    assert function is not None
    case = dataclasses.replace(kink.case, reference=lambda *xs, **_: function(*xs))
    return gradcheck.by_autograd(dataclasses.replace(at, case=case))


def _point(kink: Kink) -> gradcheck.Point:
    at = gradcheck.drawn(kink.case, DataType.DOUBLE)
    seeds = {position: torch.ones_like(seed) for position, seed in at.seeds.items()}
    return gradcheck.Point(kink.case, at.inputs, seeds)


_INTRO = """# Gradients at ties and kinks

Where a function has a corner, a jump or a tie there is no derivative, and finite differences say
nothing. This page says what is taken there. It is made by `python -m onnxtrain.testing.kinks`; a
test takes every gradient of it again, for incoming gradients of 1, and compares those marked so
with torch.

The second gradient at such a point is that of the branch that the first one took.

What `Where`, `Clip`, `Max`, `Min`, `Relu`, `Imputer` or the range of a `QuantizeLinear` did not
take gets a gradient of 0, also where its own slope is infinite or not a number: the gradient of
`Where(x > 0, Sqrt(x), x)` at -1 is 1, which is what finite differences say. Torch has NaN there,
for 0 times infinity.

The root of a sum of squares, the length of a vector or of a complex number, hands on a gradient of
0 where it is 0, as `ReduceL2` does; torch has NaN there, too. A gradient that becomes NaN in any
other way stays NaN.
"""
_HEAD = "| operator | inputs | settings | gradients | rule | torch |\n|---|---|---|---|---|---|"


def line(kink: Kink) -> str:
    """One line of the table."""
    inputs = [_shown(value) for value in kink.case.draw()]
    grads = [_shown(grad + 0.0) for grad in gradients(kink)]
    settings = ", ".join(f"{name}={value}" for name, value in kink.case.attributes.items())
    cells = kink.case.op, "; ".join(inputs), settings, "; ".join(grads), kink.says
    return f"| {' | '.join(cells)} | {'same' if kink.torch else ''} |"


def _shown(value: Any) -> str:
    """Numbers with at most four digits behind the point."""
    if isinstance(value, torch.Tensor):
        value = value.tolist()
    if isinstance(value, list):
        return f"[{', '.join(map(_shown, value))}]"
    return f"{value:.4f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def page() -> str:
    """The text of the page."""
    return "\n".join([_INTRO, _HEAD, *map(line, KINKS)]) + "\n"


if __name__ == "__main__":
    target = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE
    target.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"wrote {target}\n")
