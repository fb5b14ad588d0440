"""The cluster as the data source uses it: the public client with retries.

Driver and tasks call a `Cluster`. Every request here is a pure read, so it may be repeated through
any broker whatever its outcome was (rule F1). So a broker that dies, a leader that moves or a 503
is a delay, at most ``retryTimeoutMs``, and never a failed query.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from http_api.client import admin, consumer, polling
from http_api.client.client_errors import ApiError, QuorumlogError, UnreachableError
from http_api.client.transport import Client
from spark_source.errors import DataLossError, NotServedError, OptionError
from spark_source.offsets import NextOffset, TopicEnds

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from http_api.client.calls import Call
    from http_api.client.polling import Polled, PollPosition
    from spark_source.options import Connection

T = TypeVar("T")

CLUSTERS_CACHED_MAX = 16
"""Most clusters to which one worker process keeps connections."""
FIRST_CONTACT_S = 10.0
"""Time for the first answer of any broker: a wrong URL should be reported soon, but a broker that
was just killed is back after about two seconds."""
FIRST_CONTACT_PAUSE_S = 0.25
CREATE_TIME = 0
LOG_APPEND_TIME = 1
NOT_FOUND = 404
OUT_OF_RANGE_STATUS = 400
CONFLICT = 409
OUT_OF_RANGE_CODE = 40002
LOG_TRUNCATED_CODE = 40950
TOPIC_CHANGED_CODE = 40951
TOPICS_ASKED_MAX = 4
"""Topics that are looked up one by one; more of them are taken from the list of all topics, so that
an idle query of any number of topics sends few requests."""


def is_truncation(message: str) -> bool:
    """Return whether an error of code 40950 is about a log that was cut; else it diverged."""
    return "the log was truncated" in message


class UnknownTopicError(DataLossError):
    """A topic that does not exist, or no longer exists."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic between its creation and its deletion; created anew it has another id."""

    topic_id: str
    partitions_count: int


class Cluster:
    """Client of one cluster. Owned by one thread."""

    def __init__(self, connection: Connection, known: Iterable[str] = ()) -> None:
        self.client = Client([*connection.urls, *known])
        self._retry_s = connection.retry_s
        self._cluster_id: str | None = None
        self._timestamp_types: dict[tuple[str, str], int] = {}

    @property
    def urls(self) -> tuple[str, ...]:
        """Every broker known so far."""
        return self.client.routes.urls

    def close(self) -> None:
        self.client.close()

    def run(self, call: Call[T], *, retry_s: float | None = None) -> T:
        """Return the call's answer, retrying for ``retry_s`` seconds.

        Raises:
            ApiError: a refusal (4xx), which a retry does not change.
            NotServedError: no answer in time.
        """
        retry_s = self._retry_s if retry_s is None else retry_s
        first_contact_end_s = time.monotonic() + min(retry_s, FIRST_CONTACT_S)
        while True:
            try:
                return self.client.run(call, retry_s=retry_s)
            except ApiError as error:
                if error.status < 500:
                    raise
                raise self._not_served(error) from error
            except UnreachableError as error:
                if time.monotonic() + FIRST_CONTACT_PAUSE_S > first_contact_end_s:
                    raise self._not_served(error) from error
                time.sleep(FIRST_CONTACT_PAUSE_S)
            except QuorumlogError as error:
                raise self._not_served(error) from error

    def cluster_id(self) -> str:
        """Return the cluster's id; the first call also learns the URLs of all brokers."""
        if self._cluster_id is None:
            cluster_id = self.run(admin.cluster()).cluster_id
            self.client.routes.add_brokers(one.url for one in self.run(admin.brokers(cluster_id)))
            self._cluster_id = cluster_id
        return self._cluster_id

    def topic(self, name: str) -> Topic:
        """Return the topic as it is now.

        Raises:
            UnknownTopicError: there is no such topic.
        """
        try:
            found = self.run(admin.topic(self.cluster_id(), name))
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise OptionError(str(error)) from error
            msg = f"topic {name} does not exist on {self.urls[0]}"
            raise UnknownTopicError(msg) from error
        return Topic(found.topic_id, found.partitions_count)

    def topics(self, names: Sequence[str]) -> dict[str, Topic]:
        """Return the topics that exist, as they are now; in one request where they are many."""
        if len(names) > TOPICS_ASKED_MAX:
            wanted = set(names)
            try:
                found = self.run(admin.topics(self.cluster_id()))
            except ApiError as error:
                raise OptionError(str(error)) from error
            return {
                one.name: Topic(one.topic_id, one.partitions_count)
                for one in found
                if one.name in wanted
            }
        there = {}
        for name in names:
            with contextlib.suppress(UnknownTopicError):
                there[name] = self.topic(name)
        return there

    def ends(self, name: str) -> TopicEnds:
        """Return both ends of every partition, from their leaders.

        Raises:
            UnknownTopicError: there is no such topic.
        """
        topic = self.topic(name)
        ends = {
            partition: self.partition_ends(name, partition)
            for partition in range(topic.partitions_count)
        }
        return TopicEnds(topic.topic_id, ends)

    def partition_ends(self, name: str, partition: int) -> tuple[int, NextOffset]:
        """Return the earliest offset of a partition, and the next one with its epoch.

        Raises:
            UnknownTopicError: there is no such partition.
        """
        call = consumer.fetch_stored(name, partition, "latest", wait_ms=0, max_bytes=1)
        try:
            page = self.run(call)
        except ApiError as error:
            msg = f"topic {name} went away while it was asked for its offsets: {error}"
            raise UnknownTopicError(msg) from error
        return page.log_start_offset, NextOffset(page.next_offset, page.next_leader_epoch)

    def news(self, positions: Sequence[PollPosition], wait_ms: int) -> list[Polled]:
        """Return what changed at these positions; wait for the first change."""
        call = polling.poll(self.cluster_id(), positions, wait_ms=wait_ms, news_only=True)
        try:
            return self.run(call)
        except ApiError as error:
            msg = f"the cluster does not take the poll of the topics' ends: {error}"
            raise NotServedError(msg) from error

    def timestamp_type(self, name: str, topic_id: str) -> int:
        """Return Kafka's number of the topic's timestamp type: create time or log append time."""
        known = self._timestamp_types.get((name, topic_id))
        if known is None:
            try:
                configs = self.run(admin.topic_layout(name)).configs
            except ApiError:  # deleted: the read of its records will report it
                return CREATE_TIME
            appended = configs.get("message.timestamp.type") == "append"
            known = LOG_APPEND_TIME if appended else CREATE_TIME
            self._timestamp_types[name, topic_id] = known
        return known

    def learn_leaders(self, name: str) -> list[bool]:
        """Learn the leader of each partition, for direct writes; return which partitions have one.

        Raises:
            UnknownTopicError: there is no such topic.
        """
        cluster_id = self.cluster_id()
        try:
            found = self.run(admin.partitions(cluster_id, name))
            urls = {one.broker_id: one.url for one in self.run(admin.brokers(cluster_id))}
        except ApiError as error:
            raise UnknownTopicError(str(error)) from error
        for one in found:
            if one.leader in urls:
                self.client.routes.learn_leader(name, one.partition, urls[one.leader])
        return [one.leader is not None for one in found]

    def _not_served(self, error: Exception) -> NotServedError:
        return NotServedError(f"{error} (asked for {self._retry_s:g} s, option retryTimeoutMs)")


_cached: dict[tuple[int, int, Connection, tuple[str, ...]], Cluster] = {}


def cached_cluster(connection: Connection, known: tuple[str, ...] = ()) -> Cluster:
    """Return this worker's client of a cluster, kept because Spark reuses worker processes."""
    place = (os.getpid(), threading.get_ident(), connection, tuple(sorted(known)))
    cluster = _cached.get(place)
    if cluster is None:
        if len(_cached) >= CLUSTERS_CACHED_MAX:
            for old in _cached.values():
                old.close()
            _cached.clear()
        cluster = _cached[place] = Cluster(connection, known)
    return cluster
