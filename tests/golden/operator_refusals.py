"""Models that the reference refuses, for ``make_operators.py``.

Each names what is wrong with it: a regular expression that the message of an error must match.
"""

from operator_extras import Extra, f, i, ms, onnx, s, v, words

MATRIX = {"dY": f(2, 3), "Y": f(2, 3)}
ELEMENTS = {"dY": f(2, 3), "n": i(2, 3), "j": i([0, 1, 0], [1, 0, 1])}
ROWS = {"n": i(2, 3), "j": i(0, 1), "dY": f(2, 3)}
SLICE = {"dY": f(2, 3), "n": i(4, 3), "b": i(0), "e": i(2)}
INDEXING = [
    ms("axis", "GatherElementsGrad <axis = 2> (dY, n, j)", "float[A,B] dX", "axis 2", **ELEMENTS),
    ms(
        "shapes",
        "GatherElementsGrad (dY, n, j)",
        "float[A,B] dX",
        "indices",
        **{**ELEMENTS, "dY": f(2, 2)},
    ),
    ms(
        "rank",
        "GatherElementsGrad (dY, n, j)",
        "float[A] dX",
        "rank|dimensions",
        **{**ELEMENTS, "n": i(6)},
    ),
    ms(
        "index",
        "GatherElementsGrad (dY, n, j)",
        "float[A,B] dX",
        "index 2",
        **{**ELEMENTS, "j": i([0, 2, 0], [0, 0, 0])},
    ),
    ms("axis", "GatherGrad <axis = -3> (n, j, dY)", "float[A,B] dX", "axis -3", **ROWS),
    ms("index", "GatherGrad (n, j, dY)", "float[A,B] dX", "index 2", **{**ROWS, "j": i(0, 2)}),
    ms(
        "negative_index",
        "GatherGrad (n, j, dY)",
        "float[A,B] dX",
        "index -3",
        **{**ROWS, "j": i(0, -3)},
    ),
    ms(
        "depth",
        "GatherNDGrad (n, j, dY)",
        "float[A,B] dX",
        "rank|dimensions|indices",
        n=i(2, 3),
        j=i([0, 1, 0]),
        dY=f(1),
    ),
    ms(
        "index",
        "GatherNDGrad (n, j, dY)",
        "float[A,B] dX",
        "index 3",
        n=i(2, 3),
        j=i([0, 3]),
        dY=v(1),
    ),
    onnx("index", "GatherND (x, j)", "float[1] y", "index 3", x=f(2, 3), j=i([0, 3])),
    ms("step", "SliceGrad (dY, n, b, e, a, t)", "float[A,B] dX", "step", **SLICE, a=i(0), t=i(0)),
    ms("axis", "SliceGrad (dY, n, b, e, a)", "float[A,B] dX", "axis 2", **SLICE, a=i(2)),
    ms(
        "repeated_axis",
        "SliceGrad (dY, n, b, e, a)",
        "float[A,B] dX",
        "axes",
        **{**SLICE, "b": i(0, 0), "e": i(2, 3)},
        a=i(0, 0),
    ),
    ms(
        "lengths",
        "SliceGrad (dY, n, b, e)",
        "float[A,B] dX",
        "starts|ends",
        **{**SLICE, "e": i(2, 3)},
    ),
    ms(
        "elements",
        "SliceGrad (dY, n, b, e)",
        "float[A,B] dX",
        "elements|shape",
        **{**SLICE, "dY": f(5)},
    ),
    ms("axis", "ShrunkenGather <axis = 2> (x, j)", "float[A,B] y", "axis", x=f(2, 3), j=i(0)),
    ms(
        "rank",
        "ShrunkenGather (x, j)",
        "float[A,B,C] y",
        "1-D|one dimension|rank",
        x=f(2, 3),
        j=i([0]),
    ),
    ms("more", "ShrunkenGather (x, j)", "float[A,B] y", "3", x=f(2, 3), j=i(0, 1, 0)),
    ms("index", "ShrunkenGather (x, j)", "float[A,B] y", "index 2", x=f(2, 3), j=i(2)),
]
PARTS = "float[A] a, float[B] b"
LAYOUT = [
    ms("sum", "SplitTraining (x, n)", PARTS, "split", x=f(4), n=i(1, 2)),
    ms("count", "SplitTraining (x, n)", PARTS, "split", x=f(4), n=i(1, 1, 2)),
    ms("uneven", "SplitTraining (x, n)", PARTS, "3|evenly|equal", x=f(3), n=i()),
    ms("axis", "SplitTraining <axis = 1> (x, n)", PARTS, "axis 1", x=f(4), n=i(2, 2)),
    ms("rank", "SplitTraining (x, n)", PARTS, "split", x=f(4), n=i([2, 2])),
    ms("axis", "ConcatTraining <axis = 2> (a, b)", "float[A,B] y", "axis", a=f(2, 3), b=f(2, 3)),
    ms("no_axis", "ConcatTraining (a, b)", "float[A,B] y", "axis", a=f(2, 3), b=f(2, 3)),
    ms(
        "shapes",
        "ConcatTraining <axis = 0> (a, b)",
        "float[A,B] y",
        "ConcatTraining",
        a=f(2, 3),
        b=f(2, 4),
    ),
    ms(
        "ranks",
        "ConcatTraining <axis = 0> (a, b)",
        "float[A,B] y",
        "rank|dimension|ConcatTraining",
        a=f(2, 3),
        b=f(6),
    ),
    ms(
        "shapes",
        "BroadcastGradientArgs (a, b)",
        "int64[A] x, int64[B] y",
        "broadcast",
        a=i(2, 3),
        b=i(2, 4),
    ),
    ms("size", "Scale (x, k)", "float[2] y", "scale|one", x=v(1, 2), k=v(1, 2)),
    ms("zero", "Scale (x, k)", "float[2] y", "scale|0", x=v(1, 2), k=v(0)),
    ms("rank", "ReduceSumTraining (x, a)", "float[A,B] y", "axes", x=f(2, 3), a=i([0])),
    ms("axis", "ReduceSumTraining (x, a)", "float[A,B] y", "axis 2", x=f(2, 3), a=i(2)),
    ms("nothing", "ReduceAllL2 ()", "float y", "ReduceAllL2|input"),
]
BIASED = {"dY": f(2, 3), "X": f(2, 3), "B": f(3)}
ACTIVATION = [
    *(
        ms(
            f"axis_{axis}",
            f"{op} <axis = {axis}> (dY, Y)",
            "float[2,3] dX",
            f"axis {axis}",
            **MATRIX,
        )
        for op in ("SoftmaxGrad", "SoftmaxGrad_13", "LogSoftmaxGrad", "LogSoftmaxGrad_13")
        for axis in (2, -3)
    ),
    ms("axis_of_a_vector", "SoftmaxGrad (dY, Y)", "float[3] dX", "axis 1", dY=f(3), Y=f(3)),
    ms("scalar", "SoftmaxGrad_13 (dY, Y)", "float dX", "axis -1", dY=s(1.0), Y=s(1.0)),
    *(
        ms("shapes", f"{op} (dY, X, B)", "float[2,3] dX", "shape", **{**BIASED, "dY": f(2, 2)})
        for op in ("BiasGeluGrad_dX", "BiasFastGeluGrad_dX")
    ),
    *(
        ms("bias", f"{op} (dY, X, B)", "float[2,3] dX", "bias|B", **{**BIASED, "B": f(2)})
        for op in ("BiasGeluGrad_dX", "BiasFastGeluGrad_dX")
    ),
    ms(
        "type",
        "ReluGrad (dY, X)",
        "int32[2] dX",
        "int32",
        dY=i(1, 2).astype("int32"),
        X=i(1, 2).astype("int32"),
    ),
    ms("inputs", "ReluGrad (dY)", "float[2] dX", "ReluGrad", dY=v(1, 2)),
    ms(
        "ratio",
        "DropoutGrad (dy, m, r)",
        "float[2] dx",
        "ratio",
        dy=v(1, 2),
        m=v(1, 0) > 0,
        r=s(1.0),
    ),
    ms(
        "negative_ratio",
        "DropoutGrad (dy, m, r)",
        "float[2] dx",
        "ratio",
        dy=v(1, 2),
        m=v(1, 0) > 0,
        r=s(-0.5),
    ),
    ms("mask", "DropoutGrad (dy, m)", "float[2] dx", "mask", dy=v(1, 2), m=v(1, 0, 1) > 0),
    ms(
        "scale",
        "FakeQuant (x, k, z)",
        "float[2] y, bool[2] m",
        "scale",
        x=v(1, 2),
        k=v(1, 2),
        z=v(0),
    ),
    ms("zero", "FakeQuant (x, k, z)", "float[2] y, bool[2] m", "scale", x=v(1, 2), k=v(0), z=v(0)),
    ms(
        "point",
        "FakeQuant (x, k, z)",
        "float[2] y, bool[2] m",
        "zero_point",
        x=v(1, 2),
        k=v(1),
        z=v(0, 1),
    ),
]
CONV = {"dY": f(1, 2, 2), "X": f(1, 2, 3), "W": f(2, 2, 2)}
CONV_OUT = "float[A,B,C] dX, float[D,E,F] dW, float[G] dB"
NORM = {"scale": v(1, 2), "B": v(0, 1), "mean": v(0, 0), "var": v(1, 1)}
NORM_OUT = "float[2,2,3] Y, float[2] m, float[2] n, float[2] a, float[2] b"
NORM_GRAD = {"dY": f(2, 2, 3), "X": f(2, 2, 3), "k": v(1, 2), "m": v(0, 0), "r": v(1, 1)}
NORM_GRAD_OUT = "float[2,2,3] dX, float[2] dS, float[2] dB"
LAYER = {"dY": f(2, 3), "X": f(2, 3), "k": f(3), "m": v(0, 0), "r": v(1, 1)}
LAYER_OUT = "float[2,3] dX, float[3] dS, float[3] dB"
BATCH = "BatchNormInternal (X, scale, B, mean, var)"
BATCH_GRAD = "BatchNormalizationGrad <epsilon = 1e-5> (dY, X, k, m, r)"
NN = [
    ms(
        "pads",
        'ConvGrad <auto_pad = "SAME_UPPER", pads = [1, 0]> (dY, X, W)',
        CONV_OUT,
        "auto_pad|pads",
        **CONV,
    ),
    ms("channels", "ConvGrad (dY, X, W)", CONV_OUT, "channels", **{**CONV, "X": f(1, 3, 3)}),
    ms("group", "ConvGrad <group = 3> (dY, X, W)", CONV_OUT, "group", **{**CONV, "X": f(1, 6, 3)}),
    ms("rank", "ConvGrad (dY, X, W)", CONV_OUT, "rank|dim", **{**CONV, "W": f(2, 2, 2, 1)}),
    ms("scale", BATCH, NORM_OUT, "scale", X=f(2, 2, 3), **{**NORM, "scale": v(1, 2, 3)}),
    ms("bias", BATCH, NORM_OUT, "B|bias", X=f(2, 2, 3), **{**NORM, "B": v(1, 2, 3)}),
    ms("mean", BATCH, NORM_OUT, "mean", X=f(2, 2, 3), **{**NORM, "mean": f(2, 1)}),
    ms("outputs", BATCH, "float[2,2,3] Y", "output", X=f(2, 2, 3), **NORM),
    ms(
        "epsilon",
        "BatchNormalizationGrad (dY, X, k, m, r)",
        NORM_GRAD_OUT,
        "epsilon",
        **NORM_GRAD,
    ),
    ms("scale", BATCH_GRAD, NORM_GRAD_OUT, "scale", **{**NORM_GRAD, "k": v(1, 2, 3)}),
    ms("mean", BATCH_GRAD, NORM_GRAD_OUT, "mean", **{**NORM_GRAD, "m": v(1, 2, 3)}),
    ms(
        "axis",
        "LayerNormalizationGrad <axis = 2> (dY, X, k, m, r)",
        LAYER_OUT,
        "axis 2",
        **LAYER,
    ),
    onnx(
        "shapes",
        "MaxPoolGrad (dY, j)",
        "float[1,1,4] dX",
        "Indices|indices",
        dY=f(1, 1, 2),
        j=i([[0]]),
    ),
    onnx(
        "rank",
        "AveragePoolGrad <kernel_shape = [2]> (dY)",
        "float[1,4] dX",
        "rank|dim|shape",
        dY=f(1, 3),
    ),
    onnx("kernel", "AveragePoolGrad (dY)", "float[1,1,4] dX", "kernel_shape", dY=f(1, 1, 3)),
]
LSTM = {"X": f(2, 1, 3), "W": f(1, 8, 3), "R": f(1, 8, 2)}
LSTM_OUT = "float[A,B,C,D] H, float[B,C,D] h, float[B,C,D] c, float[A,B,C,D] C, float[A,B,C,E] g"
GRU = {"X": f(2, 1, 3), "W": f(1, 6, 3), "R": f(1, 6, 2)}
GRU_OUT = "float[A,B,C,D] H, float[B,C,D] h, float[A,B,C,E] g"
TRAINED = (("LSTMTraining", LSTM, LSTM_OUT), ("GRUTraining", GRU, GRU_OUT))
WRONG = {
    "direction": ('direction = "reverse"', "direction|reverse"),
    "clip": ("clip = 0.5", "clip"),
    "activations": ('activations = ["relu", "relu", "relu"]', "activations|relu"),
}
RNN = [
    *(
        ms(name, f"{op} <hidden_size = 2, {attribute}> (X, W, R)", outputs, says, **feeds)
        for op, feeds, outputs in TRAINED
        for name, (attribute, says) in WRONG.items()
    ),
    *(
        ms("hidden_size", f"{op} (X, W, R)", outputs, "hidden_size|hidden size", **feeds)
        for op, feeds, outputs in TRAINED
    ),
    *(
        ms(
            "weights",
            f"{op} <hidden_size = 2> (X, W, R)",
            outputs,
            "W",
            **{**feeds, "W": f(1, 5, 3)},
        )
        for op, feeds, outputs in TRAINED
    ),
    ms(
        "input_forget",
        "LSTMTraining <hidden_size = 2, input_forget = 1> (X, W, R)",
        LSTM_OUT,
        "input_forget",
        **LSTM,
    ),
    ms(
        "lengths",
        'LSTMTraining <hidden_size = 2> (X, W, R, "", n)',
        LSTM_OUT,
        "length|SL",
        **LSTM,
        n=i(2).astype("int32"),
    ),
]
SCORES, LABELS = f(2, 3), i(0, 2)
LOSS_OUT = "float Y, float[A,B] L"
BY_CLASS = (
    ("SoftmaxCrossEntropyLossInternal", LOSS_OUT, {"x": SCORES, "t": LABELS}),
    ("SoftmaxCrossEntropyLossGrad", "float[A,B] dX", {"dY": s(1.0), "x": SCORES, "t": LABELS}),
    (
        "SoftmaxCrossEntropyLossInternalGrad",
        "float[A,B] dX",
        {"dY": s(1.0), "x": SCORES, "t": LABELS},
    ),
    ("SoftmaxCrossEntropy", LOSS_OUT, {"x": SCORES, "t": f(2, 3)}),
    ("SoftmaxCrossEntropyGrad", "float[A,B] dX", {"dY": s(1.0), "x": SCORES, "t": f(2, 3)}),
)
LOSS = [
    *(
        ms(
            "reduction",
            f'{op} <reduction = "avg"> ({", ".join(feeds)})',
            outputs,
            "reduction",
            **feeds,
        )
        for op, outputs, feeds in BY_CLASS
    ),
    *(
        ms(
            "shapes",
            f"{op} ({', '.join(feeds)})",
            outputs,
            "shape|label",
            **{**feeds, "t": i(0, 2, 1)},
        )
        for op, outputs, feeds in BY_CLASS[:3]
    ),
    ms("shapes", "SoftmaxCrossEntropy (x, t)", LOSS_OUT, "shape", x=SCORES, t=f(2, 4)),
    ms(
        "weights",
        "SoftmaxCrossEntropyLossInternal (x, t, w)",
        LOSS_OUT,
        "weight",
        x=SCORES,
        t=LABELS,
        w=f(3, 1),
    ),
    ms(
        "ignore_index",
        'SoftmaxCrossEntropyLossInternal (x, t, "", k)',
        LOSS_OUT,
        "ignore_index",
        x=SCORES,
        t=LABELS,
        k=i(0, 1),
    ),
    onnx(
        "reduction",
        'SparseSoftmaxCrossEntropy <reduction = "avg"> (x, t)',
        LOSS_OUT,
        "reduction",
        x=SCORES,
        t=LABELS,
    ),
    onnx(
        "labels",
        "SparseSoftmaxCrossEntropy (x, t)",
        LOSS_OUT,
        "label|shape",
        x=SCORES,
        t=i(0, 1, 2),
    ),
    onnx(
        "weights",
        "SparseSoftmaxCrossEntropy (x, t, w)",
        LOSS_OUT,
        "weight",
        x=SCORES,
        t=LABELS,
        w=f(3),
    ),
    onnx(
        "reduction",
        'SparseSoftmaxCrossEntropyGrad <reduction = "avg"> (dY, x, t)',
        "float[A,B] dX",
        "reduction",
        dY=s(1.0),
        x=SCORES,
        t=LABELS,
    ),
]
ADAM = {"R": s(0.1), "T": s(1), "w": v(1, 2), "g": v(1, 2), "m": v(1, 2), "n": v(1, 2)}
ADAM_OUT = "int64 T1, float[2] m1, float[2] n1, float[2] w1"
ADAMW = {"lr": s(0.1), "step": s(1), **{name: [v(1, 2)] for name in "wgmn"}}
ADAMW_OUT = "bool done, seq(float[N]) w1"
SGD = {"lr": s(0.1), "w": [v(1, 2)], "g": [v(1, 2)]}
OPTIMIZER = [
    *(
        ms(name, f"AdamOptimizer <{name} = {wrong}> (R, T, w, g, m, n)", ADAM_OUT, name, **ADAM)
        for name, wrong in (
            ("do_bias_correction", 2),
            ("weight_decay_mode", 3),
            ("alpha", -0.5),
            ("epsilon", -1.0),
        )
    ),
    *(
        ms(
            f"{name}_{wrong}",
            f"AdamWOptimizer <{name} = {wrong}> (lr, step, w, g, m, n)",
            ADAMW_OUT,
            name,
            **ADAMW,
        )
        for name, wrong in (("adam_mode", 2), ("correct_bias", 2), ("correct_bias", 0))
    ),
    *(
        ms(name, "AdamWOptimizer (lr, step, w, g, m, n)", ADAMW_OUT, says, **{**ADAMW, **feeds})
        for name, says, feeds in (
            ("count", "gradients", {"g": [v(1, 2), v(1)]}),
            ("shapes", "shape", {"g": [v(1, 2, 3)]}),
            ("moments", "moment", {"m": [v(1, 2, 3)]}),
        )
    ),
    ms(
        "count",
        "SGDOptimizerV2 (lr, w, g)",
        ADAMW_OUT,
        "gradients",
        **{**SGD, "g": [v(1, 2), v(1)]},
    ),
    ms("shapes", "SGDOptimizerV2 (lr, w, g)", ADAMW_OUT, "shape", **{**SGD, "g": [v(1, 2, 3)]}),
    ms(
        "norm_type",
        'InplaceClipGradNorm <norm_type = "l1"> (g)',
        "seq(float[N]) c",
        "norm_type|l1",
        g=[v(1, 2)],
    ),
    ms("shapes", "InPlaceAccumulator (a, b)", "float[2] c", "shape|size", a=v(1, 2), b=v(1, 2, 3)),
    ms("event", "RecordEvent (n, x)", "float[2] y", "5000", n=s(5000), x=v(1, 2)),
]
SUMMARY = [
    ms("tags", 'SummaryScalar <tags = ["a"]> (x)', "string s", "tags", x=v(1, 2)),
    ms("no_tag", "SummaryText (x)", "string s", "tag", x=words("a")),
    ms("bytes", "SummaryMerge (x)", "string s", "SummaryMerge|summary", x=words("plain")),
    Extra(
        "repeated_tag",
        's = com.microsoft.SummaryText <tag = "c"> (y) '
        't = com.microsoft.SummaryText <tag = "c"> (y) '
        "u = com.microsoft.SummaryMerge (s, t)",
        "string u",
        {"y": words("a")},
        "tag",
    ),
]
REFUSALS = [
    *INDEXING,
    *LAYOUT,
    *ACTIVATION,
    *NN,
    *RNN,
    *LOSS,
    *OPTIMIZER,
    *SUMMARY,
]
