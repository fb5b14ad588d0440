"""A member of a consumer group, for programs: at-least-once reads, whichever broker answers.

A read over HTTP would lose records if an answer got lost after the group's position moved. So
`GroupConsumer` disables auto-commit and commits only what it received; where an answer may have
been lost it creates a new instance, and reading resumes at the last commit. The requests themselves
are the calls of `http_api.client.groups`, run by a blocking `Client`.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType

from http_api.client import groups
from http_api.client.client_errors import ApiError, QuorumlogError
from http_api.client.consumer import DEFAULT_MAX_BYTES, Record
from http_api.client.groups import InstanceSettings, Place
from http_api.client.transport import Client
from http_api.contract.errors import RestCode
from raft_metadata.common.errors import Outcome

DEFAULT_WAIT_MS = 1_000
MAX_NAMES_TRIED = 5
"""Attempts to create an instance, each under a new name, because a lost answer may mean success."""


@dataclass(frozen=True, slots=True)
class _Selection:
    """Selection to read: topics through the group, or partitions assigned by hand."""

    topics: tuple[str, ...] = ()
    partitions: tuple[Place, ...] = ()


class GroupConsumer:
    """An instance of a consumer group. Used by one thread; to be closed, or used as a context.

    Records are delivered at least once: after a lost answer, a change of coordinator, a rebalance
    or an expired session, they come again from the last commit on. `commit` directly after `poll`,
    before the records are used, gives at-most-once. With `assign` and `seek` a program can keep the
    position itself, stored together with its results: exactly-once.
    """

    def __init__(
        self,
        client: Client,
        group: str,
        settings: InstanceSettings | None = None,
        *,
        name: str = "sdk",
    ) -> None:
        self._client = client
        self._group = group
        self._settings = settings or InstanceSettings()
        self._prefix = name
        self._instance: str | None = None
        self._must_join = True
        """True if an answer with records may have been lost: the next poll joins anew first."""
        self._selection: _Selection | None = None
        self._positions: dict[Place, int] = {}
        self._committed: dict[Place, int] = {}

    @property
    def instance(self) -> str | None:
        """Name of the present instance; changes when the instance has to be replaced."""
        return self._instance

    @property
    def positions(self) -> dict[Place, int]:
        """Next offset to read of each partition that records came from or that `seek` named."""
        return dict(self._positions)

    def subscribe(self, topics: Iterable[str]) -> None:
        """Read these topics with the group, which shares their partitions among its members."""
        self._selection = _Selection(topics=tuple(topics))
        self._join()

    def assign(self, partitions: Iterable[Place]) -> None:
        """Read exactly these partitions, even if other members read them; `seek` sets the start."""
        self._positions.clear()
        self._selection = _Selection(partitions=tuple(partitions))
        self._join()

    def assignment(self) -> list[Place]:
        """Return the partitions that this instance owns now."""
        return self._client.run(groups.assignment(self._group, self._require_instance()))

    def seek(self, offsets: Mapping[Place, int]) -> None:
        """Continue reading at these offsets; the group keeps them until the next commit."""
        self._client.run(groups.seek(self._group, self._require_instance(), offsets))
        self._positions.update(offsets)

    def committed(self, partitions: Iterable[Place]) -> dict[Place, int]:
        """Return the committed offset of each of these partitions that has one."""
        return self._client.run(groups.committed(self._group, self._require_instance(), partitions))

    def poll(
        self, wait_ms: int = DEFAULT_WAIT_MS, max_bytes: int = DEFAULT_MAX_BYTES
    ) -> list[Record]:
        """Return the next records; none after ``wait_ms``, or if the instance was replaced."""
        if self._must_join:
            self._join()
        call = groups.poll(
            self._group,
            self._require_instance(),
            wait_ms=wait_ms,
            max_bytes=max_bytes,
            binary=self._settings.binary,
        )
        try:
            records = self._client.run(call)
        except QuorumlogError as error:
            if not _is_expired(error) and error.outcome is not Outcome.UNKNOWN:
                raise
            self._must_join = True
            self._join()
            return []
        for record in records:
            self._positions[record.topic, record.partition] = record.offset + 1
        return records

    def commit(self, offsets: Mapping[Place, int] | None = None) -> frozenset[Place]:
        """Commit these next offsets, or the offsets behind everything that `poll` returned.

        Returns the partitions that were not committed because this instance no longer owns them
        (the session expired, another member owns them, or the coordinator changed). Their next
        owner reads them again from the last commit.
        """
        wanted = dict(offsets) if offsets is not None else self._uncommitted()
        if not wanted:
            return frozenset()
        if self._instance is None:
            return self._drop_positions(wanted)
        try:
            self._client.run(groups.commit(self._group, self._instance, wanted))
        except ApiError as error:
            if _is_expired(error):
                self._must_join = True
                return self._drop_positions(wanted)
            if error.code != RestCode.ILLEGAL_STATE:
                raise
            return self._drop_positions(self._commit_one_by_one(wanted))
        self._committed.update(wanted)
        return frozenset()

    def close(self) -> None:
        """Leave the group at once, without a commit."""
        if self._instance is not None:
            self._delete(self._instance)
            self._instance, self._must_join = None, True

    def __enter__(self) -> GroupConsumer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _require_instance(self) -> str:
        if self._instance is None:
            msg = "subscribe or assign first"
            raise RuntimeError(msg)
        return self._instance

    def _uncommitted(self) -> dict[Place, int]:
        return {
            place: offset
            for place, offset in self._positions.items()
            if self._committed.get(place) != offset
        }

    def _drop_positions(self, places: Mapping[Place, int]) -> frozenset[Place]:
        if self._selection is not None and self._selection.topics:
            for place in places:
                self._positions.pop(place, None)
        return frozenset(places)

    def _commit_one_by_one(self, wanted: Mapping[Place, int]) -> dict[Place, int]:
        """Commit each partition on its own and return the offsets that were refused."""
        refused = {}
        for place, offset in wanted.items():
            try:
                self._client.run(
                    groups.commit(self._group, self._require_instance(), {place: offset})
                )
            except ApiError as error:
                if error.code != RestCode.ILLEGAL_STATE and not _is_expired(error):
                    raise
                refused[place] = offset
            else:
                self._committed[place] = offset
        return refused

    def _join(self) -> None:
        """Create a new instance and make it replace the present one, if there is one.

        The old instance is deleted last, because the group keeps its starting offsets while it has
        a member.
        """
        wanted = self._selection
        if wanted is None:
            msg = "subscribe or assign first"
            raise RuntimeError(msg)
        new = self._create()
        try:
            self._subscribe_or_assign(new, wanted)
        except QuorumlogError:
            self._delete(new)
            raise
        old, self._instance, self._must_join = self._instance, new, False
        self._committed.clear()
        if old is not None:
            self._delete(old)

    def _subscribe_or_assign(self, name: str, wanted: _Selection) -> None:
        if wanted.topics:
            self._positions.clear()
            self._client.run(groups.subscribe(self._group, name, wanted.topics))
            return
        self._client.run(groups.assign(self._group, name, wanted.partitions))
        known = {place: at for place, at in self._positions.items() if place in wanted.partitions}
        if known:
            self._client.run(groups.seek(self._group, name, known))

    def _create(self) -> str:
        for attempt in range(MAX_NAMES_TRIED):
            name = f"{self._prefix}-{secrets.token_hex(8)}"
            try:
                self._client.run(groups.create_instance(self._group, name, self._settings))
            except QuorumlogError as error:
                if error.outcome is not Outcome.UNKNOWN:
                    raise
                self._delete(name)
                if attempt == MAX_NAMES_TRIED - 1:
                    raise
            else:
                return name
        raise AssertionError

    def _delete(self, name: str) -> None:
        """Delete an instance if the request succeeds; an unused instance expires by itself."""
        with contextlib.suppress(QuorumlogError):
            self._client.run(groups.delete_instance(self._group, name), retry_s=1.0)


def _is_expired(error: QuorumlogError) -> bool:
    """Return True if the error means that the instance no longer exists: its session expired."""
    return isinstance(error, ApiError) and error.code == RestCode.UNKNOWN_TOPIC_OR_PARTITION
