"""`make demo`: a cluster receives every flight, is broken repeatedly, and is read back."""

from chaos.demo.story import main

__all__ = ["main"]
