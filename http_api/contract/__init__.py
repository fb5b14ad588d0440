"""Shapes of requests and answers that servers and clients share: JSON, media types, error table."""
