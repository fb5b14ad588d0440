"""Servers and clients between nodes."""
