"""What the tests of gradients must have seen of each operator, by its schema."""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from onnxtrain.graph import schemas
from onnxtrain.types import MS, ONNX, OWN, TRAINING

Key = tuple[str, str]

_Formal = onnx.defs.OpSchema.FormalParameterOption
_Kind = onnx.defs.OpSchema.AttrType
_NEWEST = 2**31 - 1
DIFFERENCES, AUTOGRAD, TWICE = "differences", "autograd", "second gradient"
SHAPES = "several shapes"
NEGATIVE_AXIS = "a negative axis"

ELEMENTWISE: dict[str, str] = {
    ONNX: """Abs Acos Acosh Add Asin Asinh Atan Atanh Celu Clip Cos Cosh Div Dropout Elu Erf Exp
        Gelu HardSigmoid HardSwish Identity LeakyRelu Log Max Mean Min Mish Mod Mul Neg PRelu Pow
        Reciprocal Relu Selu Shrink Sigmoid Sin Sinh Softplus Softsign Sqrt Sub Sum SwiGLU Swish Tan
        Tanh ThresholdedRelu Where""",
    MS: """DivGrad DropoutGrad FastGelu FastGeluGrad Gelu GeluGrad LeakyReluGrad QuickGelu
        QuickGeluGrad ReluGrad Scale ScaledSiLU SigmoidGrad TanhGrad""",
}
"""Operators that take any rank and compute each element of the result by itself."""

STRETCHED: dict[Key, str] = {
    **{(ONNX, op): "A B" for op in ("Add", "Div", "MatMul", "Mod", "Mul", "Sub")},
    **{(ONNX, op): "data_0_0 data_0_1" for op in ("Max", "Mean", "Min", "Sum")},
    (ONNX, "Pow"): "X Y",
    (ONNX, "Where"): "X Y",
    (ONNX, "PRelu"): "slope",
    (ONNX, "Gemm"): "C",
    (MS, "DivGrad"): "A B",
    (MS, "FusedMatMul"): "A B",
    (MS, "BiasGelu"): "B",
    (MS, "FastGelu"): "bias",
}
"""Inputs that are repeated where the result is larger (broadcasting)."""

_AUTO_PAD = "NOTSET SAME_UPPER SAME_LOWER VALID"
_CORNERS = "half_pixel pytorch_half_pixel align_corners asymmetric tf_crop_and_resize"
_REDUCTION = "none sum mean"
_SCATTER = "none add mul max min"
_POST = "NONE SOFTMAX LOGISTIC SOFTMAX_ZERO PROBIT"
_ACTIVATION = "Relu Tanh Sigmoid LeakyRelu HardSigmoid"
_GATES = "gelu gelu_tanh swish sigmoid relu"

VALUES: dict[str, str] = {
    "approximate": "none tanh",
    "auto_pad": _AUTO_PAD,
    "direction": "forward reverse bidirectional",
    "reduction": _REDUCTION,
    "post_transform": _POST,
    "padding_mode": "zeros border reflection",
    "nearest_mode": "round_prefer_floor round_prefer_ceil floor ceil",
    "keep_aspect_ratio_policy": "stretch not_larger not_smaller",
    "kernel_type": "LINEAR POLY RBF SIGMOID",
    "norm": "MAX L1 L2",
    "metric": "euclidean sqeuclidean",
    "update_rule": "linear gated delta gated_delta",
}
"""Values of attributes that are words."""

VALUES_OF: dict[tuple[str, str, str], str] = {
    (ONNX, "ScatterElements", "reduction"): _SCATTER,
    (ONNX, "ScatterND", "reduction"): _SCATTER,
    (ONNX, "DepthToSpace", "mode"): "DCR CRD",
    (ONNX, "SpaceToDepth", "mode"): "DCR CRD",
    (ONNX, "GridSample", "mode"): "linear nearest cubic",
    (ONNX, "Pad", "mode"): "constant reflect edge wrap",
    (ONNX, "Resize", "mode"): "nearest linear cubic",
    (ONNX, "RoiAlign", "mode"): "avg max",
    (ONNX, "TensorScatter", "mode"): "linear circular",
    (ONNX, "Upsample", "mode"): "nearest linear",
    (ONNX, "Resize", "coordinate_transformation_mode"): f"{_CORNERS} half_pixel_symmetric",
    (ONNX, "RoiAlign", "coordinate_transformation_mode"): "half_pixel output_half_pixel",
    (ONNX, "CausalConvWithState", "activation"): "none silu swish",
    (MS, "GridSample", "mode"): "bilinear nearest bicubic",
    (MS, "Pad", "mode"): "constant reflect edge wrap",
    (MS, "CropAndResize", "mode"): "bilinear nearest",
    (MS, "ResizeGrad", "mode"): "nearest linear cubic",
    (MS, "ResizeGrad", "coordinate_transformation_mode"): f"{_CORNERS} half_pixel_symmetric",
    (MS, "CausalConvWithState", "activation"): "none silu swish",
    (MS, "FusedConv", "activation"): _ACTIVATION,
    (MS, "FusedGemm", "activation"): _ACTIVATION,
    (MS, "NhwcFusedConv", "activation"): _ACTIVATION,
    (MS, "FusedMatMulActivation", "activation"): _ACTIVATION,
    (MS, "GatedRMSNorm", "activation"): "silu sigmoid",
    (MS, "MoE", "activation_type"): "relu gelu silu identity swiglu",
    (OWN, "Gated", "activation"): _GATES,
    (OWN, "GatedGrad", "activation"): _GATES,
    (OWN, "GatedHalves", "activation"): _GATES,
    (OWN, "GatedHalvesGrad", "activation"): _GATES,
    (OWN, "GroupNormalized", "activation"): "none relu swish",
    (OWN, "GroupNormalizedGrad", "activation"): "none relu swish",
    (OWN, "LinearCrossEntropyWithGrad", "reduction"): "sum mean",
    (TRAINING, "Momentum", "mode"): "standard nesterov",
}
"""Where operators differ in what an attribute may say."""

FREE = (
    "activations classlabels_strings comment equation func_name input_convention k_quant_type of "
    "of_domain operator options overload_name round_mode v_quant_type weights"
)
"""Attributes of words that name other things, or that change no gradient."""

FLAGS = (
    "align_corners ceil_mode channels_last count_include_pad exclude_outside exclusive fmod "
    "input_forget interleaved inverse keepdims largest linear_before_reset noop_with_empty_axes "
    "normalized onesided reverse transA transB transBatchA transBatchB"
)
"""Attributes that are 0 or 1."""


def schema(key: Key) -> onnx.defs.OpSchema | None:
    """The newest schema of an operator."""
    newest = onnx.defs.onnx_opset_version() if key[0] == ONNX else _NEWEST
    return schemas.get(*key, newest)


def schemas_with(words: str) -> list[str]:
    """Operators of ONNX whose description has some words."""
    newest = (schema((ONNX, s.name)) for s in onnx.defs.get_all_schemas() if s.domain == ONNX)
    return [str(of.name) for of in newest if of is not None and words in (of.doc or "")]


def is_elementwise(key: Key) -> bool:
    """Whether an operator computes each element of its result by itself."""
    return key[1] in ELEMENTWISE.get(key[0], "").split()


def wanted(key: Key) -> set[str]:
    """All that must have been seen of an operator."""
    found = {DIFFERENCES, AUTOGRAD, TWICE, SHAPES}
    if is_elementwise(key):
        found |= {"rank 0", "rank 1", "rank 3"}
    found |= {f"{name} stretched" for name in STRETCHED.get(key, "").split()}
    of = schema(key)
    if of is not None:
        found |= {*_of_attributes(key, of), *_of_inputs(of)}
    return found


def _of_attributes(key: Key, of: onnx.defs.OpSchema) -> Iterator[str]:
    for name, attribute in of.attributes.items():
        if attribute.type in (_Kind.STRING, _Kind.STRINGS) and name not in FREE.split():
            yield from (f"{name}={value}" for value in values(key, name))
        elif name in FLAGS.split():
            yield from (f"{name}=0", f"{name}=1")
        elif name in ("axis", "axes"):
            yield NEGATIVE_AXIS


def values(key: Key, name: str) -> list[str]:
    """The words that an attribute may be.

    Raises:
        LookupError: if the tables of this file do not say.
    """
    known = VALUES_OF.get((*key, name)) or VALUES.get(name)
    if known is None:
        raise LookupError(f"the words of attribute '{name}' of {key[1]} are in no table")
    return known.split()


def _of_inputs(of: onnx.defs.OpSchema) -> Iterator[str]:
    constraints = {c.type_param_str: c.allowed_type_strs for c in of.type_constraints}
    for formal in of.inputs:
        if formal.name in ("axis", "axes"):
            yield NEGATIVE_AXIS
        types = constraints.get(formal.type_str, [formal.type_str])
        if formal.option == _Formal.Optional and {"tensor(float)", "tensor(double)"} & set(types):
            yield from (f"with {formal.name}", f"without {formal.name}")
