"""The only place that knows pysyncobj."""
