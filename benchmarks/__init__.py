"""What it costs and how long it takes, beside a floor of the benchmark's own, in the same run."""
