"""Faults made from outside the product, and pure checkers of what its clients saw."""
