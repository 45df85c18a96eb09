"""Look at the activations of a torch module and at their gradients while it trains."""

from onnxtrain.utils.hooks._statistics_subscriber import StatisticsSubscriber, inspect_activation
from onnxtrain.utils.hooks._subscriber_base import RuntimeStates, SubscriberBase
from onnxtrain.utils.hooks._subscriber_manager import (
    GlobalSubscriberManager,
    SubscriberManager,
    no_increase_global_step,
)

__all__ = [
    "GlobalSubscriberManager",
    "RuntimeStates",
    "StatisticsSubscriber",
    "SubscriberBase",
    "SubscriberManager",
    "inspect_activation",
    "no_increase_global_step",
]
