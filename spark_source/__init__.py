"""The PySpark data source. No code yet: it arrives with consumer groups."""
