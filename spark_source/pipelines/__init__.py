"""Queries that are worth having ready."""
