"""The interfaces of aiokafka that programs implement."""

from http_api.client.compat.aiokafka_types import AbstractTokenProvider, ConsumerRebalanceListener

__all__ = ["AbstractTokenProvider", "ConsumerRebalanceListener"]
