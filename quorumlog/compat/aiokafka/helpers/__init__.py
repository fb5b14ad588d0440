"""The helper of aiokafka for TLS."""

from http_api.client.compat.aiokafka_settings import create_ssl_context

__all__ = ["create_ssl_context"]
