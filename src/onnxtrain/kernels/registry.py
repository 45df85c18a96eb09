"""What a kernel is, how it is declared, and how a node finds it.

A kernel is a plain function over torch tensors. Inputs are positional parameters in the order of
the operator's schema, attributes are keyword-only parameters with the schema's names and defaults,
and everything else that a planner must know stands in the decorator::

    @kernel("SoftmaxGrad_13", domain=MS, T=FLOATS, inplace=["dy"])
    def softmax_grad_13(dy, y, *, axis=-1, out=None):
        ...
"""

from __future__ import annotations

import dataclasses
import inspect
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from onnxtrain.errors import NoKernelError, RegistrationError
from onnxtrain.types import CPU, CUDA, DataType, Provider, dtype_name, op_name
from onnxtrain.unrunnable import why_unknown, why_unrunnable

BOTH = frozenset({CPU, CUDA})
RESOURCES = frozenset(
    {
        "wanted",
        "rng",
        "device",
        "deterministic",
        "opset",
        "groups",
        "node",
        "in_shapes",
        "out_shape",
        "out_types",
        "taken",
    }
)
"""What a kernel may ask for with ``needs``; the planner binds it as a keyword argument.

``taken`` tells that what it overwrites is bound and nobody needs its other inputs any more: it may
keep their memory instead of copying it.
"""

_F = TypeVar("_F", bound=Callable[..., Any])


@dataclasses.dataclass(frozen=True, eq=False)
class Kernel:
    """One kernel: a function and the facts that a planner may rely on.

    Attributes:
        fn: The function that computes the outputs.
        op: Operator name.
        domain: Operator domain.
        since: First opset version it implements.
        until: Last opset version it implements, or None for all later ones.
        on: Providers it runs on.
        types: Accepted element types by the schema's own type names; a missing name accepts all.
        host: Inputs that arrive as Python values (nested lists of numbers) instead of tensors.
        host_out: Outputs (by index) that are made on the CPU whatever the provider.
        view: Input whose storage the outputs may share, or a map from input to output index.
        whole: Whether views have every element of the input exactly once, as a reshaped one has.
        inplace: Inputs that may be overwritten by the first output, through ``out=``.
        mutates: Inputs that are always overwritten.
        updates: Inputs that are overwritten if they are bound state (then ``update=True``).
        needs: Resources bound by the planner, see ``RESOURCES``.
        outputs: How many values the function returns: 1 (the bare value), n (a tuple of n), or
            0 for as many as the node has (a sequence).
        special: The planner's own word for forms that are not a plain call (``yield``).
        host_params: Parameters of a subgraph (by index) that the kernel passes from the host.
        host_results: Results of a subgraph (by index) that the kernel reads on the host.
        text: Whether it reads strings (numpy arrays) itself; others only see where they are.
    """

    fn: Callable[..., Any]
    op: str
    domain: str = ""
    since: int = 1
    until: int | None = None
    on: frozenset[Provider] = BOTH
    types: Mapping[str, frozenset[DataType]] = dataclasses.field(default_factory=dict)
    host: tuple[str, ...] = ()
    host_out: tuple[int, ...] = ()
    view: Mapping[str, tuple[int, ...] | None] = dataclasses.field(default_factory=dict)
    whole: bool = False
    inplace: tuple[str, ...] = ()
    mutates: tuple[str, ...] = ()
    updates: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    outputs: int = 1
    special: str | None = None
    host_params: tuple[int, ...] = ()
    host_results: tuple[int, ...] = ()
    text: bool = False
    inputs: tuple[str, ...] = ()
    variadic: str | None = None
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    any_attribute: bool = False

    @property
    def place(self) -> str:
        """Where the function stands, as ``kernels/math.py:12``."""
        code = inspect.unwrap(self.fn).__code__
        path = pathlib.PurePath(code.co_filename)
        parts = path.parts[path.parts.index("onnxtrain") + 1 :] if "onnxtrain" in path.parts else ()
        return f"{'/'.join(parts) or path.name}:{code.co_firstlineno}"

    def input_name(self, index: int) -> str:
        """Parameter that takes the input at a position."""
        if index < len(self.inputs):
            return self.inputs[index]
        if self.variadic is None:
            raise IndexError(index)
        return self.variadic

    def takes(self, version: int, types: Mapping[str, DataType | None]) -> bool:
        """Whether the opset version and the types (None: unknown) are inside its claims."""
        if version < self.since or (self.until is not None and version > self.until):
            return False
        return all(
            types.get(name) is None or types[name] in accepted
            for name, accepted in self.types.items()
        )

    def overlaps(self, other: Kernel) -> bool:
        """Whether some node would find both equally good."""
        if (self.domain, self.op, self.on) != (other.domain, other.op, other.on):
            return False
        last, other_last = self.until or 10**9, other.until or 10**9
        if self.since > other_last or other.since > last:
            return False
        shared = self.types.keys() & other.types.keys()
        return all(self.types[name] & other.types[name] for name in shared)

    def describe(self) -> str:
        """One line for error messages and listings."""
        versions = f"{self.since}+" if self.until is None else f"{self.since}-{self.until}"
        providers = "|".join(sorted(p.name for p in self.on))
        types = " ".join(
            f"{name}={{{','.join(sorted(dtype_name(t) for t in accepted))}}}"
            for name, accepted in self.types.items()
        )
        return f"{self.op} {versions} on {providers} {types}".rstrip() + f" ({self.place})"


class KernelRegistry:
    """Kernels by operator; look-up happens once, when a plan is made."""

    def __init__(self, kernels: Iterable[Kernel] = ()) -> None:
        self._kernels: dict[tuple[str, str], list[Kernel]] = {}
        for item in kernels:
            self.add(item)

    def add(self, new: Kernel) -> None:
        """Add a kernel.

        Raises:
            RegistrationError: if another one already claims the same nodes.
        """
        known = self._kernels.setdefault((new.domain, new.op), [])
        for old in known:
            if old.fn is new.fn and old == new:
                return
            if old.overlaps(new):
                raise RegistrationError(
                    f"two kernels claim {op_name(new.domain, new.op)}\n"
                    f"  have  {old.describe()}\n  new   {new.describe()}"
                )
        known.append(new)

    def find(
        self,
        domain: str,
        op: str,
        version: int,
        types: Mapping[str, DataType | None],
        provider: Provider,
    ) -> Kernel | None:
        """The most specific kernel for a node, or None."""
        found = [
            k
            for k in self._kernels.get((domain, op), ())
            if provider in k.on and k.takes(version, types)
        ]
        return min(found, key=lambda k: len(k.on), default=None)

    def resolve(
        self,
        domain: str,
        op: str,
        version: int,
        types: Mapping[str, DataType | None],
        provider: Provider,
        node: str = "",
    ) -> Kernel:
        """The most specific kernel for a node.

        Raises:
            NoKernelError: if there is none; the message lists what exists.
        """
        found = self.find(domain, op, version, types, provider)
        if found is None:
            raise NoKernelError(self._miss(domain, op, version, types, provider, node))
        return found

    def _miss(
        self,
        domain: str,
        op: str,
        version: int,
        types: Mapping[str, DataType | None],
        provider: Provider,
        node: str,
    ) -> str:
        known = ", ".join(f"{n}={dtype_name(t)}" for n, t in types.items() if t is not None)
        text = f"no {provider} kernel for {op_name(domain, op)} (opset {version}"
        text += (f", {known}" if known else "") + ")" + (f", node '{node}'" if node else "")
        have = self._kernels.get((domain, op), [])
        for item in have:
            text += f"\n  have  {item.describe()}"
        if not have:
            text += f"\n  have  no kernel for this operator{self._elsewhere(domain, op)}"
            text += f"\n  {unknown}" if (unknown := why_unknown(domain, op)) else ""
        if reason := why_unrunnable(domain, op):
            return f"{text}\n  {reason}"
        if not have:
            text += "\n  declare one with @kernel(..., registry=default_registry()),"
            text += " or hand the session a KernelRegistry that has one"
        return text

    def _elsewhere(self, domain: str, op: str) -> str:
        others = [op_name(d, o) for d, o in self._kernels if o.lower() == op.lower()]
        return f"; did you mean {', '.join(others)}?" if others else ""

    def kernels(self) -> list[Kernel]:
        """All kernels, by domain and operator."""
        return [k for key in sorted(self._kernels) for k in self._kernels[key]]

    def kernels_of(self, domain: str, op: str) -> list[Kernel]:
        """The kernels of one operator."""
        return list(self._kernels.get((domain, op), ()))

    def __contains__(self, key: tuple[str, str]) -> bool:
        return bool(self._kernels.get(key))

    def __len__(self) -> int:
        return sum(map(len, self._kernels.values()))


DECLARED = KernelRegistry()
"""Every kernel that the package declares; append-only, filled when the families are imported."""


def kernel(
    op: str,
    *more_ops: str,
    domain: str = "",
    since: int = 1,
    until: int | None = None,
    on: Provider | None = None,
    host: Sequence[str] = (),
    host_out: Sequence[int] = (),
    view: str | Mapping[str, int] | None = None,
    whole: bool = False,
    inplace: Sequence[str] = (),
    mutates: Sequence[str] = (),
    updates: Sequence[str] = (),
    needs: Sequence[str] = (),
    outputs: int = 1,
    special: str | None = None,
    host_params: Sequence[int] = (),
    host_results: Sequence[int] = (),
    text: bool = False,
    registry: KernelRegistry | None = DECLARED,
    **types: Iterable[DataType],
) -> Callable[[_F], _F]:
    """Declare a function to be the kernel of an operator (or of several with the same meaning)."""

    def declare(fn: _F) -> _F:
        for name in (op, *more_ops):
            made = Kernel(
                fn=fn,
                op=name,
                domain=domain,
                since=since,
                until=until,
                on=BOTH if on is None else frozenset({on}),
                types={key: frozenset(value) for key, value in types.items()},
                host=tuple(host),
                host_out=tuple(host_out),
                view=_views(view),
                whole=whole,
                inplace=tuple(inplace),
                mutates=tuple(mutates),
                updates=tuple(updates),
                needs=tuple(needs),
                outputs=outputs,
                special=special,
                host_params=tuple(host_params),
                host_results=tuple(host_results),
                text=text,
                **_signature(fn, name, needs),
            )
            _check_facts(made)
            if registry is not None:
                registry.add(made)
            fn.__dict__.setdefault("kernels", []).append(made)
        return fn

    return declare


def _views(view: str | Mapping[str, int] | None) -> dict[str, tuple[int, ...] | None]:
    if view is None:
        return {}
    if isinstance(view, str):
        return {view: None}
    return {name: (index,) for name, index in view.items()}


def _signature(fn: Callable[..., Any], op: str, needs: Sequence[str]) -> dict[str, Any]:
    """Inputs, variadic input and attributes with defaults, read off the parameters."""
    inputs: list[str] = []
    attributes: dict[str, Any] = {}
    variadic, any_attribute = None, False
    for p in inspect.signature(fn).parameters.values():
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD):
            inputs.append(p.name)
        elif p.kind is p.VAR_POSITIONAL:
            variadic = p.name
        elif p.kind is p.VAR_KEYWORD:
            any_attribute = True
        else:
            attributes[p.name] = p.default
    if missing := set(needs) - attributes.keys():
        raise RegistrationError(f"kernel of {op} needs {sorted(missing)} but does not take it")
    for name in ("out", "update", *needs):
        attributes.pop(name, None)
    return {
        "inputs": tuple(inputs),
        "variadic": variadic,
        "attributes": attributes,
        "any_attribute": any_attribute,
    }


def _check_facts(made: Kernel) -> None:
    """Facts name parameters; a name that the function does not have is an error at import."""
    names = {*made.inputs, made.variadic}
    for fact in ("host", "view", "inplace", "mutates", "updates"):
        if unknown := set(getattr(made, fact)) - names:
            raise RegistrationError(
                f"kernel of {made.op}: {fact} names {sorted(unknown)}, "
                f"but the parameters are {sorted(n for n in names if n)} ({made.place})"
            )
    if unknown := set(made.needs) - RESOURCES:
        raise RegistrationError(
            f"kernel of {made.op}: unknown resource {sorted(unknown)}, "
            f"known are {sorted(RESOURCES)} ({made.place})"
        )
    parameters = inspect.signature(made.fn).parameters
    for fact, keyword in (("inplace", "out"), ("updates", "update")):
        if getattr(made, fact) and keyword not in parameters:
            raise RegistrationError(
                f"kernel of {made.op} declares {fact} but has no {keyword}= ({made.place})"
            )
