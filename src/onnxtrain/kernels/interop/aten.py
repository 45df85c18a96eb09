"""ATen: an operator of torch, called by its name, with arguments by position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from onnxtrain.kernels.registry import kernel
from onnxtrain.kernels.scalars import single

DOMAIN = "org.pytorch.aten"
_SCALARS = {"IntType": int, "FloatType": float, "BoolType": bool}


@kernel("ATen", domain=DOMAIN, view="inputs", outputs=0, needs=["wanted", "device"])
def aten(
    *inputs: Tensor | None,
    operator: str,
    overload_name: str = "",
    cpu_input_args: Sequence[int] = (),
    cpu_output_args: Sequence[int] = (),
    wanted: tuple[bool, ...],
    device: torch.device,
) -> Sequence[Tensor | None]:
    """outputs = torch.ops.aten.<operator>.<overload_name>(*inputs)."""
    overload = find_overload(operator, overload_name)
    formals = overload._schema.arguments
    if len(inputs) > len(formals):
        raise ValueError(f"{overload} takes {len(formals)} arguments, the node has {len(inputs)}")
    values = [*inputs, *[None] * (len(formals) - len(inputs))]
    positional, keywords = [], {}
    for formal, value in zip(formals, values, strict=True):
        argument = _argument(overload, formal, value)
        if formal.kwarg_only:
            keywords[formal.name] = argument
        else:
            positional.append(argument)
    result = overload(*positional, **keywords)
    results = list(result) if isinstance(result, (tuple, list)) else [result]
    if len(results) < len(wanted):
        raise ValueError(f"{overload} gives {len(results)} values, the node has {len(wanted)}")
    return [_output(value, device) for value in results[: len(wanted)]]


def find_overload(operator: str, overload_name: str) -> Any:
    """The operator of torch with a name and an overload.

    Raises:
        ValueError: if there is none, or if it writes to its arguments.
    """
    namespace, _, name = operator.rpartition("::")
    packet = getattr(getattr(torch.ops, namespace or "aten"), name, None)
    if packet is None:
        raise ValueError(f"torch has no operator '{operator}'")
    overload = getattr(packet, overload_name or "default", None)
    if overload is None:
        known = ", ".join(n if n != "default" else "''" for n in packet.overloads())
        raise ValueError(
            f"operator '{operator}' has no overload '{overload_name}'\n  have  {known}"
        )
    if overload._schema.is_mutable:
        raise ValueError(f"{overload} writes to its arguments, which a node must not do")
    return overload


def _argument(overload: Any, formal: Any, value: Tensor | None) -> Any:
    """A tensor as the Python value that an argument of the operator needs."""
    kind, is_optional = formal.type, formal.type.kind() == "OptionalType"
    kind = kind.getElementType() if is_optional else kind
    if value is None:
        if formal.has_default_value():
            return formal.default_value
        if is_optional or kind.kind() == "TensorType":
            return None
        raise ValueError(f"{overload} needs a value for '{formal.name}'")
    if kind.kind() == "TensorType":
        return value
    if kind.kind() == "NumberType":
        return single(value.tolist())
    if kind.kind() in _SCALARS:
        return _SCALARS[kind.kind()](single(value.tolist()))
    if kind.kind() == "ListType" and kind.getElementType().kind() in _SCALARS:
        convert = _SCALARS[kind.getElementType().kind()]
        return [convert(item) for item in value.reshape(-1).tolist()]
    raise ValueError(f"{overload} takes a {kind} as '{formal.name}', which a node cannot give")


def _output(value: Any, device: torch.device) -> Tensor | None:
    if isinstance(value, Tensor):
        return value.contiguous().to(device)
    return None if value is None else torch.tensor(value, device=device)
