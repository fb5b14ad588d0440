"""The assignor that keeps partitions where they are."""
