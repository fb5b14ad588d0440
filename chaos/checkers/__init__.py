"""Checks of a finished run: pure functions from a history and readings to a verdict."""
