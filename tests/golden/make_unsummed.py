"""Make ``tests/golden/unsummed``: artifacts whose gradients the reference leaves in other shapes.

    python tests/golden/make_unsummed.py

Runs in an environment with ``onnxruntime-training-cpu==1.19.2``.
"""

import pathlib

from onnx import parser
from onnxruntime.training import artifacts

HERE = pathlib.Path(__file__).parent
ROW = "float[4] w = {0.5,-1.5,0.8,1.2}"
ZERO = "float zero = {0}"
ONES = "float[1,4] ones = {1,1,1,1}"
TWO = "float[3,4] e = {2,3,2,3,3,2,3,2,2,2,3,3}"
CONDITION = "c = Greater (x, zero)"
MODELS = {
    "where_row": (f"{ROW}, {ZERO}", f"{CONDITION} y = Where (c, x, w)"),
    "where_column": (
        f"float[4,1] w = {{0.5,-1.5,0.8,1.2}}, float[1] b = {{0.1}}, {ZERO}",
        f"{CONDITION} z = MatMul (x, w) s = Add (z, b) h = Tanh (s) y = Where (c, h, x)",
    ),
    "where_scalar": (f"float w = {{0.7}}, {ZERO}", f"{CONDITION} y = Where (c, w, x)"),
    "where_twice": (f"{ROW}, {ZERO}", f"{CONDITION} h = Where (c, x, w) y = Mul (h, w)"),
    "where_hidden": (
        f"{ROW}, {ZERO}, {ONES}",
        f"{CONDITION} v = Add (w, ones) h = Where (c, x, v) y = Mul (h, v)",
    ),
    "where_chain": (
        f"float[1] w = {{0.7}}, {ZERO}, {ONES}",
        f"{CONDITION} d = Greater (ones, zero) v = Where (d, w, ones) y = Where (c, x, v)",
    ),
    "pow_row": (f"{ROW}, {TWO}", "p = Pow (w, e) y = Mul (x, p)"),
    "cos_scalar": ("float w = {0.7}", "p = Cos (w) y = Mul (x, p)"),
    "split_unused": (
        "float[8] w = {0.5,-1.5,0.8,1.2,0.1,0.2,0.3,0.4}",
        "a, b = Split <axis = 0> (w) y = Add (x, b)",
    ),
    "split_hidden": (
        f"{ROW}, float[4] k = {{1,2,3,4}}, int64[2] sizes = {{1,3}}",
        "v = Mul (w, k) a, b = Split <axis = 0> (v, sizes) y = Mul (x, a)",
    ),
    "split_middle": (
        f"float[4,12] w = {{{','.join(str(n % 7 / 10) for n in range(48))}}}",
        "h = MatMul (x, w) a, b, c = Split <axis = 1> (h) y = Tanh (b)",
    ),
    "where_folded": (
        f"float[1,2] w = {{0.5,-1.5}}, {ZERO}, int64[2] s = {{-1,2}}, int64[2] r = {{-1,4}}",
        "h = Reshape (x, s) c = Greater (h, zero) v = Where (c, h, w) y = Reshape (v, r)",
    ),
}
"""Initializers, and nodes that make y[N,4] of x[N,4]."""


def main() -> None:
    """Write the artifacts of every model."""
    for name, (initializers, nodes) in MODELS.items():
        model = parser.parse_model(
            '<ir_version: 8, opset_import: ["": 17]> '
            f"g (float[N,4] x) => (float[N,4] y) <{initializers}> {{ {nodes} }}"
        )
        folder = HERE / "unsummed" / name
        folder.mkdir(parents=True, exist_ok=True)
        artifacts.generate_artifacts(
            model,
            requires_grad=[t.name for t in model.graph.initializer if t.name in ("w", "b")],
            loss=artifacts.LossType.MSELoss,
            optimizer=artifacts.OptimType.SGD,
            artifact_directory=str(folder),
        )


if __name__ == "__main__":
    main()
