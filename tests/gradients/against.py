"""First and second gradients of a model in ONNX's text form, compared with torch's."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import torch

from graph.text import proto
from onnxtrain.gradients import build_gradient_graph
from onnxtrain.runtime.session import InferenceSession

Reference = Callable[..., torch.Tensor]
PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}


class Twice:
    """The loss of a model, its gradients, and the gradients of a product with those.

    Args:
        text: A model with the scalar output ``l``.
        xs: Inputs to differentiate by.
        opset: The version that the text is written in.
        device: Where the gradients are computed.
    """

    def __init__(self, text: str, *xs: str, opset: int = 21, device: str = "cpu") -> None:
        self.xs = xs
        once = build_gradient_graph(proto(text, opset), xs, loss="l")
        firsts = [f"{x}_grad" for x in xs]
        both = build_gradient_graph(once, xs, firsts, allow_unused=True)
        for made in (once, both):
            onnx.checker.check_model(made, full_check=True)
        places = [PROVIDERS[device]]
        self.once = InferenceSession(once, providers=places)
        self.both = InferenceSession(both, providers=places)

    def agrees(self, reference: Reference, **feeds: Any) -> None:
        """Compare with a torch function of the xs that gives the loss."""
        rng = np.random.default_rng(0)
        leaves = [torch.tensor(feeds[x], requires_grad=True) for x in self.xs]
        loss = reference(*leaves)
        grads = torch.autograd.grad(
            loss, leaves, create_graph=True, allow_unused=True, materialize_grads=True
        )
        ours = self._run(self.once, feeds)
        _close(ours["l"], loss)
        for x, grad in zip(self.xs, grads, strict=True):
            _close(ours[f"{x}_grad"], grad)
        weights = {f"{x}_grad_grad": rng.normal(size=feeds[x].shape) for x in self.xs}
        product = sum(0 * (leaf * leaf).sum() for leaf in leaves)
        for grad, weight in zip(grads, weights.values(), strict=True):
            product = product + (grad * torch.tensor(weight)).sum()
        seconds = torch.autograd.grad(product, leaves, allow_unused=True, materialize_grads=True)
        ours = self._run(self.both, feeds | weights)
        for x, second in zip(self.xs, seconds, strict=True):
            if f"{x}_grad.2" in ours:
                _close(ours[f"{x}_grad.2"], second)
            else:
                assert not second.any()

    def _run(self, session: InferenceSession, feeds: dict[str, Any]) -> dict[str, Any]:
        taken = {argument.name for argument in session.get_inputs()}
        arrays = {n: _array(v) for n, v in feeds.items() if n in taken}
        names = [output.name for output in session.get_outputs()]
        return dict(zip(names, session.run(None, arrays), strict=True))


def agrees_once(text: str, xs: list[str], reference: Reference, **feeds: Any) -> None:
    """Compare the first gradients of a loss ``l`` alone, where second ones take long to build."""
    of = build_gradient_graph(proto(text), xs, loss="l")
    onnx.checker.check_model(of, full_check=True)
    arrays = {name: _array(value) for name, value in feeds.items()}
    found = InferenceSession(of).run(["l", *(f"{x}_grad" for x in xs)], arrays)
    leaves = [torch.tensor(feeds[x], requires_grad=True) for x in xs]
    loss = reference(*leaves)
    grads = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
    for ours, theirs in zip(found, [loss, *grads], strict=True):
        _close(ours, theirs)


def _array(value: Any) -> Any:
    return value if isinstance(value, list) else np.asarray(value)


def _close(ours: Any, theirs: torch.Tensor) -> None:
    np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=1e-9, atol=1e-12)
