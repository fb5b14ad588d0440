"""The real Toxiproxy server as a child process: finding its file, and one process per run.

`Network` starts and stops the server; `free_port` also serves its proxies.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING

from chaos.net.toxiproxy_api import NetworkError, ToxiproxyApi

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

VERSION = "2.12.0"
"""The only version used, because its behaviour is known (guarantees §5.1). `.ci/toxiproxy.sh` names
the same version."""
NAME = "toxiproxy-server"
BUILT = Path(".cache") / "toxiproxy" / NAME
"""Path of the server that `.ci/toxiproxy.sh` builds, below the project's root."""
LOOPBACK = "127.0.0.1"
READY_DEADLINE_S = 5.0
STOP_DEADLINE_S = 2.0
START_ATTEMPTS = 3
"""Attempts to start; another process may take the chosen port first."""
_POLL_S = 0.02
_PORTS_FROM = 10_240
_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_MODULE = re.compile(rb"mod\tgithub\.com/Shopify/toxiproxy/v2\tv(\d+\.\d+\.\d+)")
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


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


def free_port(taken: set[int] | None = None) -> int:
    """Return a free port below those that the kernel gives to outgoing connections.

    A disabled proxy closes its listener; no outgoing connection takes such a port meanwhile.
    """
    try:
        end = int(_EPHEMERAL_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        end = 32_768
    random = SystemRandom()
    while True:
        port = random.randrange(_PORTS_FROM, max(end, _PORTS_FROM + 1_000))
        if taken is not None and port in taken:
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((LOOPBACK, port))
            except OSError:
                continue
        if taken is not None:
            taken.add(port)
        return port


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
            port = free_port(set(reserved))
            api = ToxiproxyApi(LOOPBACK, port)
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(
                    [str(self._binary), "-host", LOOPBACK, "-port", str(port), "-proxy-metrics"],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    preexec_fn=_die_with_parent,  # noqa: PLW1509 it only makes one system call
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


def _die_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
