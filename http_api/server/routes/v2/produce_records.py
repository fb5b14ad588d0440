"""``POST /topics/T`` and ``POST /topics/T/partitions/P``.

The hot path: one decode of the body; per record only the answer's row (bytes formatting) and the
base64 check of a binary body are Python work here. The broker partitions the records. The fast lane
uses `read_records` and `answer_with_failures`, so both ways answer alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, assert_never

import orjson
from aiohttp import hdrs, web

from broker.record.batch import RecordFormat
from broker.record.lines import check_formats, decode_records
from broker.record.values import UnprocessableRecordsError
from broker.server.requests import (
    ACKS_ALL,
    ACKS_LEADER,
    ACKS_NONE,
    ProduceRequest,
    RecordResult,
)
from http_api.contract import v2
from http_api.contract.errors import REST_STATUS, RETRY_LATER, RestCode, RestError, failure_envelope
from http_api.contract.idempotence import claim_of
from http_api.contract.media_types import (
    V2,
    V2_JSON,
    V2_REPLIES,
    EmbeddedFormat,
    produce_format,
)
from http_api.contract.operations import produce_operations as declared
from http_api.contract.transaction_headers import Staging
from http_api.server.answers import PRODUCED_TOPIC, ProducedTopic, reply
from http_api.server.image_lookup import (
    find_topic,
    partition_not_found,
    topic_or_404,
    unknown_topic_hint,
)
from http_api.server.request_parsing import (
    check_accept,
    partition_id,
    read_body,
    topic_name,
    unsupported_media_type,
)
from http_api.server.routes.v2.transactional_produce import (
    KeyedWrite,
    body_limit,
    commit_produce,
    stage_produce,
    transactional_write,
)
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.record_placement import Partitioner

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from broker.config import BrokerLimits
    from broker.record.lines import ProduceRecord
    from http_api.server.answers import ApiContext
    from http_api.server.routing import PathRouter
    from raft_metadata.common.ids import PartitionId, TopicName


ACKS: Mapping[str, int] = {"all": ACKS_ALL, "-1": ACKS_ALL, "1": ACKS_LEADER, "0": ACKS_NONE}
STORED_FORMATS = {
    EmbeddedFormat.JSON: RecordFormat.JSON,
    EmbeddedFormat.BINARY: RecordFormat.BINARY,
    EmbeddedFormat.TEXT: RecordFormat.STRING,
}
_JSON = RecordFormat.JSON
_FORMATS: Mapping[str, RecordFormat] = {form.name.lower(): form for form in RecordFormat}
_EXPECTED_BODY = 'expected {"records":[{"key"?,"value"?,"partition"?,"timestamp"?,"headers"?}, …]}'


class AnswerForm(Enum):
    """The form of the answer to a produce whose records are all written."""

    ROWS = "all"
    RANGES = "range"
    NONE = ""
    """204 without a body, for ``async=true``: the Strimzi bridge's clients read none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceOptions:
    """The query parameters of a v2 produce."""

    acks: int = ACKS_ALL
    timeout_ms: int
    partitioner: Partitioner = Partitioner.STICKY
    receipts: AnswerForm = AnswerForm.ROWS
    key_format: RecordFormat | None = None
    """None: the format that the Content-Type names; so for ``value_format``."""
    value_format: RecordFormat | None = None


class ProduceRoutes:
    """Writes of the v2 API. Owner: the app; holds no state of its own."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._apis = context.apis
        self._limits = context.limits

    def add_to(self, router: PathRouter) -> None:
        router.serve(declared.TO_TOPIC, self.to_topic)
        router.serve(declared.TO_PARTITION, self.to_partition)

    async def to_topic(self, request: web.Request, topic: str) -> web.StreamResponse:
        """Append each record to the partition it names, else to the one its key selects."""
        return await self._produce(request, topic_name(topic), None)

    async def to_partition(
        self, request: web.Request, topic: str, partition: str
    ) -> web.StreamResponse:
        """Append all records to one partition."""
        name = topic_name(topic)
        return await self._produce(request, name, partition_id(partition))

    async def _produce(
        self, request: web.Request, topic: TopicName, partition: PartitionId | None
    ) -> web.StreamResponse:
        request[PRODUCED_TOPIC] = ProducedTopic(topic)
        content_type = request.headers.get(hdrs.CONTENT_TYPE)
        embedded = produce_format(content_type)
        if embedded is None:
            raise unsupported_media_type(content_type, V2_JSON)
        check_accept(request, V2_REPLIES)
        options = _options(request, self._limits)
        claim = claim_of(request.headers)
        way = transactional_write(
            request,
            self._apis,
            acks=options.acks,
            timeout_ms=options.timeout_ms,
            with_rows=options.receipts is not AnswerForm.RANGES,
        )
        stored_as = STORED_FORMATS.get(embedded)
        if stored_as is None:
            await topic_or_404(self._apis, topic, RestCode.TOPIC_NOT_FOUND)
            raise _no_schemas(await read_body(request, self._limits.max_body_bytes), embedded)
        key_format = stored_as if options.key_format is None else options.key_format
        value_format = stored_as if options.value_format is None else options.value_format
        body = await read_body(request, *body_limit(way, self._apis, self._limits))
        produce = ProduceRequest(
            topic=topic,
            records=read_records(body, key_format, value_format, self._limits, partition),
            key_format=key_format,
            value_format=value_format,
            partition=partition,
            acks=options.acks,
            timeout_ms=options.timeout_ms,
            claim=claim,
            partitioner=options.partitioner,
        )
        request[PRODUCED_TOPIC] = ProducedTopic(topic, self._apis.image.topic(topic))
        if way is not None:
            self._context.check_connected(request)
        try:
            match way:
                case None:
                    results = await self._apis.produce(produce)
                case KeyedWrite():
                    results = await commit_produce(self._apis, way, produce, body)
                case Staging():
                    return await stage_produce(self._apis, way, produce)
                case _:
                    assert_never(way)
        except KafkaError as error:
            return await self._answer_refusal(produce, error, in_transaction=way is not None)
        return answer(results, options.receipts)

    async def _answer_refusal(
        self, produce: ProduceRequest, error: KafkaError, *, in_transaction: bool
    ) -> web.StreamResponse:
        """Answer one error for all records: 4xx for a wrong request, rows for a retriable failure.

        So a client reads one shape whether one record failed or all of them. In a transaction all
        are one, so there is one error.
        """
        if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            if await find_topic(self._apis, produce.topic) is None:
                text = unknown_topic_hint(self._context, produce.topic)
                raise RestError(404, RestCode.TOPIC_NOT_FOUND, text) from None
            text = error.message
            if produce.partition is not None:
                text = partition_not_found(produce.topic, produce.partition)
            raise RestError(404, RestCode.PARTITION_NOT_FOUND, text) from None
        if in_transaction:
            raise error
        status, code = REST_STATUS[error.code]
        if status == 409 and produce.claim is not None:
            retriable, outcome = error.code.retriable, error.outcome
            text = f"{error.code.name}: {error.message}"
            body = failure_envelope(code, text, retriable=retriable, outcome=outcome)
            return reply(body, V2, status)
        if status != 503:
            raise error
        return answer([RecordResult(None, None, error)] * len(produce.records))


def _options(request: web.Request, limits: BrokerLimits) -> ProduceOptions:
    """Return the query parameters of a produce.

    Raises:
        RestError: 400/40002 for a value that is not one of the expected.
    """
    acks, timeout_ms = acks_and_timeout(request, limits)
    if not request.query_string:
        return ProduceOptions(timeout_ms=timeout_ms)
    query = request.query
    receipts = AnswerForm(declared.ROWS.read(query))
    key_format = declared.KEY_FORMAT.read_optional(query)
    value_format = declared.VALUE_FORMAT.read_optional(query)
    return ProduceOptions(
        acks=acks,
        timeout_ms=timeout_ms,
        partitioner=partitioner_of(query),
        receipts=AnswerForm.NONE if declared.ASYNC.read(query) else receipts,
        key_format=None if key_format is None else _FORMATS[key_format],
        value_format=None if value_format is None else _FORMATS[value_format],
    )


def partitioner_of(query: Mapping[str, str]) -> Partitioner:
    """Return the ``partitioner`` of a produce's query; `Partitioner.STICKY` if it is absent.

    Raises:
        RestError: 400/40002 for another value.
    """
    return Partitioner(declared.PARTITIONER.read(query))


def acks_and_timeout(request: web.Request, limits: BrokerLimits) -> tuple[int, int]:
    """Return ``acks`` and ``timeout`` of a produce's query, in milliseconds.

    Raises:
        RestError: 400/40002 for a value that is out of range.
    """
    if not request.query_string:
        return ACKS_ALL, declared.TIMEOUT.default_value(limits)
    query = request.query
    return ACKS[declared.ACKS.read(query)], declared.TIMEOUT.read(query, limits)


def answer(results: Sequence[RecordResult], receipts: AnswerForm = AnswerForm.ROWS) -> web.Response:
    """Return one row per record, in request order; another form only if all are written."""
    if receipts is not AnswerForm.ROWS:
        places = [
            (one.partition, one.offset)
            for one in results
            if one.partition is not None and one.offset is not None
        ]
        if len(places) < len(results):
            return answer_with_failures(results)
        if receipts is AnswerForm.NONE:
            return reply(b"", V2, 204)
        return reply(v2.ranges_reply(places), V2)
    row = v2.OFFSET_ROW
    try:
        rows = [row % (result.partition, result.offset) for result in results]
    except TypeError:  # a failed record has no offset; checked only here, as failures are rare
        return answer_with_failures(results)
    return reply(v2.produce_reply(rows), V2)


def answer_with_failures(results: Sequence[RecordResult]) -> web.Response:
    """Return the rows of results of which some failed.

    The status is 503 if certainly nothing was stored and a retry may succeed, else 200.
    """
    failures = [result.error for result in results if result.error is not None]
    rows = [
        v2.OFFSET_ROW % (result.partition, result.offset)
        if result.error is None
        else v2.failed_row(result.error)
        for result in results
    ]
    certain = all(error.outcome is Outcome.NOT_WRITTEN for error in failures)
    mendable = any(REST_STATUS[error.code].status == 503 for error in failures)
    if len(failures) == len(results) and certain and mendable:
        return reply(v2.produce_reply(rows), V2, 503, RETRY_LATER)
    return reply(v2.produce_reply(rows), V2)


def read_records(
    body: bytes,
    key_format: RecordFormat,
    value_format: RecordFormat,
    limits: BrokerLimits,
    partition: PartitionId | None,
) -> Sequence[ProduceRecord]:
    """Return the records of a body within the limits; objects are counted before decoding.

    ``partition`` is the path's, which no record may contradict.

    Raises:
        RestError: 413 over a limit; 422 wrong fields, or another partition than the path's; 400 a
            body that is not JSON or of the wrong kind.
    """
    most = limits.max_objects_per_request
    if len(body) > 2 * most:  # a shorter body can't hold more objects: no need to count
        objects = body.count(b"{")
        if objects > most:
            raise _too_many(f"{objects} JSON objects", "max_objects_per_request", most)
    try:
        records = decode_records(body)
        if key_format is not _JSON or value_format is not _JSON:
            check_formats(records, key_format, value_format)
    except UnprocessableRecordsError as error:
        text = f"{error.message}; {_EXPECTED_BODY}"
        raise RestError(422, RestCode.UNPROCESSABLE, text) from None
    except KafkaError as error:
        is_json = error.message.lower().startswith("expected ")
        text = f"{error.message}; {_EXPECTED_BODY}" if is_json else error.message
        raise RestError(400, RestCode.BAD_REQUEST, text) from None
    most = limits.max_records_per_request
    if len(records) > most:
        raise _too_many(f"{len(records)} records", "max_records_per_request", most)
    if partition is not None and not records[0].is_bare:
        _check_one_partition(records, partition)
    return records


def _check_one_partition(records: Sequence[ProduceRecord], partition: PartitionId) -> None:
    """Refuse a record that names another partition than the path: its reader would not find it."""
    for index, record in enumerate(records):
        if record.partition is not None and record.partition != partition:
            text = (
                f"`$.records[{index}].partition` is {record.partition}, the path's is {partition}: "
                "expected the same or none; POST /topics/{topic} takes each record's own"
            )
            raise RestError(422, RestCode.UNPROCESSABLE, text)


def _too_many(what: str, limit: str, most: int) -> RestError:
    return RestError(
        413, RestCode.TOO_LARGE, f"the body holds {what}, {limit} is {most}; send it in parts"
    )


def _no_schemas(body: bytes, embedded: EmbeddedFormat) -> RestError:
    """Return the refusal of a format that needs a schema registry, which does not exist here."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        return RestError(400, RestCode.BAD_REQUEST, f"the body is not JSON: {error}")
    fields = value if isinstance(value, dict) else {}
    records = fields.get("records")
    rows = [row for row in records if isinstance(row, dict)] if isinstance(records, list) else []
    for part, code in (
        ("key", RestCode.KEY_SCHEMA_MISSING),
        ("value", RestCode.VALUE_SCHEMA_MISSING),
    ):
        names = (f"{part}_schema", f"{part}_schema_id")
        has_schema = any(fields.get(name) is not None for name in names)
        if not has_schema and any(row.get(part) is not None for row in rows):
            return RestError(
                422,
                code,
                f"Request includes {part}s and uses a format that requires schemas but does not "
                f"include the {part}_schema or {part}_schema_id fields",
            )
    return RestError(
        422,
        RestCode.INVALID_SCHEMA,
        f"schemas are not supported: send {embedded.value} data as '{V2_JSON}'",
    )
