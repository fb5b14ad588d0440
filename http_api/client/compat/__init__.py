"""Interfaces of other Kafka clients, over the classes of `http_api.client.sdk`."""
