"""The group coordinator: groups, consumer instances and committed offsets, kept in the log (D8)."""
