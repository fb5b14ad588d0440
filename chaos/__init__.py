"""Faults made outside the product, and pure checkers that read what clients saw."""
