"""A first try that goes wrong: every mistake is answered with what to type instead."""

import pathlib

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from cli.small import FEATURES, samples

COLUMNS = [f"f{i}" for i in range(FEATURES)]
FIT = ("fit", "model.onnx", "--device", "cpu", "--steps", "1")
CLASSES = (*FIT, "--loss", "cross_entropy")
OTHER_MODELS = {
    "numbers.onnx": ("Gemm", 1),
    "softmax.onnx": ("Softmax", 3),
}


def rows() -> list[list[object]]:
    data = samples()
    return [[*x.tolist(), int(y)] for x, y in zip(data["x"], data["labels"], strict=True)]


def text(names: list[str], table: list[list[object]], delimiter: str = ",") -> bytes:
    return "\n".join(delimiter.join(map(str, row)) for row in [names, *table]).encode()


def without(column: int, value: object) -> list[list[object]]:
    """The table with something else in a column of its sixth row."""
    table = rows()
    table[5][column] = value
    return table


WORDS = [[*row[:-1], ("cat", "dog", "owl")[int(row[-1])]] for row in rows()]
TABLES = {
    "good.csv": text([*COLUMNS, "label"], rows()),
    "semicolons.csv": text([*COLUMNS, "label"], rows(), ";"),
    "tabs.tsv": text([*COLUMNS, "label"], rows(), "\t"),
    "commas.csv": text(["f0", "label"], [["1,5", 1], ["2,5", 0]], ";"),
    "words.csv": text([*COLUMNS, "label"], WORDS),
    "animals.csv": text([*COLUMNS, "animal"], WORDS),
    "outcome.csv": text([*COLUMNS, "outcome"], rows()),
    "gap.csv": text([*COLUMNS, "label"], without(3, "")),
    "na.csv": text([*COLUMNS, "label"], without(3, "NA")),
    "nan.csv": text([*COLUMNS, "label"], without(3, "nan")),
    "no_label.csv": text([*COLUMNS, "label"], without(8, "")),
    "infinite.csv": text([*COLUMNS, "label"], without(3, "inf")),
    "spaces.csv": text([*COLUMNS[1:], "leaf size", "my label"], WORDS),
    "gap_spaces.csv": text(["leaf size", *COLUMNS[1:], "label"], without(0, "")),
    "three.csv": text([*COLUMNS, "t1", "t2", "t3"], [[*r, 0, 1] for r in rows()]),
    "odd.csv": text([*COLUMNS, "label"], without(3, "much")),
    "blank.csv": text(["", *COLUMNS, "label"], [[i, *row] for i, row in enumerate(rows())]),
    "ids.csv": text(["id", *COLUMNS, "label"], [[f"a{i}", *r] for i, r in enumerate(rows())]),
    "counted.csv": text([*map(str, range(FEATURES)), "label"], rows()),
    "narrow.csv": text([*COLUMNS[1:], "label"], [row[1:] for row in rows()]),
    "lists.csv": text(["x", "label"], [[f'"{" ".join(map(str, r[:-1]))}"', r[-1]] for r in rows()]),
    "headless.csv": text([str(v) for v in rows()[0]], rows()[1:]),
    "high.csv": text([*COLUMNS, "label"], without(8, 12)),
    "from_one.csv": text([*COLUMNS, "label"], [[*r[:-1], int(r[-1]) + 1] for r in rows()]),
    "halves.csv": text([*COLUMNS, "label"], without(8, 0.5)),
    "latin.csv": text([*COLUMNS, "label"], WORDS).replace(b"owl", b"h\xf6hle"),
    "empty.csv": b"",
    "no_rows.csv": text([*COLUMNS, "label"], []),
    "packed.csv.gz": b"\x1f\x8b",
    "table.xlsx": b"PK",
    "text.jsonl": b'{"ids": "hello", "label": 0}\n' * 9,
    "ragged.jsonl": b'{"x": [1, 2]}\n{"x": [1]}\n',
    "wide.csv": text([*COLUMNS, "label"], without(3, "1e44")),
    "utf16.csv": "f0,label\n1,0\n".encode("utf-16"),
    "epoch.yaml": b"epoch: 3",
    "binary.yaml": b"\xff\xfe",
    "rate.yaml": b"learning_rate: 3",
    "many.yaml": b"epochs: many",
    "deep.json": b"[" * 100_000,
    "one.yaml": b"trainable: w1",
}


def small_model(kind: str, outputs: int) -> onnx.ModelProto:
    """One dense layer, and perhaps a Softmax."""
    weight = np.random.default_rng(0).normal(size=(FEATURES, outputs)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["scores"])]
    if kind == "Softmax":
        nodes.append(helper.make_node("Softmax", ["scores"], ["shares"]))
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", FEATURES])],
        [helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, ["N", outputs])],
        [numpy_helper.from_array(weight, "w")],
    )
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


def parsed(values: str, nodes: str) -> onnx.ModelProto:
    """A model of few nodes, with a table of floats and one of doubles."""
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g {values} {{ {nodes} }}'
    )
    used = {"t": np.ones((5, 2), np.float32), "d": np.ones((FEATURES, 2))}
    model.graph.initializer.extend(
        numpy_helper.from_array(array, name) for name, array in used.items() if name in nodes
    )
    return model


def two_inputs() -> onnx.ModelProto:
    """The sum of two inputs, three and five numbers wide."""
    nodes = "y = Gemm(c, t)"
    return parsed(
        "(float[N,3] a, float[N,2] b) => (float[N,2] y)", f"c = Concat<axis=1>(a, b) {nodes}"
    )


def lookup_model() -> onnx.ModelProto:
    """Five tokens with two scores each."""
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "ids"], ["scores"])],
        "lookup",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["N"])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["N", 2])],
        [numpy_helper.from_array(np.ones((5, 2), np.float32), "table")],
    )
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


@pytest.fixture
def place(folder: pathlib.Path) -> pathlib.Path:
    """A folder with models and data, good and bad."""
    for name, content in TABLES.items():
        pathlib.Path(name).write_bytes(content)
    for name, (kind, outputs) in OTHER_MODELS.items():
        onnx.save(small_model(kind, outputs), name)
    onnx.save(lookup_model(), "lookup.onnx")
    onnx.save(two_inputs(), "two.onnx")
    onnx.save(parsed("(int64[N,T] ids) => (float[N,T,2] y)", "y = Gather(t, ids)"), "tokens.onnx")
    onnx.save(parsed("(float[N,L,5] x) => (float[N,L,2] y)", "y = MatMul(x, t)"), "long.onnx")
    onnx.save(parsed("(double[N,8] x) => (double[N,2] y)", "y = MatMul(x, d)"), "double.onnx")
    np.savez("alone.npz", ids=np.zeros((4, 3), int))
    data = samples()
    np.savez("one_hot.npz", x=data["x"], labels=np.eye(3)[data["labels"]])
    np.savez("tokens.npz", ids=np.arange(9), labels=np.zeros(9, int))
    np.savez("nan.npz", x=np.where(data["x"] > 2, np.nan, data["x"]), labels=data["labels"])
    np.savez("zero.npz", x=data["x"][:0], labels=data["labels"][:0])
    pathlib.Path("nothing").mkdir()
    return folder


def line(data: str, *more: str) -> tuple[str, ...]:
    return (*CLASSES, "--data", data, *more)


RUNS = {
    "one name for a list": line("good.csv", "--config", "one.yaml"),
    "a label of another name": line("outcome.csv", "--map", "labels=outcome"),
    "words of another name": line("animals.csv", "--map", "labels=animal"),
    "gaps dropped": line("gap.csv", "--missing", "drop"),
    "labels that are missing dropped": line("no_label.csv", "--missing", "drop"),
    "a column without a name ignored": line("blank.csv", "--ignore", "column_1"),
    "words ignored": line("ids.csv", "--ignore", "id"),
    "columns by pattern": line("blank.csv", "--map", "x=f*"),
    "columns by list": line("blank.csv", "--map", f"x={','.join(COLUMNS)}"),
    "classes from one": line("from_one.csv", "--first-label", "1"),
}


@pytest.mark.parametrize("case", RUNS)
def test_what_a_first_user_brings_trains(place, cli, case):
    assert "wrote trained.onnx" in cli(*RUNS[case])


def test_tables_of_all_kinds_train_alike(place, cli):
    written = []
    for name in ("good.csv", "semicolons.csv", "tabs.tsv", "words.csv", "counted.csv", "lists.csv"):
        cli(*line(name, "--out", f"{name}.onnx"))
        written.append(pathlib.Path(f"{name}.onnx").read_bytes())
    assert len(set(written)) == 1


MISTAKES = {
    "column": (line("outcome.csv"), "--map labels=outcome"),
    "column of words": (line("animals.csv"), "--map labels=animal"),
    "mapped column": (line("outcome.csv", "--map", "labels=outcom"), "--map labels=outcome"),
    "mapped input": (line("outcome.csv", "--map", "lables=outcome"), "--map labels=ARRAY"),
    "listed column": (line("good.csv", "--map", "x=f0,g1"), "there is no column 'g1'"),
    "ignored column": (line("good.csv", "--ignore", "f9"), "have  f0, f1"),
    "index column": (line("blank.csv"), "--ignore column_1"),
    "column of names": (line("ids.csv"), "--ignore id"),
    "too few columns": (line("narrow.csv"), "add 1 to the file"),
    "unknown loss": (line("good.csv", "--loss", "crossentropy"), "--loss cross_entropy"),
    "a loss of others": (line("good.csv", "--loss", "mae"), "--loss l1"),
    "loss for numbers": (line("good.csv", "--loss", "mse"), "use --loss cross_entropy"),
    "one score": (("fit", "numbers.onnx", *line("good.csv")[2:]), "--loss bce"),
    "yes or no": (("fit", "numbers.onnx", *line("good.csv", "--loss", "bce")[2:]), "--loss mse"),
    "label too high": (line("high.csv"), "a model with 13 scores"),
    "labels from one": (line("from_one.csv"), "add --first-label 1"),
    "fractions": (line("halves.csv"), "to learn other numbers use --loss mse"),
    "one hot": (line("one_hot.npz"), "save array.argmax(axis=1)"),
    "tokens": (("fit", "lookup.onnx", *line("tokens.npz")[2:]), "which has 5 rows: 0 to 4"),
    "missing file": (line("goood.csv"), "--data good.csv"),
    "missing model": (("fit", "modl.onnx", *line("good.csv")[2:]), "did you mean  model.onnx"),
    "data for a model": (("fit", "good.csv", *line("good.csv")[2:]), "MODEL.onnx --data good.csv"),
    "empty file": (line("empty.csv"), "its first line must name the columns"),
    "no rows": (line("no_rows.csv"), "9 columns, but no rows"),
    "no names": (line("headless.csv"), "put a line such as  x_0,x_1,x_2,label"),
    "empty folder": (line("nothing"), "nothing/cat/1.png"),
    "folder for a model": (("fit", ".", *line("good.csv")[2:]), "'.' has  "),
    "folder for the result": (line("good.csv", "--out", "nothing"), "nothing/trained.onnx"),
    "model overwritten": (line("good.csv", "--out", "model.onnx"), "say model-trained.onnx"),
    "empty field": (line("gap.csv"), "column 'f3' of sample 6"),
    "NA": (line("na.csv"), "add  --missing drop"),
    "NaN": (line("nan.csv"), "--ignore f3"),
    "infinity": (line("infinite.csv"), "no finite value in column 'f3' of sample 6"),
    "a label with a space": (line("spaces.csv"), "--map 'labels=my label'"),
    "a gap under a name with a space": (line("gap_spaces.csv"), "--ignore 'leaf size'"),
    "several targets": (line("three.csv", "--loss", "mse"), "--map target=t1,t2,t3"),
    "two inputs": (("fit", "two.onnx", *line("good.csv")[2:]), "--map a=f0,f1,f2 --map b=f3"),
    "words for numbers": (line("words.csv", "--loss", "mse"), "--loss cross_entropy  learns"),
    "three words for two": (
        ("fit", "numbers.onnx", *line("words.csv", "--loss", "bce")[2:]),
        "'target' takes 2 words",
    ),
    "text for tokens": (("fit", "tokens.onnx", *line("text.jsonl")[2:]), "tokenizer does"),
    "lists of many lengths": (line("ragged.jsonl"), "lists of 1 to 2 values"),
    "labels that tokens have": (
        ("fit", "tokens.onnx", *line("alone.npz")[2:], "--loss", "token_cross_entropy"),
        "--loss next_token",
    ),
    "tokens of a classifier": (line("good.csv", "--loss", "next_token"), "samples take cross_"),
    "wide input from a table": (
        ("fit", "long.onnx", *line("good.csv")[2:]),
        "(samples, length, 5)",
    ),
    "weights of adapters": (line("good.csv", "--lora", "2", "--last", "1"), "targets=*query*"),
    "no such adapters": (line("good.csv", "--adapter", "a.onnx_adapter"), "begin with --lora 8"),
    "16 bits for double": (
        ("fit", "double.onnx", *line("good.csv", "--precision", "bf16")[2:]),
        "for models in float32, the weights of this one are double",
    ),
    "metric": (line("good.csv", "--metric", "acc", "--val-split", "0.2"), "--metric accuracy"),
    "nothing to monitor": (line("good.csv", "--monitor", "accuracy"), "add --val-split 0.1"),
    "a device as a file": (line("good.csv", "--out", "/dev/null"), "it is a device, not a file"),
    "a file as a folder": (line("good.csv", "--tensorboard", "model.onnx"), "--tensorboard events"),
    "no checkpoint": (
        line("good.csv", "--resume", "--checkpoint", "tabs.tsv"),
        "start without --resume",
    ),
    "NaN in npz": (line("nan.npz"), "array 'x' of sample"),
    "NaN for validation": (line("good.csv", "--val-data", "nan.csv"), "add  --missing drop"),
    "label missing": (line("no_label.csv"), "column 'label' of sample 6"),
    "a word among numbers": (line("odd.csv"), "column 'f3' has 'much' in line 7"),
    "decimal commas": (line("commas.csv"), "write numbers with a point: 1.5"),
    "not UTF-8": (line("latin.csv"), "iconv -f latin1 -t utf-8 'latin.csv'"),
    "packed": (line("packed.csv.gz"), "gunzip packed.csv.gz"),
    "spreadsheet": (line("table.xlsx"), "save it as .csv"),
    "batch too large": (line("good.csv", "--batch-size", "65"), "--batch-size 64  or less"),
    "optimizer": (line("good.csv", "--optimizer", "AdamV"), "--optimizer adam"),
    "device": (line("good.csv", "--device", "tpu"), "give --device cpu"),
    "infinite rate": (line("good.csv", "--lr", "inf"), "lr must be a finite number"),
    "endless seed": (line("good.csv", "--seed", str(2**70)), "from 0 to 2**64 - 1"),
    "nothing of gradients": (line("good.csv", "--clip-grad-norm", "0"), "leave it out"),
    "endless label": (line("good.csv", "--first-label", str(2**70)), "--first-label 1, say"),
    "this folder": (line("good.csv", "--out", "."), "give  --out trained.onnx"),
    "this folder for later": (line("good.csv", "--checkpoint", "."), "--checkpoint run.ckpt"),
    "folder for later": (line("good.csv", "--checkpoint", "nothing"), "say nothing/run.ckpt"),
    "folder for figures": (line("good.csv", "--log", "nothing"), "say nothing/run.jsonl"),
    "no data to judge by": (line("good.csv", "--val-every", "3"), "add --val-split 0.1"),
    "other data to judge by": (line("good.csv", "--val-data", "god.csv"), "--val-data good.csv"),
    "batch after the split": (
        line("good.csv", "--val-split", "0.5", "--batch-size", "40"),
        "give  --batch-size 32",
    ),
    "one file for two": (line("good.csv", "--log", "./trained.onnx"), "--out and --log are the"),
    "result as checkpoint": (line("good.csv", "--out", "a.ckpt"), "--out and --checkpoint are"),
    "too large": (line("wide.csv"), "has 1e+44, which float32 cannot hold"),
    "UTF-16": (line("utf16.csv"), "iconv -f utf-16 -t utf-8 'utf16.csv'"),
    "no samples": (line("zero.npz"), "the same number of samples, at least one"),
    "no share of images": (line("good.csv", "--image-std", "0"), "numbers above 0 such as 0.5"),
    "no mean of images": (line("good.csv", "--image-mean", "nan"), "such as 0.5 or 0.5,0.5,0.5"),
    "deep options": (line("good.csv", "--config", "deep.json"), "too many lists within lists"),
    "no file of options": (line("good.csv", "--config", "a.yaml"), "loss: cross_entropy"),
    "no text of options": (line("good.csv", "--config", "binary.yaml"), "it is no text in UTF-8"),
    "picture": (line("good.csv", "--plot", "curves.doc"), "--plot curves.png"),
    "rank": (line("good.csv", "--lora", "0"), "give  --lora 8"),
    "map": (line("good.csv", "--map", "x"), "--map labels=outcome, say"),
    "key of a file": (line("good.csv", "--config", "epoch.yaml"), "did you mean  epochs"),
    "key of others": (line("good.csv", "--config", "rate.yaml"), "did you mean  lr"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_answered_with_what_to_type(place, cli, case):
    args, cure = MISTAKES[case]
    output = cli(*args, code=1)
    assert cure in output
    assert output.startswith("error: ") and "warning" not in output.lower()
    assert not pathlib.Path("trained.onnx").exists()


LINES = {
    "nothing": (("fit",), "fit model.onnx --data train.csv --loss cross_entropy"),
    "no data": (("fit", "model.onnx"), "add  --data train.csv"),
    "data without a flag": (("fit", "model.onnx", "good.csv", "--loss", "mse"), "--data good.csv"),
    "no verb": (("model.onnx", "--data", "good.csv"), "onnxtrain fit model.onnx --data good.csv"),
    "another verb": (("train", "model.onnx"), "did you mean  onnxtrain fit"),
    "misspelt verb": (("trian",), "did you mean  onnxtrain fit"),
    "strange verb": (("zzz",), "have  fit, info"),
    "flag for the loss": (FIT + ("--data", "good.csv"), "add  --loss cross_entropy"),
    "no loss": (FIT + ("--data", "good.csv"), "cross_entropy for labels of 3 classes"),
    "flag before a verb": (("--zzz",), "onnxtrain --help' lists all options"),
    "one model for two": (("diff", "model.onnx"), "onnxtrain diff before.onnx after.onnx"),
    "no checkpoint": (("export",), "onnxtrain export run.ckpt model.onnx"),
    "flag": (line("good.csv", "--epoch", "3"), "give  --epochs N"),
    "flag of others": (line("good.csv", "--learning-rate", "3"), "give  --lr NUMBER"),
    "near flag": (line("good.csv", "--wamup", "3"), "did you mean  --warmup"),
    "strange flag": (line("good.csv", "--zzz", "3"), "fit --help' lists all options"),
    "no number": (line("good.csv", "--lr", "fast"), "give  --lr 0.001, say"),
    "below the range": (line("good.csv", "--batch-size", "0"), "give  --batch-size 32, say"),
    "above the range": (line("good.csv", "--val-split", "20"), "give  --val-split 0.1, say"),
    "choice": (line("good.csv", "--schedule", "cosin"), "give  --schedule cosine, say"),
    "two files": (line("good.csv", "nan.csv"), "give  --data nan.csv"),
    "value of a file": (line("good.csv", "--config", "many.yaml"), "has  'many'  for it"),
}


@pytest.mark.parametrize("case", LINES)
def test_a_line_that_is_not_understood_is_explained(place, cli, case):
    args, cure = LINES[case]
    assert cure in cli(*args, code=2)


def test_a_second_softmax_is_noticed(place, cli):
    line_ = ("fit", "softmax.onnx", *line("good.csv")[2:])
    assert "export the model without its last Softmax" in cli(*line_)
    assert "Softmax" not in cli(*line("good.csv"))
