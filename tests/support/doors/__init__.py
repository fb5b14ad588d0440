"""Test doors: the only functions by which tests reach private names of the product.

A test uses a public method or observes behaviour where it can. Where it can't, it goes through one
of these functions, whose docstrings say why; one module per package of the product. Only the
planted faults (`tests/support/planted`, `tests/chaos/planted`) patch private names too: they are
mutants of the source.
"""
