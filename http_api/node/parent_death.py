"""No orphans: a node started by ``quorumlog up`` ends within 2 s of its supervisor.

Two ways at once. On Linux the kernel sends SIGKILL when the parent dies (`PR_SET_PDEATHSIG`); it is
asked for after exec, so the parent is checked again afterwards: it may have died in between.
Everywhere, standard input is a pipe the supervisor never writes to: end of file means it is gone.
SIGKILL is right for a node at any moment: whatever was acknowledged is on disk.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Mapping

SUPERVISOR_VARIABLE = "QUORUMLOG_SUPERVISOR_PID"
_PR_SET_PDEATHSIG = 1


def end_with_supervisor(environment: Mapping[str, str]) -> None:
    """Arrange it, if a supervisor started this process; else leave everything as it is."""
    text = environment.get(SUPERVISOR_VARIABLE, "")
    if not text.isdigit():
        return
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(text):
        _end_now()
    threading.Thread(target=_wait_for_end_of_file, name="parent-death", daemon=True).start()


def _wait_for_end_of_file() -> None:
    try:
        while os.read(0, 4096):
            pass
    except OSError:
        pass
    _end_now()


def _end_now() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
