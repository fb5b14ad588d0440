"""Lifecycle of a broker and the one door to it, `BrokerApis`."""
