"""Latest offsets of a running stream: found, and waited for, with one request.

A `stream_reader.Driver` calls `LatestOffsets.news` for each trigger. It polls all partitions of all
topics at once (``records:poll`` with ``news_only``): the answer has the end of each partition,
and where nothing is new it waits at the brokers. Partitions that were added and topics that were
created anew are looked for every ``metadataRefreshMs``. A log that is not the one that was read is
an error, unless ``failOnDataLoss=false``; then the stream goes on where that log differs.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from http_api.client.polling import POSITIONS_MAX, PolledPage, PollPosition, PollRefusal
from http_api.client.routes import Backoff
from spark_source import offsets
from spark_source.cluster import (
    LOG_TRUNCATED_CODE,
    NOT_FOUND,
    OUT_OF_RANGE_CODE,
    TOPIC_CHANGED_CODE,
    Topic,
    UnknownTopicError,
    is_truncation,
)
from spark_source.errors import DataLossError, NotServedError
from spark_source.offsets import FIRST, NextOffset, TopicOffsets

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from spark_source.cluster import Cluster
    from spark_source.offsets import Epochs, Place, Position
    from spark_source.options import SourceOptions

log = logging.getLogger(__name__)

LOOKS_MAX = 3
"""Most polls for one trigger while topics change; what is left is found by the next trigger."""
UNSETTLED_PAUSE_S = 0.5
"""Pause where brokers do not agree yet which topics there are."""


@dataclass(slots=True)
class News:
    """Result of a poll behind a position."""

    ends: dict[Place, NextOffset] = field(default_factory=dict)
    """New end of each partition that has one."""
    moved: dict[Place, NextOffset] = field(default_factory=dict)
    """Offset to go on at, of partitions whose log is not the one that was read; perhaps lower
    than the position."""
    epochs: dict[Place, Epochs] = field(default_factory=dict)
    topics_changed: bool = False
    """A topic or partition is not what the last look at the topics found."""
    unanswered: list[PollRefusal] = field(default_factory=list)
    """Refusals that are temporary: of these partitions nothing is known now."""

    def end_of(self, begin: Position, topics: Mapping[str, Topic]) -> Position:
        """Return the position that these news lead to from ``begin``."""
        found = dict(begin)
        for (name, partition), at in (self.ends | self.moved).items():
            topic_id = topics[name].topic_id
            old = found.get(name)
            kept = old.partitions if old is not None and old.topic_id == topic_id else {}
            found[name] = TopicOffsets(topic_id, {**kept, partition: at})
        return found


class LatestOffsets:
    """Source of the latest offsets of one stream. Owned by one thread."""

    def __init__(
        self,
        cluster: Cluster,
        options: SourceOptions,
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._cluster = cluster
        self._options = options
        self._now_s = now_s
        self._sleep = sleep
        self._looked_s = -float("inf")
        """Time of the last look-up of the topics."""
        self.topics: dict[str, Topic] = {}
        """The topics that exist, as they were then."""

    def news(self, begin: Position, wait_ms: int) -> News:
        """Return what is new behind ``begin``; wait for the first news, once.

        Raises:
            DataLossError: what was read is not what the log holds any more (``failOnDataLoss``).
            NotServedError: no answer in time.
        """
        found = News()
        for look in range(LOOKS_MAX):
            self._refresh(begin)
            found = self._poll(begin, wait_ms if look == 0 else 0)
            if not found.topics_changed:
                return found
            self._looked_s = -float("inf")
        self._sleep(min(wait_ms / 1000, UNSETTLED_PAUSE_S))
        return found

    def checked_news(self, begin: Position) -> News:
        """Return what is new behind ``begin`` now, with an answer about each partition.

        For a stream with a target, which was looked up apart: it may go there only from a position
        that was found to be one of this log. A leader that was just elected answers a little later.

        Raises:
            DataLossError: as `news` does.
            NotServedError: a partition gave no answer for ``retryTimeoutMs``.
        """
        retry_s = self._options.connection.retry_s
        backoff = Backoff(self._now_s() + retry_s)
        while (found := self.news(begin, 0)).unanswered:
            wait_s = backoff.next_s(self._now_s())
            if wait_s is None:
                refused = found.unanswered[0]
                msg = (
                    f"{_named(refused)} gave no answer at offset {refused.offset} for {retry_s:g} "
                    f"s (retryTimeoutMs): {refused.message}"
                )
                raise NotServedError(msg)
            self._sleep(wait_s)
        return found

    def restarted(self, begin: Position) -> Position:
        """Return ``begin`` without topics that were created anew: they are read from their start.

        Raises:
            DataLossError: a topic was created anew (``failOnDataLoss``).
        """
        now = {
            name: TopicOffsets(topic.topic_id, {})
            for name, topic in self.topics.items()
            if name in begin
        }
        fail = self._options.fail_on_data_loss
        offsets.check_same_topic_ids(begin, now, fail_on_data_loss=fail)
        anew = {name for name, topic in now.items() if topic.topic_id != begin[name].topic_id}
        for name in sorted(anew):
            log.warning(
                "topic %s was deleted and created anew: what the old one still held is lost; the "
                "query reads the new one, %s, from its start",
                name,
                now[name].topic_id,
            )
        return {name: now[name] if name in anew else held for name, held in begin.items()}

    def _refresh(self, begin: Position) -> None:
        """Look up the topics if that is due."""
        if self._now_s() - self._looked_s < self._options.metadata_refresh_ms / 1000:
            return
        self.topics = self._cluster.topics(self._options.topics)
        self._looked_s = self._now_s()
        for name in self._options.topics:
            if name in self.topics:
                continue
            if self._options.fail_on_data_loss or name not in begin:
                msg = f"topic {name} does not exist on {self._cluster.urls[0]}"
                raise UnknownTopicError(msg)
            log.warning("topic %s does not exist any more: the query waits for it", name)

    def _poll(self, begin: Position, wait_ms: int) -> News:
        found = News()
        positions = self._positions(self.restarted(begin))
        if not positions:
            self._sleep(wait_ms / 1000)
        chunks = [
            positions[at : at + POSITIONS_MAX] for at in range(0, len(positions), POSITIONS_MAX)
        ]
        for number, chunk in enumerate(chunks, 1):
            is_wait = number == len(chunks) and not found.ends and not found.moved
            for page in self._cluster.news(chunk, wait_ms if is_wait else 0):
                self._take(found, page, chunk)
        return found

    def _positions(self, begin: Position) -> list[PollPosition]:
        positions = []
        for name, topic in sorted(self.topics.items()):
            held = begin[name].partitions if name in begin else {}
            for partition in sorted({*range(topic.partitions_count), *held}):
                at = held.get(partition, FIRST)
                positions.append(
                    PollPosition(
                        topic=name,
                        partition=partition,
                        offset=at.offset,
                        leader_epoch=at.epoch,
                        topic_id=topic.topic_id,
                    )
                )
        return positions

    def _take(
        self, found: News, page: PolledPage | PollRefusal, asked: Sequence[PollPosition]
    ) -> None:
        place = (page.topic, page.partition)
        if isinstance(page, PolledPage):
            found.ends[place] = NextOffset(page.next_offset, page.next_leader_epoch)
            found.epochs[place] = page.epochs
        elif page.error_code == LOG_TRUNCATED_CODE:
            found.moved[place] = self._replaced(page)
        elif page.error_code == OUT_OF_RANGE_CODE:
            self._take_out_of_range(found, page)
        elif page.error_code == TOPIC_CHANGED_CODE or page.error_code // 100 == NOT_FOUND:
            found.topics_changed = True
        elif page.retriable:
            found.unanswered.append(page)
        else:
            msg = f"{_named(page)} can't be read from offset {page.offset}: {page.message}"
            raise NotServedError(msg)

    def _replaced(self, page: PollRefusal) -> NextOffset:
        """Return where to go on in a log that is not the one that was read up to the position."""
        diverging = page.offset if page.diverging_offset is None else page.diverging_offset
        epoch = None if page.diverging_epoch in {None, -1} else page.diverging_epoch
        resume = NextOffset(page.offset, epoch)
        if is_truncation(page.message):
            resume = NextOffset(min(diverging, page.offset), epoch)
        what = (
            f"{_named(page)}: offsets {diverging} to {page.offset - 1}, which the query has read, "
            f"are not in the log any more: {page.message}"
        )
        if self._options.fail_on_data_loss:
            msg = f"{what}; failOnDataLoss=false goes on at offset {resume.offset}"
            raise DataLossError(msg)
        log.warning("%s; the query goes on at offset %d", what, resume.offset)
        return resume

    def _take_out_of_range(self, found: News, page: PollRefusal) -> None:
        """Take a position outside of the log.

        What retention deleted is for the task to report, or to skip: the range shows what is gone.
        """
        try:
            low, high = self._cluster.partition_ends(page.topic, page.partition)
        except UnknownTopicError:
            found.topics_changed = True
            return
        place = (page.topic, page.partition)
        if page.offset < low:
            found.ends[place] = high
        elif page.offset > high.offset:
            what = (
                f"{_named(page)}: the query is at offset {page.offset}, and the log ends at "
                f"{high.offset}: what was read behind that is not in the log any more"
            )
            if self._options.fail_on_data_loss:
                msg = f"{what}; failOnDataLoss=false goes on at the end"
                raise DataLossError(msg)
            log.warning("%s; the query goes on there", what)
            found.moved[place] = high


def _named(page: PollRefusal) -> str:
    return f"partition {page.partition} of topic {page.topic}"
