"""Make ``tests/golden/operators``: what onnxruntime-training 1.19.2 gives for the table's rows.

    python tests/golden/make_operators.py PYTHON

PYTHON is the interpreter of an environment with ``onnxruntime-training-cpu==1.19.2``; this script
itself runs in the project's own environment, whose table has the rows.

``cases.json`` has a line for each case: the model as text, its inputs, and either the outputs or
the category of the error. Arrays are ``[type, shape, offset]`` into the flat array of that type in
``values.npz``. Rows which the reference has no kernel for, or on which its process dies, are left
out, and so are 16-bit floats, which its CPU kernels take through casts. Forward operators are asked
about in float32 only.
"""

import collections
import dataclasses
import json
import pathlib
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import operator_extras
import operator_refusals
import torch

from onnxtrain.graph import schemas
from onnxtrain.kernels.dtypes import array_of
from onnxtrain.testing.case import Case
from onnxtrain.testing.model import draw, feeds_of, one_node_model
from onnxtrain.testing.table import table, trial_types
from onnxtrain.types import ONNX, DataType, dtype_name

HERE = pathlib.Path(__file__).parent
NEWEST_OPSET = 21
"""The newest version of ONNX that the reference knows."""
OWN_OPSET = {"NegativeLogLikelihoodLossInternal": 12}
"""Operators that it runs beside an older version of ONNX only."""
SHAPE_INPUT = {"AveragePoolGrad": 1, "MaxPoolGrad": 2}
"""Where rows pass a shape which the reference takes from the declared type of the output."""
BEYOND = (
    "LayerNormalizationGrad-broadcast_scale",
    "SimplifiedLayerNormalizationGrad-broadcast_scale",
    "SoftmaxCrossEntropyGrad-reduction=none",
)
"""Rows on which it reads memory beyond its inputs."""
HALVES = (torch.float16, torch.bfloat16)
NO_KERNEL = ("NotImplemented", "InvalidGraph", "crash")


@dataclasses.dataclass(frozen=True)
class Trial:
    """A model to ask about: its name, text and feeds, and what a refusal must name."""

    key: str
    op: str
    text: str
    feeds: dict[str, Any]
    says: str = ""

    def model(self) -> onnx.ModelProto:
        return onnx.parser.parse_model(self.text)


def row_trials() -> Iterator[Trial]:
    """A trial for each row of an operator that the reference added to ONNX, in each wide type."""
    training = schemas.training_ops()
    forward = [*schemas.forward_ops(), (ONNX, "SoftmaxCrossEntropyLoss")]
    seen: collections.Counter[str] = collections.Counter()
    for case in table():
        key = case.domain, case.op
        if (key not in training and key not in forward) or str(case).startswith(BEYOND):
            continue
        if case.domain == ONNX:
            case = dataclasses.replace(case, opset=case.opset or NEWEST_OPSET)
        for dtype in trial_types(case) if key in training else [DataType.FLOAT]:
            inputs = draw(case, dtype)
            if any(is_half(value) for value in inputs):
                continue
            name = f"{case}-{dtype_name(dtype)}"
            seen[name] += 1
            name += f"-{seen[name]}" if seen[name] > 1 else ""
            yield row_trial(name, case, inputs)


def is_half(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(is_half, value))
    return value is not None and value.dtype in HALVES


def row_trial(key: str, case: Case, inputs: list[Any]) -> Trial:
    shape = None
    if case.op in SHAPE_INPUT:
        last = SHAPE_INPUT[case.op]
        shape = inputs[last].tolist()
        case, inputs = dataclasses.replace(case, inputs=case.inputs[:last]), inputs[:last]
    model = one_node_model(case, inputs)
    model.ir_version = 10
    graph, node = model.graph, model.graph.node[0]
    del graph.value_info[:]
    while node.input and not node.input[-1]:
        node.input.pop()
    for entry in model.opset_import:
        if entry.domain == ONNX and case.op in OWN_OPSET:
            entry.version = OWN_OPSET[case.op]
    declare_outputs(graph, shape)
    feeds = {name: as_array(value) for name, value in feeds_of(case, inputs).items()}
    return Trial(key, case.op, onnx.printer.to_text(model), feeds)


def declare_outputs(graph: onnx.GraphProto, shape: list[int] | None) -> None:
    """Give outputs the types that the reference cannot infer: those of the first input."""
    for output in graph.output:
        kind = output.type.WhichOneof("value")
        known = kind and (kind != "tensor_type" or output.type.tensor_type.elem_type)
        if shape is not None or not known:
            element = graph.input[0].type.tensor_type.elem_type
            output.type.CopyFrom(onnx.helper.make_tensor_type_proto(element, shape))


def as_array(value: Any) -> Any:
    if isinstance(value, list):
        return [as_array(item) for item in value]
    return array_of(value) if isinstance(value, torch.Tensor) else value


def extra_trials() -> Iterator[Trial]:
    """Models that are no rows: more values, and what the reference refuses."""
    for extra in (*operator_extras.VALUES, *operator_refusals.REFUSALS):
        yield Trial(extra.key, extra.op, extra.text(), extra.feeds, extra.says)


def ask(python: str, trials: list[Trial]) -> list[tuple[str, Any]]:
    """What the reference makes of each model.

    Raises:
        RuntimeError: if it gives different numbers a second time (it read what it should not).
    """
    first, second = (answers(python, trials) for _ in range(2))
    pairs = zip(trials, first, second, strict=True)
    if moving := [trial.key for trial, a, b in pairs if pickle.dumps(a) != pickle.dumps(b)]:
        raise RuntimeError(f"the reference changes its mind about {', '.join(moving)}")
    return first


def answers(python: str, trials: list[Trial]) -> list[tuple[str, Any]]:
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        places = [folder / f"{index:05d}.onnx" for index in range(len(trials))]
        for place, trial in zip(places, trials, strict=True):
            place.write_bytes(trial.model().SerializeToString())
            place.with_suffix(".pickle").write_bytes(pickle.dumps(trial.feeds))
        script = HERE / "reference_operators.py"
        subprocess.run([python, script, folder], check=True, stderr=subprocess.DEVNULL)
        return [pickle.loads(place.with_suffix(".result").read_bytes()) for place in places]


class Values:
    """Arrays, each once, in one flat array for each element type."""

    def __init__(self) -> None:
        self.parts: dict[str, list[np.ndarray]] = collections.defaultdict(list)
        self.sizes: collections.Counter[str] = collections.Counter()
        self.known: dict[tuple[str, bytes], int] = {}

    def add(self, value: Any) -> Any:
        """Where a value lies: null, an array, ``{"sequence": …}`` or ``{"strings": …}``."""
        if value is None:
            return None
        if isinstance(value, list):
            return {"sequence": [self.add(item) for item in value]}
        array = np.asarray(value)
        if array.dtype == object:
            return {"strings": [as_hex(item) for item in array.flat], "shape": list(array.shape)}
        flat, dtype = array.reshape(-1), array.dtype.name
        key = dtype, flat.tobytes()
        if key not in self.known:
            self.known[key] = self.sizes[dtype]
            self.parts[dtype].append(flat)
            self.sizes[dtype] += flat.size
        return [dtype, list(array.shape), self.known[key]]

    def save(self, path: pathlib.Path) -> None:
        flat = {dtype: np.concatenate(parts) for dtype, parts in sorted(self.parts.items())}
        np.savez_compressed(path, **flat)


def as_hex(item: str | bytes) -> str:
    return (item.encode() if isinstance(item, str) else item).hex()


def entry(trial: Trial, kind: str, result: Any, values: Values) -> dict[str, Any]:
    """A line of ``cases.json``."""
    fed = {name: values.add(value) for name, value in trial.feeds.items()}
    made: dict[str, Any] = {"case": trial.key, "op": trial.op, "model": trial.text, "inputs": fed}
    if kind == "error":
        return made | {"error": result, "says": trial.says}
    return made | {"outputs": [values.add(value) for value in result]}


def kept(trials: list[Trial], asked: list[tuple[str, Any]]) -> list[tuple[Trial, str, Any]]:
    """Answers that say something about an operator, not about kernels or types that are missing.

    Raises:
        RuntimeError: if the reference accepts what it is said to refuse.
    """
    pairs = list(zip(trials, asked, strict=True))
    if accepted := [t.key for t, (kind, _) in pairs if kind == "values" and t.says]:
        raise RuntimeError(f"the reference accepts {', '.join(accepted)}")
    running = {trial.op for trial, (kind, _) in pairs if kind == "values"}
    return [
        (trial, kind, result)
        for trial, (kind, result) in pairs
        if kind == "values"
        or trial.says
        or (trial.op in running and trial.key.endswith("-float") and result not in NO_KERNEL)
    ]


def main(python: str) -> None:
    trials = [*row_trials(), *extra_trials()]
    if repeated := [k for k, n in collections.Counter(t.key for t in trials).items() if n > 1]:
        raise ValueError(f"two cases have the name {', '.join(repeated)}")
    values = Values()
    found = kept(trials, ask(python, trials))
    lines = [json.dumps(entry(*item, values)) for item in found]
    folder = HERE / "operators"
    folder.mkdir(exist_ok=True)
    (folder / "cases.json").write_text("[\n" + ",\n".join(lines) + "\n]\n")
    values.save(folder / "values.npz")
    tried = {op for _, op in schemas.training_ops()}
    covered = {trial.op for trial, kind, _ in found if kind == "values"}
    print(f"{len(lines)} cases, {len(tried & covered)} of {len(tried)} training operators")
    print("without values:", *sorted(tried - covered))


if __name__ == "__main__":
    main(sys.argv[1])
