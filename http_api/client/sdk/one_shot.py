"""`transact`: rows of several topics and offsets of a group, all at once or not at all.

A small transaction is one request. A larger one is staged under its key first; its attempt is named
by a digest of the rows, so a program that runs again stages the same chunks, and decides once.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar, Unpack

from http_api.client.calls import Call, Request
from http_api.client.client_errors import (
    CommittingError,
    InvalidRecordError,
    OutcomeUnknownError,
    QuorumlogError,
)
from http_api.client.sdk.client_context import MS, ClientContext
from http_api.client.sdk.producer_settings import ProducerConfig, ProducerKeywords
from http_api.client.sdk.record_fields import RecordEncoder, check_partition
from http_api.client.sdk.record_types import ConsumerGroupMetadata, NewRecord, TopicPartition
from http_api.client.sdk.settings import given_settings, read_settings
from http_api.client.sdk.steps import (
    AsyncShell,
    BlockingShell,
    Pause,
    Steps,
    doubted,
    limited,
    steps_of,
)
from http_api.client.sdk.transaction_rows import OpenTransaction
from http_api.client.transaction_calls import (
    Staging,
    TransactionContent,
    TransactionResult,
    key_id,
    stage,
)
from http_api.client.transaction_calls import transact as transact_call
from http_api.contract.errors import RestCode
from raft_metadata.common.errors import Outcome

if TYPE_CHECKING:
    from http_api.client.transaction_calls import TransactionRows

T = TypeVar("T")

Rows = Mapping[str, Iterable[Any]] | Iterable[NewRecord]
"""Values by topic, or records; a value of a mapping may be a `NewRecord` of its topic, too."""
INLINE_MAX: Final = 786_432
"""Text of the rows that one request carries; brokers take 1 MiB with the default settings."""
CHUNK_MAX: Final = 524_288
ENTRIES_MAX: Final = 500
"""Entries of one request, each for rows of one topic."""
ATTEMPT_MS_MAX: Final = 10_000
AGAIN_S: Final = 0.5


def transact(
    records: Rows = (),
    *,
    key: str | None = None,
    group_id: str | None = None,
    offsets: Iterable[TopicPartition] = (),
    group_metadata: ConsumerGroupMetadata | None = None,
    timeout: float | None = None,
    **settings: Unpack[ProducerKeywords],
) -> TransactionResult:
    """Write rows and commit offsets in one transaction.

    Args:
        records: Values by topic (``{"debits": [row], "credits": [row]}``), or `NewRecord`s.
        key: Name of the transaction: a call with a known one changes nothing, and returns the
            fate of the first. It must say the same. None: one is drawn for this call.
        group_id: The group whose ``offsets`` are committed, without a membership.
        offsets: The next offset of each partition.
        group_metadata: In place of ``group_id``: what a consumer's ``consumer_group_metadata``
            returns.
        timeout: Seconds; None: ``transaction_timeout_ms``.
        **settings: Those of a producer, ``bootstrap_servers`` among them.

    Raises:
        CommittingError: It is committed, and not all can be read in time.
        OutcomeUnknownError: It is not known in time if it is committed: repeat it under its key.
        ApiError: With the code 50004: it is committed, and rows of it are lost.
        QuorumlogError: It was refused.
    """
    config, context = _context(settings)
    rows = _read(config, records, offsets, _group(group_id, group_metadata))
    shell = BlockingShell(context)
    try:
        return shell.run(_steps(rows, key, config, context, timeout))
    finally:
        shell.stop()


async def atransact(
    records: Rows = (),
    *,
    key: str | None = None,
    group_id: str | None = None,
    offsets: Iterable[TopicPartition] = (),
    group_metadata: ConsumerGroupMetadata | None = None,
    timeout: float | None = None,
    **settings: Unpack[ProducerKeywords],
) -> TransactionResult:
    """Write rows and commit offsets in one transaction, as `transact` does."""
    config, context = _context(settings)
    rows = _read(config, records, offsets, _group(group_id, group_metadata))
    shell = AsyncShell(context)
    try:
        return await shell.run(_steps(rows, key, config, context, timeout))
    finally:
        await shell.stop()


def _context(settings: Mapping[str, Any]) -> tuple[ProducerConfig, ClientContext]:
    config = read_settings(ProducerConfig, given_settings(None, settings))
    return config, ClientContext("transaction", config)


def _group(
    group_id: str | None, group_metadata: ConsumerGroupMetadata | None
) -> ConsumerGroupMetadata | None:
    if group_metadata is not None or group_id is None:
        return group_metadata
    return ConsumerGroupMetadata(group_id)


def _read(
    config: ProducerConfig,
    records: Rows,
    offsets: Iterable[TopicPartition],
    group: ConsumerGroupMetadata | None,
) -> OpenTransaction:
    """Return the transaction, with all of its chunks sealed."""
    transaction = OpenTransaction(CHUNK_MAX)
    encode = RecordEncoder(config).fields
    for one in _records_of(records):
        fields = encode(one.value, one.key, one.headers, one.timestamp)
        number = None if one.partition is None else check_partition(one.partition)
        chunk = transaction.chunk_for(one.topic, fields)
        transaction.add(chunk, number, fields, None, None, None)
    given = list(offsets)
    if group is not None:
        transaction.add_offsets(given, group)
    elif given:
        msg = "offsets belong to a group: expected group_id or group_metadata"
        raise InvalidRecordError(msg)
    if transaction.is_empty:
        msg = "a transaction without rows and offsets"
        raise InvalidRecordError(msg)
    transaction.seal_all()
    return transaction


def _records_of(records: Rows) -> Iterable[NewRecord]:
    if not isinstance(records, Mapping):
        yield from records
        return
    for topic, values in records.items():
        for value in values:
            if not isinstance(value, NewRecord):
                yield NewRecord(topic=topic, value=value)
            elif value.topic == topic:
                yield value
            else:
                msg = f"a record of topic {value.topic!r} among those of {topic!r}"
                raise InvalidRecordError(msg)


def _steps(
    transaction: OpenTransaction,
    key: str | None,
    config: ProducerConfig,
    context: ClientContext,
    timeout_s: float | None,
) -> Steps[TransactionResult]:
    now_s = time.monotonic
    until_s = now_s() + (config.transaction_timeout_ms / MS if timeout_s is None else timeout_s)
    is_drawn = key is None
    key = secrets.token_hex(16) if key is None else key
    rows = [chunk.records for chunk in transaction.sealed]
    ask = _Asker(context, now_s, until_s)
    cluster_id = yield from ask.cluster_id()
    group = None if transaction.group is None else transaction.group.group_id
    attempt_id = ""
    if transaction.bytes > INLINE_MAX or len(rows) > ENTRIES_MAX:
        transaction.is_staging = True
        attempt_id = _digest(rows)
        for number, chunk in enumerate(rows):
            staging = Staging(
                transaction_id=key_id(key),
                group=group or "",
                epoch=None,
                number=None,
                attempt_id=attempt_id,
                chunk=number,
            )
            yield from _stage(ask, staging, chunk)
    content = transaction.freeze(attempt_id)
    try:
        result = yield from _decide(ask, cluster_id, content, key, group)
    except QuorumlogError as error:
        if isinstance(error, CommittingError) or error.code == RestCode.DECIDED_ROWS_LOST:
            transaction.note_offsets()
        if is_drawn and error.outcome is Outcome.UNKNOWN:
            error.retriable = False  # another call would draw another key, and write all again
        raise
    for _ in transaction.committed(result):
        pass  # tells the consumer of its new offsets; no row has a callback
    return result


class _Asker:
    """Makes calls until the deadline of a transaction."""

    def __init__(self, context: ClientContext, now_s: Callable[[], float], until_s: float) -> None:
        self._context = context
        self._now_s = now_s
        self._until_s = until_s

    @property
    def left_s(self) -> float:
        return max(self._until_s - self._now_s(), 0.0)

    @property
    def attempt_ms(self) -> int:
        """Time that a request gives to the broker, so that others can follow it."""
        return min(max(round(self.left_s * MS) // 4, 100), ATTEMPT_MS_MAX)

    def cluster_id(self) -> Steps[str]:
        """Return the cluster's id."""
        call = Call(Request(method="GET", path="/v3/clusters"), lambda answer: answer.resources())
        rows = yield from self.ask(call)
        return self._context.routes.cluster_id or str(rows[0]["cluster_id"])

    def ask(self, call: Call[T]) -> Steps[T]:
        """Make attempts at a call, and return its result."""
        steps = steps_of(call, self._context, self._now_s, self.left_s)
        return limited(steps, self._now_s, self._until_s)


def _stage(ask: _Asker, staging: Staging, rows: TransactionRows) -> Steps[None]:
    while True:
        found = yield from ask.ask(stage(staging, rows, timeout_ms=ask.attempt_ms))
        refused = [row for row in found if not row.is_written]
        if not refused:
            return
        causes = [row for row in refused if "NOT_STAGED" not in (row.error or "")] or refused
        if ask.left_s <= AGAIN_S or not all(row.retriable for row in causes):
            error = QuorumlogError(f"{rows.topic}: {causes[0].error}")
            error.code = causes[0].error_code
            raise error
        yield Pause(AGAIN_S)


def _decide(
    ask: _Asker, cluster_id: str, content: TransactionContent, key: str, group: str | None
) -> Steps[TransactionResult]:
    doubts: list[bool] = []
    is_decided = False
    while True:
        call = transact_call(
            cluster_id, content, key=key, group_id=group, timeout_ms=ask.attempt_ms
        )
        try:
            result = yield from doubted(ask.ask(call), lambda: doubts.append(True))
        except QuorumlogError as error:
            if is_decided and error.code != RestCode.DECIDED_ROWS_LOST:
                msg = f"transaction {key!r} is committed; it is not known if all can be read"
                raise CommittingError(f"{msg}: {error}") from error
            is_for_good = error.code == RestCode.TRANSACTION_CONFLICT
            if doubts and error.outcome is not Outcome.UNKNOWN and not is_for_good:
                # It speaks of its attempt only: one before may be decided yet (rule S7).
                msg = f"it is not known if transaction {key!r} is committed: {error}"
                raise OutcomeUnknownError(msg) from error
            raise
        if result.state == "complete":
            return result
        is_decided = True
        if not ask.left_s:
            msg = f"transaction {key!r} is committed, and not all of it can be read yet"
            raise CommittingError(msg)
        yield Pause(min(ask.left_s, AGAIN_S))


def _digest(rows: Sequence[TransactionRows]) -> str:
    """Return the name of the attempt at staging these chunks."""
    found = hashlib.sha256()
    for one in rows:
        found.update(one.to_json())
    return found.hexdigest()[:32]
