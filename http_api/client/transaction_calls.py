"""Calls of transactions: one shot, init, stage, commit, abort, and what is known of ids.

A write in a transaction may be sent again whatever became of it: its key, or its position, tells
a repeat from another write. So these calls are repeated by `attempts_at` until they are answered;
only a one-shot without a key is not. Where a ``group_id`` is given, the id is that of this group;
the same name elsewhere is another id. Each function returns a `Call`; nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from http_api.client.calls import Call, Request, path_of, read_list, read_nothing, read_one, v3_path
from http_api.client.produce_calls import JsonRecord, RecordOutcome, parse_outcomes
from http_api.contract.media_types import V2, V2_BINARY, V2_JSON
from http_api.contract.transaction_headers import (
    IDEMPOTENCY_KEY,
    KEY_PREFIX,
    Staging,
    staging_headers,
)
from http_api.contract.transaction_resources import (
    AbortResult,
    AttemptInfo,
    DecidedPosition,
    PlacedPartition,
    ProducerLife,
    TransactionInfo,
    TransactionResult,
    WaitingPartition,
    abort_of,
    info_of,
    life_of,
    result_of,
)
from http_api.contract.transaction_shapes import transactions_path

__all__ = [
    "AbortResult",
    "AttemptInfo",
    "DecidedPosition",
    "PlacedPartition",
    "ProducerLife",
    "Staging",
    "TransactionInfo",
    "TransactionResult",
    "WaitingPartition",
]  # for users of these calls

TRANSACTION_TIMEOUT_MS = 10_000
"""Time for a request, unless the caller names another; at most 60,000."""
_NETWORK_MARGIN_S = 5.0


@dataclass(frozen=True, slots=True)
class TransactionRows:
    """Rows of a transaction for one topic."""

    topic: str
    records: bytes
    """JSON array of records as in a produce; its text is stored unchanged."""
    binary: bool = False
    """Keys and values are base64."""

    @classmethod
    def of(
        cls, topic: str, records: Iterable[JsonRecord], *, binary: bool = False
    ) -> TransactionRows:
        """Return rows made of records."""
        return cls(topic, b"[" + b",".join(one.to_json() for one in records) + b"]", binary)

    def to_json(self) -> bytes:
        form = b"binary" if self.binary else b"json"
        return b'{"topic_name":%b,"format":"%b","records":%b}' % (
            orjson.dumps(self.topic),
            form,
            self.records,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetToCommit:
    """An offset that a transaction commits for its group: the next one to read."""

    topic: str
    partition: int
    offset: int
    expected: int | None = None
    """The committed offset that must be found, -1 for none yet; None: any."""
    metadata: str = ""
    leader_epoch: int | None = None

    def to_json(self) -> dict[str, Any]:
        row = {"topic_name": self.topic, "partition_id": self.partition, "offset": self.offset}
        given = {
            "expected_offset": self.expected,
            "metadata": self.metadata or None,
            "leader_epoch": self.leader_epoch,
        }
        return row | {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionContent:
    """The content of a commit: rows or staged attempts, and offsets of the group."""

    topics: Sequence[TransactionRows] = ()
    attempts: Sequence[tuple[str, int, int]] = ()
    """(attempt id, chunks, rows) of staged attempts, in place of ``topics``."""
    offsets: Sequence[OffsetToCommit] = ()
    member: tuple[str, int] | None = None
    """(member id, member epoch) of the member that commits its offsets; None: none does."""

    def to_json(self, fields: Mapping[str, object]) -> bytes:
        """Return the body of a commit that has these fields, too.

        The same content has the same text, by which a repeat is recognised.
        """
        parts = {name: orjson.dumps(value) for name, value in fields.items() if value is not None}
        if self.topics:
            parts["topics"] = b"[" + b",".join(one.to_json() for one in self.topics) + b"]"
        if self.attempts:
            names = ("attempt_id", "chunks", "rows")
            rows = [dict(zip(names, one, strict=True)) for one in self.attempts]
            parts["attempts"] = orjson.dumps(rows)
        if self.offsets:
            parts["offsets"] = orjson.dumps([one.to_json() for one in self.offsets])
        if self.member is not None:
            parts["member_id"], parts["member_epoch"] = map(orjson.dumps, self.member)
        return b"{" + b",".join(b'"%b":%b' % (n.encode(), v) for n, v in parts.items()) + b"}"


def transact(
    cluster_id: str,
    content: TransactionContent,
    *,
    key: str | None = None,
    group_id: str | None = None,
    timeout_ms: int = TRANSACTION_TIMEOUT_MS,
) -> Call[TransactionResult]:
    """Return the call that commits a transaction in one request; see `TransactionResult.state`.

    Without a ``key`` a lost answer leaves its outcome unknown.
    """
    request = _post(
        v3_path(cluster_id, *transactions_path(group_id), query={"timeout": timeout_ms}),
        content.to_json({}),
        timeout_ms,
        headers={} if key is None else {IDEMPOTENCY_KEY: key},
        repeatable=key is not None,
    )
    return read_one(request, result_of)


def init_producer(
    cluster_id: str,
    transaction_id: str,
    *,
    group_id: str | None = None,
    timeout_ms: int = TRANSACTION_TIMEOUT_MS,
) -> Call[ProducerLife]:
    """Return the call that begins a producer's next life, which fences the one before."""
    path = _of_id(cluster_id, group_id, f"{transaction_id}:init", timeout_ms)
    return read_one(_post(path, b"{}", timeout_ms), life_of)


def stage(
    staging: Staging,
    rows: TransactionRows,
    *,
    partition: int | None = None,
    timeout_ms: int = TRANSACTION_TIMEOUT_MS,
) -> Call[list[RecordOutcome]]:
    """Return the call that stages a chunk; each outcome has no offset, or says what is wrong.

    One row that is refused refuses the chunk.
    """
    parts = ("topics", rows.topic) if partition is None else _place(rows.topic, partition)
    request = Request(
        method="POST",
        path=path_of(*parts, query={"timeout": timeout_ms}),
        body=b'{"records":%b}' % rows.records,
        content_type=V2_BINARY if rows.binary else V2_JSON,
        accept=V2,
        timeout_s=timeout_ms / 1000 + _NETWORK_MARGIN_S,
        repeatable=True,
        more_headers=staging_headers(staging),
    )
    return Call(request, parse_outcomes)


def _place(topic: str, partition: int) -> tuple[object, ...]:
    return "topics", topic, "partitions", partition


def commit_transaction(  # noqa: PLR0913 the fields of a position
    cluster_id: str,
    transaction_id: str,
    content: TransactionContent,
    *,
    epoch: int | None = None,
    number: int | None = None,
    run_id: str | None = None,
    input_name: str | None = None,
    group_id: str | None = None,
    timeout_ms: int = TRANSACTION_TIMEOUT_MS,
) -> Call[TransactionResult]:
    """Return the call that commits a position of an id; see `TransactionResult.state`.

    A producer has ``epoch`` and ``number``, a numbered id ``number``, ``run_id`` and perhaps
    ``input_name``, the name of what the number was made of. ``key:K`` has none of them.
    """
    fields = {"epoch": epoch, "number": number, "run_id": run_id, "input": input_name}
    path = _of_id(cluster_id, group_id, f"{transaction_id}:commit", timeout_ms)
    return read_one(_post(path, content.to_json(fields), timeout_ms), result_of)


def abort_transaction(
    cluster_id: str,
    transaction_id: str,
    *,
    epoch: int,
    number: int,
    group_id: str | None = None,
    timeout_ms: int = TRANSACTION_TIMEOUT_MS,
) -> Call[AbortResult]:
    """Return the call that aborts a producer's position, and reads what became of it."""
    path = _of_id(cluster_id, group_id, f"{transaction_id}:abort", timeout_ms)
    body = orjson.dumps({"epoch": epoch, "number": number})
    return read_one(_post(path, body, timeout_ms), abort_of)


def describe_transaction(
    cluster_id: str, transaction_id: str, *, group_id: str | None = None
) -> Call[TransactionInfo]:
    """Return the call that reads an id; 404/40406 if there is none."""
    path = v3_path(cluster_id, *transactions_path(group_id), transaction_id)
    return read_one(Request(method="GET", path=path), info_of)


def list_transactions(
    cluster_id: str, *, state: str | None = None, group_id: str | None = None
) -> Call[list[TransactionInfo]]:
    """Return the call that lists the ids of a group, or of all groups and of none."""
    path = v3_path(cluster_id, *transactions_path(group_id), query={"state": state})
    return read_list(Request(method="GET", path=path), info_of)


def forget_transaction(
    cluster_id: str, transaction_id: str, *, group_id: str | None = None
) -> Call[None]:
    """Return the call that forgets a numbered id or a key; 409/40903 while it is committing."""
    path = v3_path(cluster_id, *transactions_path(group_id), transaction_id)
    return read_nothing(Request(method="DELETE", path=path))


def key_id(key: str) -> str:
    """Return the id of the transaction that an idempotency key names."""
    return KEY_PREFIX + key


def _of_id(cluster_id: str, group_id: str | None, segment: str, timeout_ms: int) -> str:
    base = transactions_path(group_id)
    return v3_path(cluster_id, *base, segment, query={"timeout": timeout_ms})


def _post(
    path: str,
    body: bytes,
    timeout_ms: int,
    *,
    headers: Mapping[str, str] | None = None,
    repeatable: bool = True,
) -> Request:
    return Request(
        method="POST",
        path=path,
        body=body,
        timeout_s=timeout_ms / 1000 + _NETWORK_MARGIN_S,
        repeatable=repeatable,
        more_headers=headers or {},
    )
