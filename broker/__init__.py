"""The broker: partition logs, replication and the one door to them."""
