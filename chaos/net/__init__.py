"""The network between the nodes: a real Toxiproxy on every directed link, set and verified."""
