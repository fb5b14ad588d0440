"""The v2 API: Confluent REST Proxy's produce, consumer and metadata paths, and the direct fetch."""
