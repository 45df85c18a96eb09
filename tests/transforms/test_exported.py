"""Files of torch's exporter say what is a parameter; the choice of weights believes them."""

from __future__ import annotations

import contextlib
import copy
import io
from collections.abc import Sequence

import onnx
import onnx.parser
import onnx_ir as ir
import pytest
import torch

from onnxtrain import Trainer
from onnxtrain.graph.prepare import prepare
from onnxtrain.training.selection import Selection, narrowed
from onnxtrain.transforms.weights.parameters import Decision, decide

SIGNATURE = """
# inputs
p_layer_weight: PARAMETER target='layer.weight'
p_scale: PARAMETER target='scale'
p_lost: PARAMETER target='lost'
b_table: BUFFER target='table' persistent=True
x: USER_INPUT

# outputs
y: USER_OUTPUT
"""
MODEL = """<ir_version: 10, opset_import: ["": 20]>
main (float[N, 2] x) => (float[N, 2] y)
<float[2, 2] "layer.weight" = {1, 2, 3, 4}, float scale = {3}, float[2] table = {1, 2},
 float[2] grid = {3, 4}, float[2] moved = {5, 6}, float[2] fused = {7, 8}> {
    h = MatMul(x, "layer.weight")
    s = Mul(h, scale)
    t = Add(s, table)
    g = Mul(t, grid)
    m = Add(g, moved)
    y = Add(m, fused)
}"""
FOLDED = {"grid": ["table", "val_0"], "moved": ["lost", "val_0"], "fused": ["layer.weight_bias"]}


def decisions(text: str = MODEL, wanted: Sequence[str] | str = "auto") -> dict[str, Decision]:
    model = ir.from_proto(onnx.parser.parse_model(text))
    model.graph.metadata_props["pkg.torch.export.ExportedProgram.graph_signature"] = SIGNATURE
    for name, sources in FOLDED.items():
        value = model.graph.initializers[name]
        value.metadata_props["pkg.onnxscript.optimizer.folded_from"] = repr(sources)
    return {d.name: d for d in decide(prepare(model), wanted)}


def test_parameters_are_trained_and_what_was_made_of_none_is_not():
    found = decisions()
    assert {name for name, d in found.items() if d.trained} == {
        "layer.weight",
        "scale",
        "moved",
        "fused",
    }
    assert found["table"].reason == "buffer of the torch module"
    assert found["grid"].reason == "computed by the exporter, from no parameter"
    assert found["table"].possible and found["grid"].possible


def test_a_number_that_stands_in_two_places_may_be_another_one_in_the_second():
    found = decisions(MODEL.replace("Add(m, fused)", "Add(m, scale)"))
    assert found["scale"].reason.startswith("single number")


@pytest.mark.parametrize("wanted", ["lost", "lo?t", ["moved"], ["lo*"]])
def test_what_was_computed_from_a_parameter_is_found_by_its_name(wanted):
    assert {name for name, d in decisions(wanted=wanted).items() if d.trained} == {"moved"}


def test_what_was_computed_from_a_parameter_is_left_out_by_its_name():
    model = ir.from_proto(onnx.parser.parse_model(MODEL))
    left = narrowed(list(decisions().values()), prepare(model), Selection(exclude=["lost"]))
    assert {d.name: d.reason for d in left}["moved"] == "frozen"


CODE = """<ir_version: 10, opset_import: ["": 20], producer_name: "pytorch">
main (float[N, 2] x) => (float[N, 2] y) WEIGHTS {
    weight = Constant <value = float[2, 2] {1, 2, 3, 4}> ()
    h = MatMul(x, weight)
    y = ADDED
}"""


@pytest.mark.parametrize("weights", ["", '<float[2] "layer.bias" = {1, 2}>'])
def test_nodes_are_no_parameters_where_torch_keeps_them_as_initializers(weights):
    text = CODE.replace("WEIGHTS", weights)
    text = text.replace("ADDED", 'Add(h, "layer.bias")' if weights else "Relu(h)")
    for written, trained in ((text, not weights), (text.replace("pytorch", "other"), True)):
        found = {
            d.name: d for d in decide(prepare(ir.from_proto(onnx.parser.parse_model(written))))
        }
        assert found["weight"].trained == trained
        assert found["weight"].possible


class Learned(torch.nn.Module):
    """A factor in each of two layers that begin equal, an exponent, and a table that is fixed."""

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)
            self.factor = torch.nn.Parameter(torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.factor * self.linear(x).tanh()

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(self.Layer(), self.Layer())
        self.power = torch.nn.Parameter(torch.tensor(3.0))
        self.register_buffer("table", torch.linspace(0.5, 2, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        grid = torch.arange(4, dtype=x.dtype) / 7
        return ((self.layers(x) * self.table + grid).abs() + 0.5).pow(self.power)


@pytest.fixture(scope="module")
def exported() -> tuple[Learned, onnx.ModelProto]:
    torch.manual_seed(0)
    module = Learned().double().eval()
    with contextlib.redirect_stdout(io.StringIO()):
        program = torch.onnx.export(module, (torch.rand(3, 4).double(),), dynamo=True)
    assert program is not None
    return module, program.model_proto


def test_an_exported_module_trains_the_parameters_that_it_has(exported):
    module, model = copy.deepcopy(exported[0]), exported[1]
    x = torch.rand(3, 4, dtype=torch.float64)

    def loss(outputs: dict[str, torch.Tensor], batch: dict[str, torch.Tensor]) -> torch.Tensor:
        (y,) = outputs.values()
        return (y - 1).square().mean()

    trainer = Trainer(model, loss=loss, optimizer="sgd", lr=0.01, device="cpu")
    assert trainer.parameters.keys() == dict(module.named_parameters()).keys()
    steps = torch.optim.SGD(module.parameters(), lr=0.01)
    for _ in range(3):
        steps.zero_grad()
        expected = loss({"y": module(x)}, {})
        expected.backward()
        steps.step()
        torch.testing.assert_close(trainer.step({trainer.input_names[0]: x}), expected.detach())
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(trainer.parameters[name], parameter.detach())


class Normalised(torch.nn.Module):
    """Numbers that stand in the code, and normalisations that learn nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3)
        self.plain = torch.nn.InstanceNorm2d(4)
        self.batch = torch.nn.BatchNorm2d(4, affine=False)
        self.deviation = torch.tensor([0.2, 0.3, 0.4])  # no buffer: just an attribute

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = torch.tensor([0.5, 0.6, 0.7])[:, None, None]
        return self.batch(self.plain(self.conv((x - mean) / self.deviation[:, None, None])))


@pytest.mark.parametrize(
    "options", [{"dynamo": True, "optimize": False}, {"dynamo": False}], ids=["program", "trace"]
)
@pytest.mark.filterwarnings("ignore")
def test_numbers_in_the_code_of_a_module_are_not_trained(options):
    file = io.BytesIO()
    training = {} if options["dynamo"] else {"training": torch.onnx.TrainingMode.TRAINING}
    with contextlib.redirect_stdout(io.StringIO()):
        program = torch.onnx.export(
            Normalised().eval(), (torch.rand(2, 3, 5, 5),), file, **options, **training
        )
    model = onnx.load_from_string(file.getvalue()) if program is None else program.model_proto
    trainer = Trainer(model, loss="mse", device="cpu")
    assert trainer.parameters.keys() == {"conv.weight", "conv.bias"}
