"""Ids, errors, clock: the words every other package uses."""
