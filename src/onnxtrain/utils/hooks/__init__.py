"""Look at the activations of a torch module and at their gradients while it trains."""

from onnxtrain.utils.hooks.manager import (
    GlobalSubscriberManager,
    SubscriberBase,
    SubscriberManager,
    inspect_activation,
)
from onnxtrain.utils.hooks.statistics import StatisticsSubscriber

__all__ = [
    "GlobalSubscriberManager",
    "StatisticsSubscriber",
    "SubscriberBase",
    "SubscriberManager",
    "inspect_activation",
]
