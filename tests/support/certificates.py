"""Certificates for tests, of authorities made on the spot (the openssl program may be missing)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme

from raft_metadata.common.tls import TlsFiles


class Authority:
    """A cluster's own authority, and the files of its nodes in one folder."""

    def __init__(self, folder: Path) -> None:
        self._ca = trustme.CA(key_type=trustme.KeyType.ECDSA)
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.ca = folder / "ca.pem"
        self._ca.cert_pem.write_to_path(self.ca)

    def files(
        self, *names: str, ca: Path | None = None, expired: bool = False, label: str = ""
    ) -> TlsFiles:
        """A certificate for these names; `ca` is whom its owner believes, if not this one."""
        ends = datetime.now(UTC) - timedelta(days=1) if expired else None
        issued = self._ca.issue_cert(*names, not_after=ends, key_type=trustme.KeyType.ECDSA)
        base = self._folder / (label or names[0])
        certificate, key = base.with_suffix(".pem"), base.with_suffix(".key")
        certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(key)
        return TlsFiles(ca=ca or self.ca, certificate=certificate, key=key)
