"""The public HTTP listener."""
