"""Declarations of every route: parameters, bodies, answers and error codes, as plain data."""
