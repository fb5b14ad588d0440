"""The producer of aiokafka."""

from http_api.client.compat.aiokafka_producer import AIOKafkaProducer

__all__ = ["AIOKafkaProducer"]
