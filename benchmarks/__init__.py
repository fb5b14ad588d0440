"""Benchmarks: costs and durations, each beside a floor of the benchmark's own in the same run."""
