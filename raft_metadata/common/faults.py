"""The one place that decides what an unrecoverable failure does to the process.

Modelled on Kafka's FaultHandler: code that meets a broken invariant or a doubtful disk reports it
here and does not go on. The node's handler ends the process; a test's handler raises.
"""

from __future__ import annotations

import logging
import os
from typing import NoReturn, Protocol

from raft_metadata.common.errors import StorageError

EXIT_BROKEN_INVARIANT = 70
EXIT_STORAGE = 74

_log = logging.getLogger("faults")


class FaultHandler(Protocol):
    """Ends whatever must not go on."""

    def fatal(self, what: str, error: BaseException | None = None) -> NoReturn:
        """Never returns: the state in memory or on disk can't be trusted any more."""
        ...


class ProcessFaultHandler:
    """Ends the process at once, without running any other code: nothing may be acknowledged now.

    OSError and StorageError exit 74, everything else 70 (interfaces, exits).
    """

    def fatal(self, what: str, error: BaseException | None = None) -> NoReturn:
        """See `FaultHandler`."""
        storage = isinstance(error, (OSError, StorageError))
        # Of a disk that failed, the place in the code tells an operator nothing.
        _log.critical("fatal: %s error=%r", what, error, exc_info=None if storage else error)
        logging.shutdown()
        os._exit(EXIT_STORAGE if storage else EXIT_BROKEN_INVARIANT)
