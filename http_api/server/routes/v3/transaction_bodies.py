"""Bodies of transactions: from JSON to rows with the client's own text, attempts and offsets.

`read_commit` decodes the envelope with msgspec and leaves the texts of ``topics``, ``attempts`` and
``offsets`` as they stand in the body: their digest is what a repeat is compared by, and keys and
values keep the client's text (rule R12). What is of the wrong kind is a 400, what is out of its
range a 400/40002 that names the limit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from broker.log.leader_epoch_cache import NO_EPOCH
from broker.record.batch import RecordFormat
from broker.server.transaction_apis import TopicRows
from broker.transactions.messages import EXPECTED_NONE, AttemptNamed, OffsetMove
from http_api.contract.errors import RestCode, RestError, excerpt
from http_api.contract.operations.transaction_operations import OFFSETS_MAX, RUN_ID_CHARS_MAX
from http_api.contract.transaction_headers import (
    ATTEMPT_EXPECTED,
    ATTEMPT_ID,
    EPOCH_MAX,
    NUMBER_MAX,
)
from http_api.contract.v2 import check_name, has_control_characters
from http_api.server.request_parsing import INT32_MAX, OFFSET_MAX
from http_api.server.routes.v2.produce_records import read_records
from http_api.server.routes.v2.transactional_produce import digest_of, too_large_inline
from raft_metadata.common.ids import InstanceId, PartitionId, TopicName

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from broker.config import BrokerLimits
    from broker.server.transaction_apis import TransactionLimits

T = TypeVar("T")

BESIDE_ROWS_BYTES_MAX: Final = 4_194_304
"""Bytes of a body beside its rows: `OFFSETS_MAX` offsets with the longest names."""
_NULL: Final = b"null"
_FORMATS: Final = {"json": RecordFormat.JSON, "binary": RecordFormat.BINARY}


def _absent() -> msgspec.Raw:
    return msgspec.Raw(b"")


class _Content(msgspec.Struct, gc=False, forbid_unknown_fields=True, kw_only=True):
    """The body of a one-shot."""

    topics: msgspec.Raw = msgspec.field(default_factory=_absent)
    attempts: msgspec.Raw = msgspec.field(default_factory=_absent)
    offsets: msgspec.Raw = msgspec.field(default_factory=_absent)
    member_id: str | None = None
    member_epoch: int | None = None


class _Commit(_Content, gc=False, forbid_unknown_fields=True, kw_only=True):
    """The body of a commit of an id."""

    epoch: int | None = None
    number: int | None = None
    run_id: str | None = None
    input: str | None = None


class _Topic(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    topic_name: str
    records: msgspec.Raw
    format: str = "json"


class _Attempt(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    attempt_id: str
    chunks: int
    rows: int


class _Offset(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    topic_name: str
    partition_id: int
    offset: int
    expected_offset: int | None = None
    metadata: str | None = None
    leader_epoch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitBody:
    """A commit as its body says it; the path and the headers say whose it is."""

    topics: tuple[TopicRows, ...]
    attempts: tuple[AttemptNamed, ...]
    offsets: tuple[OffsetMove, ...]
    member_id: InstanceId | None
    member_epoch: int | None
    digest: str
    epoch: int | None = None
    number: int | None = None
    run_id: str | None = None
    input: str | None = None


def read_commit(
    body: bytes, limits: BrokerLimits, most: TransactionLimits, *, of_an_id: bool
) -> CommitBody:
    """Return the commit in a body; ``of_an_id``: not a one-shot, so it may name a position.

    Raises:
        RestError: 400 not JSON or of the wrong shape, 400/40002 a value out of its range, 413 over
            a limit, 422 wrong fields of a record.
    """
    fields = _decoded(body, _decode_commit if of_an_id else _decode_content)
    texts = [_text(raw) for raw in (fields.topics, fields.attempts, fields.offsets)]
    topics, attempts, offsets = texts
    if topics and attempts:
        raise _bad("'topics' and 'attempts' are both given: expected one of them")
    found = CommitBody(
        topics=_topics(topics, limits, most),
        attempts=_attempts(attempts, most.chunks),
        offsets=_offsets(offsets),
        member_id=_member(fields),
        member_epoch=_within("member_epoch", fields.member_epoch, 0, INT32_MAX),
        digest=digest_of((b"transaction", *texts)),
    )
    if not (found.topics or found.attempts or found.offsets):
        raise _bad("the transaction is empty: expected 'topics', 'attempts' or 'offsets'")
    if not isinstance(fields, _Commit):
        return found
    return replace(
        found,
        epoch=_within("epoch", fields.epoch, 0, EPOCH_MAX),
        number=_within("number", fields.number, 0, NUMBER_MAX),
        run_id=_word("run_id", fields.run_id),
        input=_word("input", fields.input),
    )


_decode_content = msgspec.json.Decoder(_Content).decode
_decode_commit = msgspec.json.Decoder(_Commit).decode
_decode_topics = msgspec.json.Decoder(list[_Topic]).decode
_decode_attempts = msgspec.json.Decoder(list[_Attempt]).decode
_decode_offsets = msgspec.json.Decoder(list[_Offset]).decode


def _decoded(body: bytes, decode: Callable[[bytes], T], where: str = "") -> T:
    """Return a JSON text decoded; ``where`` is the field of the body that it stands in."""
    try:
        if not body.isascii():
            body.decode()
        return decode(body)
    except UnicodeDecodeError as error:
        text = f"the body is not UTF-8 at byte {error.start}"
    except RecursionError:
        text = "the body is nested too deep"
    except msgspec.ValidationError as error:
        message = str(error)
        text = message.replace("`$", f"`$.{where}") if where else message
        if where and "`$" not in message:
            text = f"{message} - at `$.{where}`"
    except msgspec.DecodeError as error:
        text = "the body is empty" if not body.strip() else f"the body is not JSON: {error}"
    raise RestError(400, RestCode.BAD_REQUEST, f"Bad Request: {text}")


def _text(raw: msgspec.Raw) -> bytes:
    """Return the text of a field, empty where it is absent or null."""
    text = bytes(raw)
    return b"" if text == _NULL else text


def _topics(text: bytes, limits: BrokerLimits, most: TransactionLimits) -> tuple[TopicRows, ...]:
    if not text:
        return ()
    topics = _decoded(text, _decode_topics, "topics")
    _check_some("topics", topics)
    if len(topics) > most.partitions:
        raise _bad(
            f"'topics' has {len(topics)} entries: expected at most {most.partitions} partitions "
            "(transaction.max.partitions)"
        )
    if sum(len(bytes(topic.records)) for topic in topics) > most.inline_bytes:
        raise too_large_inline(most.inline_bytes)
    found = tuple(_rows(index, topic, limits) for index, topic in enumerate(topics))
    count = sum(len(one.records) for one in found)
    if count > limits.max_records_per_request:
        allowed = f"max_records_per_request is {limits.max_records_per_request}"
        text_ = f"the body holds {count} records, {allowed}; stage them"
        raise RestError(413, RestCode.TOO_LARGE, text_)
    return found


def _rows(index: int, topic: _Topic, limits: BrokerLimits) -> TopicRows:
    where = f"topics[{index}]"
    form = _FORMATS.get(topic.format)
    if form is None:
        raise _bad(f"'{where}.format' is '{excerpt(topic.format)}': expected json or binary")
    name = check_name(f"{where}.topic_name", topic.topic_name)
    envelope = b'{"records":%b}' % bytes(topic.records)
    try:
        records = read_records(envelope, form, form, limits, None)
    except RestError as error:
        text = error.message.replace("`$.", f"`$.{where}.")
        raise RestError(error.status, error.code, f"{where}: {text}") from None
    return TopicRows(topic=TopicName(name), records=records, key_format=form, value_format=form)


def _attempts(text: bytes, chunks_max: int) -> tuple[AttemptNamed, ...]:
    if not text:
        return ()
    attempts = _decoded(text, _decode_attempts, "attempts")
    _check_some("attempts", attempts)
    seen: set[str] = set()
    chunks = 0
    for index, one in enumerate(attempts):
        where = f"attempts[{index}]"
        if not ATTEMPT_ID.fullmatch(one.attempt_id):
            got = excerpt(one.attempt_id)
            raise _bad(f"'{where}.attempt_id' is '{got}': expected {ATTEMPT_EXPECTED}")
        if one.attempt_id in seen:
            raise _bad(f"'{where}.attempt_id' is '{one.attempt_id}' once more: expected it once")
        seen.add(one.attempt_id)
        _needed(f"{where}.chunks", one.chunks, 1, NUMBER_MAX)
        _needed(f"{where}.rows", one.rows, 1, NUMBER_MAX)
        if one.rows < one.chunks:
            text_ = f"expected at least one for each of its {one.chunks} chunks"
            raise _bad(f"'{where}.rows' is {one.rows}: {text_}")
        chunks += one.chunks
    if chunks > chunks_max:
        raise _bad(
            f"'attempts' has {chunks} chunks: expected at most {chunks_max} "
            "(transaction.max.chunks)"
        )
    return tuple(AttemptNamed(one.attempt_id, one.chunks, one.rows) for one in attempts)


def _offsets(text: bytes) -> tuple[OffsetMove, ...]:
    if not text:
        return ()
    offsets = _decoded(text, _decode_offsets, "offsets")
    if len(offsets) > OFFSETS_MAX:
        said = f"the body holds {len(offsets)} offsets, at most {OFFSETS_MAX} are taken"
        raise RestError(413, RestCode.TOO_LARGE, said)
    found = tuple(_move(index, one) for index, one in enumerate(offsets))
    seen: set[tuple[str, int]] = set()
    for one in found:
        if (one.topic, one.partition) in seen:
            raise _bad(f"'offsets' names {one.topic}:{one.partition} twice: expected it once")
        seen.add((one.topic, one.partition))
    return found


def _move(index: int, row: _Offset) -> OffsetMove:
    where = f"offsets[{index}]"
    _needed(f"{where}.partition_id", row.partition_id, 0, INT32_MAX)
    _needed(f"{where}.offset", row.offset, 0, OFFSET_MAX)
    epoch = _within(f"{where}.leader_epoch", row.leader_epoch, 0, INT32_MAX)
    return OffsetMove(
        topic=TopicName(check_name(f"{where}.topic_name", row.topic_name)),
        partition=PartitionId(row.partition_id),
        offset=row.offset,
        expected=_within(
            f"{where}.expected_offset", row.expected_offset, EXPECTED_NONE, OFFSET_MAX
        ),
        metadata=row.metadata or "",
        leader_epoch=NO_EPOCH if epoch is None else epoch,
    )


def _member(fields: _Content) -> InstanceId | None:
    if (fields.member_id is None) != (fields.member_epoch is None):
        raise _bad("'member_id' and 'member_epoch': expected both or none")
    if fields.member_id is None:
        return None
    return InstanceId(check_name("member_id", fields.member_id))


def _within(name: str, value: int | None, least: int, most: int) -> int | None:
    return None if value is None else _needed(name, value, least, most)


def _needed(name: str, value: int, least: int, most: int) -> int:
    if not least <= value <= most:
        raise _bad(f"'{name}' is {value}: expected an integer from {least} to {most}")
    return value


def _word(name: str, value: str | None) -> str | None:
    if value is None:
        return None
    if not 1 <= len(value) <= RUN_ID_CHARS_MAX or has_control_characters(value):
        expected = f"1 to {RUN_ID_CHARS_MAX} characters without control characters"
        raise _bad(f"'{name}' is {excerpt(value)!r}: expected {expected}")
    return value


def _check_some(name: str, rows: Sequence[object]) -> None:
    if not rows:
        raise _bad(f"'{name}' is empty: expected at least one")


def _bad(text: str) -> RestError:
    return RestError(400, RestCode.KAFKA_BAD_REQUEST, text)
