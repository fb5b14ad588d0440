"""Positions of assigned partitions, and the pages that were fetched and not yet returned. Pure.

A `PartitionState` is one assigned partition: where the next record is returned from, where the
next fetch begins, and what is queued in between. `ReadPositions` holds all of them, chooses what to
fetch from which broker within ``queued_max_bytes``, takes pages and refusals, and hands pages out
in turn. Each place to go on from carries the epoch of its offset, so that a log that was cut or
replaced is recognised (KIP-320). The owner holds the shell's lock.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from http_api.client.calls import Place
from http_api.client.client_errors import (
    ApiError,
    ConfigError,
    LogTruncatedError,
    OffsetOutOfRangeError,
    QuorumlogError,
    api_error,
)
from http_api.client.polling import Polled, PolledPage, PollPosition, PollRefusal
from http_api.client.sdk.part_joining import PartJoiner
from http_api.client.sdk.record_types import OFFSET_BEGINNING, OFFSET_END, TopicPartition

ANY_BROKER: Final = ""
"""Broker of partitions whose leader is not known; any broker passes their requests on."""
REFUSED_RETRY_S: Final = 1.0
LEADER_RETRY_S: Final = 0.1
ANSWER_BYTES_MAX: Final = 8 << 20
"""Most bytes asked for at once, so that the memory of one answer is bounded."""
PAGES_PER_PARTITION: Final = 4
LOG_TRUNCATED: Final = 40_950
DIVERGED_TEXT: Final = "the log diverged"
"""Part of the message of a `LOG_TRUNCATED` whose offset is in the log, behind other records."""
TOPIC_CHANGED: Final = 40_951
OUT_OF_RANGE: Final = 40_002
_versions: Final = itertools.count(1)


@dataclass(frozen=True, slots=True)
class LogPosition:
    """The next offset, and the epoch of the record right before it; None: not known."""

    offset: int
    epoch: int | None = None


@dataclass(slots=True, eq=False)
class PartitionState:
    """One assigned partition. ``position`` is None until its start is looked up."""

    topic: str
    partition: int
    position: LogPosition | None
    start: int | None = None
    """Start while ``position`` is None: OFFSET_BEGINNING, OFFSET_END, an offset; None: commit."""
    topic_id: str | None = None
    fetched: LogPosition | None = None
    """Start of the next fetch: behind the queued pages."""
    pages: deque[PolledPage] = field(default_factory=deque)
    queued_bytes: int = 0
    is_paused: bool = False
    stored: LogPosition | None = None
    """Offset that `store_offsets` stored, to be committed."""
    committed: LogPosition | None = None
    own_commit: LogPosition | None = None
    """Offset that the program itself committed last."""
    joiner: PartJoiner | None = None
    """Split values whose parts were read; None: none was. Commits do not pass their first parts."""
    leader_url: str = ANY_BROKER
    """Broker to fetch from: the leader, or with a ``rack`` the replica that served last."""
    error: QuorumlogError | None = None
    """Raised from the next poll; reading stops until a seek."""
    retry_s: float = 0.0
    """Time before which this partition is not fetched again."""
    served: int = 0
    """Number of the answer that last had a page of this partition."""
    version: int = field(default_factory=partial(next, _versions))
    """Another one after each move, and in each assignment: answers of before are dropped."""
    high_watermark: int | None = None
    log_start: int | None = None

    @property
    def place(self) -> Place:
        return self.topic, self.partition

    @property
    def is_readable(self) -> bool:
        """False while the partition is paused, or an error has stopped it."""
        return not self.is_paused and self.error is None

    def move(self, position: LogPosition | None, start: int | None = None) -> None:
        """Go on at another place: drop what is queued, and answers that are under way."""
        self.position, self.start, self.fetched = position, start, position
        self.pages.clear()
        self.queued_bytes = 0
        self.error, self.retry_s = None, 0.0
        self.version = next(_versions)
        if position is not None and self.joiner is not None:
            begin = self.joiner.restart(position.offset)
            if begin < position.offset:  # records in between were returned before, or skipped
                self.fetched = LogPosition(begin)

    def rewind(self) -> None:
        """Fetch again from the position: drop what is queued, keep what else is known."""
        error = self.error
        self.move(self.position, self.start)
        self.error = error

    def take_back(self, offset: int) -> None:
        """Move the position back to a record, unless a seek or a commit is behind that."""
        assert self.position is not None
        position = LogPosition(min(offset, self.position.offset))
        own = self.own_commit
        if own is not None and position.offset < own.offset <= self.position.offset:
            position = own
        self.position = position

    def to_commit(self) -> LogPosition | None:
        """Return the position up to which all was returned, before unfinished split records."""
        return None if self.position is None else self.before_parts(self.position)

    def before_parts(self, position: LogPosition) -> LogPosition:
        """Return a position, or the first part before it of a value that ends behind it."""
        if self.joiner is None:
            return position
        first = self.joiner.first_needed(position.offset)
        return position if first == position.offset else LogPosition(first)


@dataclass(frozen=True, slots=True)
class FetchPlan:
    """Partitions to ask one broker for, and how much of each; with their versions."""

    rows: tuple[PollPosition, ...]
    versions: dict[Place, int]
    max_bytes: int


class ReadPositions:
    """All assigned partitions of one consumer."""

    def __init__(
        self,
        *,
        reset: str,
        queued_max_bytes: int,
        fetch_max_bytes: int,
        max_partition_bytes: int,
        report: Callable[[Exception], None],
    ) -> None:
        self.states: dict[Place, PartitionState] = {}
        self._reset = reset
        self._queued_max_bytes = queued_max_bytes
        self._fetch_max_bytes = min(fetch_max_bytes, ANSWER_BYTES_MAX)
        self._max_partition_bytes = min(max_partition_bytes, queued_max_bytes)
        self._report = report
        self.reserved: dict[str, int] = {}
        """Bytes that the request under way at each broker may bring."""
        self.expected: Final[dict[Place, int]] = {}
        """The group's committed offset of partitions assigned by hand, as far as this consumer and
        the transactions of its producers know it; -1: none."""
        self.is_full = False
        """True if a partition was not fetched for want of room, since the last look at all."""
        self._answers = 0
        self._turn: deque[PartitionState] = deque()
        """Partitions with queued pages, in the order in which they are handed out."""

    # assignment

    def add(self, state: PartitionState) -> None:
        """Begin with a partition; a former state of the same one is forgotten."""
        state.fetched = state.position
        self.states[state.place] = state

    def remove(self, place: Place) -> None:
        """Forget a partition, with its pages and its position."""
        state = self.states.pop(place, None)
        if state is not None:
            state.move(None)

    def clear(self) -> None:
        """Forget every partition."""
        for place in list(self.states):
            self.remove(place)

    def start_of_reset(self) -> int | None:
        """Return OFFSET_BEGINNING or OFFSET_END by the reset policy; None with "none"."""
        return {"earliest": OFFSET_BEGINNING, "latest": OFFSET_END}.get(self._reset)

    def unresolved(self, now_s: float) -> list[PartitionState]:
        """Return the partitions whose start is to be looked up now."""
        return [
            state
            for state in self.states.values()
            if state.position is None and state.error is None and state.retry_s <= now_s
        ]

    # fetching

    @property
    def queued_bytes(self) -> int:
        """Bytes of all pages that wait."""
        return sum(state.queued_bytes for state in self.states.values())

    def leaders(self) -> set[str]:
        """Return the brokers that lead partitions which are to be fetched."""
        return {state.leader_url for state in self._wanted()}

    def _wanted(self) -> Iterator[PartitionState]:
        for state in self.states.values():
            if state.fetched is not None and state.is_readable:
                yield state

    def make_room(self) -> None:
        """Drop the pages of paused partitions if others lack the room to be fetched."""
        if self._queued_max_bytes - self.queued_bytes < self._max_partition_bytes:
            for state in self.states.values():
                if state.is_paused and state.pages:
                    state.rewind()

    def plan(self, broker: str, now_s: float) -> FetchPlan | float | None:
        """Return what to fetch from a broker; seconds until something may be; None: not now."""
        room = self._queued_max_bytes - self.queued_bytes
        most = self._max_partition_bytes
        if room < most:
            self.is_full = True
            return None
        room -= sum(size for url, size in self.reserved.items() if url != broker)
        states: list[PartitionState] = []
        wait_s: float | None = None
        for state in self._wanted():
            if state.leader_url != broker:
                continue
            if state.queued_bytes >= PAGES_PER_PARTITION * most:
                self.is_full = True
                continue
            if state.retry_s > now_s:
                later_s = state.retry_s - now_s
                wait_s = later_s if wait_s is None else min(wait_s, later_s)
                continue
            states.append(state)
        if not states:
            return wait_s
        states.sort(key=lambda state: state.served)
        rows = tuple(
            PollPosition(
                topic=state.topic,
                partition=state.partition,
                offset=state.fetched.offset,
                leader_epoch=state.fetched.epoch,
                topic_id=state.topic_id,
            )
            for state in states
            if state.fetched is not None
        )
        max_bytes = max(most, min(self._fetch_max_bytes, room // 2))
        return FetchPlan(rows, {one.place: one.version for one in states}, max_bytes)

    def receive_page(self, plan: FetchPlan, page: PolledPage) -> None:
        """Queue a page; drop it if the position has moved since it was asked for."""
        state = self._current(plan, page.topic, page.partition)
        if state is None or state.fetched is None or page.offset != state.fetched.offset:
            return
        self._answers += 1
        state.served = self._answers
        state.topic_id = page.topic_id
        state.leader_url = page.served_by_url or page.leader_url or ANY_BROKER
        state.high_watermark, state.log_start = page.high_watermark, page.log_start_offset
        state.fetched = LogPosition(page.next_offset, page.next_leader_epoch)
        if not state.pages:
            self._turn.append(state)
        state.pages.append(page)
        state.queued_bytes += len(page.body)

    def receive_refusal(self, plan: FetchPlan, refusal: PollRefusal, now_s: float) -> None:
        """Take the refusal of one partition: try again later, move by the policy, or stop."""
        state = self._current(plan, refusal.topic, refusal.partition)
        if state is None or state.fetched is None or refusal.offset != state.fetched.offset:
            return
        state.leader_url = ANY_BROKER
        is_before = state.position is not None and state.fetched.offset < state.position.offset
        if is_before and not refusal.retriable:
            state.joiner = None  # the first parts are gone
            state.move(state.position)
        elif state.position is None or state.position.offset != state.fetched.offset:
            state.retry_s = now_s + REFUSED_RETRY_S  # what was fetched before is returned first
        elif refusal.retriable:
            state.retry_s = now_s + LEADER_RETRY_S
        elif refusal.error_code == LOG_TRUNCATED:
            self._differ(state, state.fetched, refusal)
        elif refusal.error_code in {OUT_OF_RANGE, TOPIC_CHANGED}:
            self._leave_range(state, state.fetched, refusal)
        else:
            state.retry_s = now_s + REFUSED_RETRY_S
            self._report(refusal_error(refusal))

    def receive_news(self, broker: str, versions: dict[Place, int], news: Polled) -> bool:
        """Take what another broker says of a partition that a request waits for at ``broker``.

        Returns True if that request should have been answered: some other broker serves the
        partition, and is asked from now on, or its position is refused.
        """
        place = (news.topic, news.partition)
        state = self.states.get(place)
        if state is None or state.fetched is None or versions.get(place) != state.version:
            return False
        if news.offset != state.fetched.offset:
            return False
        if isinstance(news, PollRefusal):
            return not news.retriable
        found = news.served_by_url or news.leader_url or broker
        is_elsewhere = found != broker
        if is_elsewhere:
            state.leader_url = found
        return is_elsewhere

    def _current(self, plan: FetchPlan, topic: str, partition: int) -> PartitionState | None:
        state = self.states.get((topic, partition))
        if state is None or state.version != plan.versions.get((topic, partition)):
            return None
        return state

    def _differ(self, state: PartitionState, at: LogPosition, refusal: PollRefusal) -> None:
        """Go on where the log was cut; or, if it holds other records before, where it stood."""
        text = f"{state.topic}-{state.partition} at {at.offset}: {refusal.message}"
        error = LogTruncatedError(text, refusal.diverging_offset)
        error.code = refusal.error_code
        state.joiner = None
        state.move(at)
        if self._reset == "none":
            state.error = error
            return
        epoch = refusal.diverging_epoch
        is_cut = DIVERGED_TEXT not in refusal.message
        if is_cut and refusal.diverging_offset is not None:
            state.move(LogPosition(refusal.diverging_offset, epoch))
        else:
            state.move(LogPosition(at.offset))
        self._report(error)

    def _leave_range(self, state: PartitionState, at: LogPosition, refusal: PollRefusal) -> None:
        text = f"{state.topic}-{state.partition} at {at.offset}: {refusal.message}"
        error = OffsetOutOfRangeError(text)
        error.code = refusal.error_code
        state.joiner = None
        state.move(at)
        if self._reset == "none":
            state.error = error
            return
        is_other_topic = refusal.error_code == TOPIC_CHANGED
        state.topic_id = None
        state.move(None, self.start_of_reset() if is_other_topic else at.offset)
        self._report(error)

    def resolve(self, state: PartitionState, beginning: int, end: int) -> None:
        """Set the start of a partition from the ends of its log; the nearer end if out of them."""
        start = state.start if state.start is not None else self.start_of_reset()
        if start is None:
            text = f"{state.topic}-{state.partition} has no committed offset and no reset policy"
            state.error = OffsetOutOfRangeError(text)
        elif start == OFFSET_BEGINNING:
            state.move(LogPosition(beginning))
        elif start == OFFSET_END:
            state.move(LogPosition(end))
        else:
            state.move(LogPosition(min(max(start, beginning), end)))

    def forget_leader(self, broker: str, now_s: float) -> None:
        """Ask any broker for the partitions of one that does not answer."""
        for state in self.states.values():
            if state.leader_url == broker:
                state.leader_url = ANY_BROKER
                state.retry_s = max(state.retry_s, now_s + LEADER_RETRY_S)

    # handing out

    def next_page(self) -> tuple[PartitionState, PolledPage] | None:
        """Take the page that is next in turn, of a partition that is neither paused nor stopped."""
        state: PartitionState | None = None
        try:
            for _ in range(len(self._turn)):
                state = self._turn.popleft()
                if not state.pages or self.states.get(state.place) is not state:
                    continue  # moved or taken away since
                if not state.is_readable:
                    self._turn.append(state)
                    continue
                page = state.pages.popleft()
                state.queued_bytes -= len(page.body)
                if state.pages:
                    self._turn.append(state)
                return state, page
        except BaseException:  # an interrupt must not tear a hole
            if state is not None:
                state.rewind()
            self._turn = deque(one for one in self.states.values() if one.pages)
            raise
        return None

    def has_page(self) -> bool:
        """Return True if `next_page` would return one."""
        return any(state.pages and state.is_readable for state in self.states.values())

    def take_error(self) -> QuorumlogError | None:
        """Return the error of a partition whose reading has stopped, if there is one."""
        for state in self.states.values():
            if state.error is not None and not state.is_paused:
                return state.error
        return None

    # commits

    def to_commit(self, *, stored_only: bool) -> dict[Place, LogPosition]:
        """Return the offsets to commit of partitions where they differ from the last commit."""
        found: dict[Place, LogPosition] = {}
        for place, state in self.states.items():
            position = state.stored if stored_only else state.to_commit()
            if position is not None and position != state.committed:
                found[place] = position
        return found

    def note_own_commit(self, offsets: Mapping[Place, TopicPartition]) -> None:
        """Remember what the program commits by a call."""
        for place, one in offsets.items():
            if place in self.states and one.offset is not None:
                self.states[place].own_commit = LogPosition(one.offset, one.leader_epoch)

    def receive_commit(self, offsets: dict[Place, LogPosition]) -> None:
        """Remember what was committed."""
        for place, position in offsets.items():
            state = self.states.get(place)
            if state is not None:
                state.committed = position
                if place in self.expected:
                    self.expected[place] = position.offset
                if state.stored is not None and state.stored.offset <= position.offset:
                    state.stored = None  # it would undo this commit


def refusal_error(refusal: PollRefusal) -> ApiError:
    """Return the refusal of a row as an error."""
    text = f"{refusal.topic}-{refusal.partition} at {refusal.offset}: {refusal.message}"
    status = refusal.error_code // 100
    return api_error(status, refusal.error_code, text, {"retriable": refusal.retriable})


def partitions_of(places: Iterable[Place]) -> list[TopicPartition]:
    """Return places as sorted `TopicPartition`s."""
    return [TopicPartition(topic, partition) for topic, partition in sorted(places)]


def place_to_begin(
    one: TopicPartition, offset: int | None
) -> tuple[LogPosition | None, int | None]:
    """Return a position, or an end of the log to look up."""
    if offset in {None, OFFSET_BEGINNING, OFFSET_END}:
        return None, offset
    assert offset is not None
    if offset < 0:
        msg = f"{one!r}: expected an offset of 0 or more, OFFSET_BEGINNING or OFFSET_END"
        raise ConfigError(msg)
    return LogPosition(offset, one.leader_epoch), None
