"""Rows whose gradient cannot be compared with differences, each with its reason."""

from __future__ import annotations

import fnmatch

from onnxtrain.testing.case import Case

UNCOMPARED: dict[str, tuple[str, ...]] = {
    "some input or output is NaN or infinite, where there is no slope": (
        "M*-nan",
        "NGramRepeatBlock-*",
        "Reduce*-empty-keep?",
        "Reduce*-nan",
        "SoftmaxCrossEntropyLossGrad-ignored_rows_are_zero",
        "Sum-nan",
    ),
    "the inputs sit on a corner, a jump or a tie, where there is no slope": (
        "Clip-min=-0.25,max=0.5-v6",
        "Imputer-imputed_value_floats=*",
        "LeakyReluGrad-0.25",
        "LpNormalization-zero",
        "Range",
        "ReluGrad-zero",
        "SparseSoftmaxCrossEntropy*-no_weight",
        "TopK-ties",
        "Unique",
        "Unique-[!d]*",
    ),
    "the step of a difference in float32 crosses a tie": ("DynamicQuantizeLinear-negative",),
    "the output has at most 16 bits, and the difference of two such numbers is noise": (
        "Cast-to=FLOAT16",
        "Cast-to=BFLOAT16",
        "Cast-FLOAT8*",
        "CastLike-fewer-digits",
        "MixedPrecisionScale-to-*float16",
        "SoftmaxCrossEntropyLossInternal-*_10",
        "SoftmaxCrossEntropyLossInternalGrad-*_10",
    ),
    "what is rounded passes gradients straight through": (
        "DynamicQuantizeLSTM*",
        "DynamicQuantizeMatMul*",
        "FakeQuant*",
    ),
    "the row's statistics are not those of its data, as the rule takes them to be": (
        "BatchNormReluGrad*",
        "BatchNormalizationGrad*",
        "FlashAttentionGrad*",
        "GroupNormalizedGrad*",
        "LayerNormalizationGrad*",
        "SimplifiedLayerNormalizationGrad*",
    ),
    "the gradient of the padding row is left out on purpose": ("TorchEmbedding-padding",),
    "the output is an optional, which takes no gradient from outside": ("Optional",),
    "the flat form of the gradient cannot be told from its shape": ("GatherGrad-flat-dy",),
    "text has no gradient": ("CastLike-from-text",),
}
"""Patterns of the names of rows by reason."""


def pattern_of(case: Case) -> str | None:
    """The pattern by which a row is left out, if there is one."""
    name = str(case)
    patterns = (pattern for group in UNCOMPARED.values() for pattern in group)
    return next((pattern for pattern in patterns if fnmatch.fnmatchcase(name, pattern)), None)


ONCE: dict[str, tuple[str, ...]] = {
    "the second gradient is not defined": ("PythonOp-*",),
    "all inputs sit on a corner": ("DynamicQuantizeLinear-zero",),
    "the result is a sequence": (
        "SequenceAddAt",
        "SequenceConstruct*",
        "SequenceInsert-*",
        "SplitToSequence-*",
    ),
    "the result is of whole numbers": ("CastLike", "CastLike-v15"),
}
"""Rows whose second gradient is not compared either."""


NOT_BY_TORCH: dict[str, tuple[str, ...]] = {
    "the reference is a gradient by torch": (
        "*GeluGrad-*",
        "AveragePoolGrad-*",
        "BiasFastGeluGrad_dX-*",
        "BiasGeluGrad_dX-*",
        "ConvGrad-*",
        "ConvTransposeGrad-*",
        "GeluGradSum-*",
        "MatMulNBitsGrad-*",
        "ResizeGrad-*",
        "SoftmaxCrossEntropyLossGrad-*",
        "SoftmaxCrossEntropyLossInternalGrad-*",
        "SparseSoftmaxCrossEntropyGrad-*",
    ),
    "the results are sequences": ("SequenceAddAt", "SequenceInsert-*", "SplitToSequence-*"),
    "torch's gradient of the reference is another at what it cannot differentiate": (
        "BatchNormInternal-one_sample",
        "SoftmaxCrossEntropyLossInternal-*_2_1",
    ),
}
"""Rows that are not about gradients, and whose reference torch cannot differentiate."""


def is_listed(case: Case, table: dict[str, tuple[str, ...]]) -> bool:
    """Whether a row is among those of a table of patterns by reason."""
    patterns = (pattern for group in table.values() for pattern in group)
    return any(fnmatch.fnmatchcase(str(case), pattern) for pattern in patterns)
