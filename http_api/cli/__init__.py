"""The `quorumlog` command line."""
