"""Produces in a transaction: under an ``Idempotency-Key``, or as a staged chunk.

With a key a produce is a one-shot transaction: all rows or none, and a repeat hears the offsets of
the first. With ``Quorumlog-Transaction`` its rows are staged: no reader sees them before their
transaction is committed. `produce_records` reads the body as of any produce and calls these
functions; `v3/transactions.py` has the decisions.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from broker.server.requests import ACKS_ALL, RecordResult
from broker.server.transaction_apis import (
    TRANSACTION_TIMEOUT_MS_MAX,
    CommitRequest,
    StageRequest,
    TopicRows,
)
from broker.transactions.messages import (
    NO_GROUP,
    KeyPosition,
    ProducerPosition,
    TransactionalId,
    TransactionState,
)
from http_api.contract import v2
from http_api.contract.errors import REST_STATUS, RETRY_LATER, RestCode, RestError
from http_api.contract.idempotence import HEADER_LIMITS as PRODUCER_HEADERS
from http_api.contract.media_types import V2
from http_api.contract.transaction_headers import (
    IDEMPOTENCY_KEY,
    KEY_PREFIX,
    STAGING_HEADERS,
    Staging,
    check_chunk,
    key_of,
    refuse_headers,
    staging_of,
)
from http_api.server.answers import IN_TRANSACTION, reply
from http_api.server.request_parsing import bad_parameter, refuse_doubled, too_large
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import GroupId

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from aiohttp import web

    from broker.config import BrokerLimits
    from broker.server.requests import BrokerApis, ProduceRequest
    from broker.server.transaction_apis import StagedRow

COMMITTING: Final = (
    "the write is decided and not all of it can be read yet: send the same request again to hear "
    "its offsets"
)
"""Message of a keyed produce that is not complete in time."""


@dataclass(frozen=True, slots=True)
class KeyedWrite:
    """A produce that happens once for its ``Idempotency-Key``."""

    key: str


TransactionalWrite = KeyedWrite | Staging


def transactional_write(
    request: web.Request, apis: BrokerApis, *, acks: int, timeout_ms: int, with_rows: bool
) -> TransactionalWrite | None:
    """Return the way of a produce that is part of a transaction, None of any other.

    ``with_rows``: it is to be answered with a row for each record.

    Raises:
        RestError: 400/40002 for headers that are incomplete or contradict each other or the query.
    """
    key, staging = key_of(request.headers), staging_of(request.headers)
    way: TransactionalWrite
    if key is not None:
        why = f"and '{IDEMPOTENCY_KEY}' are both given: expected one of them"
        refuse_headers(request.headers, (*PRODUCER_HEADERS, *STAGING_HEADERS), why)
        way = KeyedWrite(key)
    elif staging is not None:
        why = "and 'Quorumlog-Transaction' are both given: expected one of them"
        refuse_headers(request.headers, PRODUCER_HEADERS, why)
        if not with_rows:
            raise bad_parameter("receipts", "range", "all: staged rows have no offsets")
        check_chunk(staging, apis.transactions.limits.chunks)
        way = staging
    else:
        return None
    refuse_doubled(request, (IDEMPOTENCY_KEY, *STAGING_HEADERS))
    if acks != ACKS_ALL:
        raise bad_parameter("acks", request.query["acks"], "all, as any write in a transaction")
    if timeout_ms > TRANSACTION_TIMEOUT_MS_MAX:
        expected = f"an integer from 1 to {TRANSACTION_TIMEOUT_MS_MAX} in a transaction"
        raise bad_parameter("timeout", str(timeout_ms), expected)
    request[IN_TRANSACTION] = True
    return way


def refuse_transactional(headers: Mapping[str, str], path: str) -> None:
    """Refuse the headers of a transaction where a produce takes none; ``path``: the one that does.

    Raises:
        RestError: 400/40002, naming the path.
    """
    why = f"is not taken here: expected it with POST {path}"
    refuse_headers(headers, (IDEMPOTENCY_KEY,), why)
    why = "is not taken here: stage rows with POST /topics/{topic_name}"
    refuse_headers(headers, STAGING_HEADERS, why)


def body_limit(
    way: TransactionalWrite | None, apis: BrokerApis, limits: BrokerLimits
) -> tuple[int, Callable[[int], RestError]]:
    """Return the most bytes of a produce's body, and the function that makes its 413."""
    most = limits.max_body_bytes
    match way:
        case KeyedWrite() if apis.transactions.limits.inline_bytes < most:
            return apis.transactions.limits.inline_bytes, too_large_inline
        case Staging() if apis.transactions.limits.chunk_bytes < most:
            return apis.transactions.limits.chunk_bytes, _chunk_too_large
        case _:
            return most, too_large


def too_large_inline(limit: int) -> RestError:
    """Return the 413 of more rows than one request may commit."""
    return RestError(
        413,
        RestCode.TOO_LARGE,
        f"the request holds more than transaction.inline.max.bytes={limit} of records, the most "
        "that one request commits. Stage more, chunk by chunk, with POST /topics/{topic_name} and "
        "the header Quorumlog-Transaction, and name them in 'attempts' of the commit",
    )


def _chunk_too_large(limit: int) -> RestError:
    text = f"the request body is over transaction.chunk.max.bytes={limit}: send several chunks"
    return RestError(413, RestCode.TOO_LARGE, text)


def digest_of(parts: Iterable[bytes]) -> str:
    """Return the digest of some texts in their order: what a repeat must bring again (rule S7)."""
    sized = b"".join([len(part).to_bytes(8, "big") + part for part in parts])
    return hashlib.sha256(sized).hexdigest()


async def commit_produce(
    apis: BrokerApis, way: KeyedWrite, produce: ProduceRequest, body: bytes
) -> list[RecordResult]:
    """Commit a produce once for its key; return where each record stands.

    Raises:
        KafkaError: those of `TransactionApis.commit`; REQUEST_TIMED_OUT, outcome unknown, if the
            rows are decided and can't all be read in time.
    """
    place = b"" if produce.partition is None else str(produce.partition).encode()
    formats = f"{produce.key_format.name} {produce.value_format.name}".encode()
    committed = await apis.transactions.commit(
        CommitRequest(
            id=TransactionalId(NO_GROUP, KEY_PREFIX + way.key),
            position=KeyPosition(),
            digest=digest_of((b"produce", produce.topic.encode(), place, formats, body)),
            topics=(_rows_of(produce),),
            timeout_ms=produce.timeout_ms,
            answers_rows=True,
        )
    )
    if committed.outcome.state is not TransactionState.COMPLETE:
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, COMMITTING, outcome=Outcome.UNKNOWN)
    return [RecordResult(row.partition, row.offset) for row in committed.rows]


async def stage_produce(
    apis: BrokerApis, staging: Staging, produce: ProduceRequest
) -> web.Response:
    """Stage a produce as a chunk; answer a row for each record, without offsets."""
    group = GroupId(staging.group) if staging.group else NO_GROUP
    staged = await apis.transactions.stage(
        StageRequest(
            id=TransactionalId(group, staging.transaction_id),
            position=_position_of(staging),
            attempt_id=staging.attempt_id,
            chunk=staging.chunk,
            rows=_rows_of(produce),
            timeout_ms=produce.timeout_ms,
        )
    )
    return _staged_reply(staged)


def _position_of(staging: Staging) -> ProducerPosition | int | None:
    if staging.epoch is None or staging.number is None:
        return staging.number
    return ProducerPosition(staging.epoch, staging.number)


def _rows_of(produce: ProduceRequest) -> TopicRows:
    return TopicRows(
        topic=produce.topic,
        records=produce.records,
        key_format=produce.key_format,
        value_format=produce.value_format,
        partition=produce.partition,
        partitioner=produce.partitioner,
    )


def _staged_reply(rows: Sequence[StagedRow]) -> web.Response:
    """Return a row for each record: all are staged, or none is and each says why."""
    errors = [row.error for row in rows if row.error is not None]
    if not errors:
        places = [-1 if row.partition is None else row.partition for row in rows]
        return reply(v2.produce_reply(v2.STAGED_ROW % place for place in places), V2)
    texts = [v2.NOT_STAGED_ROW if row.error is None else v2.failed_row(row.error) for row in rows]
    is_passing = any(REST_STATUS[error.code].status == 503 for error in errors)
    is_certain = all(error.outcome is Outcome.NOT_WRITTEN for error in errors)
    if is_passing and is_certain:
        return reply(v2.produce_reply(texts), V2, 503, RETRY_LATER)
    return reply(v2.produce_reply(texts), V2)
