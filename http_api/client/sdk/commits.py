"""Commits of a consumer: the queue of asynchronous ones, their callbacks, and refusals. Pure.

Asynchronous commits are sent once each, in order: those that wait while one is under way become one
request, and every callback still runs once, from a later call of the program. A synchronous commit
waits until none is under way, so that an older one never lands behind a newer one. A commit covers
only partitions that are held since it was called, by their numbers of `ConsumerMembership.holds`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from http_api.client.calls import Call, Place, Request, read_nothing, v3_path
from http_api.client.client_errors import CommitError, ConfigError, QuorumlogError
from http_api.client.groups import GROUP_TIMEOUT_S, GROUPS
from http_api.client.sdk.positions import LogPosition
from http_api.client.sdk.record_types import Record, TopicPartition

CommitCallback = Callable[[QuorumlogError | None, list[TopicPartition]], Any]
Offsets = dict[Place, TopicPartition]
"""Next offsets to read, with epoch and metadata."""
Holds = Mapping[Place, int]
"""Partitions that may be committed, each with the number of its taking."""
NOT_OWNED: Final = "this consumer does not own the partition any more"
MEMBER_FENCED: Final = 40_903


@dataclass(frozen=True, slots=True)
class AsyncCommit:
    """An asynchronous commit, and the functions that get its result."""

    offsets: Offsets
    callbacks: tuple[CommitCallback, ...]
    holds: Holds
    """Partitions that were held when it was called; the others are refused."""


@dataclass(frozen=True, slots=True)
class CommitResult:
    """A callback to run, with what it gets."""

    callback: CommitCallback
    error: QuorumlogError | None
    offsets: list[TopicPartition]


class CommitQueue:
    """Asynchronous commits that wait, the one under way, and results not yet called back."""

    def __init__(self) -> None:
        self._waiting: deque[AsyncCommit] = deque()
        self._under_way: list[tuple[AsyncCommit, Offsets]] = []
        """Each with its part that was refused."""
        self.results: deque[CommitResult] = deque()

    @property
    def is_idle(self) -> bool:
        """True if no commit waits or is under way."""
        return not self._waiting and not self._under_way

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    def put(self, commit: AsyncCommit) -> None:
        """Queue a commit behind all others."""
        self._waiting.append(commit)

    def take(self, holds_of: Callable[[Iterable[Place]], Holds]) -> Offsets:
        """Take all that wait as the one under way, and return its offsets; the newest count.

        Args:
            holds_of: Returns those of some partitions that are held now.
        """
        offsets: Offsets = {}
        for commit in self._waiting:
            held, refused = split_held(commit.offsets, commit.holds, holds_of(commit.offsets))
            offsets.update(held)
            self._under_way.append((commit, refused))
        self._waiting.clear()
        return offsets

    def abandon(self, error: QuorumlogError) -> None:
        """End the commit under way and all that wait, with an error."""
        self._under_way += [(commit, {}) for commit in self._waiting]
        self._waiting.clear()
        self.settle(error)

    def settle(self, error: QuorumlogError | None) -> None:
        """End the commit under way: each of its callbacks gets its own offsets with errors.

        ``error`` is that of the request, for all partitions that were not refused before.
        """
        for commit, refused in self._under_way:
            errors = dict.fromkeys(commit.offsets, error) | dict.fromkeys(refused, not_owned())
            offsets = results_of(commit.offsets, errors)
            failed = [one for one in offsets if one.error is not None]
            failure = error
            if refused and (error is None or len(refused) == len(offsets)):
                failure = commit_error(failed)
            for callback in commit.callbacks:
                self.results.append(CommitResult(callback, failure, offsets))
        self._under_way = []


def not_owned() -> QuorumlogError:
    """Return the error of a partition that this consumer does not own."""
    error = QuorumlogError(NOT_OWNED)
    error.code = MEMBER_FENCED
    return error


def results_of(
    offsets: Offsets, errors: Mapping[Place, QuorumlogError | None]
) -> list[TopicPartition]:
    """Return the offsets of a commit, each with the error that it ended with."""
    return [
        TopicPartition(
            one.topic,
            one.partition,
            one.offset,
            metadata=one.metadata,
            leader_epoch=one.leader_epoch,
            error=errors.get(place),
        )
        for place, one in sorted(offsets.items())
    ]


def commit_error(refused: Iterable[TopicPartition]) -> CommitError:
    """Return the error of a commit that some partitions refused."""
    rows = list(refused)
    names = ", ".join(f"{one.topic}-{one.partition}" for one in rows[:5])
    more = f" and {len(rows) - 5} more" if len(rows) > 5 else ""
    error = CommitError(f"not committed: {names}{more}: {rows[0].error}", rows)
    if rows[0].error is not None:
        error.code = rows[0].error.code
        error.outcome = rows[0].error.outcome
    return error


def split_held(offsets: Offsets, before: Holds, now: Holds) -> tuple[Offsets, Offsets]:
    """Return the offsets of partitions that are held still, by the same taking, and the others."""
    held = {place for place, number in now.items() if before.get(place) == number}
    mine = {place: one for place, one in offsets.items() if place in held}
    return mine, {place: one for place, one in offsets.items() if place not in held}


def commit_call(
    cluster_id: str,
    group: str,
    offsets: Offsets,
    member: tuple[str, int] | None,
    *,
    repeatable: bool,
) -> Call[None]:
    """Return the call that commits; ``member`` is (member id, member epoch), None without."""
    rows = []
    for (topic, partition), one in offsets.items():
        row: dict[str, Any] = {
            "topic_name": topic,
            "partition_id": partition,
            "offset": one.offset,
        }
        if one.leader_epoch is not None:
            row["leader_epoch"] = one.leader_epoch
        if one.metadata:
            row["metadata"] = one.metadata
        rows.append(row)
    body: dict[str, Any] = {"data": rows}
    if member is not None:
        body["member_id"], body["member_epoch"] = member
    request = Request(
        method="PATCH",
        path=v3_path(cluster_id, GROUPS, group, "offsets"),
        body=orjson.dumps(body),
        timeout_s=GROUP_TIMEOUT_S,
        repeatable=repeatable,
    )
    return read_nothing(request)


def of_positions(positions: Mapping[Place, LogPosition]) -> Offsets:
    """Return positions as offsets to commit."""
    return {
        (topic, partition): TopicPartition(topic, partition, one.offset, leader_epoch=one.epoch)
        for (topic, partition), one in positions.items()
    }


def given_offsets(
    record: Record[Any, Any] | None, offsets: Iterable[TopicPartition] | None
) -> Offsets | None:
    """Return the offsets that a call names: behind a record, or a list; None if neither is given.

    Raises:
        ConfigError: Both are given, or an offset is missing or negative.
    """
    if record is not None and offsets is not None:
        msg = "expected a record or offsets, not both"
        raise ConfigError(msg)
    if record is not None:
        epoch = record.leader_epoch if record.leader_epoch >= 0 else None
        one = TopicPartition(record.topic, record.partition, record.offset + 1, leader_epoch=epoch)
        return {(record.topic, record.partition): one}
    if offsets is None:
        return None
    found: Offsets = {}
    for one in offsets:
        if one.offset is None or one.offset < 0:
            msg = f"{one!r}: expected an offset of 0 or more, the next one to read"
            raise ConfigError(msg)
        found[one.topic, one.partition] = one
    return found
