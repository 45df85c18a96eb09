"""Which classical operators give probabilities, of which losses of raw scores know nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from onnxtrain.types import ML, OWN

_RAW = "NONE"


def source_of_probabilities(
    domain: str, op_type: str, attributes: Mapping[str, Any]
) -> tuple[str, str] | None:
    """Domain and type of an operator that gives probabilities of classes; None if it does not.

    Votes of trees are none: once their leaves are trained, nothing keeps them between 0 and 1.

    Args:
        domain: Domain of a node's operator.
        op_type: The operator; one with its weights outside tells which it stands for.
        attributes: Its attributes, text as str.
    """
    if (domain, op_type) == (OWN, "WithWeights"):
        domain, op_type = attributes["of_domain"], attributes["of"]
        attributes = json.loads(attributes["options"])
    found = False
    if op_type == "Normalizer":
        found = attributes.get("norm", "MAX") == "L1"
    elif op_type.endswith("Classifier"):
        found = attributes.get("post_transform", _RAW) != _RAW
    return (domain, op_type) if found and domain == ML else None
