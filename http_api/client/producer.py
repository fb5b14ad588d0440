"""Writing records without idempotence: the call, each record's outcome, and safe retries.

`send` (blocking) and `AsyncClient.produce` run a `ProduceExchange`, which decides after each answer
which records to send again. Only a record that was certainly not written is sent again, so a lost
answer leaves its records' outcome unknown. Producers that may repeat any request are in
`http_api.client.idempotent`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import orjson

from http_api.client.calls import (
    Answer,
    ApiError,
    Call,
    ClientError,
    ProtocolError,
    Request,
    UnreachableError,
    error_of,
    path_of,
)
from http_api.client.routes import FIRST_BACKOFF_S, LAST_BACKOFF_S
from http_api.client.transport import DEFAULT_RETRY_S, Client
from http_api.contract.errors import RestCode
from http_api.contract.media_types import V2, V2_BINARY, V2_JSON
from raft_metadata.common.errors import Outcome

DEFAULT_PRODUCE_TIMEOUT_MS = 10_000
RETRIABLE_CODE = int(RestCode.KAFKA_RETRIABLE_ERROR)
_NETWORK_MARGIN_S = 5.0


@dataclass(frozen=True, slots=True)
class NewRecord:
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
    records: Iterable[NewRecord],
    *,
    partition: int | None = None,
    acks: str = "all",
    timeout_ms: int = DEFAULT_PRODUCE_TIMEOUT_MS,
    binary: bool = False,
) -> Call[list[RecordOutcome]]:
    """Return the call that writes records of a topic.

    All go to ``partition``, or each to its own partition or the one of its key. The result has one
    outcome per record, in order, also where the request failed as a whole with a row per record
    (HTTP 503).
    """
    parts = ("topics", topic) if partition is None else ("topics", topic, "partitions", partition)
    request = Request(
        method="POST",
        path=path_of(*parts, query={"acks": acks, "timeout": timeout_ms}),
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
    """Return a Python value as the JSON text of a `NewRecord`."""
    return orjson.dumps(value)


class ProduceExchange:
    """Records being written: which to send again, and the outcomes so far. Decides without I/O.

    Its caller runs `call`, passes the result to `receive_outcomes` or `failed`,
    waits for the returned number of seconds, and repeats until None is returned. A record is sent
    again only if it was certainly not written (rule F1). One request is under way at a time, which
    keeps each partition's records in order.
    """

    def __init__(
        self, topic: str, records: Sequence[NewRecord], *, partition: int | None, deadline_s: float
    ) -> None:
        self._topic = topic
        self._records = records
        self._partition = partition
        self._deadline_s = deadline_s
        self._backoff_s = FIRST_BACKOFF_S
        self._pending = list(range(len(records)))
        self._outcomes: dict[int, RecordOutcome] = {}

    @property
    def outcomes(self) -> list[RecordOutcome]:
        """Outcomes of the records, in order; complete once no attempt is left to make."""
        return [self._outcomes[position] for position in range(len(self._records))]

    def call(self, *, acks: str = "all", binary: bool = False) -> Call[list[RecordOutcome]]:
        """Return the call for the records that are still to be written."""
        records = [self._records[position] for position in self._pending]
        return produce(self._topic, records, partition=self._partition, acks=acks, binary=binary)

    def receive_outcomes(self, outcomes: Sequence[RecordOutcome], now_s: float) -> float | None:
        """Take an outcome per record sent; return the seconds until the next attempt, or None."""
        self._outcomes.update(zip(self._pending, outcomes, strict=True))
        self._pending = [p for p in self._pending if self._outcomes[p].may_be_retried]
        return self._next(now_s) if self._pending else None

    def failed(self, error: ClientError, now_s: float) -> float | None:
        """Take the failure of a whole request; return the seconds until the next attempt, or None.

        Raises the error if it is about the request and not its records (a 4xx).
        """
        if isinstance(error, ApiError) and error.status < 500:
            raise error
        outcome = RecordOutcome(
            None, None, RETRIABLE_CODE, str(error), error.outcome, error.retriable
        )
        return self.receive_outcomes([outcome] * len(self._pending), now_s)

    def _next(self, now_s: float) -> float | None:
        if now_s + self._backoff_s > self._deadline_s:
            return None
        wait_s = self._backoff_s
        self._backoff_s = min(2 * self._backoff_s, LAST_BACKOFF_S)
        return wait_s


def send(
    client: Client,
    topic: str,
    records: Sequence[NewRecord],
    *,
    partition: int | None = None,
    acks: str = "all",
    retry_s: float = DEFAULT_RETRY_S,
) -> list[RecordOutcome]:
    """Write records and return one outcome per record, in order.

    Records that were certainly not written are sent again for up to ``retry_s`` seconds.
    """
    deadline_s = time.monotonic() + retry_s
    exchange = ProduceExchange(topic, records, partition=partition, deadline_s=deadline_s)
    while True:
        try:
            outcomes = client.run(exchange.call(acks=acks), retry_s=0.0)
        except UnreachableError as error:
            if not client.routes.has_answered:
                raise
            wait_s = exchange.failed(error, time.monotonic())
        except ClientError as error:
            wait_s = exchange.failed(error, time.monotonic())
        else:
            wait_s = exchange.receive_outcomes(outcomes, time.monotonic())
        if wait_s is None:
            return exchange.outcomes
        time.sleep(wait_s)
