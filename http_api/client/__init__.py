"""Python client of the public HTTP API."""
