"""The cluster as the data source uses it: the public client with retries.

Driver and tasks call a `Cluster`. Every request here is a pure read, so it may be repeated through
any broker whatever its outcome was (rule F1). So a broker that dies, a leader that moves or a 503
is a delay, at most ``retryTimeoutMs``, and never a failed query.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from http_api.client import admin, consumer
from http_api.client.calls import ApiError, ClientError, UnreachableError
from http_api.client.transport import Client
from spark_source.errors import DataLossError, NotServedError, OptionError
from spark_source.offsets import TopicEnds

if TYPE_CHECKING:
    from collections.abc import Iterable

    from http_api.client.calls import Call
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
            except ClientError as error:
                raise self._not_served(error) from error

    def cluster_id(self) -> str:
        """Return the cluster's id; the first call also learns the URLs of all brokers."""
        if self._cluster_id is None:
            cluster_id = self.run(admin.cluster()).cluster_id
            self.client.routes.add(one.url for one in self.run(admin.brokers(cluster_id)))
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

    def ends(self, name: str) -> TopicEnds:
        """Return both ends of every partition, from their leaders.

        Raises:
            UnknownTopicError: there is no such topic.
        """
        topic = self.topic(name)
        found = {}
        for partition in range(topic.partitions_count):
            try:
                one = self.run(consumer.ends(name, partition))
            except ApiError as error:
                msg = f"topic {name} went away while it was asked for its offsets: {error}"
                raise UnknownTopicError(msg) from error
            found[partition] = (one.beginning, one.end)
        return TopicEnds(topic.topic_id, found)

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
