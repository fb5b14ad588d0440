"""Ways to a cluster: TLS, credentials and further headers of a client's requests.

Both transports open their connections with a `ClientNetwork`: it makes the TLS context, once, and
the headers, for each new connection and again after a 401. Nothing here logs or shows a credential.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from http_api.client.client_errors import ConfigError

if TYPE_CHECKING:
    import ssl

CLIENT_ID_HEADER: Final = "Quorumlog-Client-Id"
CONNECT_TIMEOUT_S: Final = 3.0

Headers = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSecurity:
    """Certificates and credentials of a client.

    ``ca``, ``certificate`` and ``key`` are paths of PEM files; without ``ca`` the system's
    authorities are trusted. A user has a ``password`` or a ``password_file``, a bearer has a
    ``token`` or a ``token_file``; files are read again for each connection.
    """

    ca: str | None = None
    certificate: str | None = None
    key: str | None = field(default=None, repr=False)
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    password_file: str | None = None
    token: str | None = field(default=None, repr=False)
    token_file: str | None = None

    def __post_init__(self) -> None:
        """Refuse contradictions with a `ConfigError`."""
        passwords = [self.password, self.password_file]
        tokens = [self.token, self.token_file]
        if self.user is None and passwords != [None, None]:
            msg = "security: a password without a user"
        elif self.user is not None and passwords.count(None) != 1:
            msg = "security: a user needs either password or password_file"
        elif self.user is not None and ":" in self.user:
            msg = f"security: user={self.user!r}: expected a name without a colon"
        elif tokens.count(None) == 0 or (self.user is not None and tokens != [None, None]):
            msg = "security: expected one of user, token and token_file"
        elif (self.certificate is None) != (self.key is None):
            msg = "security: certificate and key are used together"
        else:
            return
        raise ConfigError(msg)

    @property
    def has_files(self) -> bool:
        """True if credentials come from a file, which may have changed after a 401."""
        return self.password_file is not None or self.token_file is not None

    def headers(self) -> dict[str, str]:
        """Return the header with the credentials, or nothing; raises `ConfigError` for a file."""
        if self.user is not None:
            password = self.password
            if password is None:
                password = _first_line("password_file", self.password_file)
            text = base64.b64encode(f"{self.user}:{password}".encode()).decode()
            return {"Authorization": f"Basic {text}"}
        token = self.token
        if token is None and self.token_file is not None:
            token = _first_line("token_file", self.token_file)
        return {} if token is None else {"Authorization": f"Bearer {token}"}


def _first_line(name: str, path: str | None) -> str:
    assert path is not None
    try:
        return Path(path).read_text(encoding="utf-8").partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError) as error:
        msg = f"security: {name}={path!r} can't be read: {error}"
        raise ConfigError(msg) from error


@dataclass(slots=True, kw_only=True, eq=False)
class ClientNetwork:
    """Settings of a client's connections; shared by all of its threads."""

    security: ClientSecurity | None = None
    headers: Headers | Callable[[], Headers] | None = None
    client_id: str | None = None
    connect_timeout_s: float = CONNECT_TIMEOUT_S
    _context: ssl.SSLContext | None = field(default=None, init=False, repr=False)

    @property
    def has_new_headers(self) -> bool:
        """True if asking for the headers again, after a 401, may give other ones."""
        has_files = self.security is not None and self.security.has_files
        return has_files or callable(self.headers)

    def connection_headers(self) -> dict[str, str]:
        """Return the headers of all requests of a new connection; raises `ConfigError`."""
        found = {} if self.client_id is None else {CLIENT_ID_HEADER: self.client_id}
        if self.security is not None:
            found |= self.security.headers()
        given = self.headers() if callable(self.headers) else self.headers
        for name, value in (given or {}).items():
            if not _is_header(name, value):
                msg = f"setting headers: {name!r}: expected a name and a text without line breaks"
                raise ConfigError(msg)
            found[name] = value
        return found

    def tls_context(self) -> ssl.SSLContext:
        """Return the context of https connections; raises `ConfigError` for a bad file."""
        if self._context is None:
            import ssl

            security = self.security or ClientSecurity()
            try:
                context = ssl.create_default_context(cafile=security.ca)
                if security.certificate is not None:
                    context.load_cert_chain(security.certificate, security.key)
            except (OSError, ssl.SSLError) as error:
                msg = f"security: a file for TLS can't be used: {error}"
                raise ConfigError(msg) from error
            self._context = context
        return self._context


def _is_header(name: object, value: object) -> bool:
    if not isinstance(name, str) or not isinstance(value, str) or not name.isascii():
        return False
    return bool(name) and not any(one in name + value for one in "\r\n\0") and ":" not in name
