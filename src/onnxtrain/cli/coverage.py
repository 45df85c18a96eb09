"""Which operators there are, what runs them and what differentiates them."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import onnx

from onnxtrain.gradients.rules import Rule, all_rules
from onnxtrain.graph import schemas
from onnxtrain.kernels.library import declared_kernels
from onnxtrain.kernels.registry import Kernel
from onnxtrain.types import CPU, CUDA, ONNX, DataType, Provider, dtype_name, op_name


@dataclasses.dataclass(frozen=True)
class Coverage:
    """What is known about one operator."""

    domain: str
    op: str
    kernels: tuple[Kernel, ...]
    rules: tuple[Rule, ...]

    @property
    def name(self) -> str:
        """Full name."""
        return op_name(self.domain, self.op)

    def runs_on(self, provider: Provider) -> bool:
        """Whether some kernel runs there."""
        return any(provider in kernel.on for kernel in self.kernels)

    @property
    def gradient(self) -> str:
        """``rule``, ``zero``, or nothing."""
        if not self.rules:
            return ""
        return "rule" if any(rule.fn is not None for rule in self.rules) else "zero"

    def as_json(self) -> dict[str, Any]:
        """All of it, for other programs."""
        return {
            "domain": self.domain or "ai.onnx",
            "op": self.op,
            "cpu": self.runs_on(CPU),
            "cuda": self.runs_on(CUDA),
            "gradient": self.gradient or None,
            "kernels": [kernel_json(kernel) for kernel in self.kernels],
            "rules": [rule_json(rule) for rule in self.rules],
        }


def coverage() -> list[Coverage]:
    """Every operator of ONNX and of the training domain, by name."""
    schemas.ensure_registered()
    keys = {(s.domain, s.name) for s in onnx.defs.get_all_schemas() if _is_onnx(s.domain)}
    keys |= {*schemas.training_ops(), *schemas.forward_ops()}
    kernels: dict[tuple[str, str], list[Kernel]] = {}
    for kernel in declared_kernels():
        kernels.setdefault((kernel.domain, kernel.op), []).append(kernel)
    rules: dict[tuple[str, str], list[Rule]] = {}
    for rule in all_rules():
        rules.setdefault((rule.domain, rule.op), []).append(rule)
    keys |= kernels.keys() | rules.keys()
    return [
        Coverage(*key, tuple(kernels.get(key, ())), tuple(rules.get(key, ())))
        for key in sorted(keys)
    ]


def _is_onnx(domain: str) -> bool:
    return domain == ONNX or domain.startswith("ai.onnx.")


def versions(item: Kernel | Rule) -> str:
    """Opset versions that a kernel or rule is for: ``13+`` or ``1-12``."""
    return f"{item.since}+" if item.until is None else f"{item.since}-{item.until}"


def kernel_json(kernel: Kernel) -> dict[str, Any]:
    """A kernel with every combination of element types that it is registered for."""
    names = list(kernel.types)
    choices = [
        sorted(dtype_name(t) for t in kernel.types[name] if t != DataType.UNDEFINED)
        for name in names
    ]
    return {
        "providers": sorted(provider.name for provider in kernel.on),
        "since": kernel.since,
        "until": kernel.until,
        "types": [dict(zip(names, picked, strict=True)) for picked in itertools.product(*choices)],
        "place": kernel.place,
    }


def rule_json(rule: Rule) -> dict[str, Any]:
    """A gradient rule."""
    return {
        "kind": "zero" if rule.fn is None else "rule",
        "since": rule.since,
        "until": rule.until,
        "place": None if rule.fn is None else f"gradients/{rule.place}",
    }
