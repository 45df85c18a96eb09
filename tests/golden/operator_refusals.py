"""Models that the reference refuses, for ``make_operators.py``.

The last word of each is a regular expression for what is wrong with it, which an error must name.
"""

from operator_extras import Extra, f, i, ms, node, s, v, words

MATRIX = "float[A,B] y"
ELEMENTS = {"dY": f(2, 3), "n": i(2, 3), "j": i([0, 1, 0], [1, 0, 1])}
OUTSIDE = {"j": i([0, 2, 0], [0, 0, 0])}
ROWS = {"n": i(2, 3), "j": i(0, 1), "dY": f(2, 3)}
POINTS = {"n": i(2, 3), "j": i([0, 3]), "dY": v(1)}
SLICE = {"dY": f(2, 3), "n": i(4, 3), "b": i(0), "e": i(2)}
TWO_AXES = {"b": i(0, 0), "e": i(2, 3), "a": i(0, 0)}
TABLE = {"x": f(2, 3), "j": i(0)}
INDEXING = [
    ms("axis", "GatherElementsGrad <axis = 2> (dY, n, j)", MATRIX, ELEMENTS, "axis 2"),
    ms("shapes", "GatherElementsGrad (dY, n, j)", MATRIX, ELEMENTS | {"dY": f(2, 2)}, "indices"),
    ms("rank", "GatherElementsGrad (dY, n, j)", "float[A] y", ELEMENTS | {"n": i(6)}, "rank"),
    ms("index", "GatherElementsGrad (dY, n, j)", MATRIX, ELEMENTS | OUTSIDE, "index 2"),
    ms("axis", "GatherGrad <axis = -3> (n, j, dY)", MATRIX, ROWS, "axis -3"),
    ms("index", "GatherGrad (n, j, dY)", MATRIX, ROWS | {"j": i(0, 2)}, "index 2"),
    ms("negative", "GatherGrad (n, j, dY)", MATRIX, ROWS | {"j": i(0, -3)}, "index -3"),
    ms("depth", "GatherNDGrad (n, j, dY)", MATRIX, POINTS | {"j": i([0, 1, 0])}, "rank|indices"),
    ms("index", "GatherNDGrad (n, j, dY)", MATRIX, POINTS, "index 3"),
    node("index", "GatherND (x, j)", "float[1] y", TABLE | {"j": i([0, 3])}, "index 3"),
    ms("step", "SliceGrad (dY, n, b, e, a, t)", MATRIX, SLICE | {"a": i(0), "t": i(0)}, "step"),
    ms("axis", "SliceGrad (dY, n, b, e, a)", MATRIX, SLICE | {"a": i(2)}, "axis 2"),
    ms("repeated", "SliceGrad (dY, n, b, e, a)", MATRIX, SLICE | TWO_AXES, "axes|axis"),
    ms("lengths", "SliceGrad (dY, n, b, e)", MATRIX, SLICE | {"e": i(2, 3)}, "starts|ends"),
    ms("elements", "SliceGrad (dY, n, b, e)", MATRIX, SLICE | {"dY": f(5)}, "elements|shape"),
    ms("axis", "ShrunkenGather <axis = 2> (x, j)", MATRIX, TABLE, "axis"),
    ms("rank", "ShrunkenGather (x, j)", "float[A,B,C] y", TABLE | {"j": i([0])}, "indices"),
    ms("more", "ShrunkenGather (x, j)", MATRIX, TABLE | {"j": i(0, 1, 0)}, "indices"),
    ms("index", "ShrunkenGather (x, j)", MATRIX, TABLE | {"j": i(2)}, "index 2"),
]
PARTS = "float[A] a, float[B] b"
PAIR = {"a": f(2, 3), "b": f(2, 3)}
SHAPES = {"a": i(2, 3), "b": i(2, 4)}
LAYOUT = [
    ms("sum", "SplitTraining (x, n)", PARTS, {"x": f(4), "n": i(1, 2)}, "split"),
    ms("count", "SplitTraining (x, n)", PARTS, {"x": f(4), "n": i(1, 1, 2)}, "split"),
    ms("uneven", "SplitTraining (x, n)", PARTS, {"x": f(3), "n": i()}, "split"),
    ms("axis", "SplitTraining <axis = 1> (x, n)", PARTS, {"x": f(4), "n": i(2, 2)}, "axis 1"),
    ms("rank", "SplitTraining (x, n)", PARTS, {"x": f(4), "n": i([2, 2])}, "split"),
    ms("axis", "ConcatTraining <axis = 2> (a, b)", MATRIX, PAIR, "axis"),
    ms("no_axis", "ConcatTraining (a, b)", MATRIX, PAIR, "axis"),
    ms("shapes", "ConcatTraining <axis = 0> (a, b)", MATRIX, PAIR | {"b": f(2, 4)}, "[Ss]izes"),
    ms("ranks", "ConcatTraining <axis = 0> (a, b)", MATRIX, PAIR | {"b": f(6)}, "dimensions|rank"),
    ms("shapes", "BroadcastGradientArgs (a, b)", "int64[A] x, int64[B] y", SHAPES, "broadcast"),
    ms("size", "Scale (x, k)", "float[2] y", {"x": v(1, 2), "k": v(1, 2)}, "scale"),
    ms("zero", "Scale (x, k)", "float[2] y", {"x": v(1, 2), "k": v(0)}, "scale"),
    ms("rank", "ReduceSumTraining (x, a)", MATRIX, {"x": f(2, 3), "a": i([0])}, "axes"),
    ms("axis", "ReduceSumTraining (x, a)", MATRIX, {"x": f(2, 3), "a": i(2)}, "axis 2"),
    ms("nothing", "ReduceAllL2 ()", "float y", {}, "ReduceAllL2"),
]
SOFTMAX = ("SoftmaxGrad", "SoftmaxGrad_13", "LogSoftmaxGrad", "LogSoftmaxGrad_13")
TWO = {"dY": f(2, 3), "Y": f(2, 3)}
BIASED = {"dY": f(2, 3), "X": f(2, 3), "B": f(3)}
WHOLE = {"dY": i(1, 2).astype("int32"), "X": i(1, 2).astype("int32")}
DROPPED = {"dy": v(1, 2), "m": v(1, 0) > 0, "r": s(0.5)}
QUANT, QUANT_OUT = {"x": v(1, 2), "k": v(1), "z": v(0)}, "float[2] y, bool[2] m"
ACTIVATION = [
    *(
        ms(f"axis_{axis}", f"{op} <axis = {axis}> (dY, Y)", MATRIX, TWO, f"axis {axis}|got {axis}")
        for op in SOFTMAX
        for axis in (2, -3)
    ),
    ms("vector", "SoftmaxGrad (dY, Y)", "float[3] y", {"dY": f(3), "Y": f(3)}, "axis 1"),
    ms("scalar", "SoftmaxGrad_13 (dY, Y)", "float y", {"dY": s(1.0), "Y": s(1.0)}, "axis -1"),
    *(
        ms(name, f"{op} (dY, X, B)", MATRIX, BIASED | wrong, says)
        for op in ("BiasGeluGrad_dX", "BiasFastGeluGrad_dX")
        for name, wrong, says in (
            ("shapes", {"dY": f(2, 2)}, "shape"),
            ("bias", {"B": f(2)}, r"bias|\bB\b"),
        )
    ),
    ms("type", "ReluGrad (dY, X)", "int32[2] y", WHOLE, "int32"),
    ms("inputs", "ReluGrad (dY)", "float[2] y", {"dY": v(1, 2)}, "ReluGrad"),
    ms("ratio", "DropoutGrad (dy, m, r)", "float[2] y", DROPPED | {"r": s(1.0)}, "ratio"),
    ms("negative", "DropoutGrad (dy, m, r)", "float[2] y", DROPPED | {"r": s(-0.5)}, "ratio"),
    ms("mask", "DropoutGrad (dy, m, r)", "float[2] y", DROPPED | {"m": f(3) > 0}, "mask"),
    ms("scale", "FakeQuant (x, k, z)", QUANT_OUT, QUANT | {"k": v(1, 2)}, "scale"),
    ms("zero", "FakeQuant (x, k, z)", QUANT_OUT, QUANT | {"k": v(0)}, "scale"),
    ms("point", "FakeQuant (x, k, z)", QUANT_OUT, QUANT | {"z": v(0, 1)}, "zero_point"),
]
CONV = {"dY": f(1, 2, 2), "X": f(1, 2, 3), "W": f(2, 2, 2)}
CONV_OUT = "float[A,B,C] dX, float[D,E,F] dW, float[G] dB"
PADDED = 'ConvGrad <auto_pad = "SAME_UPPER", pads = [1, 0]> (dY, X, W)'
NORM = {"X": f(2, 2, 3), "scale": v(1, 2), "B": v(0, 1), "mean": v(0, 0), "var": v(1, 1)}
NORM_OUT = "float[2,2,3] Y, float[2] m, float[2] n, float[2] a, float[2] b"
BATCH = "BatchNormInternal (X, scale, B, mean, var)"
SAVED = {"dY": f(2, 2, 3), "X": f(2, 2, 3), "k": v(1, 2), "m": v(0, 0), "r": v(1, 1)}
SAVED_OUT = "float[2,2,3] dX, float[2] dS, float[2] dB"
BATCH_GRAD = "BatchNormalizationGrad <epsilon = 1e-5> (dY, X, k, m, r)"
LAYER = {"dY": f(2, 3), "X": f(2, 3), "k": f(3), "m": v(0, 0), "r": v(1, 1)}
LAYER_OUT = "float[2,3] dX, float[3] dS, float[3] dB"
LAYER_GRAD = "LayerNormalizationGrad <axis = 2> (dY, X, k, m, r)"
AVERAGE = "AveragePoolGrad <kernel_shape = [2]> (dY)"
POOLED = {"dY": f(1, 1, 2), "j": i([[0]])}
NN = [
    ms("pads", PADDED, CONV_OUT, CONV, "auto_pad|pads"),
    ms("channels", "ConvGrad (dY, X, W)", CONV_OUT, CONV | {"X": f(1, 3, 3)}, "channels"),
    ms("group", "ConvGrad <group = 3> (dY, X, W)", CONV_OUT, CONV | {"X": f(1, 6, 3)}, "group"),
    ms("rank", "ConvGrad (dY, X, W)", CONV_OUT, CONV | {"W": f(2, 2, 2, 1)}, "dims|rank"),
    ms("scale", BATCH, NORM_OUT, NORM | {"scale": v(1, 2, 3)}, "scale"),
    ms("bias", BATCH, NORM_OUT, NORM | {"B": v(1, 2, 3)}, r"bias|\bB\b"),
    ms("mean", BATCH, NORM_OUT, NORM | {"mean": f(2, 1)}, "mean"),
    ms("outputs", BATCH, "float[2,2,3] Y", NORM, "output"),
    ms("epsilon", "BatchNormalizationGrad (dY, X, k, m, r)", SAVED_OUT, SAVED, "epsilon"),
    ms("scale", BATCH_GRAD, SAVED_OUT, SAVED | {"k": v(1, 2, 3)}, "scale"),
    ms("mean", BATCH_GRAD, SAVED_OUT, SAVED | {"m": v(1, 2, 3)}, "mean"),
    ms("axis", LAYER_GRAD, LAYER_OUT, LAYER, "axis 2"),
    node("shapes", "MaxPoolGrad (dY, j)", "float[1,1,4] y", POOLED, "indices"),
    node("rank", AVERAGE, "float[1,4] y", {"dY": f(1, 3)}, "rank|shape"),
    node("kernel", "AveragePoolGrad (dY)", "float[1,1,4] y", {"dY": f(1, 1, 3)}, "kernel_shape"),
]
LSTM = {"X": f(2, 1, 3), "W": f(1, 8, 3), "R": f(1, 8, 2)}
LSTM_OUT = "float[A,B,C,D] H, float[B,C,D] h, float[B,C,D] c, float[A,B,C,D] C, float[A,B,C,E] g"
LENGTHS = 'LSTMTraining <hidden_size = 2> (X, W, R, "", n)'
FORGET = "LSTMTraining <hidden_size = 2, input_forget = 1> (X, W, R)"
GRU = {"X": f(2, 1, 3), "W": f(1, 6, 3), "R": f(1, 6, 2)}
GRU_OUT = "float[A,B,C,D] H, float[B,C,D] h, float[A,B,C,E] g"
RNN = [
    *(
        ms(name, f"{op} <{attributes}> (X, W, R)".replace("<> ", ""), outputs, inputs | wrong, says)
        for op, inputs, outputs in (("LSTMTraining", LSTM, LSTM_OUT), ("GRUTraining", GRU, GRU_OUT))
        for name, attributes, wrong, says in (
            ("direction", 'hidden_size = 2, direction = "reverse"', {}, "direction"),
            ("clip", "hidden_size = 2, clip = 0.5", {}, "clip"),
            ("activations", 'hidden_size = 2, activations = ["a", "b", "c"]', {}, "activation"),
            ("hidden_size", "", {}, "hidden_size"),
            ("weights", "hidden_size = 2", {"W": f(1, 5, 3)}, r"w: float32\[1, 5, 3\]"),
        )
    ),
    ms("input_forget", FORGET, LSTM_OUT, LSTM, "input_forget"),
    ms("lengths", LENGTHS, LSTM_OUT, LSTM | {"n": i(2).astype("int32")}, "length"),
]
LOSS_OUT = "float Y, float[A,B] L"
SPARSE = {"x": f(2, 3), "t": i(0, 2)}
DENSE = {"x": f(2, 3), "t": f(2, 3)}
ONE = {"dY": s(1.0)}
WEIGHTED = "SoftmaxCrossEntropyLossInternal (x, t, w)"
IGNORING = 'SoftmaxCrossEntropyLossInternal (x, t, "", k)'
BY_LABEL = (
    ("SoftmaxCrossEntropyLossInternal", LOSS_OUT, SPARSE),
    ("SoftmaxCrossEntropyLossGrad", MATRIX, ONE | SPARSE),
    ("SoftmaxCrossEntropyLossInternalGrad", MATRIX, ONE | SPARSE),
)
BY_SHARE = (
    ("SoftmaxCrossEntropy", LOSS_OUT, DENSE),
    ("SoftmaxCrossEntropyGrad", MATRIX, ONE | DENSE),
)
LAST_AXIS = (
    ("SparseSoftmaxCrossEntropy", LOSS_OUT, SPARSE),
    ("SparseSoftmaxCrossEntropyGrad", MATRIX, ONE | SPARSE),
)
AVG = '<reduction = "avg">'
LOSS = [
    *(
        ms("reduction", f"{op} {AVG} ({', '.join(inputs)})", outputs, inputs, "reduction")
        for op, outputs, inputs in BY_LABEL + BY_SHARE
    ),
    *(
        node("reduction", f"{op} {AVG} ({', '.join(inputs)})", outputs, inputs, "reduction")
        for op, outputs, inputs in LAST_AXIS
    ),
    *(
        ms("shapes", f"{op} ({', '.join(inputs)})", outputs, inputs | {"t": i(0, 2, 1)}, "label")
        for op, outputs, inputs in BY_LABEL
    ),
    ms("shapes", "SoftmaxCrossEntropy (x, t)", LOSS_OUT, DENSE | {"t": f(2, 4)}, "shape"),
    ms("weights", WEIGHTED, LOSS_OUT, SPARSE | {"w": f(3, 1)}, "weight"),
    ms("ignore_index", IGNORING, LOSS_OUT, SPARSE | {"k": i(0, 1)}, "ignore_index"),
    node(
        "labels", "SparseSoftmaxCrossEntropy (x, t)", LOSS_OUT, SPARSE | {"t": i(0, 1, 2)}, "label"
    ),
    node(
        "weights", "SparseSoftmaxCrossEntropy (x, t, w)", LOSS_OUT, SPARSE | {"w": f(3)}, "weight"
    ),
]
ADAM = {"R": s(0.1), "T": s(1), "w": v(1, 2), "g": v(1, 2), "m": v(1, 2), "n": v(1, 2)}
ADAM_OUT = "int64 T1, float[2] m1, float[2] n1, float[2] w1"
ADAMW = {"lr": s(0.1), "step": s(1), **{name: [v(1, 2)] for name in "wgmn"}}
SEQUENCE = "bool done, seq(float[N]) w1"
SGD = {"lr": s(0.1), "w": [v(1, 2)], "g": [v(1, 2)]}
CLIP = 'InplaceClipGradNorm <norm_type = "l1"> (g)'
OPTIMIZER = [
    *(
        ms(name, f"AdamOptimizer <{name} = {wrong}> (R, T, w, g, m, n)", ADAM_OUT, ADAM, name)
        for name, wrong in (("do_bias_correction", 2), ("weight_decay_mode", 3))
    ),
    *(
        ms(name, f"AdamOptimizer <{name} = -0.5> (R, T, w, g, m, n)", ADAM_OUT, ADAM, name)
        for name in ("alpha", "beta", "lambda", "epsilon")
    ),
    *(
        ms(name, f"AdamWOptimizer <{attribute}> (lr, step, w, g, m, n)", SEQUENCE, ADAMW, says)
        for name, attribute, says in (
            ("mode", "adam_mode = 2", "adam_mode"),
            ("correction", "correct_bias = 2", "correct_bias"),
            ("uncorrected", "adam_mode = 0, correct_bias = 0", "correct_bias"),
        )
    ),
    *(
        ms(name, "AdamWOptimizer (lr, step, w, g, m, n)", SEQUENCE, ADAMW | wrong, says)
        for name, wrong, says in (
            ("count", {"g": [v(1, 2), v(1)]}, "gradients"),
            ("shapes", {"g": [v(1, 2, 3)]}, "gradient"),
            ("moments", {"m": [v(1, 2, 3)]}, "moment"),
        )
    ),
    ms("count", "SGDOptimizerV2 (lr, w, g)", SEQUENCE, SGD | {"g": [v(1, 2), v(1)]}, "gradients"),
    ms("shapes", "SGDOptimizerV2 (lr, w, g)", SEQUENCE, SGD | {"g": [v(1, 2, 3)]}, "gradient"),
    ms("norm_type", CLIP, "seq(float[N]) c", {"g": [v(1, 2)]}, "norm.type"),
    ms(
        "shapes", "InPlaceAccumulator (a, b)", "float[2] c", {"a": v(1, 2), "b": f(3)}, "size|shape"
    ),
    ms("event", "RecordEvent (n, x)", "float[2] y", {"n": s(5000), "x": v(1, 2)}, "5000"),
]
TWICE = (
    's = com.microsoft.SummaryText <tag = "c"> (x) '
    't = com.microsoft.SummaryText <tag = "c"> (x) '
    "u = com.microsoft.SummaryMerge (s, t)"
)
SUMMARY = [
    ms("tags", 'SummaryScalar <tags = ["a"]> (x)', "string s", {"x": v(1, 2)}, "tags"),
    ms("no_tag", "SummaryText (x)", "string s", {"x": words("a")}, "tag"),
    ms("bytes", "SummaryMerge (x)", "string s", {"x": words("plain")}, "summary|Summary"),
    Extra("repeated", TWICE, "string u", {"x": words("a")}, "tag"),
]
REFUSALS = [*INDEXING, *LAYOUT, *ACTIVATION, *NN, *RNN, *LOSS, *OPTIMIZER, *SUMMARY]
