"""A producer's requests, and reading their answers: written, refused, or unknown. Pure.

`produce_call` makes the request for a batch that a sender gave out. Its answer, or the error in its
place, goes through `report_answer` or `report_error` back to the sender, in the sender's terms.
`delivery_error` makes the error that a program sees of what the sender decided.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from http_api.client.calls import Answer, Call, Request, path_of
from http_api.client.client_errors import (
    ApiError,
    OutcomeUnknownError,
    ProtocolError,
    QuorumlogError,
    UnreachableError,
    api_error,
)
from http_api.client.produce_calls import RecordOutcome, parse_outcomes
from http_api.client.sdk.plain_sender import NO_CLAIM, PlainSender
from http_api.client.sdk.record_batch import BatchQueue, RecordBatch
from http_api.client.sdk.values import WORDS, Format
from http_api.contract.errors import RestCode
from http_api.contract.media_types import V2, V2_JSON
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.sequenced_sender import InFlightBatch, PendingProduce

ATTEMPTS: Final = 3
"""An attempt may take one part in so many of the time left, so that a retry can follow it."""
ATTEMPT_MS_MIN: Final = 500
ATTEMPT_MS_MAX: Final = 10_000
SERVER_MS_MAX: Final = 60_000
"""Longest ``timeout`` that a broker takes."""
TOPIC_ID_HEADER: Final = "quorumlog-topic-id"
PARTITIONS_HEADER: Final = "quorumlog-partitions"
_NETWORK_MARGIN_S: Final = 5.0
_REFUSED_RECORD: Final = re.compile(r"\brecord (\d{1,9}): ")
_BY_REST_CODE: Final = {
    int(RestCode.OUT_OF_ORDER_SEQUENCE): ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    int(RestCode.INVALID_PRODUCER_EPOCH): ErrorCode.INVALID_PRODUCER_EPOCH,
    int(RestCode.OLD_SEQUENCE): ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
    int(RestCode.TOPIC_NOT_FOUND): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    int(RestCode.PARTITION_NOT_FOUND): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    413: ErrorCode.MESSAGE_TOO_LARGE,
    429: ErrorCode.LEADER_NOT_AVAILABLE,
}
_BY_WORD: Final = {
    "MESSAGE_TOO_LARGE": ErrorCode.MESSAGE_TOO_LARGE,
    "INVALID_RECORD": ErrorCode.INVALID_RECORD,
    "INVALID_TIMESTAMP": ErrorCode.INVALID_TIMESTAMP,
}


class DeliveryRefusedError(KafkaError):
    """A refusal in the sender's terms that keeps the error of the client."""

    def __init__(self, code: ErrorCode, cause: QuorumlogError) -> None:
        super().__init__(code, str(cause), outcome=cause.outcome)
        self.cause = cause


@dataclass(frozen=True, slots=True)
class Row:
    """Outcome of one record of a request without a sequence."""

    offset: int | None
    error: DeliveryRefusedError | None


@dataclass(frozen=True, slots=True)
class ProduceAnswer:
    """Answer to a produce: the first offset where all was written in one range, else rows."""

    base_offset: int | None
    rows: Sequence[Row]
    topic_id: str | None
    partitions: int | None
    """Number of partitions of the topic, if the answer names it."""


def produce_call(
    topic: str,
    partition: int,
    batch: InFlightBatch,
    acks: str,
    *,
    left_ms: int,
    request_timeout_ms: int,
) -> Call[ProduceAnswer]:
    """Return the call for one attempt at a batch.

    Args:
        topic: The topic.
        partition: The partition.
        batch: The batch; under a sequence, with the claim of its producer.
        acks: ``all``, ``1`` or ``0``.
        left_ms: Time until the deadline of the batch.
        request_timeout_ms: Longest wait for an answer.
    """
    is_plain = batch.claim is NO_CLAIM
    share_ms = left_ms  # without a sequence an attempt that ends too early can't be made again
    if not is_plain:
        share_ms = min(max(left_ms // ATTEMPTS, ATTEMPT_MS_MIN), ATTEMPT_MS_MAX)
    timeout_ms = max(1, min(share_ms, left_ms, request_timeout_ms, SERVER_MS_MAX))
    query: dict[str, object] = {"acks": acks, "timeout": timeout_ms, "receipts": "range"}
    key_format, value_format = batch.first.kind
    if key_format != Format.JSON:
        query["key_format"] = WORDS[Format(key_format)]
    if value_format != Format.JSON:
        query["value_format"] = WORDS[Format(value_format)]
    request = Request(
        method="POST",
        path=path_of("topics", topic, "partitions", partition, query=query),
        body=b'{"records":[' + batch.text + b"]}",
        content_type=V2_JSON,
        accept=V2,
        timeout_s=timeout_ms / 1000 + _NETWORK_MARGIN_S,
        leader_key=(topic, partition),
        parsed_error_statuses=(503,),
        claim=None if is_plain else batch.claim,
    )
    return Call(request, _parse)


def _parse(answer: Answer) -> ProduceAnswer:
    body = answer.json()
    if not isinstance(body, dict):
        msg = f"expected the offsets of a produce, got {answer.body[:100]!r}"
        raise ProtocolError(msg)
    topic_id = answer.headers.get(TOPIC_ID_HEADER)
    count = answer.headers.get(PARTITIONS_HEADER, "")
    partitions = int(count) if count.isascii() and count.isdigit() else None
    try:
        if "ranges" in body:
            (found,) = body["ranges"]
            return ProduceAnswer(int(found["base_offset"]), (), topic_id, partitions)
        rows = [_row(one) for one in parse_outcomes(answer)]
    except (KeyError, TypeError, ValueError) as error:
        msg = f"expected the offsets of a produce, got {answer.body[:100]!r}"
        raise ProtocolError(msg) from error
    return ProduceAnswer(None, rows, topic_id, partitions)


def _row(found: RecordOutcome) -> Row:
    code = found.error_code
    if code is None:
        return Row(found.offset, None)
    status = code if code < 1_000 else code // 100
    envelope = {"retriable": found.retriable, "outcome": found.outcome.value}
    return Row(None, _refusal(api_error(status, code, str(found.error), envelope)))


def _refusal(error: QuorumlogError) -> DeliveryRefusedError:
    """Return an error in the sender's terms."""
    if not isinstance(error, ApiError):
        code = ErrorCode.REQUEST_TIMED_OUT
        if isinstance(error, UnreachableError):
            code = ErrorCode.LEADER_NOT_AVAILABLE
        elif not isinstance(error, OutcomeUnknownError | ProtocolError):
            code = ErrorCode.INVALID_REQUEST  # a setting that stopped to work, such as headers
        return DeliveryRefusedError(code, error)
    by_word = _BY_WORD.get(str(error).partition(":")[0])
    code = by_word or _BY_REST_CODE.get(error.code or 0, ErrorCode.INVALID_REQUEST)
    if error.status >= 500:
        code = ErrorCode.LEADER_NOT_AVAILABLE
    return DeliveryRefusedError(code, error)


def report_answer(queue: BatchQueue, batch: InFlightBatch, answer: ProduceAnswer) -> bool:
    """Pass an answer to the sender; return True if all was written."""
    if answer.base_offset is not None:
        queue.sender.succeeded(batch, answer.base_offset)
        return True
    rows = answer.rows
    if len(rows) != batch.count:
        msg = f"an answer with {len(rows)} rows to a request of {batch.count} records"
        report_error(queue, batch, ProtocolError(msg))
        return False
    offsets = [row.offset for row in rows if row.offset is not None]
    is_one_range = all(one in (-1, offsets[0] + at) for at, one in enumerate(offsets))
    if len(offsets) == len(rows) and is_one_range:
        queue.sender.succeeded(batch, offsets[0])
        return True
    member = batch.first
    if isinstance(queue.sender, PlainSender) and isinstance(member, RecordBatch):
        _settle_rows(queue, queue.sender, batch, member, rows)
    else:  # under a sequence all rows have the same outcome
        failed = next((row.error for row in rows if row.error is not None), None)
        text = "an answer with several ranges to a request under a sequence"
        _report(queue, batch, failed or _refusal(ProtocolError(text)))
    return False


def _settle_rows(
    queue: BatchQueue,
    sender: PlainSender,
    batch: InFlightBatch,
    member: RecordBatch,
    rows: Sequence[Row],
) -> None:
    """Settle each run of records with one outcome; what may be sent again stays pending."""
    if all(_may_repeat(row) for row in rows):
        _report(queue, batch, _error_of(rows[0]))
        return
    runs: list[tuple[int, Row]] = []
    for index, row in enumerate(rows):
        if not runs or not _continues(runs[-1], index, row):
            runs.append((index, row))
    try:
        parts = member.parts([*(first for first, _ in runs), len(rows)])
    except (RecursionError, msgspec.MsgspecError) as error:  # JSON text of the program, too deep
        text = f"some of the records were refused, and the batch can't be taken apart: {error}"
        report_error(queue, batch, OutcomeUnknownError(text))
        return
    queue.replace(member, parts)
    pending: list[PendingProduce] = []
    for part, (_, row) in zip(parts, runs, strict=True):
        if row.error is None:
            part.settle(row.offset if row.offset is not None else -1)
        elif _may_repeat(row):
            pending.append(part)
        else:
            part.settle(-1, row.error)
    sender.take_apart(batch, pending)


def _may_repeat(row: Row) -> bool:
    error = row.error
    return error is not None and error.code.retriable and error.outcome is Outcome.NOT_WRITTEN


def _error_of(row: Row) -> DeliveryRefusedError:
    assert row.error is not None
    return row.error


def _continues(run: tuple[int, Row], index: int, row: Row) -> bool:
    """Return True if a row has the outcome of the run before it."""
    first, start = run
    if start.error is None or row.error is None:
        is_next = start.offset is not None and row.offset == start.offset + index - first
        return start.error is row.error and (is_next or row.offset == start.offset == -1)
    return start.error.code is row.error.code and start.error.outcome is row.error.outcome


def report_error(queue: BatchQueue, batch: InFlightBatch, error: QuorumlogError) -> None:
    """Pass the error in place of an answer to the sender."""
    _report(queue, batch, _refusal(error))


def _report(queue: BatchQueue, batch: InFlightBatch, error: DeliveryRefusedError) -> None:
    found = _REFUSED_RECORD.search(error.message)
    queue.sender.failed(
        batch,
        error,
        is_final=error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        refused_record=int(found[1]) if found else None,
    )


def delivery_error(error: KafkaError) -> QuorumlogError:
    """Return the error that a program sees."""
    if isinstance(error, DeliveryRefusedError) and error.cause.outcome is error.outcome:
        return error.cause
    if error.outcome is Outcome.UNKNOWN:
        return OutcomeUnknownError(error.message)
    code = int(RestCode.KAFKA_RETRIABLE_ERROR)
    envelope = {"retriable": True, "outcome": Outcome.NOT_WRITTEN.value}
    return api_error(503, code, error.message, envelope)
