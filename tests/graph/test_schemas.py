"""Schemas of the training operators: what is registered and what ONNX's checker says."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.defs import OpSchema

from onnxtrain.errors import RegistrationError
from onnxtrain.graph import schemas
from onnxtrain.graph.schemas.declare import op
from onnxtrain.types import FLOATS, MS, ONNX, OWN

ATEN = "org.pytorch.aten"
TRAINING_NAMES = {
    ONNX: """
        AveragePoolGrad GatherND MaxPoolGrad SparseSoftmaxCrossEntropy SparseSoftmaxCrossEntropyGrad
    """,
    MS: """
        AdamOptimizer AdamWOptimizer AdasumAllReduce All BatchNormInternal BatchNormalizationGrad
        BatchScale BiasFastGeluGrad_dX BiasGeluGrad_dX BiasSoftmaxDropout BitmaskDropoutGrad
        BroadcastGradientArgs ConcatTraining ConvGrad ConvTransposeGrad DivGrad DropoutGrad
        FakeQuant FakeQuantGrad FastGeluGrad FlattenAndUnpad GRUGrad GRUTraining GatherElementsGrad
        GatherGrad GatherNDGrad GeluGrad GistBinarizeDecoder GistBinarizeEncoder GistPack16Decoder
        GistPack16Encoder GistPack1Decoder GistPack1Encoder GistPack8Decoder GistPack8Encoder
        GistPackMsfp15Decoder GistPackMsfp15Encoder Group InPlaceAccumulator InPlaceAccumulatorV2
        InplaceClipGradNorm InvertibleLayerNormalizationGrad IsAllFinite IsFinite LSTMGrad
        LSTMTraining LambOptimizer LayerNormalizationGrad LeakyReluGrad LogSoftmaxGrad
        LogSoftmaxGrad_13 MegatronF MegatronG MixedPrecisionScale NcclAllGather NcclAllReduce
        NcclReduceScatter NegativeLogLikelihoodLossInternal NegativeLogLikelihoodLossInternal2
        PadAndUnflatten PassThrough PythonOp PythonOpGrad QuickGeluGrad RecordEvent Recv ReduceAllL2
        ReduceSumTraining ReluGrad ResizeGrad SGDOptimizer SGDOptimizerV2 Scale ScaledSum Send
        SigmoidGrad SimplifiedLayerNormalizationGrad SliceGrad SoftmaxCrossEntropy
        SoftmaxCrossEntropyGrad SoftmaxCrossEntropyLossGrad SoftmaxCrossEntropyLossInternal
        SoftmaxCrossEntropyLossInternalGrad SoftmaxDropoutGrad SoftmaxGrad SoftmaxGrad_13
        SplitTraining SummaryHistogram SummaryMerge SummaryScalar SummaryText TanhGrad TritonOp View
        WaitEvent YieldOp ZeroGradient
    """,
    OWN: """
        BatchNormAddRelu BatchNormRelu BatchNormReluGrad ClipFactor ConcatSum
        CrossEntropyWithGrad DropoutGradSum
        Elementwise FlashAttention FlashAttentionGrad FromMemoryOrder Gated GatedGrad GatedHalves
        GatedHalvesGrad GatherGradAdd GeluGradSum
        GroupNormalized GroupNormalizedGrad HandOver InMemoryOrder LayerNormalizationGradAdd
        LSTMLayer LSTMLayerGrad LinearCrossEntropyWithGrad MaxPoolInPlanes MaxPoolInPlanesGrad
        NestedShapes NestedSum NestedZeros Passes Rotate
        SequenceAddAt SequenceConcat SequenceCut SequenceJoin
        SequenceSizes SimplifiedLayerNormalizationGradAdd StackLoop VectorJacobian WithWeights
    """,
}
FORWARD_NAMES = {
    ONNX: "LayerNormalization SimplifiedLayerNormalization",
    MS: """
        BiasDropout BiasGelu BiasSoftmax BitmaskBiasDropout BitmaskDropout FastGelu FusedMatMul Gelu
        MatMulBnb4 QuickGelu ShrunkenGather SkipLayerNormalization SkipSimplifiedLayerNormalization
        Trilu
        BiasAdd BiasSplitGelu CDist ComplexMul ComplexMulConj ConvTransposeWithDynamicPads
        CropAndResize DequantizeLinear DynamicQuantizeLSTM DynamicQuantizeMatMul DynamicTimeWarping
        ExpandDims FusedConv FusedGemm FusedMatMulActivation GatedAdd GatherBlockQuantized GatherND
        GemmFastGelu GridSample GroupNorm Inverse Irfft MatMulInteger16 MatMulIntegerToFloat
        MatMulNBits MatMulNBitsGrad MaxpoolWithMask MulInteger MurmurHash3 NGramRepeatBlock NhwcConv
        NhwcFusedConv NhwcMaxPool Pad
        QGemm QLinearAdd QLinearAveragePool QLinearConcat QLinearConv QLinearGlobalAveragePool
        QLinearLeakyRelu QLinearMul QLinearReduceMean QLinearSigmoid QLinearSoftmax QLinearWhere
        QuantizeLinear Range ReduceSumInteger Rfft SampleOp ScaledSiLU SkipGroupNorm TorchEmbedding
        TransposeMatMul UnfoldTensor Unique
        BranchwiseRMSNorm GatedRMSNorm LinearAttentionGate MoE
        Attention EmbedLayerNormalization GatedRelativePositionBias GroupQueryAttention
        MultiHeadAttention PackedAttention PackedMultiHeadAttention QAttention RelativePositionBias
        RemovePadding RestorePadding RotaryEmbedding
        CausalConvWithState LinearAttention MRotaryEmbedding
        GemmaRotaryEmbedding LongformerAttention QEmbedLayerNormalization SparseAttention
        WordConvEmbedding
    """,
    ATEN: "ATen",
}
TRAINING = [(domain, name) for domain, text in TRAINING_NAMES.items() for name in text.split()]
FORWARD = [(domain, name) for domain, text in FORWARD_NAMES.items() for name in text.split()]
SINCE_9 = {
    "AveragePoolGrad",
    "MaxPoolGrad",
    "SparseSoftmaxCrossEntropy",
    "SparseSoftmaxCrossEntropyGrad",
}
# before opset 11, so that the legacy GatherND and LayerNormalization are the ones in force
IMPORTS = [helper.make_opsetid(*pair) for pair in (("", 10), (MS, 1), (ATEN, 1), (OWN, 1))]
SAMPLES = {"INT": 1, "INTS": [1], "FLOAT": 1.0, "STRING": "s", "STRINGS": ["s"]}
SAMPLES["GRAPH"] = helper.make_graph([], "body", [], [])

schemas.ensure_registered()


def schema_of(domain: str, name: str) -> OpSchema:
    schema = schemas.get(domain, name, 9 if name in SINCE_9 else 1)
    assert schema is not None
    return schema


def necessary(formals: list[OpSchema.FormalParameter]) -> list[OpSchema.FormalParameter]:
    """The parameters up to the last one that is not optional; one output at least."""
    optional = OpSchema.FormalParameterOption.Optional
    last = max((i for i, formal in enumerate(formals) if formal.option != optional), default=0)
    return formals[: last + 1]


def usual_type(schema: OpSchema, formal: OpSchema.FormalParameter) -> str:
    """One type that a parameter may have: a float one if possible."""
    allowed = {c.type_param_str: sorted(c.allowed_type_strs) for c in schema.type_constraints}
    choices = allowed.get(formal.type_str, [formal.type_str])
    return next((text for text in choices if "(float)" in text), choices[0])


def type_proto(text: str, shape: list[int | str] | None) -> onnx.TypeProto:
    """Type of ``tensor(float)`` or ``optional(seq(tensor(float)))`` with a shape."""
    if text.startswith("optional("):
        return helper.make_optional_type_proto(type_proto(text[9:-1], shape))
    if text.startswith("seq("):
        return helper.make_sequence_type_proto(type_proto(text[4:-1], shape))
    dtype = onnx.TensorProto.DataType.Value(text[7:-1].upper())
    return helper.make_tensor_type_proto(dtype, shape)


def required(schema: OpSchema) -> dict[str, object]:
    """The attributes that a node cannot go without."""
    return {a.name: SAMPLES[a.type.name] for a in schema.attributes.values() if a.required}


def model_of(
    schema: OpSchema,
    inputs: dict[str, onnx.TypeProto],
    outputs: int,
    attributes: dict[str, object] | None = None,
) -> onnx.ModelProto:
    """A graph of one node, with its required attributes unless told others."""
    names = [f"out{index}" for index in range(outputs)]
    node = helper.make_node(
        schema.name, list(inputs), names, domain=schema.domain, **(attributes or required(schema))
    )
    graph = helper.make_graph(
        [node],
        "one_node",
        [helper.make_value_info(name, type_) for name, type_ in inputs.items()],
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, []) for name in names],
    )
    return helper.make_model(graph, opset_imports=IMPORTS)


def test_the_tables_hold_exactly_the_known_operators():
    assert len(TRAINING) == 143
    assert sorted(schemas.training_ops()) == sorted(TRAINING)
    assert sorted(schemas.forward_ops()) == sorted(FORWARD)


@pytest.mark.parametrize("part", [necessary, list], ids=["minimal", "full"])
@pytest.mark.parametrize(("domain", "name"), TRAINING + FORWARD)
def test_checker_accepts_a_node_of_every_operator(domain, name, part):
    schema = schema_of(domain, name)
    assert schema.since_version == (9 if name in SINCE_9 else 1)
    types = {f.name: type_proto(usual_type(schema, f), []) for f in part(list(schema.inputs))}
    model = model_of(schema, types, len(part(list(schema.outputs))))
    onnx.checker.check_model(model, full_check=False)


@pytest.mark.parametrize(("domain", "name"), TRAINING + FORWARD)
def test_inference_never_raises_for_unknown_or_odd_shapes(domain, name):
    schema = schema_of(domain, name)
    texts = {formal.name: usual_type(schema, formal) for formal in schema.inputs}
    for shape in (
        None,
        [],
        [0],
        [2],
        ["N"],
        ["N", 3],
        ["N", 3, 4],
        [1 << 40],
        [1 << 62, 8, 8],
        [2, 3, 4, 5, 6],
    ):
        types = {name: type_proto(text, shape) for name, text in texts.items()}
        model = model_of(schema, types, len(schema.outputs))
        onnx.shape_inference.infer_shapes(model, data_prop=True)
    del model.graph.input[:]
    onnx.shape_inference.infer_shapes(model, data_prop=True)


@pytest.mark.parametrize("values", [[], [7, -9, 0], [1 << 40]], ids=str)
@pytest.mark.parametrize(("domain", "name"), TRAINING + FORWARD)
def test_inference_never_raises_for_odd_constants(domain, name, values):
    schema = schema_of(domain, name)
    texts = {formal.name: usual_type(schema, formal) for formal in schema.inputs}
    types = {name: type_proto(text, ["N", 3]) for name, text in texts.items()}
    model = model_of(schema, types, len(schema.outputs))
    constants = [name for name, text in texts.items() if text == "tensor(int64)"]
    for constant in constants:
        tensor = numpy_helper.from_array(np.array(values, np.int64), constant)
        model.graph.initializer.append(tensor)
    kept = [value for value in model.graph.input if value.name not in constants]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    onnx.shape_inference.infer_shapes(model, data_prop=True)


@pytest.mark.parametrize("value", [1 << 40, -3], ids=str)
@pytest.mark.parametrize(("domain", "name"), TRAINING + FORWARD)
def test_inference_never_raises_for_odd_attributes(domain, name, value):
    schema = schema_of(domain, name)
    types = {f.name: type_proto(usual_type(schema, f), [2, 3, 4]) for f in schema.inputs}
    odd = {"INT": value, "INTS": [value], "STRING": "odd"}
    attributes = {
        a.name: odd[a.type.name] for a in schema.attributes.values() if a.type.name in odd
    }
    model = model_of(schema, types, len(schema.outputs), attributes)
    onnx.shape_inference.infer_shapes(model, data_prop=True)


def checker_context() -> onnx.checker.C.CheckerContext:
    context = onnx.checker.C.CheckerContext()
    context.ir_version = 10
    context.opset_imports = {"": 16, MS: 1}
    return context


@pytest.mark.parametrize(
    ("attributes", "complaint"),
    [({}, "Required attribute 'axis' is missing"), ({"axis": 0, "unheard_of": 1}, "unheard_of")],
    ids=["missing", "unknown"],
)
def test_checker_refuses_missing_and_unknown_attributes(attributes, complaint):
    node = helper.make_node("ConcatTraining", ["a"], ["b"], domain=MS, **attributes)
    with pytest.raises(onnx.checker.ValidationError, match=complaint):
        onnx.checker.check_node(node, checker_context())


def test_other_operators_of_the_domain_stay_unchecked():
    node = helper.make_node("SomethingElse", ["a"], ["b"], domain=MS, anything=1)
    onnx.checker.check_node(node, checker_context())


@pytest.mark.parametrize(
    ("name", "attribute", "value"),
    [
        ("SoftmaxGrad", "axis", 1),
        ("SoftmaxGrad_13", "axis", -1),
        ("AdamWOptimizer", "weight_decay", np.float32(0.01)),
        ("AdamOptimizer", "lambda", 0.0),
        ("InplaceClipGradNorm", "norm_type", b"fro"),
        ("LambOptimizer", "epsilon", [np.float32(1e-6)] * 1024),
    ],
)
def test_default_values(name, attribute, value):
    default = schema_of(MS, name).attributes[attribute].default_value
    assert helper.get_attribute_value(default) == value


def test_attributes_without_default():
    attributes = schema_of(MS, "ScaledSum").attributes
    assert [attributes[f"scale_{i}"].required for i in range(3)] == [True, True, False]
    assert not attributes["scale_2"].default_value.name


def test_lists_say_whether_they_may_be_empty_or_mixed():
    record, wait = schema_of(MS, "RecordEvent"), schema_of(MS, "WaitEvent")
    assert (record.min_output, wait.min_output) == (0, 1)
    assert not record.outputs[0].is_homogeneous
    assert schema_of(MS, "NcclAllReduce").inputs[0].is_homogeneous


def test_get_prefers_the_operators_of_onnx():
    versions = {"SoftmaxCrossEntropyLoss": 13, "GatherND": 13, "LayerNormalization": 17}
    for name, version in versions.items():
        schema = schemas.get("ai.onnx", name, 17)
        assert schema is not None
        assert schema.since_version == version
        assert schema.doc
    assert schemas.get(ONNX, "GatherND", 10).since_version == 1


def test_get_returns_none_for_what_does_not_exist():
    assert schemas.get(MS, "NoSuchOperator", 1) is None
    assert schemas.get("no.such.domain", "Relu", 1) is None
    assert schemas.get(ONNX, "MaxPoolGrad", 8) is None


def test_registering_again_from_many_threads_is_harmless():
    before = len(onnx.defs.get_all_schemas_with_history())
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: schemas.ensure_registered(), range(32)))
    assert len(onnx.defs.get_all_schemas_with_history()) == before


def in_fresh_process(code: str) -> str:
    command, env = [sys.executable, "-c", code], {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=os.environ | env, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_importing_registers_nothing():
    code = "import onnx, onnxtrain.graph.schemas; print(onnx.defs.has('ReluGrad', 1, {!r}))"
    assert in_fresh_process(code.format(MS)) == "False"


def test_threads_may_race_for_the_first_registration():
    code = """
from concurrent.futures import ThreadPoolExecutor
from onnxtrain.graph import schemas
with ThreadPoolExecutor(8) as pool:
    print(len(list(pool.map(lambda _: schemas.ensure_registered(), range(32)))))
"""
    assert in_fresh_process(code) == "32"


def test_a_schema_registered_by_another_package_stays():
    code = """
import onnx
from onnx.defs import OpSchema
onnx.defs.register_schema(OpSchema("ReluGrad", "com.microsoft", 1, doc="theirs"))
from onnxtrain.graph import schemas
schemas.ensure_registered()
print(schemas.get("com.microsoft", "ReluGrad", 1).doc, schemas.get("", "MaxPoolGrad", 17).name)
"""
    assert in_fresh_process(code) == "theirs MaxPoolGrad"


@pytest.mark.parametrize("signature", ["dY T -> dX: T", "dY: T -> dX: Unheard", "dY: T"])
def test_a_signature_that_cannot_be_read_is_refused(signature):
    with pytest.raises(RegistrationError, match=r"com\.microsoft::Broken"):
        op("Broken", signature, T=FLOATS).schema()
