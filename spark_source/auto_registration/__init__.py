"""Folder that is put on the import path, so that `pyspark_quorumlog` is a top-level module."""
