"""Everything that speaks HTTP or runs a process: contract, servers, peers, client, CLI, nodes."""
