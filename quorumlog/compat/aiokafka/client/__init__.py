"""The client of aiokafka, for metadata."""

from http_api.client.compat.aiokafka_client import AIOKafkaClient

__all__ = ["AIOKafkaClient"]
