"""Ways to a cluster: TLS, credentials and further headers of a client's requests.

Both transports open their connections with a `ClientNetwork`: it makes the TLS context, once, and
the headers, for each new connection and again after a 401. `server_address` reads a broker's URL
for both. Nothing here logs or shows a credential: error texts name the setting, never its value.
"""

from __future__ import annotations

import base64
import re
import socket
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from http_api.client.client_errors import ConfigError

if TYPE_CHECKING:
    import ssl

CLIENT_ID_HEADER: Final = "Quorumlog-Client-Id"
CONNECT_TIMEOUT_S: Final = 3.0
UNDELIVERED_MS_MAX: Final = 15_000
"""Time for which the kernel tries to deliver what no broker acknowledges, as between brokers."""
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""Name of a header (RFC 9110)."""
_VALUE: Final = re.compile(r"[\x20-\x7e\t]*")
"""Value of a header: ASCII, as the two transports encode anything else differently."""
_PATH: Final = re.compile(r"(/[\x21\x24-\x3e\x40-\x7e]*)?")
"""Path of a URL, quoted: no space, control character, query or fragment."""
OWN_HEADERS: Final = frozenset(
    {
        "accept",
        "accept-encoding",
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "expect",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Headers that the transports set, in lower case; others would make requests unreadable."""

Headers = Mapping[str, str]


def server_address(url: str) -> tuple[str, str, int, str]:
    """Return scheme, host, port and path of a broker's URL; raises ValueError if it is none.

    A path begins with a slash and is quoted, or is empty. A user, query or fragment is refused.
    """
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    is_plain = not (parts.query or parts.fragment) and "@" not in parts.netloc
    is_http = parts.scheme in {"http", "https"} and bool(parts.hostname)
    if not is_http or not is_plain or not _PATH.fullmatch(parts.path):
        msg = "expected http://host:port or https://host:port"
        raise ValueError(msg)
    return parts.scheme, str(parts.hostname), port, parts.path


def tune_socket(sock: socket.socket) -> None:
    """Have the kernel give up what it can't deliver, also of a connection that was closed.

    Otherwise a broker that was unreachable gets a request minutes after its client gave it up.
    """
    if sock.family in {socket.AF_INET, socket.AF_INET6} and hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNDELIVERED_MS_MAX)


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
    context: ssl.SSLContext | None = field(default=None, repr=False)
    """TLS settings as they are, in place of ``ca``, ``certificate`` and ``key``."""

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
        elif self.context is not None and (self.ca, self.certificate) != (None, None):
            msg = "security: context takes the place of ca, certificate and key"
        elif self.token is not None and not _is_token(self.token):
            msg = "security: token: expected ASCII characters without spaces"
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
            try:
                text = base64.b64encode(f"{self.user}:{password}".encode()).decode()
            except UnicodeEncodeError:
                msg = "security: user and password: expected texts in UTF-8"
                raise ConfigError(msg) from None  # the cause would hold the password
            return {"Authorization": f"Basic {text}"}
        token = self.token
        if token is None and self.token_file is not None:
            token = _first_line("token_file", self.token_file)
            if not _is_token(token):
                msg = (
                    f"security: token_file={self.token_file!r}: expected a first line of ASCII "
                    "characters without spaces"
                )
                raise ConfigError(msg)
        return {} if token is None else {"Authorization": f"Bearer {token}"}


def _is_token(token: str) -> bool:
    return bool(token) and bool(_VALUE.fullmatch(token)) and not re.search(r"[ \t]", token)


def _first_line(name: str, path: str | None) -> str:
    assert path is not None
    try:
        return Path(path).read_text(encoding="utf-8").partition("\n")[0].strip()
    except OSError as error:
        msg = f"security: {name}={path!r} can't be read: {error.strerror or error}"
        raise ConfigError(msg) from error
    except UnicodeDecodeError:
        msg = f"security: {name}={path!r} can't be read: it is not UTF-8"
        raise ConfigError(msg) from None  # the cause would hold the file's bytes


@dataclass(slots=True, kw_only=True, eq=False)
class ClientNetwork:
    """Settings of a client's connections; shared by all of its threads."""

    security: ClientSecurity | None = None
    headers: Headers | Callable[[], Headers] | None = field(default=None, repr=False)
    client_id: str | None = None
    connect_timeout_s: float = CONNECT_TIMEOUT_S
    _context: ssl.SSLContext | None = field(default=None, init=False, repr=False)

    @property
    def has_new_headers(self) -> bool:
        """True if asking for the headers again, after a 401, may give other ones."""
        has_files = self.security is not None and self.security.has_files
        return has_files or callable(self.headers)

    def connection_headers(self) -> dict[str, str]:
        """Return the headers of all requests of a new connection.

        One of ``headers`` takes the place of one of the client's own with the same name. Calls
        ``headers`` if it is a function, and reads the files of `security`.

        Raises:
            ConfigError: The function fails or returns no headers, or a file can't be read.
        """
        found: dict[str, tuple[str, str]] = {}
        if self.client_id is not None:
            if not _VALUE.fullmatch(self.client_id):
                msg = f"setting client_id={self.client_id!r}: expected ASCII without line breaks"
                raise ConfigError(msg)
            found[CLIENT_ID_HEADER.lower()] = (CLIENT_ID_HEADER, self.client_id)
        if self.security is not None:
            for name, value in self.security.headers().items():
                found[name.lower()] = (name, value)
        for name, value in self._given_headers():
            found[name.lower()] = (name, value)
        return dict(found.values())

    def _given_headers(self) -> list[tuple[str, str]]:
        """Return what the setting ``headers`` names, checked; error texts have names only."""
        given: object = self.headers
        if callable(given):
            try:
                given = given()
            except Exception as error:
                msg = f"setting headers: the function failed with {type(error).__name__}"
                raise ConfigError(msg) from error
            if isinstance(given, Coroutine):
                given.close()  # it would warn that it was never awaited
        if given is None:
            return []
        if not isinstance(given, Mapping):
            msg = f"setting headers: expected a mapping, got {type(given).__name__}"
            raise ConfigError(msg)
        found = []
        for name, value in given.items():
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                msg = f"setting headers: {name!r}: expected a name of a header"
            elif name.lower() in OWN_HEADERS:
                msg = f"setting headers: {name!r} is set by the client itself"
            elif not isinstance(value, str) or not _VALUE.fullmatch(value):
                msg = f"setting headers: {name!r}: expected ASCII text without line breaks"
            else:
                found.append((name, value))
                continue
            raise ConfigError(msg)
        return found

    def tls_context(self) -> ssl.SSLContext:
        """Return the context of https connections; raises `ConfigError` for a bad file."""
        if self._context is None:
            import ssl

            security = self.security or ClientSecurity()
            if security.context is not None:
                return security.context
            name = f"ca={security.ca!r}"
            try:
                context = ssl.create_default_context(cafile=security.ca)
                if security.certificate is not None:
                    name = f"certificate={security.certificate!r} with its key"
                    # without a function for the password, OpenSSL would ask at the terminal
                    context.load_cert_chain(
                        security.certificate, security.key, password=_no_password
                    )
            except (OSError, ValueError) as error:
                msg = f"security: {name} can't be used: {error}"
                raise ConfigError(msg) from error
            self._context = context
        return self._context


def _no_password() -> str:
    msg = "a key with a password is not supported"
    raise ValueError(msg)
