"""Models in ONNX's text form."""

import onnx
import onnx.parser
import onnx_ir as ir


def proto(text: str, opset: int = 21, **domains: int) -> onnx.ModelProto:
    """A model: ``(float[2] x) => (float[2] y) { y = Neg(x) }``."""
    more = "".join(f', "{name.replace("_", ".")}": {version}' for name, version in domains.items())
    return onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": {opset}{more}]> main {text}'
    )


def model(text: str, opset: int = 21, **domains: int) -> ir.Model:
    """The same as an onnx-ir model."""
    return ir.from_proto(proto(text, opset, **domains))


def values(of: ir.Model) -> dict[str, ir.Value]:
    """Every value of the main graph by name."""
    graph = of.graph
    found = [*graph.inputs, *graph.initializers.values(), *(v for n in graph for v in n.outputs)]
    return {str(value.name): value for value in found}
