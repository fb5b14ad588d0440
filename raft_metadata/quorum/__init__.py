"""The metadata quorum and the controller's shell: the only package that imports pysyncobj."""
