"""HTTP and processes: the API's contract, servers, requests between nodes, client, CLI and nodes."""
