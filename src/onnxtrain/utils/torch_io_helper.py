"""Where onnxruntime-training takes nested data apart; the same as in ``onnxtrain.utils``."""

from onnxtrain.utils.nested import (
    ORTModelInputOutputSchemaType,
    ORTModelInputOutputType,
    PrimitiveType,
    extract_data_and_schema,
    unflatten_data_using_schema,
)

__all__ = [
    "ORTModelInputOutputSchemaType",
    "ORTModelInputOutputType",
    "PrimitiveType",
    "extract_data_and_schema",
    "unflatten_data_using_schema",
]
