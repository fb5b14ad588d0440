"""The real Toxiproxy: its server as a child process, and its HTTP API.

`Network` starts one server per run and calls `ToxiproxyApi`. Only this module imports the library
``toxiproxy-python``. The library 0.1.1 keeps one server per process in class attributes, has no
timeout on any request (a paused server hangs its caller) and treats a 5xx as success. Here each
object has a consumer class of its own, every request a timeout, and every answer is checked.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from chaos.cluster import die_with_parent
from raft_metadata.common.local_ports import LOOPBACK, free_port

if TYPE_CHECKING:
    import signal
    from collections.abc import Collection, Sequence


try:
    import toxiproxy.api as library
    from toxiproxy.exceptions import InvalidToxic, NotFound, ProxyExists
except ImportError:  # pragma: no cover an installation without the extra
    library = None

REQUEST_TIMEOUT_S = (1.0, 2.0)
"""Timeouts to connect, and between two bytes of the answer; the server answers in under 10 ms."""
REQUESTS, ANSWERS = "upstream", "downstream"
_NO_PROXY_FOR_THIS = {"http": None, "all": None}
"""Disables the machine's HTTP_PROXY for requests to the local server."""
_METRIC = re.compile(
    r'^toxiproxy_proxy_(received|sent)_bytes_total\{direction="(\w+)",.*proxy="([^"]+)".*\} (\S+)$',
    re.MULTILINE,
)


class NetworkError(Exception):
    """The proxy server does not do what is requested, which makes a run's results meaningless."""


@dataclass(frozen=True, slots=True, order=True)
class Toxic:
    """An effect on one stream of a proxy's connections.

    `toxicity` is the share of them affected.
    """

    type: str
    stream: str
    attributes: tuple[tuple[str, int], ...]
    toxicity: float = 1.0

    @property
    def name(self) -> str:
        """The name that Toxiproxy gives to an unnamed toxic: one of a type per stream."""
        return f"{self.type}_{self.stream}"


@dataclass(frozen=True, slots=True)
class ProxyView:
    """A proxy as the server describes it, with its toxics by name."""

    name: str
    listen: str
    upstream: str
    enabled: bool
    toxics: tuple[tuple[str, Toxic], ...]


class ToxiproxyApi:
    """The API of one server.

    Blocking; owned by one `Network`, which calls it from one thread at a time.

    Raises:
        NetworkError: from every method: no answer in time, or an answer with an error.
    """

    def __init__(self, host: str, port: int) -> None:
        if library is None:
            msg = "toxiproxy-python is not installed: pip install 'quorumlog[chaos]'"
            raise NetworkError(msg)
        # A class per object, so that two servers in one process do not share an address.
        self._consumer = type("Consumer", (library.APIConsumer,), {"host": host, "port": port})

    def version(self) -> str:
        """Return the server's version; a server built from source returns ``git``."""
        return str(self._ask("GET", "/version").get("version", ""))

    def proxies(self) -> dict[str, ProxyView]:
        """Return every proxy with its toxics, by name."""
        return {name: _view(body) for name, body in self._ask("GET", "/proxies").items()}

    def create(self, name: str, listen: str, upstream: str) -> None:
        """Create a proxy that forwards `listen` to `upstream` (both ``host:port``)."""
        body = {"name": name, "listen": listen, "upstream": upstream, "enabled": True}
        self._ask("POST", "/proxies", body)

    def destroy(self, name: str) -> None:
        """Remove a proxy and close its connections."""
        self._ask("DELETE", f"/proxies/{name}")

    def enable(self, name: str, *, enabled: bool) -> None:
        """Enable or disable a proxy; disabling resets its connections and refuses new ones."""
        self._ask("POST", f"/proxies/{name}", {"enabled": enabled})

    def add_toxic(self, name: str, toxic: Toxic) -> None:
        """Add a toxic to a proxy; it affects open connections at once."""
        body = {
            "name": toxic.name,
            "type": toxic.type,
            "stream": toxic.stream,
            "toxicity": toxic.toxicity,
            "attributes": dict(toxic.attributes),
        }
        self._ask("POST", f"/proxies/{name}/toxics", body)

    def remove_toxic(self, name: str, toxic: str) -> None:
        """Remove a toxic; removing one that dropped all bytes closes its connections."""
        self._ask("DELETE", f"/proxies/{name}/toxics/{toxic}")

    def bytes_by_proxy(self) -> dict[str, dict[tuple[str, str], int]]:
        """Return, per proxy, bytes of ended connections by (``received`` or ``sent``, stream)."""
        found: dict[str, dict[tuple[str, str], int]] = {}
        for what, stream, proxy, count in _METRIC.findall(self._text("GET", "/metrics")):
            found.setdefault(proxy, {})[what, stream] = int(float(count))
        return found

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        answer = self._request(method, path, body)
        if answer.status_code == 204:
            return {}
        try:
            return answer.json()
        except ValueError as error:
            _fail(method, path, f"not JSON: {answer.content[:200]!r}", error)

    def _text(self, method: str, path: str) -> str:
        return str(self._request(method, path, None).text)

    def _request(self, method: str, path: str, body: object) -> Any:
        options: dict[str, Any] = {"timeout": REQUEST_TIMEOUT_S, "proxies": _NO_PROXY_FOR_THIS}
        if body is not None:
            options["json"] = body
        call = getattr(self._consumer, method.lower())
        try:
            answer = call(path, **options)
        except (NotFound, ProxyExists, InvalidToxic) as error:
            _fail(method, path, f"{type(error).__name__}: {error}", error)
        except OSError as error:  # every exception of requests is one
            _fail(method, path, f"no answer: {error}", error)
        if answer.status_code >= 300:
            _fail(method, path, f"{answer.status_code} {answer.content[:200]!r}", None)
        return answer


def _fail(method: str, path: str, reason: str, cause: Exception | None) -> NoReturn:
    msg = f"toxiproxy {method} {path}: {reason}"
    raise NetworkError(msg) from cause


def _view(body: dict[str, Any]) -> ProxyView:
    toxics = sorted(
        (
            str(toxic["name"]),
            Toxic(
                type=str(toxic["type"]),
                stream=str(toxic["stream"]),
                toxicity=float(toxic["toxicity"]),
                attributes=tuple(sorted(toxic["attributes"].items())),
            ),
        )
        for toxic in body["toxics"]
    )
    return ProxyView(
        name=str(body["name"]),
        listen=str(body["listen"]),
        upstream=str(body["upstream"]),
        enabled=bool(body["enabled"]),
        toxics=tuple(toxics),
    )


VERSION = "2.12.0"
"""The only version used, because its behaviour is known. `.ci/toxiproxy.sh` names the same one."""
NAME = "toxiproxy-server"
BUILT = Path(".cache") / "toxiproxy" / NAME
"""Path of the server that `.ci/toxiproxy.sh` builds, below the project's root."""
READY_DEADLINE_S = 5.0
STOP_DEADLINE_S = 2.0
START_ATTEMPTS = 3
"""Attempts to start; another process may take the chosen port first."""
_POLL_S = 0.02
_MODULE = re.compile(rb"mod\tgithub\.com/Shopify/toxiproxy/v2\tv(\d+\.\d+\.\d+)")


def version_of(binary: Path) -> str | None:
    """Return the version of a Toxiproxy server's file; None if it cannot be determined.

    A server built by ``go install`` reports ``git``, so the module version is read from the build
    information that Go leaves in the file. A released binary has none there and reports its
    version.
    """
    try:
        found = _MODULE.search(binary.read_bytes())
        if found is not None:
            return found[1].decode()
        said = subprocess.run(
            [str(binary), "--version"], capture_output=True, timeout=5, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    spoken = re.search(rb"(\d+\.\d+\.\d+)", said)
    return spoken[1].decode() if spoken else None


def find_server(roots: Sequence[Path] | None = None) -> Path:
    """Return the server's file: from PATH if it has the known version, else the one built locally.

    Raises:
        NetworkError: neither exists; the message holds the command that builds it.
    """
    on_path = shutil.which(NAME)
    if on_path is not None and version_of(Path(on_path)) == VERSION:
        return Path(on_path)
    project = Path(__file__).resolve().parents[2]
    for root in (project, Path.cwd()) if roots is None else roots:
        if version_of(root / BUILT) == VERSION:
            return root / BUILT
    msg = f"no {NAME} {VERSION} in PATH or {BUILT}; `make setup` (or .ci/toxiproxy.sh) builds it"
    raise NetworkError(msg)


class ToxiproxyServer:
    """A server process. Owned by one run; the parent-death signal ends it with its owner."""

    def __init__(self, binary: Path, log: Path) -> None:
        self._binary = binary
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process id, or None while there is no process."""
        return None if self._process is None else self._process.pid

    def start(self, reserved: Collection[int] = ()) -> ToxiproxyApi:
        """Start the server on a free port that is not reserved; return once its API answers.

        Raises:
            NetworkError: it ended, or did not answer in time.
        """
        for _ in range(START_ATTEMPTS):
            port = free_port(reserved)
            api = ToxiproxyApi(LOOPBACK, port)
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(
                    [str(self._binary), "-host", LOOPBACK, "-port", str(port), "-proxy-metrics"],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    preexec_fn=die_with_parent,  # noqa: PLW1509 it only makes one system call
                )
            if self._answers(api):
                return api
            self.stop()
        msg = f"{self._binary} does not serve; read {self._log}"
        raise NetworkError(msg)

    def _answers(self, api: ToxiproxyApi) -> bool:
        assert self._process is not None
        deadline = time.monotonic() + READY_DEADLINE_S
        while self._process.poll() is None and time.monotonic() < deadline:
            try:
                api.version()
            except NetworkError:
                time.sleep(_POLL_S)
            else:
                # Another server may own the port; then this process has ended or is about to.
                return self._process.poll() is None and api.proxies() == {}
        return False

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, for tests that pause it."""
        assert self._process is not None
        self._process.send_signal(number)

    def stop(self) -> None:
        """End the process and wait for it."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
