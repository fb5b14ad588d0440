"""Mutual TLS between nodes: three files, two contexts, and the name a certificate must carry.

Every node has a certificate of the cluster's own authority with its node name (``controller-101``)
among its DNS names. Both ends of a connection present their certificate and check the other's name.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from raft_metadata.common.errors import ErrorCode, KafkaError


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """``[tls]`` of a node: PEM files, the key without a password. Read once, at start."""

    ca: Path
    """The authorities whose certificates are accepted: the cluster's own and no other."""
    certificate: Path
    """This node's certificate, followed by the intermediate certificates, if there are any."""
    key: Path


@dataclass(frozen=True, slots=True)
class TlsContexts:
    """The TLS context of accepted connections and that of outgoing ones."""

    server: ssl.SSLContext
    client: ssl.SSLContext


def load_contexts(files: TlsFiles) -> TlsContexts:
    """Read the three files and return both contexts.

    Raises KafkaError INVALID_CONFIG naming the key that can't be used.
    """
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.verify_mode = ssl.CERT_REQUIRED
    server.num_tickets = 0  # no session resumption: every connection presents its certificate
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # checks host names by default
    for context in (server, client):
        context.minimum_version = ssl.TLSVersion.TLSv1_3  # both ends are nodes of this project
        for key, path in (("ca", files.ca), ("certificate", files.certificate), ("key", files.key)):
            if not path.is_file():
                raise _unusable(key, path, "no such file")
        try:
            context.load_verify_locations(files.ca)
        except OSError as error:  # includes ssl.SSLError
            raise _unusable("ca", files.ca, error) from error
        try:
            # Without a password callback, OpenSSL would prompt on the terminal and block.
            context.load_cert_chain(files.certificate, files.key, password=lambda: b"")
        except OSError as error:
            what = f"can't be used with tls.key = {str(files.key)!r}: {error}"
            raise _unusable("certificate", files.certificate, what) from error
    return TlsContexts(server, client)


def _unusable(key: str, path: Path, why: object) -> KafkaError:
    text = f"tls.{key} = {str(path)!r}: {why}; expected a PEM file, the key without a password"
    return KafkaError(ErrorCode.INVALID_CONFIG, text)


def dns_names(certificate: Mapping[str, object] | None) -> frozenset[str]:
    """Return the DNS names in a verified certificate, as `ssl.SSLSocket.getpeercert` returns it."""
    found = (certificate or {}).get("subjectAltName", ())
    names: tuple[tuple[str, str], ...] = found if isinstance(found, tuple) else ()
    return frozenset(name for kind, name in names if kind == "DNS")
