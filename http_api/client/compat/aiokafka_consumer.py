"""`AIOKafkaConsumer` over our `AsyncConsumer`: programs for aiokafka read from quorumlog.

Differences from aiokafka on Kafka:
- Rebalances happen inside `start` and calls that wait for records, not in the background: a program
  that does not read keeps its partitions, for ``max_poll_interval_ms`` at most.
- A rebalance moves only the partitions that change their owner. A listener gets all of before and
  all of after nevertheless, as there.
- Automatic commits cover what earlier calls returned, never a record that is being worked on. An
  ``async with`` block that ends by an exception leaves the records of the last call uncommitted.
- A subscription to a topic that does not exist yet waits for it, with a group.
- ``isolation_level`` has no effect: only committed records are ever read.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from typing_extensions import override

from http_api.client.client_errors import ClosedError, QuorumlogError, WakeupError
from http_api.client.compat.aiokafka_client import AIOKafkaClient, StartedBlock, made_of
from http_api.client.compat.aiokafka_errors import (
    ConsumerStoppedError,
    IllegalOperation,
    IllegalStateError,
    KafkaConfigurationError,
    KafkaError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    kafka_error,
)
from http_api.client.compat.aiokafka_reader import PartitionReader, sdk_partitions
from http_api.client.compat.aiokafka_settings import (
    LIBRARY_VERSION,
    bounded,
    common_settings,
    running_loop,
)
from http_api.client.compat.aiokafka_transactions import note_started, note_stopped
from http_api.client.compat.aiokafka_types import (
    CREATE_TIME,
    LOG_APPEND_TIME,
    ConsumerRebalanceListener,
    ConsumerRecord,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    RoundRobinPartitionAssignor,
    TopicPartition,
    checked_offsets,
)
from http_api.client.sdk.consumer_settings import BYTES_LEAST, POLL_BYTES_MAX, WAIT_MS_MAX
from http_api.client.sdk.record_types import OFFSET_BEGINNING, OFFSET_END
from http_api.client.sdk.record_types import TopicPartition as SdkPartition

if TYPE_CHECKING:
    import ssl
    from types import TracebackType

    from http_api.client.admin import TopicInfo
    from http_api.client.compat.aiokafka_types import AbstractTokenProvider
    from http_api.client.sdk.consumer_base import AnyRecord

log = logging.getLogger("quorumlog.consumer")

T = TypeVar("T")

Deserializer = Callable[[Any], Any]
Offsets = Mapping[TopicPartition, "int | tuple[int, str] | OffsetAndMetadata"]
MS: Final = 1_000
START_S: Final = 5.0
"""Longest wait of `start` for the ends of logs."""
MANY: Final = 10_000
"""Most records of one `getmany` if a program names no limit."""
ASSIGNORS: Final = {"roundrobin": None, "sticky": "uniform", "range": "range"}
"""Our assignors by the names of aiokafka's; None: the group's default."""


@dataclass(slots=True)
class _Subscription:
    """A subscription or an assignment that a program asks for. One of the three is given."""

    topics: frozenset[str] = frozenset()
    pattern: str | None = None
    partitions: dict[TopicPartition, int | None] = field(default_factory=dict)
    """Partitions to read by themselves, with the offset of a `seek` before the first read."""
    kind: str = ""
    listener: ConsumerRebalanceListener | None = None
    paused: set[TopicPartition] = field(default_factory=set)
    """Partitions that were paused before the first read."""
    is_applied: bool = False


class AIOKafkaConsumer(StartedBlock):
    """Reads records, in the event loop that it is made in. Several tasks may use it."""

    def __init__(
        self,
        *topics: str,
        loop: asyncio.AbstractEventLoop | None = None,
        bootstrap_servers: str | Sequence[str] = "localhost",
        client_id: str = f"aiokafka-{LIBRARY_VERSION}",
        group_id: str | None = None,
        group_instance_id: str | None = None,
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
        fetch_max_wait_ms: int = 500,
        fetch_max_bytes: int = 52_428_800,
        fetch_min_bytes: int = 1,
        max_partition_fetch_bytes: int = 1_048_576,
        request_timeout_ms: int = 40_000,
        retry_backoff_ms: int = 100,
        auto_offset_reset: str = "latest",
        enable_auto_commit: bool = True,
        auto_commit_interval_ms: int = 5_000,
        check_crcs: bool = True,
        metadata_max_age_ms: int = 300_000,
        partition_assignment_strategy: Sequence[Any] = (RoundRobinPartitionAssignor,),
        max_poll_interval_ms: int = 300_000,
        rebalance_timeout_ms: int | None = None,
        session_timeout_ms: int = 10_000,
        heartbeat_interval_ms: int = 3_000,
        consumer_timeout_ms: int = 200,
        max_poll_records: int | None = None,
        ssl_context: ssl.SSLContext | None = None,
        security_protocol: str = "PLAINTEXT",
        api_version: str | None = None,
        exclude_internal_topics: bool = True,
        connections_max_idle_ms: int = 540_000,
        isolation_level: str = "read_uncommitted",
        sasl_mechanism: str = "PLAIN",
        sasl_plain_password: str | None = None,
        sasl_plain_username: str | None = None,
        sasl_kerberos_service_name: str = "kafka",
        sasl_kerberos_domain_name: str | None = None,
        sasl_oauth_token_provider: AbstractTokenProvider | None = None,
        client_rack: str | None = None,
    ) -> None:
        given = {name: value for name, value in locals().items() if name != "self"}
        self._loop = running_loop(loop)
        _check_count("max_poll_records", max_poll_records)
        common = common_settings(given)
        settings = common | consumer_settings(given)
        self._reader: PartitionReader = made_of(
            lambda **found: PartitionReader(self._end_rebalance, found), settings
        )
        self._client = AIOKafkaClient.of_settings(common)
        self._group_id, self._isolation_level = group_id, isolation_level
        self._max_poll_records = max_poll_records
        self._key_deserializer = key_deserializer
        self._value_deserializer = value_deserializer
        self._refresh_s = metadata_max_age_ms / MS
        self._refresh_due_s: float | None = None
        """Time to look for more partitions of a subscription without a group; None: never."""
        self._subscription = _Subscription(is_applied=True)
        self._reading = asyncio.Lock()
        """Held by the task that reads, or changes the subscription."""
        self._committing = asyncio.Lock()
        """Held by the task that commits, so that commits are written in order."""
        self._applying: asyncio.Task[None] | None = None
        self._is_rebalancing = False
        """True from `on_partitions_revoked` to `on_partitions_assigned`."""
        self._is_started = self._is_stopped = False
        if topics:
            self.subscribe(topics)

    # start and stop

    @override
    async def start(self) -> None:
        """Look for a broker and join the group; wait for the first assignment.

        Raises:
            KafkaConnectionError: No broker answers.
            UnknownTopicOrPartitionError: Without a group: a topic does not exist.
        """
        assert not self._is_started, "Did you call `start` twice?"
        await self._client.bootstrap()
        self._is_started = True
        if self._group_id is not None:
            note_started((self._client.cluster_id, self._group_id), self._reader)
        await self._apply()
        if self._group_id is None:  # the end of the log is that of now, not of the first read
            with contextlib.suppress(KafkaError):  # a read meets it again
                await self._translate(self._reader.position(self._reader.assignment(), START_S))

    @override
    async def stop(self) -> None:
        """Commit what was returned if auto-commit is on, leave the group, and close.

        Calls that wait in other tasks raise `ConsumerStoppedError`.
        """
        await self._stop(None, None, None)

    async def _stop(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._is_stopped:
            return
        self._is_stopped = True
        note_stopped(self._reader)
        if self._applying is not None:
            self._applying.cancel()
            await asyncio.gather(self._applying, return_exceptions=True)
        try:
            self._reader.call_off()
            self._reader.wakeup()  # ends a commit that is tried again and again
            async with self._reading, self._committing:
                await self._reader.__aexit__(kind, error, traceback)
        finally:
            await self._client.close()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        await self._stop(exc_type, exc, tb)

    async def _translate(self, call: Awaitable[T]) -> T:
        """Await a call of ours; raise the library's error for one of ours."""
        try:
            return await call
        except ClosedError:
            raise ConsumerStoppedError from None
        except WakeupError:
            if self._is_stopped:
                raise ConsumerStoppedError from None
            raise
        except QuorumlogError as error:
            raise kafka_error(error) from error

    # subscription

    def subscribe(
        self,
        topics: Sequence[str] = (),
        pattern: str | None = None,
        listener: ConsumerRebalanceListener | None = None,
    ) -> None:
        """Read topics, or those whose names begin with a pattern, in place of the former ones.

        With a group its members share the partitions; without one all of them are read.

        Raises:
            IllegalStateError: Partitions were assigned, or a subscription of the other kind is on.
            TypeError: Neither topics nor a pattern is given, or both; or no listener is one.
            ValueError: The pattern is no regular expression.
        """
        if bool(topics) == bool(pattern):
            msg = "You should provide either `topics` or `pattern`"
            raise TypeError(msg)
        given: object = listener  # callers without a type checker give anything
        if given is not None and not isinstance(given, ConsumerRebalanceListener):
            msg = "listener should be an instance of ConsumerRebalanceListener"
            raise TypeError(msg)
        if pattern is not None:
            try:
                re.compile(pattern)
            except re.error as error:
                msg = f"{pattern!r} is not a valid pattern: {error}"
                raise ValueError(msg) from error
            self._change(_Subscription(pattern=pattern, kind="pattern", listener=listener))
            return
        names: object = topics
        if not isinstance(names, tuple | set | list):
            msg = "Topics should be list of strings"
            raise TypeError(msg)
        self._change(_Subscription(frozenset(topics), kind="topics", listener=listener))

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions, without a group's help, in place of the former ones.

        Raises:
            IllegalStateError: A subscription is on.
        """
        found: dict[TopicPartition, int | None] = dict.fromkeys(partitions)
        self._change(_Subscription(partitions=found, kind="partitions"))

    def unsubscribe(self) -> None:
        """Read nothing any more, and leave the group."""
        self._subscription.kind = ""
        self._change(_Subscription())

    def _change(self, subscription: _Subscription) -> None:
        """Take another subscription; it is made so in the background, and before the next read."""
        if self._subscription.kind not in {"", subscription.kind}:
            msg = "Subscription to topics, partitions and pattern are mutually exclusive"
            raise IllegalStateError(msg)
        self._subscription = subscription
        if self._is_started and not self._is_stopped and self._applying is None:
            self._applying = self._loop.create_task(self._apply_later())

    async def _apply_later(self) -> None:
        try:
            await self._apply()
        except Exception as error:  # noqa: BLE001 the next read meets it again, and raises it
            log.warning("subscription not made yet reason=%s", error)
        finally:
            self._applying = None

    async def _apply(self) -> None:
        """Make the subscription so, and wait for the first assignment."""
        while not self._subscription.is_applied:
            if self._reading.locked():
                self._reader.call_off()
            try:
                async with self._reading:
                    await self._apply_now()
                    await self._translate(self._reader.join())
            except WakeupError:
                self._check_running()

    async def _apply_now(self) -> None:
        wanted = self._subscription
        if wanted.is_applied:
            return
        reader, self._refresh_due_s = self._reader, None
        if wanted.kind == "":
            await self._translate(reader.unsubscribe())
            self._is_rebalancing = False
        elif wanted.kind == "partitions":
            await self._assign(wanted.partitions)
            reader.pause(sdk_partitions(wanted.paused))
        elif self._group_id is None:
            await self._assign_topics(wanted)
        else:
            topics = f"^(?:{wanted.pattern}).*" if wanted.pattern else sorted(wanted.topics)
            await self._translate(reader.subscribe(topics, self._begin_assign, self._begin_revoke))
        wanted.is_applied = True

    async def _assign(self, partitions: Mapping[TopicPartition, int | None]) -> None:
        rows = [SdkPartition(*place, offset) for place, offset in partitions.items()]
        await self._translate(self._reader.assign(rows))

    async def _assign_topics(self, wanted: _Subscription) -> None:
        """Assign all partitions of the topics, those of now at their positions."""
        cluster = await self._client.fetch_all_metadata()
        names = wanted.topics
        if wanted.pattern is not None:
            matches = re.compile(wanted.pattern).match
            names = frozenset(name for name in cluster.topics() if matches(name))
        found: dict[TopicPartition, int | None] = {}
        for name in sorted(names):
            count = cluster.partitions_for_topic(name)
            if count is None:  # raises as unknown
                count = set(range((await self._topic(name)).partitions_count))
            found |= dict.fromkeys(TopicPartition(name, number) for number in sorted(count))
        self._refresh_due_s = self._loop.time() + self._refresh_s
        assigned = self.assignment() if wanted.is_applied else set()
        if found.keys() == assigned:
            return
        kept = sdk_partitions(assigned & found.keys())
        for one in await self._translate(self._reader.position(kept)):
            found[TopicPartition(one.topic, one.partition)] = one.offset
        await self._assign(found)

    async def _refresh(self) -> None:
        """Look for more partitions; what prevents it is logged, and it is tried again later."""
        try:
            await self._assign_topics(self._subscription)
        except KafkaError as error:
            self._refresh_due_s = self._loop.time() + self._refresh_s
            log.warning("partitions not looked up reason=%s", error)

    async def _topic(self, name: str) -> TopicInfo:
        return (await self._translate(self._reader.list_topics(name)))[name]

    def subscription(self) -> frozenset[str]:
        """Return the topics that are subscribed to; of a pattern, those that are read."""
        wanted = self._subscription
        if wanted.kind == "topics":
            return wanted.topics
        return frozenset(one.topic for one in self.assignment())

    def assignment(self) -> set[TopicPartition]:
        """Return the partitions that are read; none while a subscription is not made so yet."""
        wanted = self._subscription
        if not wanted.is_applied:
            return set(wanted.partitions)
        return set() if self._is_stopped else self._owned()

    def _owned(self) -> set[TopicPartition]:
        return _named(self._reader.assignment())

    # rebalances

    async def _begin_revoke(self, _: object, gone: Iterable[SdkPartition]) -> None:
        if not self._is_rebalancing:
            self._is_rebalancing = True
            await self._call_listener("on_partitions_revoked", self._owned() | _named(gone))

    async def _begin_assign(self, _: object, added: Iterable[SdkPartition]) -> None:
        if not self._is_rebalancing:
            self._is_rebalancing = True
            await self._call_listener("on_partitions_revoked", self._owned() - _named(added))

    async def _end_rebalance(self) -> None:
        if self._is_rebalancing:
            self._is_rebalancing = False
            await self._call_listener("on_partitions_assigned", self._owned())

    async def _call_listener(self, name: str, partitions: set[TopicPartition]) -> None:
        listener = self._subscription.listener
        if listener is None or self._is_stopped:
            return
        try:
            result = getattr(listener, name)(partitions)
            if inspect.isawaitable(result):
                await result
        except Exception:
            log.exception("listener failed listener=%r call=%s", listener, name)

    # reading

    async def getone(self, *partitions: TopicPartition) -> ConsumerRecord[Any, Any]:
        """Return the next record, of these partitions or of any; wait for it without a limit.

        A record that a deserializer refuses raises its error; the position stays before it.

        Raises:
            ConsumerStoppedError: The consumer is stopped.
            OffsetOutOfRangeError: With ``auto_offset_reset="none"`` only; ``args[0]`` maps
                partitions to their offsets.
            NoOffsetForPartitionError: The same, for a partition without a commit, ``args[0]``.
            KafkaError: Brokers refuse the credentials or the subscription.
        """
        if not partitions and self._subscription.is_applied:
            record = self._reader.take_ready()
            if record is not None:
                return self._converted(record)
        while True:
            records = await self._read(partitions, 1, None)
            if records:
                return self._converted(records[0])

    async def getmany(
        self, *partitions: TopicPartition, timeout_ms: int = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord[Any, Any]]]:
        """Return records by partition, as soon as there are some; {} after ``timeout_ms``.

        Takes at most ``max_records``, else ``max_poll_records``, else 10,000. Raises what `getone`
        raises; then the positions stay before all records of the call.
        """
        _check_count("max_records", max_records)
        most = max_records or self._max_poll_records or MANY
        records: Sequence[AnyRecord] = ()
        if not partitions and self._subscription.is_applied:
            records = self._reader.take_ready_page(most)
        records = records or await self._read(partitions, most, timeout_ms / MS)
        found: dict[TopicPartition, list[ConsumerRecord[Any, Any]]] = {}
        place, rows = ("", -1), list[ConsumerRecord[Any, Any]]()
        try:
            for record in records:
                if record.partition != place[1] or record.topic != place[0]:
                    place = TopicPartition(record.topic, record.partition)
                    rows = found.setdefault(place, [])
                rows.append(self._record(record))
        except Exception:
            self._go_back(records)
            raise
        return found

    async def _read(
        self, partitions: Sequence[TopicPartition], most: int, timeout_s: float | None
    ) -> Sequence[AnyRecord]:
        """Return records; [] if none come in time, or it is time to look again."""
        assert all(isinstance(one, TopicPartition) for one in partitions)
        until_s = None if timeout_s is None else self._loop.time() + timeout_s
        while True:
            self._check_running()
            left_s = None if until_s is None else max(0.0, until_s - self._loop.time())
            try:
                async with asyncio.timeout(left_s if self._reading.locked() else None):
                    await self._reading.acquire()
            except TimeoutError:
                return ()
            try:
                return await self._read_now(partitions, most, left_s)
            except WakeupError:  # another task changes the subscription, or stops
                if until_s is not None and self._loop.time() >= until_s:
                    return ()
            finally:
                self._reading.release()

    async def _read_now(
        self, partitions: Sequence[TopicPartition], most: int, timeout_s: float | None
    ) -> Sequence[AnyRecord]:
        self._check_running()
        await self._apply_now()
        due_s = self._refresh_due_s
        if due_s is not None:
            left_s = due_s - self._loop.time()
            if left_s <= 0:
                await self._refresh()
            else:
                timeout_s = left_s if timeout_s is None else min(timeout_s, left_s)
        self._reader.select(partitions)
        self._reader.note_reading()
        try:
            found = await self._translate(self._reader.consume(most, timeout_s))
        except (OffsetOutOfRangeError, NoOffsetForPartitionError) as error:
            raise self._position_error(error) from error.__cause__
        if not found:
            await asyncio.sleep(0)  # a program that asks again at once must not stop the fetching
        return found

    def _position_error(self, error: KafkaError) -> KafkaError:
        """Return an error whose first argument names the partitions, as programs read it."""
        failed = self._reader.failed_places()
        unset = [TopicPartition(*place) for place, offset in failed.items() if offset is None]
        lost = {TopicPartition(*place): at for place, at in failed.items() if at is not None}
        if isinstance(error, OffsetOutOfRangeError) and lost:
            return OffsetOutOfRangeError(lost)
        return NoOffsetForPartitionError(unset[0]) if unset else error

    def _check_running(self) -> None:
        if self._is_stopped:
            raise ConsumerStoppedError
        if not self._is_started:
            msg = "the consumer is not started: await start() first"
            raise IllegalStateError(msg)

    def _converted(self, record: AnyRecord) -> ConsumerRecord[Any, Any]:
        try:
            return self._record(record)
        except Exception:
            self._go_back((record,))
            raise

    def _record(self, record: AnyRecord) -> ConsumerRecord[Any, Any]:
        key, value = record.key, record.value
        key_bytes = -1 if key is None else len(key)
        value_bytes = -1 if value is None else len(value)
        if self._key_deserializer is not None:
            key = self._key_deserializer(key)
        if self._value_deserializer is not None:
            value = self._value_deserializer(value)
        return ConsumerRecord(
            record.topic,
            record.partition,
            record.offset,
            record.timestamp,
            CREATE_TIME if record.timestamp_type == "create" else LOG_APPEND_TIME,
            key,
            value,
            None,
            key_bytes,
            value_bytes,
            tuple(record.headers),
        )

    def _go_back(self, records: Iterable[AnyRecord]) -> None:
        """Set positions before records that were not handed out."""
        first: dict[tuple[str, int], int] = {}
        for one in records:
            first.setdefault((one.topic, one.partition), one.offset)
        for place, offset in first.items():
            self._reader.seek(SdkPartition(*place), offset)

    def __aiter__(self) -> Self:
        if self._is_stopped:
            raise ConsumerStoppedError
        return self

    async def __anext__(self) -> ConsumerRecord[Any, Any]:
        """Return the next record; the iteration ends when the consumer is stopped."""
        if self._subscription.is_applied:
            record = self._reader.take_ready()
            if record is not None:
                return self._converted(record)
        try:
            return await self.getone()
        except ConsumerStoppedError:
            raise StopAsyncIteration from None

    # commits

    async def commit(self, offsets: Offsets | None = None) -> None:
        """Commit offsets, or behind everything that was returned; wait until it is written.

        Raises:
            IllegalOperation: There is no group.
            IllegalStateError: A partition is not assigned.
            CommitFailedError: The group has rebalanced meanwhile.
            ValueError: The offsets are no mapping of partitions to offsets.
        """
        self._check_group()
        if self._subscription.kind == "":
            msg = "Not subscribed to any topics"
            raise IllegalStateError(msg)
        rows = None
        if offsets is not None:
            found = checked_offsets(offsets)
            self._check_assigned(found)
            rows = [
                SdkPartition(*place, one.offset, metadata=one.metadata)
                for place, one in found.items()
            ]
        async with self._committing:
            await self._translate(self._reader.commit(offsets=rows, timeout=None))

    async def committed(self, partition: TopicPartition) -> int | None:
        """Return the group's commit of a partition; None: there is none.

        Raises:
            IllegalOperation: There is no group.
        """
        self._check_group()
        rows = await self._translate(self._reader.committed(sdk_partitions([partition])))
        return rows[0].offset

    def _check_group(self) -> None:
        if self._group_id is None:
            msg = "Requires group_id"
            raise IllegalOperation(msg)

    def _check_assigned(self, partitions: Iterable[TopicPartition]) -> None:
        assigned = self.assignment()
        for one in partitions:
            if one not in assigned:
                msg = f"Partition {one} is not assigned"
                raise IllegalStateError(msg)

    # positions

    async def position(self, partition: TopicPartition) -> int:
        """Return the offset of the next record; wait until the partition's start is known.

        Raises:
            IllegalStateError: The partition is not assigned.
        """
        await self._apply()
        self._check_assigned([partition])
        rows = await self._translate(self._reader.position(sdk_partitions([partition])))
        assert rows[0].offset is not None
        return rows[0].offset

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Go on at an offset.

        Raises:
            ValueError: The offset is no number, or negative.
            IllegalStateError: The partition is not assigned.
        """
        if not isinstance(offset, int) or offset < 0:
            msg = "Offset must be a positive integer"
            raise ValueError(msg)
        self._seek(partition, offset)

    def _seek(self, partition: TopicPartition, offset: int) -> None:
        self._check_assigned([partition])
        if self._subscription.is_applied:
            self._reader.seek(SdkPartition(*partition), offset)
        else:
            self._subscription.partitions[partition] = offset

    async def seek_to_beginning(self, *partitions: TopicPartition) -> bool:
        """Go on at the first offset of partitions, of all assigned ones if none is given.

        Raises:
            IllegalStateError: A partition is not assigned.
            TypeError: One is no `TopicPartition`.
        """
        return await self._seek_to(OFFSET_BEGINNING, partitions)

    async def seek_to_end(self, *partitions: TopicPartition) -> bool:
        """Go on at the end of partitions, of all assigned ones if none is given; raises the same.

        The end is that of the time of this call.
        """
        return await self._seek_to(OFFSET_END, partitions)

    async def _seek_to(self, end: int, partitions: Sequence[TopicPartition]) -> bool:
        chosen = self._chosen(partitions)
        await self._apply()
        for one in chosen:
            self._seek(one, end)
        await self._translate(self._reader.position(sdk_partitions(chosen)))
        return True

    def _chosen(self, partitions: Sequence[TopicPartition]) -> Sequence[TopicPartition]:
        _check_partitions(partitions)
        if not partitions:
            partitions = sorted(self.assignment())
            assert partitions, "No partitions are currently assigned"
        self._check_assigned(partitions)
        return partitions

    async def seek_to_committed(
        self, *partitions: TopicPartition
    ) -> dict[TopicPartition, int | None]:
        """Go on at the commits of partitions, of all assigned ones if none is given; return them.

        A partition without a commit stays where it is. Raises what `seek_to_beginning` raises.
        """
        self._check_group()
        chosen = self._chosen(partitions)
        await self._apply()
        rows = await self._translate(self._reader.committed(sdk_partitions(chosen)))
        found: dict[TopicPartition, int | None] = {}
        for partition, row in zip(chosen, rows, strict=True):
            found[partition] = row.offset
            if row.offset is not None:
                self._seek(partition, row.offset)
        return found

    async def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the first record at or after each time, in milliseconds; None: there is none.

        Raises:
            ValueError: A time is negative.
        """
        found: dict[TopicPartition, OffsetAndTimestamp | None] = {}
        for partition, time_ms in timestamps.items():
            if time_ms < 0:
                msg = f"{partition}: the time {time_ms} is negative"
                raise ValueError(msg)
            row = await self._translate(self._reader.record_at(partition, int(time_ms)))
            found[partition] = None if row is None else OffsetAndTimestamp(*row)
        return found

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Return the first offset of each partition."""
        return {one: (await self._ends(one))[0] for one in partitions}

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset behind the last record of each partition."""
        return {one: (await self._ends(one))[1] for one in partitions}

    async def _ends(self, partition: TopicPartition) -> tuple[int, int]:
        return await self._translate(self._reader.get_watermark_offsets(SdkPartition(*partition)))

    def highwater(self, partition: TopicPartition) -> int | None:
        """Return the offset behind the last record, as of the last answer; None: none came yet."""
        assert partition in self.assignment(), "Partition is not assigned"
        return self._reader.high_watermark(partition)

    def last_stable_offset(self, partition: TopicPartition) -> int | None:
        """Return the same as `highwater` with ``read_committed``, else -1."""
        found = self.highwater(partition)
        return found if self._isolation_level == "read_committed" else -1

    def last_poll_timestamp(self, partition: TopicPartition) -> int | None:
        """Return the time in milliseconds at which records last came; None: none did."""
        assert partition in self.assignment(), "Partition is not assigned"
        return self._reader.seen_ms(partition)

    # pauses

    def pause(self, *partitions: TopicPartition) -> None:
        """Return no records of these partitions until `resume`; they stay assigned.

        Raises:
            IllegalStateError: A partition is not assigned.
        """
        _check_partitions(partitions)
        self._check_assigned(partitions)
        if self._subscription.is_applied:
            self._reader.pause(sdk_partitions(partitions))
        else:
            self._subscription.paused.update(partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        """Return records of these partitions again; raises what `pause` raises."""
        _check_partitions(partitions)
        self._check_assigned(partitions)
        if self._subscription.is_applied:
            self._reader.resume(sdk_partitions(partitions))
        else:
            self._subscription.paused.difference_update(partitions)

    def paused(self) -> set[TopicPartition]:
        """Return the partitions that are paused."""
        if not self._subscription.is_applied:
            return set(self._subscription.paused)
        return {TopicPartition(*place) for place in self._reader.paused_places()}

    # topics

    async def topics(self) -> set[str]:
        """Return the names of all topics but internal ones."""
        return (await self._client.fetch_all_metadata()).topics()

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        """Return the partitions of a topic; None if it was not there at `start` or `topics`."""
        return self._client.cluster.partitions_for_topic(topic)


def _named(partitions: Iterable[SdkPartition]) -> set[TopicPartition]:
    return {TopicPartition(one.topic, one.partition) for one in partitions}


def _check_count(name: str, count: object) -> None:
    if count is not None and (not isinstance(count, int) or count < 1):
        msg = f"`{name}` should be positive Integer"
        raise ValueError(msg)


def _check_partitions(partitions: Iterable[object]) -> None:
    if not all(isinstance(one, TopicPartition) for one in partitions):
        msg = "partitions must be TopicPartition namedtuples"
        raise TypeError(msg)


def consumer_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of our consumer alone.

    Raises:
        KafkaConfigurationError: The group would have to share partitions in a way of the program.
    """
    strategies = [getattr(one, "name", one) for one in given["partition_assignment_strategy"]]
    if not strategies or strategies[0] not in ASSIGNORS:
        msg = f"partition_assignment_strategy={strategies}: expected {', '.join(ASSIGNORS)}"
        raise KafkaConfigurationError(msg)
    names = (
        "group_id",
        "group_instance_id",
        "auto_offset_reset",
        "enable_auto_commit",
        "auto_commit_interval_ms",
        "max_poll_interval_ms",
        "session_timeout_ms",
        "isolation_level",
    )
    found = {name: given[name] for name in names}
    least_bytes = bounded(given["fetch_min_bytes"], 1, POLL_BYTES_MAX)
    waits = least_bytes > 1  # else the wait has no effect, and a long one saves requests
    return found | {
        "rack": given["client_rack"],
        "assignor": ASSIGNORS[strategies[0]],
        "fetch_min_bytes": least_bytes,
        "fetch_max_wait_ms": bounded(given["fetch_max_wait_ms"], 1, WAIT_MS_MAX)
        if waits
        else 30_000,
        "fetch_max_bytes": bounded(given["fetch_max_bytes"], BYTES_LEAST, POLL_BYTES_MAX),
        "max_partition_fetch_bytes": bounded(
            given["max_partition_fetch_bytes"], BYTES_LEAST, POLL_BYTES_MAX
        ),
        "key_deserializer": "bytes",
        "value_deserializer": "bytes",
    }
