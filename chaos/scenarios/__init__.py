"""Scenarios: a fault and its expected effects each; `chaos/runner.py` does the rest of a run."""
