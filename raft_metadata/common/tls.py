"""Mutual TLS between nodes: three files, two contexts, and the name a certificate must carry.

Every node has a certificate of the cluster's own authority with its node name (``controller-101``)
among its DNS names. Who connects and who accepts both show theirs, and both look at the name.
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
    """The authorities whose certificates are believed; the cluster's own, nobody else's."""
    certificate: Path
    """This node's certificate, followed by what leads to the authority, if anything does."""
    key: Path


@dataclass(frozen=True, slots=True)
class TlsContexts:
    """One for connections that are accepted, one for those that are made."""

    server: ssl.SSLContext
    client: ssl.SSLContext


def load_contexts(files: TlsFiles) -> TlsContexts:
    """Read the files; KafkaError INVALID_CONFIG naming the key that can't be used."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.verify_mode = ssl.CERT_REQUIRED
    server.num_tickets = 0  # nothing is resumed: every connection shows its certificate
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # looks at names unless told not to
    for context in (server, client):
        context.minimum_version = ssl.TLSVersion.TLSv1_3  # both ends are ours
        for key, path in (("ca", files.ca), ("certificate", files.certificate), ("key", files.key)):
            if not path.is_file():
                raise _unusable(key, path, "no such file")
        try:
            context.load_verify_locations(files.ca)
        except OSError as error:  # ssl.SSLError is one
            raise _unusable("ca", files.ca, error) from error
        try:
            # A password would be asked for on the terminal, for ever.
            context.load_cert_chain(files.certificate, files.key, password=lambda: b"")
        except OSError as error:
            what = f"can't be used with tls.key = {str(files.key)!r}: {error}"
            raise _unusable("certificate", files.certificate, what) from error
    return TlsContexts(server, client)


def _unusable(key: str, path: Path, why: object) -> KafkaError:
    text = f"tls.{key} = {str(path)!r}: {why}; expected a PEM file, the key without a password"
    return KafkaError(ErrorCode.INVALID_CONFIG, text)


def dns_names(certificate: Mapping[str, object] | None) -> frozenset[str]:
    """The DNS names in a verified certificate, as `ssl.SSLSocket.getpeercert` gives it."""
    found = (certificate or {}).get("subjectAltName", ())
    names: tuple[tuple[str, str], ...] = found if isinstance(found, tuple) else ()
    return frozenset(name for kind, name in names if kind == "DNS")
