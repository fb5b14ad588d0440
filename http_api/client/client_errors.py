"""Errors of the Python client, for calls and for the classes that `quorumlog` exports.

All of them state if a repeat may help (``retriable``) and if a write may have happened
(``outcome``). Errors that heal by themselves within the caller's deadline are retried and logged,
not raised.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from raft_metadata.common.errors import Outcome


class QuorumlogError(Exception):
    """Base of all errors of the client.

    ``outcome`` equals ``"unknown"`` if a write may have happened, else ``"not_written"``.
    """

    code: int | None = None
    """The ``error_code`` of the broker's answer; None if no broker refused the request."""
    retriable: bool = False
    outcome: Outcome = Outcome.NOT_WRITTEN


class ConfigError(QuorumlogError, ValueError):
    """A setting is unknown, of the wrong kind, or contradicts another one; the text names it."""


class ClosedError(QuorumlogError):
    """The client was closed, or belongs to the process from which this one was forked."""


class InvalidRecordError(QuorumlogError, ValueError):
    """A record that can't be written as given: its value, key, headers or timestamp."""


class ApiError(QuorumlogError):
    """An answer of 400 or more, with the code and message of its error envelope."""

    def __init__(self, status: int, code: int, message: str, envelope: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.diverging_offset: int | None = None
        """Of 40950: where the log differs from what the reader read; else None."""
        self.path = ""
        """Path of the refused request; empty if the caller does not set it."""
        self.retriable = bool(envelope.get("retriable", status == 503))
        outcome = envelope.get("outcome")
        if outcome is not None:
            self.outcome = Outcome.UNKNOWN if outcome == "unknown" else Outcome.NOT_WRITTEN
        else:  # a 4xx wrote nothing; a 5xx without an outcome may have written
            self.outcome = Outcome.UNKNOWN if status >= 500 else Outcome.NOT_WRITTEN


class AuthenticationError(ApiError):
    """HTTP 401: the credentials are missing or wrong."""


class AuthorizationError(ApiError):
    """HTTP 403: the request is not allowed with these credentials, or from this place."""


class ThrottledError(ApiError):
    """HTTP 429: too many requests."""


_BY_STATUS: dict[int, type[ApiError]] = {
    401: AuthenticationError,
    403: AuthorizationError,
    429: ThrottledError,
}


def api_error(status: int, code: int, message: str, envelope: Mapping[str, Any]) -> ApiError:
    """Return the error for an answer of 400 or more, of the class that belongs to its status."""
    return _BY_STATUS.get(status, ApiError)(status, code, message, envelope)


class UnreachableError(QuorumlogError):
    """No broker accepted a connection; nothing was sent."""

    retriable = True


class OutcomeUnknownError(QuorumlogError):
    """The connection broke or timed out after the request was sent; it may have taken effect."""

    outcome = Outcome.UNKNOWN


class ProtocolError(QuorumlogError):
    """An answer that the API does not define; probably the server is no quorumlog broker."""

    outcome = Outcome.UNKNOWN


class BufferFullError(QuorumlogError):
    """The producer's buffer stayed full for ``max_block_ms``; the record was not taken."""

    retriable = True


class DeliveryError(QuorumlogError):
    """Records that the producer took were not written, or their outcome is not known."""

    def __init__(self, count: int, first: QuorumlogError) -> None:
        records = "1 record was" if count == 1 else f"{count} records were"
        super().__init__(f"{records} not delivered; the first error: {first}")
        self.count = count
        """Number of records that failed."""
        self.first = first
        """Error of the first of them."""
        self.code, self.retriable, self.outcome = first.code, first.retriable, first.outcome


class CommitError(QuorumlogError):
    """A commit failed for some partitions."""

    def __init__(self, message: str, refused: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.refused = tuple(refused)
        """A `TopicPartition` for each partition that was not committed, with its `error`."""


class FencedError(QuorumlogError):
    """Another process has taken this one's place: a static member's, or a transactional id's."""


class CommittingError(QuorumlogError):
    """A transaction is committed, and not all of its rows can be read yet."""

    retriable = True
    outcome = Outcome.UNKNOWN


class TransactionStateError(QuorumlogError):
    """A call that the state of the producer's transaction does not allow."""


class TransactionAbortedError(QuorumlogError):
    """The outcome of a record whose transaction was aborted."""


class OffsetOutOfRangeError(QuorumlogError):
    """The log does not hold the position any more, or not yet, and no reset policy is set."""


class LogTruncatedError(OffsetOutOfRangeError):
    """The log holds other records than those that were read before the position (KIP-320)."""

    def __init__(self, message: str, diverging: int | None) -> None:
        super().__init__(message)
        self.diverging = diverging
        """First offset at which the log differs from what was read; None if it is not known."""


class UnreadableRecordError(QuorumlogError):
    """A record that can't be decoded; the position stays before it."""

    def __init__(
        self,
        message: str,
        *,
        place: Any,
        following: Any,
        key: bytes | None,
        value: bytes | None,
    ) -> None:
        super().__init__(message)
        self.place = place
        """`TopicPartition` of the record, with its offset."""
        self.next = following
        """`TopicPartition` behind the record: ``consumer.seek(error.next)`` skips the record."""
        self.key = key
        self.value = value
        """The bytes as they are stored."""


class WakeupError(QuorumlogError):
    """`wakeup` was called while the consumer waited, or since its last wait."""


class AdminError(QuorumlogError):
    """Some of the changes of a call failed."""

    def __init__(self, done: Mapping[Any, Any], failed: Mapping[Any, QuorumlogError]) -> None:
        names = ", ".join(f"{name}: {error}" for name, error in list(failed.items())[:_NAMED_MAX])
        more = len(failed) - _NAMED_MAX
        super().__init__(f"{names} and {more} more" if more > 0 else names)
        self.done = dict(done)
        """Result by name, of what succeeded."""
        self.failed = dict(failed)
        """Error by name, of what failed."""
        self.retriable = all(error.retriable for error in failed.values())
        self.outcome = worst_outcome(failed.values())


_NAMED_MAX = 5


def worst_outcome(errors: Collection[QuorumlogError]) -> Outcome:
    """Return UNKNOWN if one of the errors has this outcome."""
    unknown = any(error.outcome is Outcome.UNKNOWN for error in errors)
    return Outcome.UNKNOWN if unknown else Outcome.NOT_WRITTEN
