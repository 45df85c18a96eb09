import re

import onnx
import onnx.parser
import pytest

TRAIN = ("plan", "model.onnx", "--training", "--loss", "cross_entropy")


def test_the_step_is_python(folder, cli):
    output = cli("plan", "model.onnx")
    compile(output, "plan", "exec")
    assert "def step(x):" in output
    assert "k_gemm(x, c_w1, c_b1)" in output


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_training_step_has_gradients_and_an_update(folder, cli, device):
    output = cli(*TRAIN, "--device", device, "--optimizer", "sgd")
    compile(output, "plan", "exec")
    assert f"# training step on {device.upper()}" in output
    assert "s_w1_grad_accumulation_buffer" in output
    assert "# update (sgd)" in output
    assert output.count("# recorded as a CUDA graph and replayed") == 2 * (device == "cuda")


def test_a_step_in_16_bits(folder, cli):
    output = cli(*TRAIN, "--precision", "bf16")
    compile(output, "plan", "exec")
    assert "w1_compute_copy" in output and "-> bfloat16[" in output
    assert "bfloat16" not in cli(*TRAIN)


def test_values_are_computed_again_or_wait_in_fewer_bits(folder, cli):
    output = cli(*TRAIN, "--recompute", "layers", "--compress", "pack8")
    compile(output, "plan", "exec")
    assert "# values that wait for the backward pass in fewer bits: 1\n" in output
    assert "# nodes of the forward pass that the backward pass computes again: 1\n" in output
    places = [output.index(call) for call in ("k_pack1(", "k_cross", "k_unpack1(")]
    assert places == sorted(places)
    assert "fewer bits" not in cli(*TRAIN)


def test_what_forbids_recording_is_named(folder, cli):
    path = folder / "waits.onnx"
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[N,4] x) => (float[N,3] y)
        <float[4,3] w = {1,2,3,4,5,6,7,8,9,10,11,12}, int64 zero = {0}> {
            y0 = MatMul(x, w)
            at = NonZero(y0)
            rows = Gather<axis=0>(at, zero)
            picked = Gather<axis=0>(y0, rows)
            sum = ReduceSum<keepdims=0>(picked)
            y = Add(y0, sum)
        }"""
    onnx.save(onnx.parser.parse_model(text), path)
    given = ("plan", path, "--training", "--loss", "cross_entropy", "--device", "cuda")
    assert "# not recorded as a CUDA graph: the size of what ai.onnx::NonZero" in cli(*given)


def test_memory_is_what_is_alive(folder, cli):
    output = cli("plan", "model.onnx", "--memory", "--dim", "N=4")
    alive = {
        m[1]: int(m[2].replace(",", ""))
        for m in re.finditer(r"^  (\w+) +\w+ +([\d,]+)", output, re.M)
    }
    hidden, logits = 4 * 16 * 4, 4 * 3 * 4
    assert alive["first"] == hidden
    assert alive["relu"] == hidden
    assert alive["second"] == hidden + logits
    weights = 4 * (8 * 16 + 16 + 16 * 3 + 3)
    assert f"bound: {weights} bytes" in output


def test_the_peak_is_shown_where_sizes_are_known(folder, cli):
    peak = re.compile(r"peak of what the step makes: ([\d,]+) bytes")
    short = peak.search(cli("plan", "model.onnx", "--dim", "N=4"))
    long = peak.search(cli("plan", "model.onnx", "--memory", "--dim", "N=4"))
    assert short and long and short[1] == long[1] == str(4 * 16 * 4 + 4 * 3 * 4)
    assert not peak.search(cli("plan", "model.onnx"))
    compile(cli("plan", "model.onnx", "--dim", "N=4"), "plan", "exec")


def test_training_memory_has_a_peak(folder, cli):
    assert "peak" in cli(*TRAIN, "--memory", "--dim", "N=4")


def test_memory_of_unknown_sizes_says_so(folder, cli):
    output = cli("plan", "model.onnx", "--memory")
    assert "not known before the model runs" in output
    assert "--dim" in output


BAD = {
    "no model": (("plan", "none.onnx"), "there is no file"),
    "device": (("plan", "model.onnx", "--device", "abacus"), "unknown device 'abacus'"),
    "loss alone": (("plan", "model.onnx", "--loss", "mse"), "belong together"),
    "training alone": (("plan", "model.onnx", "--training"), "belong together"),
    "loss": (("plan", "model.onnx", "--training", "--loss", "hinge"), "unknown loss 'hinge'"),
    "optimizer": ((*TRAIN, "--optimizer", "magic"), "unknown optimizer 'magic'"),
    "precision": (("plan", "model.onnx", "--precision", "bf16"), "give --training and --loss"),
    "recompute": (("plan", "model.onnx", "--recompute", "cheap"), "--recompute is that of a"),
    "compress": (("plan", "model.onnx", "--compress", "exact"), "--compress is that of a"),
    "dimension": (("plan", "model.onnx", "--dim", "M=4"), "no dimension 'M'"),
    "endless size": (("plan", "model.onnx", "--dim", f"N={2**70}"), "--dim batch=32, say"),
    "size": (("plan", "model.onnx", "--dim", "N=big"), "--dim takes NAME=SIZE"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_explained(folder, cli, case):
    args, message = BAD[case]
    assert message in cli(*args, code=1)


def test_a_model_without_outputs_has_no_loss(folder, cli):
    model = onnx.load("model.onnx")
    del model.graph.output[:]
    onnx.save(model, "empty.onnx")
    output = cli("plan", "empty.onnx", *TRAIN[2:], code=1)
    assert "no output that a loss could take" in output


def test_what_was_fused_is_told(folder, cli):
    path = folder / "linear.onnx"
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[N,2] x) => (float[N,2] y)
        <float[2,2] w = {1,2,3,4}, float[2] b = {1,2}, float[1] c = {3}> {
            p = MatMul(x, w)
            q = Add(p, b)
            r = MatMul(q, w)
            y = Add(r, c)
        }"""
    onnx.save(onnx.parser.parse_model(text), path)
    output = cli("plan", path, "--training", "--loss", "mse")
    assert "# fused 1 x Gemm, 2 nodes" in output
    assert "# left 1 x Gemm, first 'MatMul_r': the bias has shape [1]" in output
