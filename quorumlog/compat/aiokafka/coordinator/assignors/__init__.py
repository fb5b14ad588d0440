"""The ways in which a group can share partitions."""
