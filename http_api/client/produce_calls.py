"""Writing records without idempotence: the call, each record's outcome, and safe retries.

`send` (blocking) and `AsyncClient.produce` make the attempts of `produce_attempts`, which decides
after each answer which records to send again. Only a record that was certainly not written is sent
again, so a lost answer leaves its records' outcome unknown. Producers that may repeat any request
are in `http_api.client.idempotent`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import orjson

from http_api.client.calls import Answer, Call, Request, error_of, path_of
from http_api.client.client_errors import ApiError, ProtocolError, QuorumlogError, UnreachableError
from http_api.client.routes import Attempts, Backoff, Routes, attempts_at
from http_api.client.transport import DEFAULT_RETRY_S, Client
from http_api.contract.errors import RestCode
from http_api.contract.media_types import V2, V2_BINARY, V2_JSON
from raft_metadata.common.errors import Outcome
from raft_metadata.common.record_placement import Partitioner

DEFAULT_PRODUCE_TIMEOUT_MS = 10_000
RETRIABLE_CODE = int(RestCode.KAFKA_RETRIABLE_ERROR)
_NETWORK_MARGIN_S = 5.0


@dataclass(frozen=True, slots=True)
class JsonRecord:
    """A record to write: ``value`` and ``key`` are JSON text (base64 in JSON if written as binary).

    The text is stored unchanged. A ``key`` of None is no key, a ``value`` of None a tombstone.
    """

    value: bytes | None
    key: bytes | None = None
    partition: int | None = None

    def to_json(self) -> bytes:
        fields = [b'"value":' + (b"null" if self.value is None else self.value)]
        if self.key is not None:
            fields.insert(0, b'"key":' + self.key)
        if self.partition is not None:
            fields.append(b'"partition":%d' % self.partition)
        return b"{" + b",".join(fields) + b"}"


@dataclass(frozen=True, slots=True)
class RecordOutcome:
    """Result of writing a record: partition and offset, or an error and what is certain."""

    partition: int | None
    offset: int | None
    error_code: int | None = None
    error: str | None = None
    outcome: Outcome = Outcome.NOT_WRITTEN
    retriable: bool = False

    @property
    def is_written(self) -> bool:
        return self.error_code is None

    @property
    def may_be_retried(self) -> bool:
        """Return True if the record was certainly not written and a retry may succeed (rule F1)."""
        return not self.is_written and self.retriable and self.outcome is Outcome.NOT_WRITTEN


def produce(
    topic: str,
    records: Iterable[JsonRecord],
    *,
    partition: int | None = None,
    acks: str = "all",
    timeout_ms: int = DEFAULT_PRODUCE_TIMEOUT_MS,
    binary: bool = False,
    partitioner: Partitioner = Partitioner.STICKY,
) -> Call[list[RecordOutcome]]:
    """Return the call that writes records of a topic.

    All go to ``partition``, or each to its own partition, that of its key, or without a key where
    the ``partitioner`` puts it. The result has one outcome per record, in order, also where the
    request failed as a whole with a row per record (HTTP 503).
    """
    parts = ("topics", topic) if partition is None else ("topics", topic, "partitions", partition)
    query: dict[str, object] = {"acks": acks, "timeout": timeout_ms}
    if partition is None and partitioner is not Partitioner.STICKY:
        query["partitioner"] = partitioner.value
    request = Request(
        method="POST",
        path=path_of(*parts, query=query),
        body=b'{"records":[' + b",".join(record.to_json() for record in records) + b"]}",
        content_type=V2_BINARY if binary else V2_JSON,
        accept=V2,
        timeout_s=timeout_ms / 1000 + _NETWORK_MARGIN_S,
        leader_key=None if partition is None else (topic, partition),
        parsed_error_statuses=(503,),
    )
    return Call(request, parse_outcomes)


def parse_outcomes(answer: Answer) -> list[RecordOutcome]:
    """Return the rows of a produce answer: a 200, or a 503 that has rows too."""
    body = answer.json()
    rows = body.get("offsets") if isinstance(body, dict) else None
    if rows is None and answer.status >= 400:
        raise error_of(answer)
    if not isinstance(rows, list):
        msg = f"expected the offsets of a produce, got {answer.body[:100]!r}"
        raise ProtocolError(msg)
    return [
        RecordOutcome(
            row["partition"],
            row["offset"],
            row["error_code"],
            row["error"],
            Outcome.UNKNOWN if row.get("outcome") == "unknown" else Outcome.NOT_WRITTEN,
            bool(row.get("retriable", False)),
        )
        for row in rows
    ]


def json_text(value: object) -> bytes:
    """Return a Python value as the JSON text of a `JsonRecord`."""
    return orjson.dumps(value)


def produce_attempts(  # noqa: PLR0913 one argument an option
    topic: str,
    records: Sequence[JsonRecord],
    routes: Routes,
    now_s: Callable[[], float],
    *,
    partition: int | None,
    acks: str,
    retry_s: float,
    must_answer: bool = False,
    partitioner: Partitioner = Partitioner.STICKY,
) -> Attempts[list[RecordOutcome]]:
    """Yield attempts at writing records and return one outcome per record, in order.

    A record is sent again only if it was certainly not written (rule F1). One request is under way
    at a time, which keeps each partition's records in order.

    Raises:
        ApiError: the request itself was refused, and not one of its records.
        UnreachableError: with ``must_answer``, no broker has answered any call of this client.
    """
    backoff = Backoff(now_s() + retry_s)
    outcomes: dict[int, RecordOutcome] = {}
    pending = list(range(len(records)))
    wait_s: float | None = 0.0
    while wait_s is not None:
        call = produce(
            topic,
            [records[at] for at in pending],
            partition=partition,
            acks=acks,
            partitioner=partitioner,
        )
        try:
            rows = yield from attempts_at(call, routes, now_s, retry_s=0.0, wait_s=wait_s)
        except QuorumlogError as error:
            is_refused = isinstance(error, ApiError) and error.status < 500
            is_first = isinstance(error, UnreachableError) and not routes.has_answered
            if is_refused or (must_answer and is_first):
                raise
            failure = RecordOutcome(
                None, None, RETRIABLE_CODE, str(error), error.outcome, error.retriable
            )
            rows = [failure] * len(pending)
        outcomes.update(zip(pending, rows, strict=True))
        pending = [at for at in pending if outcomes[at].may_be_retried]
        wait_s = backoff.next_s(now_s()) if pending else None
    return [outcomes[at] for at in range(len(records))]


def send(
    client: Client,
    topic: str,
    records: Sequence[JsonRecord],
    *,
    partition: int | None = None,
    acks: str = "all",
    retry_s: float = DEFAULT_RETRY_S,
    partitioner: Partitioner = Partitioner.STICKY,
) -> list[RecordOutcome]:
    """Write records and return one outcome per record, in order.

    Records that were certainly not written are sent again for up to ``retry_s`` seconds.
    """
    attempts = produce_attempts(
        topic,
        records,
        client.routes,
        time.monotonic,
        partition=partition,
        acks=acks,
        retry_s=retry_s,
        must_answer=True,
        partitioner=partitioner,
    )
    return client.drive(attempts)
