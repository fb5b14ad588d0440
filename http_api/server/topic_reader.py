"""Reads of one or all partitions of a topic on from their places, whichever has something to read.

A page of a whole topic and a tail use a `TopicReader`: it reads the log when it is asked for the
next records, keeps nothing of them, and knows the place behind what it has returned. Partitions
without news wait in `PartitionWatches`. A leader that moves or dies is a pause; a place that the
log does not hold any more is an error, and never skipped.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from broker.server.requests import UNKNOWN_EPOCH, FetchRequest
from http_api.contract.errors import RestCode, RestError
from http_api.contract.grammar import AtOffset
from http_api.contract.tail_tokens import PARTITIONS_MAX, Place, ReadToken, encode_token
from http_api.server.partition_watches import WatchedPlace, is_leaderless, is_passing
from http_api.server.position_lookup import (
    POSITION_ATTEMPTS,
    before_bound,
    bound_of,
    ends_of,
    fetch_or_404,
    start_of,
)
from http_api.server.query_parameters import end_before_start
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import PartitionId

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.record.batch import BatchSlice
    from broker.server.requests import BrokerApis
    from http_api.contract.grammar import Position
    from http_api.server.partition_watches import PartitionWatches
    from http_api.server.query_parameters import ReadEnd
    from raft_metadata.common.ids import TopicId, TopicName
    from raft_metadata.common.stoppable_waits import StoppableWaits

RETRY_S: Final = 0.25
"""Pause before a partition that has a leader and could not be read is read again."""
PIECE_BYTES: Final = 65_536
"""Bytes of a partition that are read at a time; one record may be longer."""
LOOKUPS_AT_A_TIME: Final = 16
"""Look-ups of starts of a topic's partitions that are under way together."""


@dataclass(slots=True)
class ReadingPlace:
    """The place of a reader in one partition."""

    partition: PartitionId
    offset: int
    epoch: int = UNKNOWN_EPOCH
    """Epoch of ``offset`` (KIP-320)."""
    seen_epoch: int = UNKNOWN_EPOCH
    """The largest leader epoch seen."""
    end: int | None = None
    """Offset at which the read ends, exclusive."""
    found_by: Position | None = None
    """The position that was looked up to find ``offset``, until the first read from there."""
    lookups: int = 1

    @property
    def is_at_end(self) -> bool:
        """True if the bound of the read is reached."""
        return self.end is not None and self.offset >= self.end


@dataclass(frozen=True, slots=True)
class ReadTopic:
    """The topic that is read; another one of its name is an error."""

    name: TopicName
    topic_id: TopicId


class TopicReader:
    """A reader of some partitions of a topic.

    Owned by the handler of one request: one call at a time, then `close`.
    """

    def __init__(
        self,
        apis: BrokerApis,
        watches: PartitionWatches,
        topic: ReadTopic,
        places: Sequence[ReadingPlace],
        *,
        is_whole: bool,
        first: int = 0,
    ) -> None:
        """Take ``first``, the index in ``places`` of the partition that is read first.

        ``is_whole``: the places are those of the whole topic, and partitions that come are read.
        """
        self.topic = topic
        self._apis = apis
        self._watches = watches
        self._places = list(places)
        self._is_whole = is_whole
        self._left = {place.partition: place for place in places if not place.is_at_end}
        """Places that are not at their end."""
        turn = [place.partition for place in (*places[first:], *places[:first])]
        self._ready = deque(number for number in turn if number in self._left)
        """Partitions to read, in turn; each once."""
        self._watched: set[PartitionId] = set()
        self._timers: dict[PartitionId, asyncio.TimerHandle] = {}
        """Partitions that are read again after a pause."""
        self._opening_token: str | None = None
        """Token before the first records; None: none have been returned yet."""
        self._news = asyncio.Event()
        self._is_cut_off = False
        self._has_grown = False
        self._grows = is_whole and all(place.end is None for place in places)
        if self._grows:
            watches.watch_growth(self, topic.name, topic.topic_id, len(self._places))

    @property
    def is_at_end(self) -> bool:
        """True once every partition has been read up to its bound."""
        return not self._left

    @property
    def is_cut_off(self) -> bool:
        """True once the client's connection is lost."""
        return self._is_cut_off

    def opening_token(self) -> str:
        """Return the token of the places from which reading began."""
        return self._opening_token or self.token()

    def token(self) -> str:
        """Return the token behind all that `read` has returned."""
        places = tuple(Place(each.offset, each.epoch) for each in self._places)
        return self._encoded(places)

    def token_at(self, offset: int, epoch: int) -> str:
        """Return the token of a place in the one partition."""
        return self._encoded((Place(offset, epoch),))

    def _encoded(self, places: tuple[Place, ...]) -> str:
        alone = None if self._is_whole else self._places[0].partition
        return encode_token(ReadToken(self.topic.topic_id, places, alone))

    async def read(
        self, max_bytes: int, is_due: Callable[[], bool] | None = None
    ) -> tuple[PartitionId, Sequence[BatchSlice]] | None:
        """Return records of the next partition that has some, or None if none has any now.

        A call reads each partition once at most: a leader that can't be reached takes longer to
        fail than until it is tried again, so two of them would keep a call for ever. ``is_due``:
        the call returns before the next partition once it is true.

        Raises:
            KafkaError: a place is not in the log, or not any more; the topic is another one.
            RestError: 404, the partition is gone; 400, the topic has too many partitions by now.
        """
        if self._has_grown:
            self._take_growth()
        for _ in range(len(self._ready)):
            place = self._left[self._ready.popleft()]
            slices = await self._read_one(place, max_bytes)
            if slices:
                return place.partition, slices
            if is_due is not None and is_due():
                break
        return None

    async def _read_one(self, place: ReadingPlace, max_bytes: int) -> Sequence[BatchSlice]:
        topic = self.topic
        if is_leaderless(self._apis.image, topic.name, topic.topic_id, place.partition):
            self._watch(place)  # it wakes this reader once there is a leader
            return ()
        fetch = FetchRequest(
            topic=topic.name,
            partition=place.partition,
            offset=place.offset,
            max_bytes=max_bytes,
            max_wait_ms=0,
            leader_epoch=place.epoch,
            seen_epoch=place.seen_epoch,
            topic_id=topic.topic_id,
        )
        try:
            result = await fetch_or_404(self._apis, fetch)
        except KafkaError as error:
            await self._take_failure(place, fetch, error)
            return ()
        place.found_by = None
        place.seen_epoch = max(place.seen_epoch, result.leader_epoch)
        if place.end is not None:
            result = before_bound(result, place.end)
        if result.slices and self._opening_token is None:
            self._opening_token = self.token()
        is_known = place.epoch != UNKNOWN_EPOCH or place.offset > result.high_watermark
        if result.next_offset > place.offset or not is_known:
            # The epoch of what is not committed yet may change without a loss: it is not kept.
            place.offset, place.epoch = result.next_offset, result.next_leader_epoch
        if place.is_at_end:
            del self._left[place.partition]
        elif result.slices and place.offset < result.high_watermark:
            self._ready.append(place.partition)
        else:
            self._watch(place)
        return result.slices

    async def _take_failure(
        self, place: ReadingPlace, fetch: FetchRequest, error: KafkaError
    ) -> None:
        """Read a partition again later; raise what makes that useless."""
        if is_passing(error):
            loop = asyncio.get_running_loop()
            self._timers[place.partition] = loop.call_later(RETRY_S, self.wake, place.partition)
            return
        is_moved = error.code is ErrorCode.OFFSET_OUT_OF_RANGE and place.found_by is not None
        if not is_moved or place.lookups >= POSITION_ATTEMPTS:
            raise error
        place.lookups += 1
        assert place.found_by is not None, "it was looked up"
        place.offset = await start_of(self._apis, place.found_by, fetch)
        self._ready.append(place.partition)

    def _watch(self, place: ReadingPlace) -> None:
        self._watched.add(place.partition)
        watched = WatchedPlace(
            self.topic.name,
            self.topic.topic_id,
            place.partition,
            place.offset,
            place.epoch,
            place.seen_epoch,
        )
        self._watches.join(self, watched)

    # waiting

    async def wait(self, waits: StoppableWaits, delay_s: float) -> bool:
        """Wait until there may be something to read; return False after ``delay_s``, or at a stop.

        Returns at once where a partition is ready, or the client is gone.
        """
        if self._ready or self._has_grown or self._is_cut_off:
            return True
        self._news.clear()
        try:
            async with waits.wait(delay_s):
                await self._news.wait()
        except TimeoutError:
            return False
        return True

    def wake(self, partition: PartitionId) -> None:
        """Have a partition read again; called by its watch, or after a pause."""
        self._watched.discard(partition)
        self._timers.pop(partition, None)
        if partition in self._left and partition not in self._ready:
            self._ready.append(partition)
        self._news.set()

    def topic_changed(self) -> None:
        """Look at the topic's partitions before the next read; called by the watches."""
        self._has_grown = True
        self._news.set()

    def cut_off(self) -> None:
        """Take the news that the client's connection is lost."""
        self._is_cut_off = True
        self._news.set()

    def _take_growth(self) -> None:
        """Add the partitions that have come, from their first record on."""
        self._has_grown = False
        topic = self._apis.image.topic(self.topic.name)
        if topic is None or topic.topic_id != self.topic.topic_id:
            for partition in list(self._watched):  # their reads tell what became of the topic
                self._watches.leave(self, self.topic.topic_id, partition)
                self.wake(partition)
            return
        count = len(topic.partitions)
        check_count(self.topic.name, count)
        for number in range(len(self._places), count):
            place = ReadingPlace(PartitionId(number), 0)
            self._places.append(place)
            self._left[place.partition] = place
            self._ready.append(place.partition)
        self._watches.watch_growth(self, self.topic.name, self.topic.topic_id, count)

    def close(self) -> None:
        """Wait for nothing any more."""
        self._watches.ignore_growth(self)
        for partition in self._watched:
            self._watches.leave(self, self.topic.topic_id, partition)
        for timer in self._timers.values():
            timer.cancel()


async def read_pages(
    reader: TopicReader, waits: StoppableWaits, max_bytes: int, max_wait_ms: int
) -> list[tuple[PartitionId, Sequence[BatchSlice]]]:
    """Return records of all partitions, some of each in turn, as soon as one has any.

    Reading stops at ``max_bytes``, before the record behind it, or after ``max_wait_ms`` without
    records. A partition that can't be read at present holds up none of the others.
    """
    found: list[tuple[PartitionId, Sequence[BatchSlice]]] = []
    left_bytes = max_bytes
    loop = asyncio.get_running_loop()
    until_s = loop.time() + max_wait_ms / 1000
    while left_bytes > 0:
        some = await reader.read(min(left_bytes, PIECE_BYTES))
        if some is not None:
            found.append(some)
            left_bytes -= sum(len(piece.lines) for piece in some[1])
            continue
        left_s = until_s - loop.time()
        if found or reader.is_at_end or left_s <= 0 or not await reader.wait(waits, left_s):
            break
    return found


def check_count(topic: TopicName, partitions: int) -> None:
    """Raise 400/40002 for a topic that has too many partitions to be read as a whole."""
    if partitions > PARTITIONS_MAX:
        text = f"Topic {topic} has {partitions} partitions, and at most {PARTITIONS_MAX} are read "
        text += f"as a whole: read each by /topics/{topic}/partitions/P/records"
        raise RestError(400, RestCode.KAFKA_BAD_REQUEST, text)


async def find_places(
    apis: BrokerApis,
    topic: TopicName,
    partitions: Sequence[PartitionId],
    position: Position,
    end: ReadEnd | None,
) -> list[ReadingPlace]:
    """Return the place of a position in each partition, some look-ups at a time.

    An offset that several partitions are to start at is cut to the end of those that are shorter.

    Raises:
        KafkaError: the leader of one does not answer at present.
    """
    found: list[ReadingPlace] = []
    is_alone = len(partitions) == 1
    for first in range(0, len(partitions), LOOKUPS_AT_A_TIME):
        some = partitions[first : first + LOOKUPS_AT_A_TIME]
        looking = [
            _find_place(apis, topic, each, position, end, is_alone=is_alone) for each in some
        ]
        for place in await asyncio.gather(*looking, return_exceptions=True):
            if isinstance(place, BaseException):
                raise place
            found.append(place)
    return found


async def _find_place(
    apis: BrokerApis,
    topic: TopicName,
    partition: PartitionId,
    position: Position,
    end: ReadEnd | None,
    *,
    is_alone: bool,
) -> ReadingPlace:
    look_up = FetchRequest(topic=topic, partition=partition)
    bound = None if end is None else await bound_of(apis, end, look_up)
    found_by = None
    match position:
        case AtOffset(offset) if is_alone:
            start = offset
            if bound is not None and bound < start:
                raise end_before_start("end_timestamp", bound, start)
        case AtOffset(offset):
            start = min(offset, (await ends_of(apis, look_up)).end_offset)
        case _:
            found_by = position
            start = await start_of(apis, position, look_up)
    return ReadingPlace(partition, start, end=bound, found_by=found_by)
