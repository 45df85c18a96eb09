"""Connectionist temporal classification: sequences of labels whose times are not known."""

from __future__ import annotations

import math

import onnx

from onnxtrain.onnxblock import blocks, edit
from onnxtrain.onnxblock.block import Block
from onnxtrain.onnxblock.loss.ends import checked, input_of, reduced
from onnxtrain.onnxblock.text import add_text
from onnxtrain.onnxblock.values import element_type, exists, need_opset, opset_of, require_value

_SINCE = 13
"""The first opset whose operators all of this is written in."""
_AXES_ARE_AN_INPUT_SINCE = 18
_TYPES: dict[int, str] = {onnx.TensorProto.FLOAT: "float", onnx.TensorProto.DOUBLE: "double"}
_NEVER = -1e30
"""Logarithm of a probability of 0: finite, so that no difference of two is undefined."""

_TEXT = """
ctc ({type}[T,N,C] log_probs, int64[N,S] targets, int64[N] input_lengths, int64[N] target_lengths,
     {type} never, {type} sure, {type} limit, {type} lost) => ({type}[N] loss)
<int64 blank = {{{blank}}}, int64 i0 = {{0}}, int64 i1 = {{1}}, int64 i2 = {{2}},
 int64[1] axis0 = {{0}}, int64[1] axis1 = {{1}}, int64[1] axis2 = {{2}},
 int64[2] rows = {{0, -1}}> {{
    limits = Unsqueeze (target_lengths, axis1)
    target_shape = Shape (targets)
    width = Gather (target_shape, i1)
    positions = Range (i0, width, i1)
    inside = Less (positions, limits)
    labels = Where (inside, targets, blank)
    nothing = Sub (labels, labels)
    gaps = Add (nothing, blank)
    gaps_3d = Unsqueeze (gaps, axis2)
    labels_3d = Unsqueeze (labels, axis2)
    pairs = Concat <axis = 2> (gaps_3d, labels_3d)
    flat = Reshape (pairs, rows)
    zero_column = Sub (limits, limits)
    last_gap = Add (zero_column, blank)
    path = Concat <axis = 1> (flat, last_gap)
    path_shape = Shape (path)
    length = Gather (path_shape, axis1)

    behind_gaps = Concat <axis = 1> (last_gap, last_gap, path)
    two_before = Slice (behind_gaps, axis0, length, axis1)
    is_gap = Equal (path, blank)
    is_repeated = Equal (path, two_before)
    no_skip = Or (is_gap, is_repeated)

    frames = Shape (log_probs)
    times = Gather (frames, axis0)
    emitted_shape = Concat <axis = 0> (times, path_shape)
    path_3d = Unsqueeze (path, axis0)
    index = Expand (path_3d, emitted_shape)
    emitted = GatherElements <axis = 2> (log_probs, index)

    path_length = Gather (path_shape, i1)
    places = Range (i0, path_length, i1)
    at_start = Equal (places, i0)
    first_row = Where (at_start, sure, never)
    begin = Expand (first_row, path_shape)
    column_shape = Shape (limits)
    never_column = Expand (never, column_shape)
    count = Gather (frames, i0)
    clock = Range (i0, count, i1)
    ends = Unsqueeze (input_lengths, axis1)
    final = Scan <num_scan_inputs = 2, body = step
        ({type}[N,L] score, {type}[N,L] emission, int64 time) => ({type}[N,L] kept) {{
            moved_1 = Concat <axis = 1> (never_column, score)
            from_1 = Slice (moved_1, axis0, length, axis1)
            moved_2 = Concat <axis = 1> (never_column, moved_1)
            before_2 = Slice (moved_2, axis0, length, axis1)
            from_2 = Where (no_skip, never, before_2)
            score_3d = Unsqueeze (score, axis2)
            from_1_3d = Unsqueeze (from_1, axis2)
            from_2_3d = Unsqueeze (from_2, axis2)
            ways = Concat <axis = 2> (score_3d, from_1_3d, from_2_3d)
            arrived = {sum_of_ways}
            next = Add (arrived, emission)
            running = Less (time, ends)
            kept = Where (running, next, score)
        }}> (begin, emitted, clock)

    at_gap = Mul (limits, i2)
    before_gap = Sub (at_gap, i1)
    at_label = Max (before_gap, i0)
    ends_in_gap = GatherElements <axis = 1> (final, at_gap)
    final_label = GatherElements <axis = 1> (final, at_label)
    is_empty = Equal (limits, i0)
    ends_in_label = Where (is_empty, never, final_label)
    both = Concat <axis = 1> (ends_in_gap, ends_in_label)
    probability = {sum_of_both}
    cost = Neg (probability)
    impossible = Greater (cost, limit)
    loss = Where (impossible, lost, cost)
}}
"""
"""The forward algorithm over paths of labels with gaps (blanks) between and around them."""


class CTCLoss(Block):
    """``-log`` of the probability of a sequence of labels, summed over all its alignments.

    Predictions have the shape (time, batch, classes), targets (batch, longest), both lengths
    (batch). The mean is that of the losses divided by the lengths of their targets.

    Args:
        blank: class that stands for no label.
        reduction: ``mean``, ``sum`` or ``none``.
        zero_infinity: whether a target that cannot be aligned costs 0 instead of infinity.
        from_logits: whether predictions are scores, to be normalised first.
        batch_first: whether predictions have the shape (batch, time, classes).
    """

    def __init__(
        self,
        blank: int = 0,
        reduction: str = "mean",
        zero_infinity: bool = False,
        from_logits: bool = False,
        batch_first: bool = False,
    ) -> None:
        super().__init__()
        self.blank = blank
        self.reduction = checked(reduction)
        self.zero_infinity = zero_infinity
        self.from_logits = from_logits
        self.batch_first = batch_first

    def build(
        self,
        log_probs_name: str,
        targets_name: str | None = "targets",
        input_lengths_name: str | None = "input_lengths",
        target_lengths_name: str | None = "target_lengths",
    ) -> str:
        """Add the loss; targets and lengths that do not exist become int64 graph inputs.

        Raises:
            LookupError: if the predictions do not exist.
            ModelError: if the opset of the model is too old.
        """
        need_opset(self.base, "CTCLoss", _SINCE)
        int64, batch = onnx.TensorProto.INT64, 0 if self.batch_first else 1
        targets = _targets(self.base, log_probs_name, targets_name, batch)
        lengths = [
            input_of(self.base, log_probs_name, name, [batch], int64)
            for name in (input_lengths_name, target_lengths_name)
        ]
        dtype = element_type(self.base, log_probs_name)
        work = dtype if dtype in _TYPES else onnx.TensorProto.FLOAT
        predictions = self._normalised(log_probs_name, work)
        loss = self._each(predictions, targets, lengths, work)
        if self.reduction == "mean":
            loss = blocks.Div()(loss, self._divisor(lengths[1], work))
        loss = reduced(loss, self.reduction)
        return loss if work == dtype else str(blocks.Cast(dtype)(loss))

    def _normalised(self, name: str, work: int) -> str:
        """Name of the log-probabilities in the shape (time, batch, classes)."""
        if element_type(self.base, name) != work:
            name = blocks.Cast(work)(name)
        if self.from_logits:
            name = blocks.LogSoftmax(axis=-1)(name)
        if self.batch_first:
            source, name = name, edit.generate_name("time_first")
            edit.add_node(self.base, "Transpose", [source], [name], attributes={"perm": [1, 0, 2]})
        return name

    def _each(self, predictions: str, targets: str, lengths: list[str], work: int) -> str:
        """Name of the loss of every sequence."""
        inputs = {
            "log_probs": predictions,
            "targets": targets,
            "input_lengths": lengths[0],
            "target_lengths": lengths[1],
        }
        lost = 0.0 if self.zero_infinity else math.inf
        numbers = {"never": _NEVER, "sure": 0.0, "limit": -_NEVER / 2, "lost": lost}
        for name, value in numbers.items():
            inputs[name] = edit.add_constant(self.base, f"ctc.{name}", value, work)
        source = _TEXT.format(
            type=_TYPES[work],
            blank=self.blank,
            sum_of_ways=self._log_sum_exp("ways", 2),
            sum_of_both=self._log_sum_exp("both", 1),
        )
        (loss,) = add_text(self.base, source, inputs)
        return loss

    def _log_sum_exp(self, name: str, axis: int) -> str:
        """Text of a sum of probabilities over the last axis, in the model's opset."""
        if opset_of(self.base) >= _AXES_ARE_AN_INPUT_SINCE:
            return f"ReduceLogSumExp <keepdims = 0> ({name}, axis{axis})"
        return f"ReduceLogSumExp <keepdims = 0, axes = [{axis}]> ({name})"

    def _divisor(self, target_lengths: str, work: int) -> str:
        """Name of the lengths of the targets, at least 1."""
        lengths = blocks.Cast(work)(target_lengths)
        return str(blocks.Clip(clip_min=1.0)(lengths))


def _targets(model: onnx.ModelProto, prediction: str, name: str | None, batch: int) -> str:
    """Name of the targets, which become an input of shape (batch, any) if they are not there."""
    if name and exists(model, name):
        return name
    value = require_value(model, prediction)
    shape = value.type.tensor_type.shape.dim
    first = shape[batch] if len(shape) > batch else None
    size = None if first is None else (first.dim_param or first.dim_value or None)
    name = name or edit.generate_name("targets")
    made = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.INT64, [size, None])
    model.graph.input.append(made)
    return name
