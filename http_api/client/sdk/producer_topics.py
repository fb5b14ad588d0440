"""A producer's topics: looking them up, and the batches that are open. Pure.

`ProducerCore` has a topic looked up before its first record, again when partitions fail or the
topic was made anew, and when what is known is older than ``metadata_max_age_ms``. Every answer to a
produce names the topic's id and its number of partitions, so added partitions are used at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Final, TypeVar

from http_api.client.calls import Call
from http_api.client.client_errors import ApiError, QuorumlogError
from http_api.client.metadata_calls import (
    TopicLimits,
    auto_create_topic,
    broker_urls,
    leaders_and_limits,
    new_producer_id,
    partition_leaders,
)
from http_api.client.sdk.client_context import MS, ClientContext
from http_api.client.sdk.steps import Steps, steps_of
from http_api.contract.errors import RestCode
from raft_metadata.common.record_placement import KeylessRotation, keyless_candidates

if TYPE_CHECKING:
    from http_api.client.sdk.producer_settings import ProducerConfig
    from http_api.client.sdk.record_batch import RecordBatch

T = TypeVar("T")

UNKNOWN_TOPIC: Final = {RestCode.TOPIC_NOT_FOUND, RestCode.UNKNOWN_TOPIC_OR_PARTITION}
"""Codes of the two look-ups for a topic that is not there."""
REFRESH_MS: Final = 1_000
"""Time between two look-ups of a topic some of whose partitions fail."""
TOPICS_MAX: Final = 10_000
"""Topics that one producer remembers."""


class TopicState:
    """A topic that records are written to: its partitions, and its open batches."""

    __slots__ = (
        "candidates",
        "has_leader",
        "is_failing",
        "is_remade",
        "keyless",
        "learned_ms",
        "limits",
        "name",
        "open",
        "partitions",
        "rotation",
        "topic_id",
    )

    def __init__(self, name: str, has_leader: Sequence[bool], start: int, now_ms: int) -> None:
        self.name = name
        self.rotation = KeylessRotation(start)
        self.open: dict[int, RecordBatch] = {}
        self.keyless: RecordBatch | None = None
        """The open batch that takes records without a key."""
        self.topic_id: str | None = None
        """Id of the topic that was last written to; None: not known yet."""
        self.is_remade = True
        """True if the topic may have been deleted and created anew since the last look-up."""
        self.limits: TopicLimits | None = None
        """Decides which values are split; None: the producer splits none."""
        self.partitions = 0
        self.learn(has_leader, now_ms)

    def learn(self, has_leader: Sequence[bool], now_ms: int) -> None:
        """Note which partitions there are, and which have leaders.

        A topic has fewer partitions than before only if it was created anew: else the broker that
        answered is behind, and keys must not move back.
        """
        missing = 0 if self.is_remade else max(0, self.partitions - len(has_leader))
        self.has_leader = (*has_leader, *(True,) * missing)
        self.partitions = len(self.has_leader)
        self.candidates = keyless_candidates(self.has_leader)
        self.learned_ms = now_ms
        self.is_failing = not all(self.has_leader)
        self.is_remade = False

    def learn_count(self, partitions: int, now_ms: int) -> None:
        """Note the number of partitions that an answer names, if it is larger."""
        if partitions > self.partitions:
            self.learn(self.has_leader + (True,) * (partitions - self.partitions), now_ms)


class ProducerTopics:
    """The topics of one producer by name, under its shell's lock, and its producer id."""

    def __init__(
        self,
        config: ProducerConfig,
        context: ClientContext,
        now_s: Callable[[], float],
        random: Random,
        *,
        takes_id: bool,
    ) -> None:
        """``takes_id``: the producer writes under sequences, so it needs an id."""
        self._config = config
        self._context = context
        self._now_s = now_s
        self._random = random
        self._takes_id = takes_id
        self.producer_id: int | None = None
        """The first producer id of every partition; None before the first look-up, or for ever."""
        self._urls: Mapping[int, str] = {}
        """URLs of the brokers by id; none behind a proxy."""
        self.by_name: dict[str, TopicState] = {}
        self._look_ups: dict[str, TopicState] = {}

    def learn(self, name: str, retry_s: float) -> Steps[TopicState]:
        """Look up a topic, creating it if it may be, and return its state.

        Raises:
            QuorumlogError: It does not exist, or no broker answers within ``retry_s`` seconds.
        """
        until_s = self._now_s() + retry_s
        leaders, limits = yield from self._look_up(name, until_s)
        yield from self._start(self._left_s(until_s))
        yield from self._learn_leaders(name, leaders, self._left_s(until_s))
        has_leader = [leader >= 0 for leader in leaders]
        now_ms = round(self._now_s() * MS)
        topic = self.by_name.get(name)
        if topic is not None:
            topic.learn(has_leader, now_ms)
            topic.limits = limits
            return topic
        if len(self.by_name) >= TOPICS_MAX:  # those without open batches are learned again
            self.by_name = {one: topic for one, topic in self.by_name.items() if topic.open}
        start = self._random.randrange(1 << 30)
        topic = self.by_name[name] = TopicState(name, has_leader, start, now_ms)
        topic.limits = limits
        return topic

    def _look_up(
        self, name: str, until_s: float
    ) -> Steps[tuple[Sequence[int], TopicLimits | None]]:
        """Return the leaders of a topic's partitions; create the topic if it may be.

        With them come the limits by which values are split, unless this producer splits none.
        """
        while True:
            left_s = self._left_s(until_s)
            try:
                if self._config.large_messages == "split":
                    return (yield from self._steps(leaders_and_limits(name), left_s))
                return (yield from self._steps(partition_leaders(name), left_s)), None
            except ApiError as error:
                if error.code not in UNKNOWN_TOPIC or not self._config.allow_auto_create_topics:
                    raise
            create = auto_create_topic(self._cluster_id, name)
            yield from self._steps(create, self._left_s(until_s))

    def _start(self, retry_s: float) -> Steps[None]:
        """Take a producer id before the first record."""
        if self._takes_id and self.producer_id is None:
            found = yield from self.new_producer_id(retry_s)
            if self.producer_id is None:  # else another thread was quicker
                self.producer_id = found

    def _learn_leaders(self, name: str, leaders: Sequence[int], retry_s: float) -> Steps[None]:
        """Send requests about the partitions to their leaders, where these may be followed."""
        if any(leader >= 0 and leader not in self._urls for leader in leaders):
            try:
                self._urls = yield from self._steps(broker_urls(self._cluster_id), retry_s)
            except QuorumlogError as error:  # the given brokers suffice
                self._context.log.warning("other brokers are not known reason=%s", error)
                return
            self._context.routes.add_brokers(self._urls.values())
        for number, leader in enumerate(leaders):
            if leader in self._urls:
                self._context.routes.learn_leader(name, number, self._urls[leader])

    def new_producer_id(self, retry_s: float) -> Steps[int]:
        """Return a producer id that no one else has."""
        return self._steps(new_producer_id(self._cluster_id), retry_s)

    @property
    def _cluster_id(self) -> str:
        found = self._context.routes.cluster_id
        assert found is not None, "an answer came before"
        return found

    def _left_s(self, until_s: float) -> float:
        return max(0.0, until_s - self._now_s())

    def _steps(self, call: Call[T], retry_s: float) -> Steps[T]:
        return steps_of(call, self._context, self._now_s, retry_s)

    def next_look_up(self) -> TopicState | None:
        """Return a topic that is to be looked up again, and take it off the list; or None."""
        return self._look_ups.popitem()[1] if self._look_ups else None

    def refresh(self, now_ms: int) -> None:
        """Have those topics looked up again that are old, or whose partitions fail."""
        for topic in self.by_name.values():
            age_ms = now_ms - topic.learned_ms
            is_old = age_ms >= self._config.metadata_max_age_ms and bool(topic.open)
            if is_old or (topic.is_failing and age_ms >= REFRESH_MS):
                topic.learned_ms = now_ms
                self._look_ups[topic.name] = topic

    def note_answer(self, name: str, topic_id: str | None, partitions: int | None) -> None:
        """Take the topic's id and number of partitions that an answer names."""
        topic = self.by_name.get(name)
        if topic is None or topic_id is None:
            return
        if topic.topic_id is None:
            topic.topic_id = topic_id
        if topic_id != topic.topic_id:
            topic.topic_id, topic.is_remade = topic_id, True
            self._look_ups[name] = topic
        elif partitions is not None:
            topic.learn_count(partitions, round(self._now_s() * MS))

    def note_refused_size(self, name: str) -> None:
        """Have the limit looked up again by which values are split: it is lower than it was."""
        topic = self.by_name.get(name)
        if topic is not None and topic.limits is not None:
            self._look_ups[name] = topic

    def note_failure(self, name: str, *, is_gone: bool) -> None:
        """Take a failure to write; ``is_gone``: the topic or the partition is not there."""
        topic = self.by_name.get(name)
        if topic is not None:
            topic.is_failing = True
            if is_gone:
                topic.is_remade = True
                self._look_ups[name] = topic
