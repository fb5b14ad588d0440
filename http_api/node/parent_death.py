"""Death of the supervisor: a node started by ``quorumlog up`` ends within 2 s of it.

Two mechanisms at once. On Linux the kernel sends SIGKILL when the parent dies (`PR_SET_PDEATHSIG`);
the request for it is made after exec, so the parent is checked again afterwards: it may have died
in between. On every system, standard input is a pipe to which the supervisor never writes: end of
file means that it has ended. SIGKILL is safe for a node at any moment: everything acknowledged is
on disk.
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
    """End this process with its supervisor, if a supervisor started it; else change nothing."""
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
