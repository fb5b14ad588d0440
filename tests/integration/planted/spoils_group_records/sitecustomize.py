"""Planted: a broker writes commits with certain metadata as records that no version can decode."""

import sys

if "broker" in sys.orig_argv:
    from broker.server import coordinator_ports

    encode_value, produce_record = coordinator_ports.encode_value, coordinator_ports.ProduceRecord

    def value_text(value):
        wish = getattr(value, "metadata", "")
        return b'{"offset":"later"}' if wish == "spoil the value" else encode_value(value)

    def record(key=None, value=None):
        """Return a record, with a key that names no group where the value asks for it."""
        if b'"spoil the key"' in bytes(value):
            key = coordinator_ports.make_raw(b'["lease",7]')
        return produce_record(key=key, value=value)

    coordinator_ports.encode_value = value_text
    coordinator_ports.ProduceRecord = record
