"""The real Toxiproxy server as a child of ours: which file it is, and one process per run."""

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
"""The one whose ways are known (guarantees §5.1): another is not used. `.ci/toxiproxy.sh` says it,
too."""
NAME = "toxiproxy-server"
BUILT = Path(".cache") / "toxiproxy" / NAME
"""Where `.ci/toxiproxy.sh` puts it, below the project's root."""
LOOPBACK = "127.0.0.1"
READY_DEADLINE_S = 5.0
STOP_DEADLINE_S = 2.0
START_ATTEMPTS = 3
"""The port it is told may be taken by another process a moment before."""
_POLL_S = 0.02
_PORTS_FROM = 10_240
_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_MODULE = re.compile(rb"mod\tgithub\.com/Shopify/toxiproxy/v2\tv(\d+\.\d+\.\d+)")
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


def version_of(binary: Path) -> str | None:
    """The version of a Toxiproxy server's file; None if it says none.

    One built by ``go install`` answers ``git`` when asked, so the module version is read out of the
    build information that Go leaves in the file. A released binary has none there and answers.
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
    """The server's file: from PATH if it is the version we know, else the one built for us.

    Raises:
        NetworkError: neither is there; the message holds the command that builds it.
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
    """A free port below those the kernel gives to outgoing connections.

    A proxy that is disabled closes its listener: on such a port nobody takes it meanwhile.
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
    """One server process. Owned by one run: started, stopped and, if we die, ended with us."""

    def __init__(self, binary: Path, log: Path) -> None:
        self._binary = binary
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process, while there is one."""
        return None if self._process is None else self._process.pid

    def start(self, reserved: Collection[int] = ()) -> ToxiproxyApi:
        """Start it on a port of its own, none of the reserved; returns once the API answers.

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
                # somebody else's server may sit on the port: ours has then ended, or is about to
                return self._process.poll() is None and api.proxies() == {}
        return False

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal: tests pause it."""
        assert self._process is not None
        self._process.send_signal(number)

    def stop(self) -> None:
        """End it; returns when it is gone."""
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
