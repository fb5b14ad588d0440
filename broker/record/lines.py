"""Produce requests to stored lines: one decode, one encode, the client's bytes untouched.

The HTTP layer decodes a body (`decode_records`, `check_formats`); the leader's log numbers the
records and encodes batches (`encode_batches`). A stored line is
``{"offset":N,"timestamp"?,"headers"?,"key":K,"value":V}`` and a line feed. Keys and values are
never parsed and dumped again (rule R12): msgspec passes their text through as `msgspec.Raw`.
Measured at 0.28 µs a record of 100 bytes, a quarter of parse and dump. Without msgspec the same
functions run on orjson (`broker.record.plain_lines`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, NamedTuple

import orjson

from broker.record.batch import (
    COMPRESSION_SHIFT,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    RecordFormat,
    attributes_of,
    build_header,
)
from broker.record.values import (
    NULL,
    SHOWN_BYTES_MAX,
    UnprocessableRecordsError,
    bytes_view,
    check_binary,
    decode_base64,
)
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import msgspec

    OptionalRaw = msgspec.Raw | None
    HAS_MSGSPEC = True
else:
    try:
        import msgspec
    except ImportError:
        HAS_MSGSPEC = False
    else:
        HAS_MSGSPEC = True
        # In a union msgspec doesn't pass raw text through. So the declared type is Raw, a field
        # left out stays None, and `_check_rare_fields` turns an explicit null into None.
        OptionalRaw = msgspec.Raw

BATCH_BYTES_MAX = 1_048_576
"""Bytes of lines of one batch. Above 1 MB each byte costs 1.3 to 2.5 times as much (caches)."""
BATCH_LINES_MAX = 68_157_440
"""Bytes of lines of a batch that may not be split: 65 MiB. A batch is pushed in one frame, and the
largest record that a topic can be configured to accept (64 MiB) fits with what a line adds."""
TIMESTAMP_MAX = 253_402_300_799_999
"""The last millisecond of the year 9999, where the dates of every client library end."""
PARTITION_MAX = 2**31 - 1
NESTING_ACCEPTED = 500
"""Levels of nesting that are accepted for sure: the parser's own limit, which depends on the depth
of the call stack, is a few hundred above."""
_RARE = (b'"offset"', b'"headers"', b'"timestamp"', b'"partition"', b"\\u")

if HAS_MSGSPEC:

    def _null() -> msgspec.Raw:
        return msgspec.Raw(NULL)

    class ProduceRecord(
        msgspec.Struct,
        gc=False,
        forbid_unknown_fields=True,
        omit_defaults=True,
        kw_only=True,
    ):
        """A record of a produce request, and a stored line once its offset is set.

        The order of the fields is the order in the line. ``partition`` is for routing and never
        stored; ``offset`` is set by the log, a client that sends it is refused. Key and value have
        a default *factory*, because a shared default would be left out of the line, and a missing
        one must be stored as null.
        """

        is_bare: ClassVar[bool] = False
        """True if all records of the body hold nothing but keys and values."""
        partition: int | None = None
        offset: int = -1
        timestamp: int | None = None
        headers: OptionalRaw = None
        key: msgspec.Raw = msgspec.field(default_factory=_null)
        value: msgspec.Raw = msgspec.field(default_factory=_null)

    if TYPE_CHECKING:

        class BareRecord(ProduceRecord):
            """A record of which the client sent only key and value, as nearly all clients do.

            Its other fields have a type that no JSON text matches: a body with one of them is
            refused, and decoded as `ProduceRecord`. So no code need search for them, neither in the
            body (which took longer than decoding it) nor record by record.
            """

            is_bare: ClassVar[bool] = True

    else:
        _Nothing = Annotated[int, msgspec.Meta(gt=0, lt=0)]

        class BareRecord(
            ProduceRecord, gc=False, forbid_unknown_fields=True, omit_defaults=True, kw_only=True
        ):
            """The class of the same name above, with field types that match no JSON text."""

            is_bare: ClassVar[bool] = True
            partition: _Nothing = None
            offset: _Nothing = -1
            timestamp: _Nothing = None
            headers: _Nothing = None

    class _BareEnvelope(msgspec.Struct, gc=False, forbid_unknown_fields=True, kw_only=True):
        """The body that nearly every client sends."""

        records: list[BareRecord]

    class _Envelope(msgspec.Struct, gc=False, forbid_unknown_fields=True, kw_only=True):
        """A v2 produce body. Its schema fields are accepted and ignored."""

        records: list[ProduceRecord]
        key_schema: OptionalRaw = None
        key_schema_id: OptionalRaw = None
        value_schema: OptionalRaw = None
        value_schema_id: OptionalRaw = None

    _decode_bare_envelope = msgspec.json.Decoder(_BareEnvelope).decode
    _decode_whole_envelope = msgspec.json.Decoder(_Envelope).decode
    encode_lines = msgspec.json.Encoder().encode_lines

    def decode_envelope(body: bytes) -> Sequence[ProduceRecord]:
        """Return the records of a v2 produce body, with their texts as they stand in it."""
        try:
            return _decode_bare_envelope(body).records
        except msgspec.DecodeError:
            pass  # the other decoder reports the fault, if there is one
        try:
            return _decode_whole_envelope(body).records
        except msgspec.ValidationError as error:
            text = str(error)
            wrong_kind = text.startswith(("Expected `object`", "Expected `array`"))
            if wrong_kind and body.strip() != NULL:
                raise KafkaError(ErrorCode.INVALID_REQUEST, text) from None
            raise UnprocessableRecordsError(text) from None
        except msgspec.DecodeError as error:
            raise KafkaError(ErrorCode.INVALID_REQUEST, not_json(body, str(error))) from None

    def make_raw(text: bytes) -> msgspec.Raw:
        """Return JSON text in the type that a record holds its key, value and headers in."""
        return msgspec.Raw(text)

elif not TYPE_CHECKING:
    from broker.record.plain_lines import PlainRecord as ProduceRecord
    from broker.record.plain_lines import decode_envelope, encode_lines

    def make_raw(text):
        """Return JSON text in the type that a record holds its key, value and headers in."""
        return text


class EncodedBatch(NamedTuple):
    """A batch as it is written, and the fields that the log keeps of it."""

    raw: bytes
    base_offset: int
    next_offset: int
    max_timestamp: int


def not_json(body: bytes, why: str) -> str:
    """Return the error text for a body that is no JSON; ``why`` is the parser's message.

    That message is wrong for two bodies: an empty one, and one with half a surrogate pair before a
    string's end.
    """
    if not body.strip():
        return "the body is empty"
    if (
        why == "Input data was truncated"
        and body.rstrip().endswith(b"}")
        and b"\\ud" in body.lower()
    ):
        why = "it ends too early, or a string holds half a surrogate pair (\\ud800 to \\udfff)"
    return f"the body is not JSON: {why}"


def decode_records(body: bytes) -> Sequence[ProduceRecord]:
    """Read the body of a v2 produce request: all `BareRecord`, or none of them.

    Line breaks between tokens become spaces, lexically and only after the original was decoded:
    that decode refuses a raw line break inside a string, so none is ever changed there (rule R12).

    Raises:
        KafkaError: INVALID_REQUEST: not UTF-8, not JSON, nested too deep, of the wrong shape
            (`UnprocessableRecordsError` if only the fields are wrong).
    """
    try:
        if not body.isascii():
            body.decode()
        records = decode_envelope(body)
        if b"\n" in body or b"\r" in body:
            records = decode_envelope(body.replace(b"\n", b" ").replace(b"\r", b" "))
    except UnicodeDecodeError as error:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"the body is not UTF-8 at byte {error.start}"
        ) from None
    except RecursionError:
        text = f"the body is nested too deep: expected at most {NESTING_ACCEPTED} levels"
        raise KafkaError(ErrorCode.INVALID_REQUEST, text) from None
    if not records:
        msg = "`records` is empty"
        raise UnprocessableRecordsError(msg)
    if not records[0].is_bare and any(name in body for name in _RARE):
        _check_rare_fields(records)
    return records


def check_formats(
    records: Sequence[ProduceRecord], key_format: RecordFormat, value_format: RecordFormat
) -> None:
    """Check keys and values that must be strings, and convert base64 to its one stored form.

    Raises:
        KafkaError: INVALID_REQUEST, naming the data that is not base64.
        UnprocessableRecordsError: a key or value is neither a string nor null, naming its place.
    """
    if key_format is RecordFormat.BINARY:
        for record in records:
            record.key = _checked_binary(record.key)
    elif key_format is RecordFormat.STRING:
        _check_strings([record.key for record in records], "key")
    if value_format is RecordFormat.BINARY:
        for record in records:
            record.value = _checked_binary(record.value)
    elif value_format is RecordFormat.STRING:
        _check_strings([record.value for record in records], "value")


def key_view(record: ProduceRecord, key_format: RecordFormat) -> bytes | None:
    """Return the bytes view of a record's key, which selects its partition; None without a key."""
    return bytes_view(bytes(record.key), key_format)


def record_size(record: ProduceRecord) -> int:
    """Return the bytes that max.message.bytes limits: key, value and headers as they are stored."""
    size = len(record.key) + len(record.value)
    return size if record.headers is None else size + len(record.headers)


def oversized(records: Sequence[ProduceRecord], max_message_bytes: int) -> list[int]:
    """Return the indexes of records over the limit: only these are refused."""
    return [
        index for index, record in enumerate(records) if record_size(record) > max_message_bytes
    ]


def encode_batches(  # noqa: PLR0913 one argument a header field
    records: Sequence[ProduceRecord],
    *,
    key_format: RecordFormat,
    value_format: RecordFormat,
    base_offset: int,
    leader_epoch: int,
    append_timestamp: int,
    durable_end: int,
    append_time: bool = False,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    batch_bytes_max: int = BATCH_BYTES_MAX,
    codec: int = 0,
    pack: Callable[[bytes], bytes | None] | None = None,
) -> list[EncodedBatch]:
    """Number the records and encode them as batches of at most ``batch_bytes_max`` bytes of lines.

    A single record may be larger. The records are changed: offset set, partition cleared.

    ``append_time``: the topic's message.timestamp.type is append, so the producer's own times are
    dropped. A record without a time has the broker's.

    ``pack``: returns a batch's lines as ``codec`` stores them, None if that is no shorter
    (`broker.record.compression`).

    Raises:
        KafkaError: MESSAGE_TOO_LARGE, more than `BATCH_LINES_MAX` in one batch.
    """
    if records[0].is_bare:
        timed = False
        for offset, record in enumerate(records, base_offset):
            record.offset = offset
        lines = encode_lines(records)  # decoded from a body without line breaks (rule R12)
    else:
        timed = _number(records, base_offset, append_time=append_time)
        lines = encode_lines(records)
        assert lines.count(b"\n") == len(records), "a value holds a line break (rule R12)"
    attributes = attributes_of(key_format, value_format)
    batches = []
    at = index = 0
    while at < len(lines):
        end = _batch_end(lines, at, batch_bytes_max)
        whole = end - at == len(lines)
        piece = lines if whole else lines[at:end]
        count = len(records) if whole else piece.count(b"\n")
        oldest = newest = append_timestamp
        if timed:
            oldest, newest = _times(records[index : index + count], append_timestamp)
        packed = None if pack is None else pack(piece)
        stored = piece if packed is None else packed
        header = build_header(
            stored,
            durable_end=durable_end,
            base_offset=base_offset + index,
            count=count,
            last_offset_delta=count - 1,
            leader_epoch=leader_epoch,
            append_timestamp=append_timestamp,
            base_timestamp=oldest,
            max_timestamp=newest,
            attributes=attributes if packed is None else attributes | codec << COMPRESSION_SHIFT,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence if base_sequence < 0 else base_sequence + index,
        )
        batches.append(
            EncodedBatch(header + stored, base_offset + index, base_offset + index + count, newest)
        )
        at = end
        index += count
    return batches


def _number(records: Sequence[ProduceRecord], base_offset: int, *, append_time: bool) -> bool:
    """Set offsets, clear fields that are not stored; return True if any record has a time."""
    timed = False
    for offset, record in enumerate(records, base_offset):
        record.partition = None
        record.offset = offset
        if record.timestamp is not None:
            timed = not append_time
            if append_time:
                record.timestamp = None
    return timed


def _batch_end(lines: bytes, at: int, batch_bytes_max: int) -> int:
    """Return the end of the batch that starts at ``at``: behind a whole line, and never empty."""
    end = len(lines)
    if end - at > batch_bytes_max:
        end = lines.rfind(b"\n", at, at + batch_bytes_max) + 1 or lines.index(b"\n", at) + 1
    if end - at > BATCH_LINES_MAX:
        text = f"a batch of {end - at} bytes, at most {BATCH_LINES_MAX} are replicated in one piece"
        raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, text, outcome=Outcome.NOT_WRITTEN)
    return end


def _times(records: Sequence[ProduceRecord], append_timestamp: int) -> tuple[int, int]:
    times = [
        append_timestamp if record.timestamp is None else record.timestamp for record in records
    ]
    return min(times), max(times)


def _checked_binary(text: msgspec.Raw) -> msgspec.Raw:
    raw = bytes(text)
    checked = check_binary(raw)
    return text if checked is raw else make_raw(checked)


def _check_strings(texts: Sequence[msgspec.Raw], half: str) -> None:
    """Refuse a text that is neither a JSON string nor null; the decoder has checked its inside."""
    for index, text in enumerate(texts):
        raw = bytes(text)
        if raw[:1] != b'"' and raw != NULL:
            shown = raw[:SHOWN_BYTES_MAX].decode(errors="replace")
            msg = f"expected a JSON string or null, got {shown} - at `$.records[{index}].{half}`"
            raise UnprocessableRecordsError(msg)


def _check_rare_fields(records: Sequence[ProduceRecord]) -> None:
    for index, record in enumerate(records):
        if record.offset != -1:
            msg = f"Object contains unknown field `offset` - at `$.records[{index}]`"
            raise UnprocessableRecordsError(msg)
        if record.timestamp is not None and not 0 <= record.timestamp <= TIMESTAMP_MAX:
            msg = f"expected milliseconds since 1970 - at `$.records[{index}].timestamp`"
            raise UnprocessableRecordsError(msg)
        if record.partition is not None and not 0 <= record.partition <= PARTITION_MAX:
            msg = f"expected 0 to {PARTITION_MAX} - at `$.records[{index}].partition`"
            raise UnprocessableRecordsError(msg)
        if record.headers is not None and bytes(record.headers) == NULL:
            record.headers = None
        if record.headers is not None:
            _check_headers(orjson.loads(bytes(record.headers)), index)


def _check_headers(headers: object, index: int) -> None:
    """Check headers: ``[{"key": text, "value": base64 or null}]``, as in Strimzi and Karapace."""
    where = f"at `$.records[{index}].headers`"
    if not isinstance(headers, list):
        msg = f"expected an array of headers - {where}"
        raise UnprocessableRecordsError(msg)
    for header in headers:
        if (
            not isinstance(header, dict)
            or not isinstance(header.get("key"), str)
            or not header.keys() <= {"key", "value"}
        ):
            msg = f'expected {{"key": text, "value": base64 or null}} - {where}'
            raise UnprocessableRecordsError(msg)
        value = header.get("value")
        if value is None:
            continue
        try:
            decode_base64(orjson.dumps(value))
        except KafkaError as error:
            raise UnprocessableRecordsError(f"{error.message} - {where}") from None
