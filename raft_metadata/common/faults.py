"""The one place that decides what an unrecoverable failure does to the process.

Modelled on Kafka's FaultHandler: code that finds a broken invariant or a doubtful disk reports it
here and does not continue. The node's handler ends the process; a test's handler raises.
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
    """A handler of failures after which the process must not continue."""

    def fatal(self, what: str, error: BaseException | None = None) -> NoReturn:
        """End the process, because memory or disk can't be trusted any more. Never returns."""
        ...


class ProcessFaultHandler:
    """A handler that ends the process at once.

    No other code runs, so nothing more is acknowledged.

    OSError and StorageError exit 74, everything else 70 (interfaces, exits).
    """

    def fatal(self, what: str, error: BaseException | None = None) -> NoReturn:
        """Log the failure and end the process with exit code 74 (storage) or 70 (all else)."""
        storage = isinstance(error, (OSError, StorageError))
        # No traceback for a failed disk: the place in the code does not help an operator.
        _log.critical("fatal: %s error=%r", what, error, exc_info=None if storage else error)
        logging.shutdown()
        os._exit(EXIT_STORAGE if storage else EXIT_BROKEN_INVARIANT)
