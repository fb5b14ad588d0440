"""The pure deciders of the active controller."""
