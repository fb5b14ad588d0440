"""The v3 door: Confluent's admin API."""
