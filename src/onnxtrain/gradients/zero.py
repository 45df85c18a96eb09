"""Operators without a gradient: constant almost everywhere, random, or not about numbers."""

from __future__ import annotations

from onnxtrain.gradients.rules import no_gradient
from onnxtrain.types import MS

no_gradient("Ceil", "Floor", "Hardmax", "Round", "Sign")
no_gradient("And", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not", "Or", "Xor")
no_gradient("IsInf", "IsNaN")
no_gradient("BitCast", "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor")
no_gradient("ArgMax", "ArgMin", "NonMaxSuppression", "NonZero")
no_gradient("Constant", "ConstantOfShape", "EyeLike", "Shape", "Size")
no_gradient("BlackmanWindow", "HammingWindow", "HannWindow", "MelWeightMatrix")
no_gradient("Bernoulli", "Multinomial")
no_gradient("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
no_gradient("ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul")
no_gradient("QuantizeLinear")
no_gradient("OptionalHasElement", "SequenceEmpty", "SequenceLength")
no_gradient("ImageDecoder", "RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit")
no_gradient("TfIdfVectorizer")

no_gradient("All", "BroadcastGradientArgs", "IsAllFinite", "IsFinite", domain=MS)
