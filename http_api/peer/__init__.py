"""Servers and clients between nodes: brokers to brokers, and brokers to controllers."""
