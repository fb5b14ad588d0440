"""The state of this broker, replica by replica, for operators and for the checkers of tests.

The HTTP server's state routes call `BrokerDebugState`. It reads the replica manager, the logs and
the lifecycle, changes nothing, and returns plain JSON values. Hash chains over log files let a
checker compare two replicas; they are computed in a thread.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from broker.log.hash_chain import (
    CHAIN_INTERVAL,
    ChainRangeError,
    ChainValue,
    LogHashChain,
    SegmentPlace,
)
from broker.replication.events import role_name
from broker.replication.isr_state import open_attempts
from broker.replication.leader_state import FollowerState, LeaderState
from broker.replication.partition import Following, OpenSession
from raft_metadata.common.errors import CorruptionError, ErrorCode, KafkaError
from raft_metadata.common.ids import PartitionId, TopicIdPartition, TopicName

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from broker.config import BrokerConfig
    from broker.log.log_manager import LogManager
    from broker.log.partition_log import PartitionLog
    from broker.replication.replica import Replica
    from broker.replication.replica_manager import ReplicaManager
    from broker.server.lifecycle import Lifecycle
    from broker.server.metadata_loader import MetadataLoader
    from raft_metadata.common.clock import Clock
    from raft_metadata.image.metadata_image import TopicImage


ROWS_PER_TURN = 100
"""Replicas described before the loop gets its turn: about 2 ms."""
ROWS_NAMED_MAX = 1_000
"""Offline, unclean or damaged partitions named in one answer; the counts cover all of them."""
CHAINS_KEPT = 64
"""Logs whose sums stay in memory, least recently used first out: 0.1 KB for 1,024 offsets each."""
CHAIN_ATTEMPTS = 20
"""Walks before an error: each is repeated if files were truncated, cleaned or removed meanwhile."""
CHAIN_PAUSE_S = 0.05

Facts = dict[str, Any]
Place = tuple[TopicName, PartitionId]


class BrokerDebugState:
    """Read-only view of the broker's state. Owned by the `BrokerServer`, on its loop.

    Walks over log files run in a thread, one at a time.
    """

    def __init__(
        self,
        config: BrokerConfig,
        manager: ReplicaManager,
        logs: LogManager,
        lifecycle: Lifecycle,
        loader: MetadataLoader,
        clock: Clock,
    ) -> None:
        self._config = config
        self._manager = manager
        self._logs = logs
        self._lifecycle = lifecycle
        self._loader = loader
        self._clock = clock
        self._chains: OrderedDict[TopicIdPartition, tuple[int, LogHashChain]] = OrderedDict()
        self._walking = asyncio.Lock()

    def broker(self) -> Facts:
        """Return the facts of the broker itself."""
        state, events, logs = self._lifecycle.state, self._manager.events, self._logs
        hosted, led = self._manager.counts
        return {
            "broker_id": self._config.broker_id,
            "cluster_id": self._config.cluster_id,
            "directory_id": self._config.directory_id,
            "incarnation_id": events.incarnation_id,
            "monotonic_ms": self._clock.monotonic_ms(),
            "wall_ms": self._clock.wall_ms(),
            "broker_epoch": self._manager.broker_epoch,
            "state": None if state is None else state.name.lower(),
            "metadata_offset": self._loader.image.next_offset,
            "log_directory_error": None if logs.failed is None else str(logs.failed),
            "flush_rounds": logs.flush_rounds,
            "open_segments": logs.open_segments,
            "fetched": {
                "cached_bytes": logs.read_counts.cached_bytes,
                "cold_bytes": logs.read_counts.cold_bytes,
            },
            "events": {"sequence": events.sequence, "dropped": events.dropped},
            "replicas": hosted,
            "leaders": led,
            "offline": self._named_partitions(
                {where: str(log.error) for where, log in logs.offline.items()}
            ),
            "unclean": self._named_partitions(logs.unclean),
            "damaged": self._named_partitions(self._manager.repairs.reasons()),
        }

    def _named_partitions(self, partitions: Mapping[TopicIdPartition, str]) -> Facts:
        rows: list[Facts] = []
        for where, reason in partitions.items():
            if len(rows) == ROWS_NAMED_MAX:
                break
            topic = self._manager.image.topics.get(where.topic_id)
            rows.append(
                {
                    "topic": None if topic is None else topic.name,
                    "topic_id": where.topic_id,
                    "partition": where.partition,
                    "reason": reason,
                }
            )
        return {"count": len(partitions), "partitions": rows}

    async def replicas(
        self, wanted: tuple[TopicName, PartitionId | None] | None, after: Place | None, limit: int
    ) -> tuple[list[Facts], Place | None]:
        """Return up to `limit` replicas behind `after`, in the order of topic and partition.

        The second value is the place of the last one if more may follow, else None. Raises
        KafkaError if the wanted topic or partition is unknown or has no replica here.
        """
        rows: list[Facts] = []
        last: Place | None = None
        seen = 0
        for topic, number in self._places(wanted, after):
            seen += 1
            if seen % ROWS_PER_TURN == 0:
                await asyncio.sleep(0)
            replica = self._manager.replica(TopicIdPartition(topic.topic_id, number))
            if replica is None:
                continue
            if len(rows) == limit:
                return rows, last
            rows.append(replica_facts(replica, self._clock.monotonic_ms()))
            last = (topic.name, number)
        if wanted is not None and after is None and not rows:
            raise self._no_replica_error(*wanted)
        return rows, None

    def _places(
        self, wanted: tuple[TopicName, PartitionId | None] | None, after: Place | None
    ) -> Iterator[tuple[TopicImage, PartitionId]]:
        image = self._manager.image
        if wanted is None:
            names = sorted(name for name in image.topic_ids if after is None or name >= after[0])
        else:
            names = [wanted[0]]
        for name in names:
            topic = image.topic(name)
            if topic is None:
                continue
            first = after[1] + 1 if after is not None and after[0] == name else 0
            numbers = range(first, len(topic.partitions))
            if wanted is not None and wanted[1] is not None:
                numbers = range(wanted[1], wanted[1] + 1)
            for number in numbers:
                yield topic, PartitionId(number)

    def _no_replica_error(self, topic: TopicName, partition: PartitionId | None) -> KafkaError:
        where = f"topic {topic}" if partition is None else f"{topic}-{partition}"
        known = self._manager.image.topic(topic)
        why = "has no replica on" if known is not None else "is unknown to"
        return KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{where} {why} broker {self._config.broker_id}"
        )

    async def chain(
        self, topic: TopicName, partition: PartitionId, start: int | None, end: int | None
    ) -> Facts:
        """Return the hash chain over the offsets [start, end) of a replica.

        By default it covers all offsets below the high watermark. Raises KafkaError if there is no
        replica here, the log does not hold these offsets, or the disk can't be read.
        """
        image = self._manager.image.topic(topic)
        where = TopicIdPartition(image.topic_id, partition) if image is not None else None
        replica = None if where is None else self._manager.replica(where)
        if where is None or replica is None:
            raise self._no_replica_error(topic, partition)
        async with self._walking:
            for _ in range(CHAIN_ATTEMPTS):
                found = await self._walk(where, replica, start, end)
                if found is not None:
                    return {
                        "interval": CHAIN_INTERVAL,
                        "first": found.first,
                        "from": found.start,
                        "to": found.end,
                        "value": found.value,
                    }
                await asyncio.sleep(CHAIN_PAUSE_S)
        text = f"{topic}-{partition} changed each time it was walked"
        raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE, text)

    async def _walk(
        self, where: TopicIdPartition, replica: Replica, start: int | None, end: int | None
    ) -> ChainValue | None:
        """Compute the hash chain once; return None if the log changed meanwhile."""
        log = replica.log
        end = replica.partition.high_watermark if end is None else end
        if not log.log_start_offset <= end <= log.log_end_offset:
            text = f"the log holds offsets from {log.log_start_offset} to {log.log_end_offset}"
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"no chain up to {end}: {text}")
        if log.stored is not None and log.stored.pending is not None:
            return None  # a swapped file does not have its final name yet
        before = _files_of(log)
        generation, places = before
        chain = self._chain_of(where, generation)
        try:
            found = await asyncio.to_thread(chain.value, places, start, end)
        except ChainRangeError as error:
            raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from None
        except (CorruptionError, OSError) as error:
            self._chains.pop(where, None)
            if _changed(before, _files_of(log)):
                return None
            text = f"the log can't be read: {error}"
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, text) from error
        return None if _changed(before, _files_of(log)) else found

    def _chain_of(self, where: TopicIdPartition, generation: int) -> LogHashChain:
        kept = self._chains.pop(where, None)
        chain = kept[1] if kept is not None and kept[0] == generation else LogHashChain()
        self._chains[where] = (generation, chain)
        if len(self._chains) > CHAINS_KEPT:
            self._chains.popitem(last=False)
        return chain

    async def events(self, after: int, limit: int) -> list[bytes]:
        """Return up to `limit` events behind sequence number `after`, each a JSON object."""
        return await self._manager.events.read(after, limit)

    @property
    def incarnation_id(self) -> str:
        """The id of this run of the broker."""
        return self._manager.events.incarnation_id


def _files_of(log: PartitionLog) -> tuple[int, tuple[SegmentPlace, ...]]:
    """Return (truncation generation, segments) of a log: the files that a walk reads."""
    return log.generation, tuple(
        SegmentPlace(segment.log_path, segment.base_offset, segment.size)
        for segment in log.segments
    )


def _changed(
    before: tuple[int, tuple[SegmentPlace, ...]], now: tuple[int, tuple[SegmentPlace, ...]]
) -> bool:
    """Return whether files were truncated, removed or replaced; growth does not count."""
    grown = {(place.path, place.base_offset): place.size for place in now[1]}
    return before[0] != now[0] or any(
        grown.get((place.path, place.base_offset), -1) < place.size for place in before[1]
    )


def replica_facts(replica: Replica, now_ms: int) -> Facts:
    """Return the present state of one replica; `now_ms` is monotonic time."""
    partition, log, role = replica.partition, replica.log, replica.partition.role
    facts: Facts = {
        "topic": replica.topic,
        "topic_id": log.topic_id,
        "partition": log.partition,
        "role": role_name(role),
        "leader_epoch": role.epoch,
        "broker_epoch": partition.broker_epoch,
        "log_start": log.log_start_offset,
        "log_end": log.log_end_offset,
        "durable_end": log.durable_end,
        "high_watermark": partition.high_watermark,
        "last_epoch": log.last_epoch,
        "epochs": log.epoch_entries,
        "generation": log.generation,
        "cleaned_to": 0 if log.stored is None else log.stored.cleaned.cleaned_to,
        "producers": 0 if log.producers is None else len(log.producers),
        "recovery_point": log.recovery_point,
        "segments": len(log.segments),
        "min_isr": partition.settings.min_isr,
        "by_durable": partition.settings.by_durable,
        "agreed_epoch": partition.agreed_epoch,
        "parked_produces": len(partition.delayed_produces),
        "parked_fetches": len(replica.fetch_waiters or ()),
        "error": None if log.failed is None else str(log.failed),
    }
    if isinstance(role, LeaderState):
        facts["leader"] = role.me
        facts |= _leader_facts(role, now_ms)
    elif isinstance(role, Following):
        facts["leader"] = role.leader
        session = role.session
        facts["session"] = session.number if isinstance(session, OpenSession) else None
        facts["refusals"] = role.refusals
        facts["unclean_epoch"] = role.unclean_epoch
    else:
        facts["leader"] = None
    return facts


def _leader_facts(role: LeaderState, now_ms: int) -> Facts:
    return {
        "epoch_start": role.epoch_start,
        "partition_epoch": role.partition_epoch,
        "replicas": sorted(role.replicas),
        "isr": sorted(role.isr),
        "maximal_isr": sorted(role.maximal_isr()),
        "attempts_open": len(open_attempts(role.isr_state)),
        "followers": [
            {"broker_id": broker_id, **_follower_facts(state, now_ms)}
            for broker_id, state in sorted(role.followers.items())
        ],
    }


def _follower_facts(state: FollowerState, now_ms: int) -> Facts:
    return {
        "session": None if state.session < 0 else state.session,
        "broker_epoch": state.broker_epoch,
        "sent": state.sent,
        "log_start": state.log_start,
        "log_end": state.log_end,
        "durable_end": state.durable_end,
        "caught_up_age_ms": max(0, now_ms - state.caught_up_ms),
    }
