"""The consumer of aiokafka."""

from http_api.client.compat.aiokafka_consumer import AIOKafkaConsumer

__all__ = ["AIOKafkaConsumer"]
