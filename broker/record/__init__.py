"""The record batch and its JSON lines; pure."""
