"""HTTP and processes: the API's contract, servers, peer requests, client, CLI and nodes."""
