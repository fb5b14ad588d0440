"""Disk faults on demand: full, slow, hanging, failing, damaged, and losing power."""
