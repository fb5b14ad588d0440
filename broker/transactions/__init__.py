"""Transactions: what a home decides, what its stages hold, and the records of both. Pure."""
