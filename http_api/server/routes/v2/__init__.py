"""The v2 door: Confluent REST Proxy's produce and metadata paths, and the direct fetch."""
