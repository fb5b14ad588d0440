"""A broker on its one event loop, and the port to it for HTTP, `BrokerApis`."""
