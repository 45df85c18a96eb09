"""Gradients of loops in bfloat16, of which ONNX has no sequences."""

import ml_dtypes
import numpy as np
import onnx
import pytest

from graph.text import proto
from onnxtrain.gradients import build_gradient_graph
from onnxtrain.runtime.session import InferenceSession

X = np.array([[1.0, 2.0], [-0.5, 3.0]], np.float32)
POWERS = np.array([1.0, -2.0], np.float32)
ENDS = "f = Cast<to=1>(y)  l = ReduceSum<keepdims=0>(f)"
ROWS = f"""(float[2,2] x, int64 n) => (float l) {{
  last, y = Loop (n, , x) <body = b (int64 i, bool go, float[2,2] v)
      => (bool go_on, float[2,2] u, bfloat16[2,2] row) {{
    go_on = Identity(go)  u = Mul(v, x)  row = Cast<to=16>(u) }}>
  {ENDS} }}"""
"""Only what is stacked is bfloat16: x², x³, ..."""
CARRIED = f"""(bfloat16[2,2] x, int64 n) => (float l) {{
  y = Loop (n, , x) <body = b (int64 i, bool go, bfloat16[2,2] v)
      => (bool go_on, bfloat16[2,2] u) {{ go_on = Identity(go)  u = Mul(v, v) }}>
  {ENDS} }}"""
"""Only what is kept of each iteration is: x^(2^n)."""
SCANNED = f"""(bfloat16[2,2] x, int64 n) => (float l) {{
  y = Scan (x) <num_scan_inputs = 1, body = b (bfloat16[2] v) => (bfloat16[2] u) {{
    u = Loop (n, , v) <body = c (int64 i, bool go, bfloat16[2] p) => (bool go_on, bfloat16[2] q)
      {{ go_on = Identity(go)  q = Mul(p, v) }}> }}>
  {ENDS} }}"""
"""Slices, and what a loop keeps of each: x^(n+1)."""


INNER = """two = Constant<value = int64 {2}>()  w = Cast<to=1>(v)
    z = Loop (two, , w) <body = c (int64 i, bool again, float[2] p) => (bool more, float[2] q)
      { more = Identity(again)  q = Mul(p, w) }>
    t = Cast<to=16>(z)  u = Mul(t, v)"""
"""A loop that keeps sequences of float, beside something that is needed in bfloat16: v^4."""
LOOP_AROUND = f"""(bfloat16[2] x, int64 n) => (float l) {{
  y = Loop (n, , x) <body = b (int64 j, bool go, bfloat16[2] v) => (bool go_on, bfloat16[2] u)
    {{ go_on = Identity(go)  {INNER} }}>
  {ENDS} }}"""
SCAN_AROUND = f"""(bfloat16[2,2] x, int64 n) => (float l) {{
  y = Scan (x) <num_scan_inputs = 1, body = b (bfloat16[2] v) => (bfloat16[2] u) {{ {INNER} }}>
  {ENDS} }}"""
SCAN_TURNED = f"""(bfloat16[2,2] x, int64 n) => (float l) {{
  y = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_input_directions = [1],
            scan_output_axes = [1], scan_output_directions = [1],
            body = b (bfloat16[2] v) => (bfloat16[2] u) {{ {INNER} }}> (x)
  {ENDS} }}"""
GROWING = f"""(bfloat16[2,2] x, int64 n) => (float l) {{
  y = Loop (n, , x) <body = b (int64 i, bool go, bfloat16[A,B] v) => (bool go_on, bfloat16[C,D] u)
    {{ go_on = Identity(go)  s = Mul(v, v)  u = Concat<axis = 0>(v, s) }}>
  {ENDS} }}"""
"""What is kept has another shape in each iteration: x + x² after one, x + 2·x² + x⁴ after two."""


@pytest.mark.parametrize("opset", [16, 21])
@pytest.mark.parametrize(
    ("text", "count", "expected"),
    [
        (ROWS, 3, 2 * X + 3 * X**2 + 4 * X**3),
        (ROWS, 0, 0 * X),
        (CARRIED, 2, 4 * X**3),
        (CARRIED, 0, X**0),
        (SCANNED, 2, 3 * X**2),
        (LOOP_AROUND, 2, 16 * POWERS**15),
        (SCAN_AROUND, 0, 4 * X**3),
        (SCAN_TURNED, 0, 4 * X**3),
        (GROWING, 2, 1 + 4 * X + 4 * X**3),
    ],
    ids=[
        *("rows", "no rows", "carried", "not carried", "scanned", "loop around a loop"),
        *("scan around a loop", "turned scan around a loop", "growing"),
    ],
)
def test_no_sequence_holds_what_it_cannot(
    text: str, count: int, expected: np.ndarray, opset: int
) -> None:
    of = build_gradient_graph(proto(text, opset), "x", loss="l")
    onnx.checker.check_model(of, full_check=True)
    kind = of.graph.input[0].type.tensor_type.elem_type
    x = POWERS if text is LOOP_AROUND else X
    x = x.astype(ml_dtypes.bfloat16 if kind == onnx.TensorProto.BFLOAT16 else np.float32)
    found = InferenceSession(of).run(["x_grad"], {"x": x, "n": np.array(count)})[0]
    assert found.dtype == x.dtype
    np.testing.assert_array_equal(found.astype(np.float32), expected)
