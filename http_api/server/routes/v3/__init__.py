"""The v3 API: Confluent's admin API."""
