"""The immutable metadata image, the deltas that change it, and the publishers of changes."""
