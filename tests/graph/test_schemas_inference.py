"""Types and shapes that ONNX's inference finds through the training operators."""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from onnxtrain.graph import schemas
from onnxtrain.types import MS, ONNX, OWN

IMPORTS = [helper.make_opsetid("", 16), helper.make_opsetid(MS, 1), helper.make_opsetid(OWN, 1)]

schemas.ensure_registered()


def parse(text: str) -> tuple[onnx.TypeProto | None, np.ndarray | None]:
    """Reads ``float[N,3]``, ``float`` (no shape), ``seq(float)``, ``int64[2]=4,5`` or ``?``."""
    if text == "?":
        return None, None
    if text.startswith("seq("):
        inner, _ = parse(text[4:-1])
        return helper.make_sequence_type_proto(inner), None
    match = re.fullmatch(r"(\w+)(?:\[(.*)\])?(?:=(.*))?", text)
    assert match is not None
    dtype = onnx.TensorProto.DataType.Value(match[1].upper())
    dims = None if match[2] is None else [int(d) if d.isdigit() else d for d in split(match[2])]
    value = None
    if match[3] is not None:
        value = np.array(split(match[3]), helper.tensor_dtype_to_np_dtype(dtype)).reshape(dims)
    return helper.make_tensor_type_proto(dtype, dims), value


def split(text: str) -> list[str]:
    return text.split(",") if text else []


def show(type_: onnx.TypeProto) -> str:
    """The inverse of ``parse``; an unknown size is ``_``."""
    if type_.HasField("sequence_type"):
        return f"seq({show(type_.sequence_type.elem_type)})"
    if not type_.HasField("tensor_type"):
        return "?"
    name = onnx.TensorProto.DataType.Name(type_.tensor_type.elem_type).lower()
    if not type_.tensor_type.HasField("shape"):
        return name
    dims = [
        str(d.dim_value) if d.HasField("dim_value") else re.sub("^(unk__.*)?$", "_", d.dim_param)
        for d in type_.tensor_type.shape.dim
    ]
    return f"{name}[{','.join(dims)}]"


def model_of(node: onnx.NodeProto, inputs: list[str]) -> onnx.ModelProto:
    """One node; inputs are named ``i0``..., the node's outputs are the graph's."""
    graph = onnx.GraphProto(name="g", node=[node])
    for index, text in enumerate(inputs):
        type_, value = parse(text) if text else (None, None)
        if value is not None:
            graph.initializer.append(numpy_helper.from_array(value, f"i{index}"))
        elif type_ is not None:
            graph.input.append(helper.make_value_info(f"i{index}", type_))
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in node.output if name)
    return helper.make_model(graph, opset_imports=IMPORTS)


def infer(name: str, inputs: list[str], outputs: int, domain: str = MS, **attributes) -> list[str]:
    """Types that strict inference finds for the outputs of one node."""
    node = helper.make_node(
        name,
        [f"i{index}" if text else "" for index, text in enumerate(inputs)],
        [f"o{index}" for index in range(outputs)],
        domain=domain,
        **attributes,
    )
    inferred = onnx.shape_inference.infer_shapes(
        model_of(node, inputs), check_type=True, strict_mode=True, data_prop=True
    )
    return [show(output.type) for output in inferred.graph.output]


F, X = "float[N,3]", "float[B,S,8]"
CASES = [
    ("ReluGrad", [F, F], {}, [F]),
    ("ReluGrad", ["bfloat16", "bfloat16"], {}, ["bfloat16"]),
    ("SoftmaxGrad_13", [X, X], {}, [X]),
    ("LogSoftmaxGrad", ["bfloat16[N,3]", "bfloat16[N,3]"], {}, ["bfloat16[N,3]"]),
    ("DropoutGrad", [F, "bool[N,3]", "float[]", ""], {"seed": 3}, [F]),
    ("BiasSoftmaxDropout", [X, X], {"is_inner_broadcast": 0}, [X, "bool[B,S,8]", X]),
    ("GatherGrad", ["int64[2]=5,4", "int32[K]", "float[K,4]"], {}, ["float[5,4]"]),
    ("GatherGrad", ["int64[2]", "int32[K]", "float[K,4]"], {}, ["float[_,_]"]),
    ("GatherGrad", ["int64[R]", "int32[K]", "float[K,4]"], {}, ["float"]),
    ("GatherElementsGrad", [F, "int64[2]=6,3", "int64[N,3]"], {}, ["float[6,3]"]),
    ("GatherNDGrad", ["int64[1]=7", "int64[K,1]", "double[K]"], {}, ["double[7]"]),
    ("SliceGrad", ["int8[2]", "int64[1]=7", "int64[1]", "int64[1]"], {}, ["int8[7]"]),
    ("SplitTraining", [F, "int64[2]=1,2"], {"axis": -1}, ["float[N,1]", "float[N,2]"]),
    ("SplitTraining", ["float[N,4]", "int64[0]="], {"axis": 1}, ["float[N,2]"] * 2),
    ("SplitTraining", [F, "int64[2]"], {"axis": 0}, ["float[_,3]"] * 2),
    ("ConcatTraining", [F, "float[N,5]"], {"axis": 1}, ["float[N,8]", "int64[2]"]),
    ("ConcatTraining", [F, "float[M,3]"], {"axis": 0}, ["float[_,3]", "int64[2]"]),
    ("ConcatTraining", [F, "float"], {"axis": 1}, ["float[N,_]", "int64[2]"]),
    ("View", ["int8[6]", "int64[2]=1,2", "int64[1]=4"], {}, ["int8[1,2]", "int8[4]"]),
    ("PadAndUnflatten", ["float[K,8]", "int64[K]", "int64[2]=2,3"], {}, ["float[2,3,8]"]),
    ("PadAndUnflatten", ["float[K,8]", "int64[K]", "int64[2]"], {}, ["float[_,_,8]"]),
    ("FlattenAndUnpad", [X, "int64[K]"], {}, ["float[K,8]", "int64[2]"]),
    ("ResizeGrad", ["float[N,1,4,4]", "float[N,1,2,2]"], {"mode": "linear"}, ["float[N,1,2,2]"]),
    ("BroadcastGradientArgs", ["int64[2]", "int64[1]"], {}, ["int64[_]", "int64[_]"]),
    ("DivGrad", [X, X, "float[8]"], {}, [X, "float[8]"]),
    ("Scale", [F, "int64[1]"], {"scale_down": 1}, [F]),
    ("BatchScale", [F], {"scale_0": 1.0, "scale_1": 2.0}, [F, F]),
    ("ScaledSum", [F, F, F], {"scale_0": 1.0, "scale_1": 2.0, "scale_2": 3.0}, [F]),
    ("MixedPrecisionScale", ["float[]", F, "float[4]"], {"to": 10}, ["float16[N,3]", "float16[4]"]),
    (
        "MixedPrecisionScale",
        ["float[]", "float[2,3]", "float[4]"],
        {"to": 16, "fuse_outputs": 1},
        ["bfloat16[10]"],
    ),
    ("IsFinite", [F], {}, ["bool[N,3]"]),
    ("IsAllFinite", [F, "float[2]"], {}, ["bool[]"]),
    ("All", ["bool[N]"], {}, ["bool[1]"]),
    ("ReduceSumTraining", [X, "int64[2]=0,-1"], {}, ["float[1,S,1]"]),
    ("ReduceSumTraining", [X, "int64[1]=1"], {"keepdims": 0}, ["float[B,8]"]),
    ("ReduceSumTraining", [X, "int64[0]="], {"keepdims": 0}, ["float[]"]),
    ("ReduceSumTraining", [X, "int64[0]="], {"noop_with_empty_axes": 1}, [X]),
    ("ReduceSumTraining", [X, "int64[A]"], {}, ["float[_,_,_]"]),
    ("ReduceSumTraining", [X, "int64[A]"], {"keepdims": 0}, ["float"]),
    ("FakeQuant", [F, "float[]", "float[]"], {}, [F, "bool[N,3]"]),
    (
        "ConvGrad",
        ["float[N,8,H,W]", "float[N,4,H,W]", "float[8,4,3,3]"],
        {"pads": [1, 1, 1, 1]},
        ["float[N,4,H,W]", "float[8,4,3,3]", "float[8]"],
    ),
    (
        "ConvTransposeGrad",
        ["float[N,6,8,8]", "float[N,4,4,4]", "float[4,3,2,2]"],
        {"strides": [2, 2], "group": 2, "output_padding": [0, 0]},
        ["float[N,4,4,4]", "float[4,3,2,2]", "float[6]"],
    ),
    (
        "BatchNormInternal",
        ["float16[N,C,8]", *["float[C]"] * 4],
        {},
        ["float16[N,C,8]", *["float[C]"] * 4],
    ),
    (
        "LayerNormalizationGrad",
        ["bfloat16[B,8]", "float16[B,8]", "bfloat16[8]", "float[B,1]", "float[B,1]"],
        {"epsilon": 1e-6, "stash_type": 1},
        ["float16[B,8]", "bfloat16[8]", "bfloat16[8]"],
    ),
    (
        "LSTMTraining",
        ["float[S,B,3]", "float[1,16,3]", "float[1,16,4]"],
        {"hidden_size": 4},
        ["float[S,1,B,4]", "float[1,B,4]", "float[1,B,4]", "float[S,1,B,4]", "float[S,1,B,16]"],
    ),
    (
        "LSTMGrad",
        ["float[S,B,3]", "float[1,16,3]", "float[1,16,4]"],
        {},
        [
            "float[S,B,3]",
            "float[1,16,3]",
            "float[1,16,4]",
            "float[1,32]",
            "float[1,B,4]",
            "float[1,B,4]",
            "float[1,12]",
        ],
    ),
    (
        "GRUTraining",
        ["double[S,B,3]", "double", "double[1,3G,G]"],
        {},
        ["double[S,1,B,G]", "double[1,B,G]", "double[S,1,B,_]"],
    ),
    ("SoftmaxCrossEntropy", [F, F], {}, ["float[]", F]),
    ("SoftmaxCrossEntropy", [F, F], {"reduction": "none"}, ["float[N]", F]),
    ("SoftmaxCrossEntropyLossGrad", ["float[]", F, "int64[N]"], {"ignore_index": 0}, [F]),
    (
        "SoftmaxCrossEntropyLossInternal",
        ["float16[N,C,D]", "int64[N,D]"],
        {"output_type": 1, "reduction": "none"},
        ["float[N,D]", "float[N,C,D]"],
    ),
    (
        "SoftmaxCrossEntropyLossInternal",
        ["float16[N,C]", "int64[N]"],
        {},
        ["float16[]", "float16[N,C]"],
    ),
    (
        "SoftmaxCrossEntropyLossInternalGrad",
        ["float[]", "float[N,C]", "int64[N]"],
        {"output_type": 10},
        ["float16[N,C]"],
    ),
    ("NegativeLogLikelihoodLossInternal2", [F, "int64[N]"], {"reduction": "sum"}, ["float[]"]),
    (
        "AdamOptimizer",
        ["float[]", "int64[1]", F, "float16[N,3]", F, F, "float16[N,3]"],
        {"lambda": 0.1},
        ["int64[1]", F, F, F, "float16[N,3]", "float16[N,3]"],
    ),
    (
        "AdamWOptimizer",
        ["float[1]", "int64[1]", *["seq(bfloat16)"] * 4],
        {},
        ["bool[1]", *["seq(bfloat16)"] * 3],
    ),
    ("SGDOptimizerV2", ["float[]", *["seq(float)"] * 2], {}, ["bool[]", "seq(float)"]),
    ("InplaceClipGradNorm", ["seq(float)"], {}, ["seq(float)"]),
    (
        "LambOptimizer",
        ["", "", "", "float[1]", "int64[1]", F, F, F, F, "", "float[2]", "float[2]"],
        {},
        ["int64[1]", F, F, F, F, "?", "float[2]", "float[2]"],
    ),
    ("InPlaceAccumulatorV2", [F, "float16[N,3]", "bool[1]"], {}, ["bool[1]", F]),
    ("PassThrough", [F, "int64[2]", "string[]"], {}, [F, "int64[2]", "string[]"]),
    ("WaitEvent", ["int64[]", F, "bool[]"], {}, [F, "bool[]"]),
    (
        "YieldOp",
        [F, "int64[N]", "double[N]"],
        {"non_differentiable_outputs": [1], "full_shape_outputs": [2]},
        ["float", "double[N]"],
    ),
    ("NcclAllReduce", ["bfloat16[4]", "bfloat16[N]"], {}, ["bfloat16[4]", "bfloat16[N]"]),
    (
        "Recv",
        ["bool[]", "int64[]"],
        {"tag": 0, "element_types": [1, 7]},
        ["bool[]", "float", "int64"],
    ),
    ("GistBinarizeEncoder", [F], {}, ["bool[N,3]"]),
    ("GistPack1Encoder", ["bool[3,3]"], {}, ["uint8[2]"]),
    ("GistPack1Encoder", [F], {}, ["uint8[_]"]),
    ("GistPack1Decoder", ["uint8[2]"], {"to": 1}, ["float"]),
    ("GistPack16Decoder", ["float16[N,3]"], {"to": 1}, [F]),
    (
        "PythonOp",
        [F],
        {
            "func_name": "f",
            "input_convention": "d",
            "input_tensor_types": [1],
            "input_tensor_ranks": [2],
            "output_tensor_types": [1, 7],
            "output_tensor_ranks": [2, 0],
        },
        ["int64[]", "float[_,_]", "int64[]"],
    ),
    ("SummaryScalar", ["float[2]"], {"tags": ["a", "b"]}, ["string[]"]),
    ("FusedMatMul", [X, "float[4,8]"], {"transB": 1}, ["float[B,S,4]"]),
    ("FusedMatMul", ["float[B,1,S,D]", "float[H,D,T]"], {}, ["float[B,H,S,T]"]),
    ("FusedMatMul", ["float[B,2,3]", "float[C,3,4]"], {}, ["float[_,2,4]"]),
    ("FusedMatMul", ["float[S,B,H]", "float[B,H,T]"], {"transBatchA": 1}, ["float[B,S,T]"]),
    ("FusedMatMul", ["float[K]", "float[N,K]"], {"transA": 1, "transB": 1}, ["float[N]"]),
    ("FusedMatMul", ["float[K]", "float[K]"], {}, ["float[]"]),
    (
        "MatMulBnb4",
        [X, "uint8[64]", "float[2]"],
        {"K": 8, "N": 16, "block_size": 64, "quant_type": 1},
        ["float[B,S,16]"],
    ),
    (
        "MultiHeadAttention",
        ["float[B,3,8]", "float", "float[B,2,5,4]"],
        {"num_heads": 2},
        ["float[B,3,8]"],
    ),
    ("MultiHeadAttention", ["float[B,3,8]", "float", "float"], {"num_heads": 2}, ["float[B,3,_]"]),
    ("BitmaskDropout", ["float[5,13]"], {}, ["float[5,13]", "uint32[3]"]),
    ("BiasDropout", [X, "float[8]"], {}, [X, "bool[B,S,8]"]),
    ("ShrunkenGather", [X, "int64[K]"], {"axis": 1}, ["float[B,K,8]"]),
    (
        "SkipLayerNormalization",
        ["float16[B,8]", "float16[B,8]", "float16[8]"],
        {},
        ["float16[B,8]", "float[B,1]", "float[B,1]", "float16[B,8]"],
    ),
]
ONNX_DOMAIN_CASES = [
    ("MaxPoolGrad", ["float[N,4,2,2]", "int64[N,4,2,2]"], {"storage_order": 0}, ["float[N,4,_,_]"]),
    ("AveragePoolGrad", ["float[N,4,2]"], {"kernel_shape": [2], "ceil_mode": 1}, ["float[N,4,_]"]),
    ("SparseSoftmaxCrossEntropy", [X, "int64[B,S]"], {"reduction": "none"}, ["float[B,S]", X]),
    ("SparseSoftmaxCrossEntropyGrad", ["float[]", X, "int32[B,S]"], {}, [X]),
    (
        "LayerNormalization",
        [X, "float16[S,8]"],
        {"axis": 1},
        ["float16[B,S,8]", "float[B,1,1]", "float[B,1,1]"],
    ),
    (
        "SimplifiedLayerNormalization",
        ["double[B,8]", "double[8]"],
        {"stash_type": 11},
        ["double[B,8]", "double[B,1]"],
    ),
]


@pytest.mark.parametrize(("name", "inputs", "attributes", "outputs"), CASES)
def test_inference(name, inputs, attributes, outputs):
    assert infer(name, inputs, len(outputs), **attributes) == outputs


Q, K = "float[B,4,T,8]", "float[B,4,S,8]"
ATTENDED = [
    ([Q, K, "float[B,4,S,6]"], "float[B,4,T,6]"),
    ([Q, "float[B,2,S,8]", "float[B,2,S,6]"], "float[B,4,T,6]"),
    ([Q, "float[1,4,S,8]", "float[C,1,S,6]"], "float[_,4,T,6]"),
    ([Q, "float", "float"], "float[_,4,T,_]"),
    (["float[1,1,T,8]", K, "float[B,1,S,6]"], "float[B,4,T,6]"),
    (["float[B,H,T,8]", "float[B,H,S,8]", "float[B,1,S,6]"], "float[B,H,T,6]"),
    (["float[B,H,T,8]", "float[B,2,S,8]", "float[B,2,S,6]"], "float[B,_,T,6]"),
    (["float[B,1,T,8]", "float[B,H,S,8]", "float[B,G,S,6]"], "float[B,_,T,6]"),
    ([Q, K, K, "float[B,1,1,S]"], "float[B,4,T,8]"),
    ([Q, K, K, "bool[T,S]"], "float[B,4,T,8]"),
    ([Q, K, K, "bool[S]"], "float[B,4,T,8]"),
    ([Q, K, K, "bool[C,1,U,S]"], "float[_,4,_,8]"),
    ([Q, K, K, "bool"], "float[_,4,_,8]"),
    (["float[B,1,1,8]", "float[B,1,S,8]", "float[B,1,S,8]", "float[3,T,S]"], "float[B,3,T,8]"),
]


@pytest.mark.parametrize(("inputs", "result"), ATTENDED)
def test_attention_has_the_sizes_of_what_it_repeats(inputs: list[str], result: str) -> None:
    queries = result[: result.rindex(",")] + "]"
    assert infer("FlashAttention", inputs, 2, OWN) == [result, queries]


def test_attention_of_queries_of_unknown_rank_says_nothing() -> None:
    assert infer("FlashAttention", ["float", K, K], 2, OWN) == ["float", "float"]


@pytest.mark.parametrize(("name", "inputs", "attributes", "outputs"), ONNX_DOMAIN_CASES)
def test_inference_in_the_onnx_domain(name, inputs, attributes, outputs):
    assert infer(name, inputs, len(outputs), ONNX, **attributes) == outputs


def test_norm_takes_its_element_type_from_the_declaration():
    node = helper.make_node("ReduceAllL2", ["i0"], ["o0"], domain=MS)
    model = model_of(node, ["float16[4]"])
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    assert inferred.graph.output[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT


def test_symbols_reach_a_gradient_through_the_shape_of_its_input():
    node = helper.make_node("GatherGrad", ["shape", "i1", "i2"], ["o0"], domain=MS)
    model = model_of(node, ["float[V,4]", "int64[K]", "float[K,4]"])
    model.graph.node.insert(0, helper.make_node("Shape", ["i0"], ["shape"]))
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    assert show(inferred.graph.output[0].type) == "float[V,4]"


def test_a_damaged_constant_says_nothing():
    node = helper.make_node("GatherGrad", ["i0", "i1", "i2"], ["o0"], domain=MS)
    model = model_of(node, ["int64[2]=4,5", "int64[K]", "float[K,4]"])
    model.graph.initializer[0].raw_data = b"odd"
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    assert show(inferred.graph.output[0].type) == "float[_,_]"


def test_types_outside_the_schema_are_refused():
    with pytest.raises(onnx.shape_inference.InferenceError, match="unsupported type"):
        infer("ReluGrad", ["int64[2]", "int64[2]"], 1)
