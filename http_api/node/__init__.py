"""Composition root: one node from one config file, and the local cluster of them."""
