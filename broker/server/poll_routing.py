"""Polls of many partitions on the broker that received them.

`RoutedBrokerApis` calls `PollRouting` for every ``records:poll``. A poll becomes one leg for each
broker that serves some of its rows: this one (`local_polls`), or another, which is asked once and
waits there. The first leg with a page ends the others. Rows without a leader, or whose
leader does not answer, are tried again until then, and only then reported.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from broker.ports import PeerRequest
from broker.server.fetch import (
    ANSWER_GRACE_MS,
    choose_follower,
    unproven_absence,
    unproven_topic,
)
from broker.server.local_polls import PollWatch
from broker.server.peer_codec import PeerRequestKind
from broker.server.poll_messages import (
    FORWARDED_BYTES,
    FORWARDED_PAGE_BYTES,
    LegPages,
    PlacedRow,
    PollId,
    PollLeg,
    decode_leg_pages,
    encode_end_poll,
    encode_leg,
    is_final,
    pages_in_room,
)
from broker.server.requests import PollPage, note_passed_to
from broker.server.router import DEPOSED_GRACE_MS, REROUTE_PAUSE_MS
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import TopicIdPartition
from raft_metadata.common.internal_topics import read_refusal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from broker.config import BrokerConfig
    from broker.ports import PeerChannel
    from broker.server.fetch import FollowerReads
    from broker.server.local_polls import LocalPolls
    from broker.server.metadata_loader import MetadataLoader
    from broker.server.requests import PollRequest, PollRow
    from raft_metadata.common.clock import Clock
    from raft_metadata.common.ids import BrokerId, TopicId
    from raft_metadata.image.metadata_image import MetadataImage, PartitionRegistration, TopicImage

GATHER_MS: Final = 300
"""Time for the other brokers to answer once one has a page: a broker that hangs delays
the answer by no more than this, and its rows are reported as not served."""
RETRY_MS_MAX: Final = 1_000
"""Longest pause before rows that could not be served are tried again. It begins with
`REROUTE_PAUSE_MS` and doubles; a new image ends it."""
END_TIMEOUT_MS: Final = 1_000


class PollRouting:
    """Polls that clients sent to this broker.

    Owned by `RoutedBrokerApis`, on its loop. It holds the polls under way, which look at their
    leaders again for each new image.
    """

    def __init__(
        self,
        config: BrokerConfig,
        polls: LocalPolls,
        follower_reads: FollowerReads,
        loader: MetadataLoader,
        peers: PeerChannel,
        clock: Clock,
        catch_up: Callable[[], Awaitable[bool]],
        random_bytes: Callable[[int], bytes],
    ) -> None:
        """Take ``catch_up``: see `ReadRouting`."""
        self.broker_id = config.broker_id
        self._limits = config.limits
        self.polls = polls
        self.follower_reads = follower_reads
        self._loader = loader
        self.peers = peers
        self.clock = clock
        self._catch_up = catch_up
        self._next_number = int.from_bytes(random_bytes(6), "little")
        self._under_way: set[_Poll] = set()

    async def poll(self, request: PollRequest) -> list[PollPage]:
        """Return the pages of all rows that have one, in the order of the rows."""
        with self.polls.holding(len(request.rows)):
            deadline_ms = self.clock.monotonic_ms() + min(
                request.max_wait_ms, self._limits.max_fetch_wait_ms
            )
            placed, refused = await self._place(request.rows)
            poll = _Poll(self, request, deadline_ms)
            self._under_way.add(poll)
            try:
                pages = await poll.run(placed, refused)
            finally:
                self._under_way.discard(poll)
            return pages_in_room(pages, request.max_bytes)

    @property
    def image(self) -> MetadataImage:
        """Present image of this broker."""
        return self._loader.image

    def image_changed(self) -> None:
        """Have the polls under way look at their leaders again."""
        for poll in self._under_way:
            poll.image_changed()

    def next_id(self) -> PollId:
        """Return the name of a leg that another broker serves."""
        self._next_number += 1
        return PollId(self.broker_id, self._next_number)

    async def _place(
        self, rows: Sequence[PollRow]
    ) -> tuple[list[PlacedRow], dict[int, KafkaError]]:
        """Return the rows whose topics are there, and the errors of the others.

        What this broker's image lacks, or knows only in an older epoch, is looked for in the active
        controller's newest image, once for all rows.
        """
        is_newest = True
        if self._is_behind(rows):
            is_newest = await self._catch_up()
            if not self._loader.loaded.is_set():
                text = "this broker does not know yet which topics exist"
                raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, text)
        placed: list[PlacedRow] = []
        refused: dict[int, KafkaError] = {}
        for number, row in enumerate(rows):
            error = self.refusal(row)
            topic = self.image.topic(row.topic)
            if error is not None or topic is None:
                error = error or _unknown(row)
                if not is_newest:
                    error = _unproven(row, topic)
                refused[number] = error
                continue
            place = TopicIdPartition(topic.topic_id, row.partition)
            placed.append(PlacedRow(number, place, row.offset, row.leader_epoch))
        return placed, refused

    def _is_behind(self, rows: Sequence[PollRow]) -> bool:
        for row in rows:
            if self.refusal(row) is not None:
                return True
            topic = self.image.topic(row.topic)
            if topic is None or row.partition >= len(topic.partitions):
                return True
            if row.leader_epoch > topic.partitions[row.partition].leader_epoch:
                return True
        return False

    def refusal(self, row: PollRow) -> KafkaError | None:
        """Return why a row names nothing that this broker's image has, or None."""
        topic = self.image.topic(row.topic)
        if topic is None:
            return _unknown(row)
        refusal = read_refusal(row.topic)
        if refusal is not None:
            return refusal
        if row.topic_id not in {None, topic.topic_id}:
            text = (
                f"topic {row.topic} has the id {topic.topic_id}, not {row.topic_id}: it was "
                "deleted and created again"
            )
            return KafkaError(ErrorCode.TOPIC_CHANGED, text)
        if not 0 <= row.partition < topic.partitions_count:
            text = f"topic {row.topic} has {topic.partitions_count} partitions, numbered from 0"
            return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
        return None


@dataclass(slots=True, eq=False)
class _Leg:
    """The rows of a poll that one broker serves, until it has answered. Owned by its `_Poll`."""

    broker_id: BrokerId
    from_follower: bool
    rows: dict[int, PlacedRow]
    watch: PollWatch | None = None
    """The wait at this broker; None: another one serves the leg."""
    poll_id: PollId | None = None
    scope: asyncio.Timeout | None = None
    """Time-out of another broker's answer."""
    is_ended: bool = False
    answer: LegPages | None = None
    error: KafkaError | None = None
    task: asyncio.Task[None] | None = None


@dataclass(slots=True)
class _Pause:
    """Pause before the rows that could not be served are tried again."""

    at_ms: int = 0
    next_ms: int = REROUTE_PAUSE_MS


class _Poll:
    """One poll of a client. Owned by the task that awaits `run`.

    Each row without a page is in one leg, or in ``_waiting`` until it can be put in one, or
    has an answer without news.
    """

    def __init__(self, routing: PollRouting, request: PollRequest, deadline_ms: int) -> None:
        self._routing = routing
        self._request = request
        self._deadline_ms = deadline_ms
        self._legs: set[_Leg] = set()
        self._pages: list[PollPage] = []
        self._waiting: dict[int, PlacedRow] = {}
        self._topic_ids: dict[int, TopicId] = {}
        self._errors: dict[int, KafkaError] = {}
        """Row → why it could not be served so far."""
        self._leader_only: set[int] = set()
        """Rows that a follower could not serve."""
        self._refused: set[int] = set()
        """Rows of `_leader_only` that no leader was asked for yet."""
        self._pause = _Pause()
        self._topics: dict[TopicId, TopicImage | None] = {}
        """The topics as they were when legs were last made or checked."""
        self._event = asyncio.Event()
        """Set when a leg was answered, or a new image is there."""
        self._image_is_new = False

    async def run(
        self, placed: Sequence[PlacedRow], refused: dict[int, KafkaError]
    ) -> list[PollPage]:
        """Return the pages, unordered, once there is one or the wait is over."""
        for number, error in refused.items():
            topic = self._routing.image.topic(self._request.rows[number].topic)
            topic_id = None if topic is None else topic.topic_id
            self._pages.append(PollPage(number, topic_id, error))
        self._waiting = {row.row: row for row in placed}
        self._topic_ids = {row.row: row.place.topic_id for row in placed}
        async with asyncio.TaskGroup() as tasks:
            try:
                self._make_legs(tasks)
                while not self._pages and self._left_ms() > 0:
                    await self._wait(self._left_ms())
                    self._look(tasks)
                await self._gather(tasks)
            finally:
                for leg in self._legs:
                    self._end(leg, 0)
                    if leg.task is not None:
                        leg.task.cancel()
        return [*self._pages, *self._reports()]

    def image_changed(self) -> None:
        """Look at the legs again by the new image."""
        self._image_is_new = True
        self._event.set()

    def _left_ms(self) -> int:
        return self._deadline_ms - self._routing.clock.monotonic_ms()

    async def _wait(self, at_most_ms: int) -> None:
        """Wait for an answer or an image; no longer than until rows are to be tried again."""
        if self._waiting:
            pause_ms = self._pause.at_ms - self._routing.clock.monotonic_ms()
            at_most_ms = min(at_most_ms, max(1, pause_ms))
        await self._wait_for_event(at_most_ms)

    def _look(self, tasks: asyncio.TaskGroup) -> None:
        """Take the answers that came; end legs that the image has overtaken; make new ones."""
        self._take_answers()
        is_new, self._image_is_new = self._image_is_new, False
        if is_new:
            self._check_leaders()
            self._pause = _Pause()
        if self._waiting and self._pause.at_ms <= self._routing.clock.monotonic_ms():
            self._make_legs(tasks)

    def _take_answers(self) -> None:
        for leg in [leg for leg in self._legs if leg.answer is not None or leg.error is not None]:
            self._legs.discard(leg)
            if leg.error is not None:
                self._take_failure(leg, leg.error)
                continue
            assert leg.answer is not None
            self._pages += leg.answer.pages
            answered = {page.row for page in leg.answer.pages}
            if leg.from_follower:
                self._ask_leaders_of(leg.answer.unserved)
            for number, row in leg.rows.items():
                if number in answered:
                    continue
                self._waiting[number] = row
                self._errors.pop(number, None)
                if number in leg.answer.unserved:
                    self._errors[number] = leg.answer.unserved[number]

    def _take_failure(self, leg: _Leg, error: KafkaError) -> None:
        if is_final(error) and not leg.from_follower:
            self._pages += [self._error_page(number, error) for number in leg.rows]
            return
        self._waiting |= leg.rows
        self._errors |= dict.fromkeys(leg.rows, error)
        if leg.from_follower:
            self._ask_leaders_of(leg.rows)
        else:
            self._pause_retries()

    def _ask_leaders_of(self, rows: Iterable[int]) -> None:
        self._leader_only |= set(rows)
        self._refused |= set(rows)
        self._pause.at_ms = 0

    def _pause_retries(self) -> None:
        self._pause.at_ms = self._routing.clock.monotonic_ms() + self._pause.next_ms
        self._pause.next_ms = min(2 * self._pause.next_ms, RETRY_MS_MAX)

    def _check_leaders(self) -> None:
        """End the legs to brokers that do not lead, or follow in sync, all of their rows."""
        image = self._routing.image
        changed = {
            topic_id for topic_id, topic in self._topics.items()
            if image.topics.get(topic_id) is not topic
        }  # fmt: skip
        if not changed:
            return
        self._topics |= {topic_id: image.topics.get(topic_id) for topic_id in changed}
        for leg in self._legs:
            for row in leg.rows.values():
                if row.place.topic_id not in changed:
                    continue
                registration = image.partition(*row.place)
                if registration is None or not _serves(registration, leg):
                    self._end(leg, DEPOSED_GRACE_MS)
                    break

    def _make_legs(self, tasks: asyncio.TaskGroup) -> None:
        """Put the rows that wait into legs to the brokers that serve them by this image."""
        image = self._routing.image
        by_followers = self._request.rack is not None and self._routing.follower_reads.is_enabled(
            image
        )
        legs: dict[tuple[BrokerId, bool], dict[int, PlacedRow]] = {}
        for number, row in sorted(self._waiting.items()):
            self._topics.setdefault(row.place.topic_id, image.topics.get(row.place.topic_id))
            registration = image.partition(*row.place)
            deleted = self._deletion(number)
            if deleted is not None:
                self._pages.append(self._error_page(number, deleted))
                del self._waiting[number]
                continue
            if registration is None or not registration.has_leader:
                self._errors[number] = _no_leader()
                continue
            target = (registration.leader, False)
            if by_followers and number not in self._leader_only:
                rack, me = self._request.rack or "", self._routing.broker_id
                follower = choose_follower(image, row.place, registration, rack, me)
                target = target if follower is None else (follower, True)
            legs.setdefault(target, {})[number] = row
            del self._waiting[number]
        for (broker_id, from_follower), rows in legs.items():
            leg = _Leg(broker_id, from_follower, rows)
            self._legs.add(leg)
            ask = self._serve if broker_id == self._routing.broker_id else self._ask
            leg.task = tasks.create_task(ask(leg))
        self._refused.clear()
        if self._waiting:
            self._pause_retries()

    def _message(self, leg: _Leg, *, is_forwarded: bool) -> PollLeg:
        request = self._request
        max_bytes, page_bytes = request.max_bytes, request.max_partition_bytes
        if is_forwarded:
            max_bytes = min(max_bytes, FORWARDED_BYTES)
            page_bytes = min(page_bytes, FORWARDED_PAGE_BYTES)
        return PollLeg(
            rows=list(leg.rows.values()),
            max_wait_ms=0 if self._pages else max(0, self._left_ms()),
            min_bytes=min(request.min_bytes, page_bytes),
            max_bytes=max_bytes,
            max_partition_bytes=page_bytes,
            news_only=request.news_only,
            packed=request.packed,
            from_follower=leg.from_follower,
        )

    async def _serve(self, leg: _Leg) -> None:
        """Have this broker serve a leg."""
        leg.watch = PollWatch()
        if leg.is_ended:
            leg.watch.end()
        leg.answer = await self._routing.polls.serve(
            self._message(leg, is_forwarded=False), leg.watch
        )
        self._event.set()

    async def _ask(self, leg: _Leg) -> None:
        """Have another broker serve a leg, and take its answer or why there is none."""
        routing = self._routing
        broker = routing.image.brokers.get(leg.broker_id)
        message = self._message(leg, is_forwarded=True)
        timeout_ms = message.max_wait_ms + ANSWER_GRACE_MS
        try:
            if broker is None:
                raise _no_leader()
            leg.poll_id = routing.next_id()
            body = encode_leg(message, leg.poll_id)
            note_passed_to(leg.broker_id)
            async with asyncio.timeout(timeout_ms / 1000) as leg.scope:
                answer = await routing.peers.call(
                    leg.broker_id, broker.peer, PeerRequestKind.POLL, body, timeout_ms
                )
            leg.answer = decode_leg_pages(answer, leg.rows)
        except KafkaError as error:
            leg.error = error
        except TimeoutError:
            text = f"broker {leg.broker_id} did not answer in time"
            leg.error = KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, text)
        finally:
            leg.scope = None
            self._event.set()

    def _end(self, leg: _Leg, grace_ms: int) -> None:
        """Have a leg answer at once; another broker's answer is awaited for ``grace_ms``."""
        if leg.watch is not None:
            leg.watch.end()
        if leg.scope is not None:
            soon = asyncio.get_running_loop().time() + grace_ms / 1000
            when = leg.scope.when()
            if when is None or when > soon:
                leg.scope.reschedule(soon)
            if not leg.is_ended:
                self._send_end(leg)
        leg.is_ended = True

    def _send_end(self, leg: _Leg) -> None:
        broker = self._routing.image.brokers.get(leg.broker_id)
        if broker is None or leg.poll_id is None:
            return
        body = encode_end_poll(leg.poll_id)
        end = PeerRequest(PeerRequestKind.END_POLL, body, END_TIMEOUT_MS, _ignore)
        self._routing.peers.post(leg.broker_id, broker.peer, [end])

    async def _gather(self, tasks: asyncio.TaskGroup) -> None:
        """Have the legs answer now, and take their pages.

        Where no page came in time, the legs end by themselves, and their answers are awaited.
        """
        grace_ms = GATHER_MS if self._pages else ANSWER_GRACE_MS
        until_ms = self._routing.clock.monotonic_ms() + grace_ms
        while self._legs and (left_ms := until_ms - self._routing.clock.monotonic_ms()) > 0:
            if self._pages:
                for leg in self._legs:
                    self._end(leg, left_ms)
            await self._wait_for_event(left_ms)
            self._take_answers()
            if self._refused:  # by followers: their leaders answer at once
                others = {
                    number: row
                    for number, row in self._waiting.items()
                    if number not in self._refused
                }
                self._waiting = {number: self._waiting[number] for number in self._refused}
                self._make_legs(tasks)
                self._waiting |= others

    async def _wait_for_event(self, at_most_ms: int) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(at_most_ms / 1000):
                await self._event.wait()
        self._event.clear()

    def _reports(self) -> Iterable[PollPage]:
        """Return the pages of rows that could not be served until the end."""
        answered = {page.row for page in self._pages}
        for leg in self._legs:
            text = f"broker {leg.broker_id}, which serves the partition, did not answer in time"
            error = KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, text)
            self._errors |= dict.fromkeys(leg.rows, error)
        return [
            self._error_page(number, self._deletion(number) or error)
            for number, error in self._errors.items()
            if number not in answered
        ]

    def _deletion(self, number: int) -> KafkaError | None:
        """Return the error of a row whose topic was deleted during the poll, else None."""
        if self._topic_ids[number] in self._routing.image.topics:
            return None
        error = self._routing.refusal(self._request.rows[number])
        return error or KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the topic was deleted")

    def _error_page(self, number: int, error: KafkaError) -> PollPage:
        return PollPage(number, self._topic_ids[number], error)


def _serves(registration: PartitionRegistration, leg: _Leg) -> bool:
    """Return whether a leg's broker may still serve a row of it."""
    if leg.from_follower:
        return leg.broker_id in registration.isr
    return registration.leader == leg.broker_id


def _no_leader() -> KafkaError:
    return KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, "the partition has no leader")


def _unknown(row: PollRow) -> KafkaError:
    return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic {row.topic} not found")


def _unproven(row: PollRow, topic: TopicImage | None) -> KafkaError:
    """Return the error of a row that names nothing of an image that may be old (rule R8)."""
    if topic is None or row.topic_id in {None, topic.topic_id}:
        return unproven_absence(row.topic)
    return unproven_topic(row.topic, topic.topic_id)


def _ignore(_: bytes, __: KafkaError | None) -> None:
    """Take the answer to END_POLL, which is empty."""
