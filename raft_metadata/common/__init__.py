"""Ids, errors, clock, configs: the vocabulary that every other package uses."""
