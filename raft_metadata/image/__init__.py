"""The immutable metadata image, its delta, and who is told about it."""
