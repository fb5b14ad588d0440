"""The classes that `import quorumlog` gives to programs, over the calls of `http_api.client`."""
