"""`make demo`: a cluster is fed every flight, broken again and again, and asked for everything."""

from chaos.demo.entry import main

__all__ = ["main"]
