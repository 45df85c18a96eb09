"""A bidirectional LSTM tagger, and a plain recurrent network whose steps are an ONNX Loop."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import torch
from torch import nn

from architectures.family import Family, Inputs, Size


class Tagger(nn.Module):
    """Embedding, two bidirectional LSTM layers, and scores for every token."""

    def __init__(self, width: int, vocabulary: int, tags: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, tags)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(self.tokens(tokens))[0])


class Recurrent(nn.Module):
    """h' = tanh(x W + h U + b) over the tokens, and scores for every token."""

    def __init__(self, width: int, vocabulary: int, tags: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(vocabulary, width))
        self.w = nn.Parameter(torch.empty(width, width))
        self.u = nn.Parameter(torch.empty(width, width))
        self.b = nn.Parameter(torch.zeros(width))
        self.first = nn.Parameter(torch.zeros(width))
        self.head = nn.Parameter(torch.empty(width, tags))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        h = self.first.expand(len(tokens), -1)
        states = []
        for x in self.table[tokens].unbind(1):
            h = torch.tanh(x @ self.w + h @ self.u + self.b)
            states.append(h)
        return torch.stack(states, 1) @ self.head


_LOOP = """<ir_version: 10, opset_import: ["" : 20]>
recurrent (int64[batch,length] tokens) => (FLOAT[batch,length,tags] scores)
<int64[1] one = {1}, bool always = {1}> {
    embedded = Gather(table, tokens)
    samples = Shape<start=0, end=1>(tokens)
    start_shape = Concat<axis=0>(samples, one)
    start = Expand(first, start_shape)
    length = Shape<start=1, end=2>(tokens)
    last, states = Loop(length, always, start) <body = step
        (int64 i, bool going, FLOAT[batch,width] h)
        => (bool go_on, FLOAT[batch,width] h_next, FLOAT[batch,width] state) {
        x = Gather<axis=1>(embedded, i)
        from_x = MatMul(x, w)
        from_h = MatMul(h, u)
        both = Add(from_x, from_h)
        biased = Add(both, b)
        h_next = Tanh(biased)
        state = Identity(h_next)
        go_on = Identity(going)
    }>
    by_sample = Transpose<perm=[1, 0, 2]>(states)
    scores = MatMul(by_sample, head)
}"""
_KINDS = {torch.float32: "float", torch.float64: "double", torch.bfloat16: "bfloat16"}


def _write(module: nn.Module) -> onnx.ModelProto:
    """The network with one turn of a Loop per token; the exporter would unroll Python's loop."""
    weights = {name: ir.tensor(p.detach(), name=name) for name, p in module.named_parameters()}
    kind = _KINDS[next(module.parameters()).dtype]
    model = onnx.parser.parse_model(_LOOP.replace("FLOAT", kind))
    model.graph.initializer.extend(ir.to_proto(tensor) for tensor in weights.values())
    return model


def _inputs(size: Size, samples: int, length: int) -> Inputs:
    return {"tokens": torch.randint(0, size["vocabulary"], (samples, length))}


_AXES = {"tokens": {0: "batch", 1: "length"}}
_SMALL = {"width": 6, "vocabulary": 20, "tags": 4}
_LARGE = {"width": 256, "vocabulary": 8000, "tags": 32}

LSTM = Family(Tagger, _inputs, _AXES, _SMALL, _LARGE, per_token=True)
LOOP = Family(Recurrent, _inputs, _AXES, _SMALL, _LARGE, per_token=True, write=_write)
