"""What is trained, on what, how it is judged, and what a run writes down."""

import json
import pathlib

import numpy as np
import onnx
import pytest
import yaml
from onnx import numpy_helper
from PIL import Image

from cli.small import classifier, samples

FIT = ("fit", "model.onnx", "--data", "data.npz", "--loss", "cross_entropy", "--device", "cpu")
CALM = ("--no-dropout", "--lr", "0.02")


def weights(path: str) -> dict[str, np.ndarray]:
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


def changed(path: str = "trained.onnx") -> set[str]:
    before, after = weights("model.onnx"), weights(path)
    return {name for name in before if not np.array_equal(before[name], after[name])}


SELECTIONS = {
    "freeze": (("--freeze", "*1"), {"w2", "b2"}),
    "last": (("--last", "1"), {"w2", "b2"}),
    "all layers": (("--last", "2"), {"w1", "b1", "w2", "b2"}),
    "biases": (("--biases-only",), {"b1", "b2"}),
    "all rules": (("--trainable", "b*", "--trainable", "w2", "--last", "1", "--freeze", "w*"),
                  {"b2"}),
}  # fmt: skip


@pytest.mark.parametrize("case", SELECTIONS)
def test_only_what_was_chosen_is_trained(folder, cli, case):
    options, expected = SELECTIONS[case]
    cli(*FIT, "--steps", "2", *options)
    assert changed() == expected


def test_accumulated_batches_are_one_large_batch(folder, cli):
    """Also where the last part is smaller: 64 samples in updates of 40 and 24, by 16 and 8."""
    cli(*FIT, *CALM, "--epochs", "3", "--batch-size", "40", "--out", "a.onnx")
    cli(*FIT, *CALM, "--epochs", "3", "--batch-size", "8", "--accumulate", "5", "--out", "b.onnx")
    one, other = weights("a.onnx"), weights("b.onnx")
    for name in one:
        np.testing.assert_allclose(one[name], other[name], rtol=1e-4, atol=1e-5)


def lines(path: str) -> list[dict]:
    return [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]


RATES = {
    "constant": [0.0, 0.5, 1.0, 1.0, 1.0, 1.0],
    "linear": [0.0, 0.5, 1.0, 0.75, 0.5, 0.25],
    "cosine": [0.0, 0.5, 1.0, 0.85355339, 0.5, 0.14644661],
    "polynomial": [0.0, 0.5, 1.0, 0.75, 0.5, 0.25],
}


@pytest.mark.parametrize("schedule", RATES)
def test_the_rate_follows_the_schedule(folder, cli, schedule):
    cli(*FIT, "--steps", "6", "--schedule", schedule, "--warmup", "2", "--lr", "1.0",
        "--log", "log.jsonl", "--log-every", "1")  # fmt: skip
    rates = [entry["lr"] for entry in lines("log.jsonl") if "lr" in entry]
    np.testing.assert_allclose(rates, RATES[schedule], atol=1e-7)


@pytest.mark.parametrize("schedule", ["linear", "cosine", "polynomial"])
def test_the_rate_ends_where_it_is_told_to(folder, cli, schedule):
    cli(*FIT, "--steps", "4", "--schedule", schedule, "--final-lr", "0.5", "--lr", "1.0",
        "--log", "log.jsonl", "--log-every", "1")  # fmt: skip
    rates = [entry["lr"] for entry in lines("log.jsonl") if "lr" in entry]
    straight = {"cosine": [1.0, 0.92677670, 0.75, 0.57322330]}
    np.testing.assert_allclose(rates, straight.get(schedule, [1.0, 0.875, 0.75, 0.625]), atol=1e-7)


def test_validation_has_the_metrics_that_were_asked_for(folder, cli):
    np.savez("held.npz", **{name: array[:20] for name, array in samples().items()})
    cli(*FIT, *CALM, "--epochs", "30", "--val-data", "held.npz", "--metric", "f1",
        "--metric", "accuracy", "--metric", "perplexity", "--log", "log.jsonl")  # fmt: skip
    final = lines("log.jsonl")[-1]
    assert final["val_perplexity"] == pytest.approx(np.exp(final["val_loss"]))
    assert final["val_accuracy"] == 1.0 and final["val_f1"] == 1.0
    assert final["epoch"] == 30 and final["step"] == 60


def test_early_stopping_keeps_the_best_weights(folder, cli):
    """A rate that only does harm: the first validation is the best one."""
    data = samples()
    np.savez("data.npz", x=data["x"], labels=(data["labels"] + 1) % 3)
    np.savez("held.npz", **data)
    options = (*FIT, *CALM, "--val-data", "held.npz", "--batch-size", "64")
    cli(*options, "--steps", "1", "--out", "one.onnx")
    output = cli(*options, "--epochs", "50", "--patience", "3", "--out", "best.onnx")
    assert "stopped after step 4 of 50: no better val_loss in 3 validations" in output
    assert "after step 1\n" in output
    assert pathlib.Path("one.onnx").read_bytes() == pathlib.Path("best.onnx").read_bytes()
    assert not list(pathlib.Path().glob("*.ckpt"))
    cli(*options, "--steps", "4", "--out", "four.onnx")
    cli(*options, "--epochs", "50", "--patience", "3", "--keep", "last", "--out", "last.onnx")
    assert pathlib.Path("four.onnx").read_bytes() == pathlib.Path("last.onnx").read_bytes()


def test_a_continued_run_that_kept_no_best_state_looks_for_it_from_there(folder, cli):
    """The best state of the steps before is not there, nor is that of another figure."""
    data = samples()
    np.savez("data.npz", x=data["x"], labels=(data["labels"] + 1) % 3)
    np.savez("held.npz", **data)
    options = (*FIT, *CALM, "--val-data", "held.npz", "--batch-size", "64", "--checkpoint")
    cli(*options, "a.ckpt", "--steps", "2")
    output = cli(*options, "a.ckpt", "--steps", "4", "--keep", "best", "--resume")
    assert "note: 'a.best.ckpt' does not hold the best state so far" in output
    assert "after step 3\n" in output and "wrote trained.onnx" in output
    cli(*options, "b.ckpt", "--steps", "2", "--patience", "1", "--monitor", "accuracy")
    output = cli(*options, "b.ckpt", "--steps", "4", "--patience", "3", "--resume")
    assert "note: val_accuracy was watched before; the best val_loss is that" in output
    assert "best val_loss" in output and "after step 3\n" in output
    again = cli(*options, "b.ckpt", "--steps", "6", "--patience", "9", "--resume")
    assert "note" not in again and "after step 3\n" in again


def test_a_metric_that_is_no_number_is_not_taken_for_zero(folder, cli):
    """Answers to a sample that lacks a value are NaN, and so are means over them."""
    data = samples()
    np.savez("data.npz", x=data["x"], target=data["x"][:, :3])
    data["x"][0, 0] = np.nan
    np.savez("held.npz", x=data["x"], target=data["x"][:, 1:4])
    cli(*FIT, *CALM, "--loss", "mse", "--val-data", "held.npz", "--missing", "keep", "--steps", "2",
        "--metric", "mae", "--metric", "rmse", "--log", "log.jsonl")  # fmt: skip
    final = lines("log.jsonl")[-1]
    assert np.isnan(final["val_mae"]) and np.isnan(final["val_rmse"])


EVERYTHING = (
    *FIT, "--batch-size", "5", "--accumulate", "2", "--schedule", "cosine", "--warmup", "4",
    "--val-split", "0.25", "--patience", "100", "--monitor", "accuracy", "--val-every", "3",
    "--log-every", "2", "--clip-grad-norm", "1", "--log",
)  # fmt: skip


def test_a_continued_run_has_the_same_weights_figures_and_best_state(folder, cli, monkeypatch):
    """Killed after step 12, between checkpoints at 10 and 20, with records of later steps."""
    cli(*EVERYTHING, "whole.jsonl", "--steps", "30", "--out", "whole.onnx")

    from onnxtrain.cli.fitting.loop import Loop

    kept = Loop._step

    def dies(self, *args):
        kept(self, *args)
        if self.position == 13:
            raise SystemExit(9)

    part = (*EVERYTHING, "part.jsonl", "--steps", "30", "--out", "part.onnx",
            "--checkpoint-every", "10")  # fmt: skip
    monkeypatch.setattr(Loop, "_step", dies)
    cli_code_9(cli, part)
    monkeypatch.setattr(Loop, "_step", kept)
    assert "continuing after step 10" in cli(*part, "--resume")
    assert pathlib.Path("whole.onnx").read_bytes() == pathlib.Path("part.onnx").read_bytes()
    assert pathlib.Path("whole.jsonl").read_text() == pathlib.Path("part.jsonl").read_text()


def cli_code_9(cli, args):
    from typer.testing import CliRunner

    from onnxtrain.cli import app

    assert CliRunner().invoke(app, [str(a) for a in args]).exit_code == 9


def test_options_come_from_a_file_and_flags_win(folder, cli):
    run = {
        "model": "model.onnx", "data": "data.npz", "loss": "cross_entropy", "device": "cpu",
        "steps": 3, "lr": "1e-2", "freeze": ["w1", "b1"], "map": {"x": "x"}, "dropout": False,
        "batch-size": 16, "out": "from_file.onnx",
    }  # fmt: skip
    pathlib.Path("run.yaml").write_text(yaml.safe_dump(run))
    output = cli("fit", "--config", "run.yaml")
    assert "of 16 samples" in output and changed("from_file.onnx") == {"w2", "b2"}
    output = cli("fit", "--config", "run.yaml", "--batch-size", "8", "--out", "flags.onnx")
    assert "of 8 samples" in output
    cli(*FIT, "--steps", "3", "--lr", "0.01", "--freeze", "*1", "--no-dropout", "--batch-size", "8")
    assert pathlib.Path("flags.onnx").read_bytes() == pathlib.Path("trained.onnx").read_bytes()
    pathlib.Path("run.json").write_text(json.dumps({**run, "out": "from_json.onnx"}))
    cli("fit", "--config", "run.json")
    one, other = (pathlib.Path(f"from_{kind}.onnx").read_bytes() for kind in ("file", "json"))
    assert one == other


def test_epochs_or_steps_say_how_long(folder, cli):
    both = "give --epochs 2 or --steps 3, not both"
    assert both in cli(*FIT, "--epochs", "2", "--steps", "3", code=1)
    assert both in cli(*FIT, "--epochs", "2", "--steps", "3", "--processes", "2", code=1)
    file = pathlib.Path("run.yaml")
    file.write_text("epochs: 2\nsteps: 3")
    assert both in cli(*FIT, "--config", "run.yaml", code=1)
    by_file = (*FIT, "--config", "run.yaml", "--batch-size", "16")
    file.write_text("steps: 3")
    assert "epoch 2/2" in cli(*by_file, "--epochs", "2")
    file.write_text("epochs: 2")
    assert "epoch 1/1" in cli(*by_file, "--steps", "3")


BAD_FILES = {
    "batchsize: 3": "'run.yaml' has 'batchsize', which is no option\n  did you mean  batch_size",
    "- a": "is no table of options",
    "a: [": "cannot read 'run.yaml'",
}


@pytest.mark.parametrize("text", BAD_FILES)
def test_files_of_options_are_explained(folder, cli, text):
    pathlib.Path("run.yaml").write_text(text)
    assert BAD_FILES[text] in cli(*FIT, "--config", "run.yaml", code=1)


def test_a_missing_file_of_options_is_explained(folder, cli):
    assert "there is no file 'none.yaml'" in cli(*FIT, "--config", "none.yaml", code=1)


def test_labels_are_checked_against_the_classes_of_the_model(folder, cli):
    data = samples()
    np.savez("data.npz", x=data["x"], labels=data["labels"] + 1)
    output = cli(*FIT, "--steps", "1", code=1)
    assert "labels from 1 to 3, the model has 3 classes: 0 to 2" in output
    assert "add --first-label 1" in output
    cli(*FIT, "--steps", "2", "--first-label", "1", "--out", "a.onnx")
    np.savez("data.npz", **data)
    cli(*FIT, "--steps", "2", "--out", "b.onnx")
    assert pathlib.Path("a.onnx").read_bytes() == pathlib.Path("b.onnx").read_bytes()
    np.savez("data.npz", x=data["x"], labels=np.arange(64))
    assert "a model with 64 scores" in cli(*FIT, "--steps", "1", code=1)
    np.savez("data.npz", x=data["x"], labels=np.where(data["x"][:, 0] > 0, -1, data["labels"]))
    output = cli(*FIT, "--steps", "1", code=1)
    assert "onnxblock.loss.CrossEntropyLoss(ignore_index=-1)" in output


def test_a_run_keeps_its_precision(folder, cli):
    run = (*FIT, "--checkpoint", "run.ckpt")
    cli(*run, "--steps", "2", "--precision", "bf16")
    again = (*run, "--resume", "--steps", "3")
    assert "precision  bf16 then, not given now" in cli(*again, code=1)
    assert "continuing after step 2" in cli(*again, "--precision", "bf16")


def test_what_a_step_keeps_may_change_if_that_changes_nothing(folder, cli):
    """Values that are computed again are the same; rounded ones are those of another run."""
    run = (*FIT, "--checkpoint", "run.ckpt")
    cli(*FIT, "--steps", "3", "--out", "plain.onnx")
    cli(*run, "--steps", "2", "--recompute", "layers")
    cli(*run, "--resume", "--steps", "3", "--compress", "exact", "--out", "less.onnx")
    assert pathlib.Path("plain.onnx").read_bytes() == pathlib.Path("less.onnx").read_bytes()
    rounded = (*FIT, "--checkpoint", "rounded.ckpt")
    cli(*rounded, "--steps", "2", "--compress", "pack8")
    again = (*rounded, "--resume", "--steps", "3")
    assert "compress  pack8 then, not given now" in cli(*again, code=1)
    assert "continuing after step 2" in cli(*again, "--compress", "pack8")


OWN_LOSS = """
import torch
from onnxtrain import onnxblock

def smoothed():
    return onnxblock.loss.CrossEntropyLoss(label_smoothing=0.1)

def plain(outputs, batch):
    return torch.nn.functional.cross_entropy(outputs["logits"], batch["labels"])
"""


@pytest.mark.parametrize("name", ["smoothed", "plain"])
def test_a_loss_of_ones_own(folder, cli, name):
    pathlib.Path("own_losses.py").write_text(OWN_LOSS)
    own = (*FIT, *CALM, "--loss", f"own_losses:{name}", "--epochs", "2")
    cli(*own, "--out", "own.onnx")
    cli(*FIT, *CALM, "--epochs", "2", "--out", "named.onnx")
    own_weights, named = weights("own.onnx"), weights("named.onnx")
    same = all(np.allclose(own_weights[n], named[n], atol=1e-5) for n in named)
    assert same == (name == "plain")


def test_a_folder_of_images_trains_a_model(folder, cli):
    model = classifier()
    image = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["N", 1, 2, 4])
    model.graph.input[0].CopyFrom(image)
    flat = onnx.helper.make_node("Flatten", ["x"], ["flat"])
    model.graph.node[0].input[0] = "flat"
    model.graph.node.insert(0, flat)
    onnx.save(model, "images.onnx")
    random = np.random.default_rng(0)
    for number, name in enumerate(("dark", "grey", "light")):
        pathlib.Path("pictures", name).mkdir(parents=True)
        for index in range(8):
            pixels = random.integers(80 * number, 80 * number + 60, (2, 4)).astype(np.uint8)
            Image.fromarray(pixels).save(f"pictures/{name}/{index}.png")
    output = cli("fit", "images.onnx", "--data", "pictures", "--loss", "cross_entropy", "--lr",
                 "0.05", "--epochs", "60", "--val-split", "0.25", "--image-mean", "0.5",
                 "--image-std", "0.25", "--no-dropout", "--device", "cpu")  # fmt: skip
    assert "classes of 'labels': 0 dark, 1 grey, 2 light" in output
    assert "val_accuracy 100.00%" in output


BAD = {
    "metric": (("--metric", "mae", "--val-split", "0.5"), "--metric accuracy"),
    "unknown metric": (("--metric", "luck", "--val-split", "0.5"), "unknown metric 'luck'"),
    "monitor": (("--monitor", "f1", "--val-split", "0.5"), "--monitor val_loss"),
    "patience": (("--patience", "3"), "add --val-split 0.1"),
    "both": (("--val-data", "data.npz", "--val-split", "0.5"), "not both"),
    "warm-up": (("--steps", "5", "--warmup", "9"), "longer than the training of 5"),
    "final rate": (("--final-lr", "0.1"), "add --schedule cosine"),
    "layers": (("--last", "3"), "2 have a weight of two or more dimensions"),
    "frozen": (("--freeze", "v*"), "no parameter matches 'v*'"),
    "nothing": (("--freeze", "*"), "leaves nothing to train"),
    "near loss": (("--loss", "crossentropy"), "did you mean  --loss cross_entropy"),
    "near array": (("--map", "x=X"), "have  x, labels"),
    "data": (("--data", "dat.npz"), "did you mean  --data data.npz"),
    "size": (("--image-size", "big"), "--image-size takes 224"),
    "mean": (("--image-mean", "red"), "--image-mean takes 'imagenet'"),
    "no images": (("--image-mean", "imagenet"), "of which 'data.npz' has none"),
    "shape": (("--loss", "mse", "--map", "target=x"), "shape [8], the model wants [3]"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_to_type_instead(folder, cli, case):
    options, message = BAD[case]
    assert message in cli(*FIT, *options, code=1)


def test_axes_in_another_order_are_noticed():
    from onnxtrain.data import Arrays, Slot, bind
    from onnxtrain.errors import FeedError

    slot = Slot("x", np.dtype(np.float32), (None, 3, 5, 6))
    with pytest.raises(FeedError, match=r"save array.transpose\(0, 3, 1, 2\)"):
        bind(Arrays({"x": np.zeros((2, 5, 6, 3))}, False, "a"), [slot])


def test_a_classifier_that_gives_labels_and_maps_is_trained_on_its_scores(folder, cli):
    learned = onnx.helper.make_node(
        "LinearClassifier", ["x"], ["label", "scores"], domain="ai.onnx.ml",
        coefficients=[0.5, -0.25, -0.5, 0.25], classlabels_ints=[0, 1],
    )  # fmt: skip
    zipped = onnx.helper.make_node(
        "ZipMap", ["scores"], ["y"], domain="ai.onnx.ml", classlabels_int64s=[0, 1]
    )
    row = onnx.helper.make_map_type_proto(
        onnx.TensorProto.INT64, onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [])
    )
    graph = onnx.helper.make_graph(
        [learned, zipped],
        "linear",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 2])],
        [
            onnx.helper.make_tensor_value_info("label", onnx.TensorProto.INT64, ["n"]),
            onnx.helper.make_value_info("y", onnx.helper.make_sequence_type_proto(row)),
        ],
    )
    imports = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(onnx.helper.make_model(graph, ir_version=8, opset_imports=imports), "linear.onnx")
    np.savez("rows.npz", x=np.eye(2, dtype=np.float32), labels=np.array([0, 1]))
    data = ("--data", "rows.npz", "--val-data", "rows.npz", "--metric", "accuracy")
    output = cli("fit", "linear.onnx", *data, "--loss", "cross_entropy", "--out", "out.onnx")
    assert "val_accuracy 100.00%" in output
    assert onnx.load("out.onnx").graph.node[0].attribute != graph.node[0].attribute


def test_external_data_of_the_model_is_not_overwritten(folder, cli):
    path, weights = pathlib.Path("model.onnx"), pathlib.Path("weights.bin")
    outside = {"save_as_external_data": True, "location": weights.name, "size_threshold": 0}
    onnx.save(onnx.load(path), path, **outside)
    before = weights.read_bytes()
    assert "weights.bin' would be overwritten" in cli(*FIT, "--out", weights, code=1)
    assert weights.read_bytes() == before
