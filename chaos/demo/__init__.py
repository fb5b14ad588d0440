"""`make demo`: a cluster receives every flight, is broken repeatedly, and is read back."""

from chaos.demo.entry import main

__all__ = ["main"]
