"""``POST …/topics/T/records``, records as a stream, and ``…/records:batch``, up to a thousand.

The stream reads its body object by object and answers each record with a receipt, in order, while
the client still sends. What has arrived is written as one request, and answered before more is
read: so the order within a partition is the stream's, and a client that sends one record and waits
for its receipt gets it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import orjson
from aiohttp import hdrs, web

from broker.record.render import iso_8601
from http_api.contract.errors import (
    REST_STATUS,
    RestCode,
    RestError,
    record_error_code,
    record_error_name,
)
from http_api.contract.idempotence import claim_of
from http_api.contract.json_stream import JsonStreamError, ObjectSplitter
from http_api.contract.media_types import JSON, essence
from http_api.contract.operations import produce_operations as declared
from http_api.server.answers import PRODUCED_TOPIC, ProducedTopic, json_reply
from http_api.server.image_lookup import unknown_topic_hint
from http_api.server.request_parsing import (
    read_body,
    topic_name,
    unsupported_media_type,
)
from http_api.server.routes.v2.produce_records import acks_and_timeout, partitioner_of
from http_api.server.routes.v2.transactional_produce import refuse_transactional
from http_api.server.routes.v3.clusters import V3Routes
from http_api.server.routes.v3.record_entries import (
    NotJsonError,
    RecordEntry,
    RefusedEntry,
    entry_id,
    read_batch,
    read_entry,
)
from http_api.server.routes.v3.record_writer import EntryWriter, Outcome, WrittenRecord
from http_api.server.streams import STREAM_S_MAX, StreamWriter
from raft_metadata.common.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from http_api.server.routing import PathRouter
    from raft_metadata.common.ids import ClusterId, TopicName

READ_BYTES: Final = 65_536
"""Bytes of a stream that are read at a time, besides one object that has not ended: 450 records of
150 bytes, parsed in 5 ms."""
CHUNK_RECORDS: Final = 1_000
"""Most records that are written at a time."""
_EMPTY_STREAM = "Payload error. Request body is empty. Data is required."
_EMPTY_BATCH_BODY = "Request body is empty. Data is required."
_TOO_LONG = "Streaming connection open for longer than allowed"
_STOPPING = "this broker is stopping: nothing behind this was read, send it to another broker"


class RecordRoutes(V3Routes):
    """Produces of the v3 API."""

    def add_to(self, router: PathRouter) -> None:
        self._serve(router, declared.STREAM, self.stream)
        self._serve(router, declared.BATCH, self.batch)

    async def stream(self, request: web.Request, topic: str) -> web.StreamResponse:
        """Write each object of the body as a record; answer a receipt for each, in order."""
        name = topic_name(topic)
        request[PRODUCED_TOPIC] = ProducedTopic(name)
        _check_json(request)
        receipts = declared.RECEIPTS.read(request.query)
        streams = self._context.streams
        with streams.opened():
            writer = await self._entry_writer(request, name)
            stream = RecordStream(
                request,
                writer,
                Receipts(self._apis.cluster_id, name),
                self._limits.max_body_bytes,
                only_failures=receipts == "errors",
            )
            until_s = asyncio.get_running_loop().time() + STREAM_S_MAX
            while True:
                piece = await self._next_piece(request, until_s)
                if isinstance(piece, RefusedEntry):
                    await stream.fail(piece)
                    return await stream.end_early()
                if not piece:
                    return await stream.end()
                if not await stream.take(piece):
                    return await stream.end_early()

    async def _next_piece(self, request: web.Request, until_s: float) -> bytes | RefusedEntry:
        """Return the next piece of the body, empty at its end, or why there is no next one."""
        streams = self._context.streams
        try:
            async with streams.waits.wait(until_s - asyncio.get_running_loop().time()):
                return await request.content.read(READ_BYTES)
        except TimeoutError:
            if streams.is_stopping:
                return RefusedEntry(RestCode.BROKER_NOT_AVAILABLE, _STOPPING)
            return RefusedEntry(RestCode.REQUEST_TIMEOUT, _TOO_LONG)
        except web.RequestPayloadError as error:
            text = f"the rest of the body can't be read: {' '.join(str(error).split())}"
            return RefusedEntry(RestCode.BAD_REQUEST, text)

    async def batch(self, request: web.Request, topic: str) -> web.Response:
        """Write each entry of the body as a record; answer 207 with those written and the rest."""
        name = topic_name(topic)
        request[PRODUCED_TOPIC] = ProducedTopic(name)
        _check_json(request)
        texts, ids = self._batch_of(await read_body(request, self._limits.max_body_bytes))
        writer = await self._entry_writer(request, name)
        entries: list[RecordEntry | RefusedEntry] = []
        for text in texts:
            try:
                entries.append(read_entry(text, in_batch=True))
            except NotJsonError as error:  # a string with half a surrogate pair, at the most
                entries.append(RefusedEntry(RestCode.BAD_REQUEST, error.message))
        outcomes = await writer.write(entries)
        receipts = Receipts(self._apis.cluster_id, name)
        not_written = RefusedEntry(
            RestCode.OUT_OF_ORDER_SEQUENCE,
            "not written: an entry before it failed, and under a sequence none may be left out",
        )
        successes, failures = [], []
        for number, (found_id, entry) in enumerate(zip(ids, entries, strict=True)):
            outcome = outcomes[number] if number < len(outcomes) else not_written
            if isinstance(outcome, WrittenRecord) and isinstance(entry, RecordEntry):
                row = orjson.loads(receipts.written(outcome, entry))
                del row["error_code"]
                successes.append({"id": found_id} | row)
            else:
                assert not isinstance(outcome, WrittenRecord), "a refused entry is not written"
                failures.append({"id": found_id} | receipts.failed(outcome))
        return json_reply({"successes": successes, "failures": failures}, JSON, 207)

    async def _entry_writer(self, request: web.Request, name: TopicName) -> EntryWriter:
        """Return the writer of a request to a topic that is there.

        Raises:
            RestError: 404/40401, there is no such topic, and it may not be created; 400/40002 for
                the headers of a transaction.
        """
        refuse_transactional(request.headers, f"/v3/clusters/{self._apis.cluster_id}/transactions")
        acks, timeout_ms = acks_and_timeout(request, self._limits)
        partitioner = partitioner_of(request.query)
        claim = claim_of(request.headers)
        try:
            found = await self._apis.topic_for_produce(name, timeout_ms)
        except KafkaError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            text = unknown_topic_hint(self._context, name)
            raise RestError(404, RestCode.TOPIC_NOT_FOUND, text) from None
        request[PRODUCED_TOPIC] = ProducedTopic(name, found)
        return EntryWriter(self._apis, name, acks, timeout_ms, claim, partitioner)

    def _batch_of(self, body: bytes) -> tuple[list[bytes], list[str]]:
        """Return the texts of a batch's entries, and their ids.

        Raises:
            RestError: 422/42208 by Confluent's texts, 400 a body that is no batch; none is written.
        """
        if not body.strip():
            raise _refused_batch(_EMPTY_BATCH_BODY)
        try:
            texts = read_batch(body)
        except NotJsonError as error:
            raise RestError(400, RestCode.BAD_REQUEST, f"Bad Request: {error.message}") from None
        most = self._limits.produce_batch_maximum_entries
        if not texts:
            raise _refused_batch("Empty batch.")
        if len(texts) > most:
            raise _refused_batch(
                f"Too many entries in batch. {len(texts)}, at most {most} "
                "(produce.batch.maximum.entries)"
            )
        ids: list[str] = []
        for number, text in enumerate(texts):
            found = entry_id(text)
            if found is None:
                raise _refused_batch(
                    "Batch entry identifier is not a valid string. Entry "
                    f"{number}: expected a string of 1 to 80 of 0-9 A-Z a-z _ -"
                )
            ids.append(found)
        if len(set(ids)) < len(ids):
            again = next(found for number, found in enumerate(ids) if found in ids[:number])
            raise _refused_batch(f"Batch entry IDs are not distinct. '{again}' is there twice")
        return texts, ids


class RecordStream:
    """The records of one streamed request and their receipts. Owned by its handler."""

    def __init__(
        self,
        request: web.Request,
        writer: EntryWriter,
        receipts: Receipts,
        object_bytes_max: int,
        *,
        only_failures: bool,
    ) -> None:
        self._splitter = ObjectSplitter(object_bytes_max)
        self._writer = writer
        self._receipts = receipts
        self._only_failures = only_failures
        self._answer = StreamWriter(request, JSON)
        self._records = 0
        self._failed = 0

    async def take(self, piece: bytes) -> bool:
        """Write the records that ``piece`` completes, and send their receipts.

        Returns False if the stream has to end, after a receipt that says why.
        """
        self._splitter.feed(piece)
        while True:
            try:
                texts = self._splitter.take(CHUNK_RECORDS)
            except JsonStreamError as error:
                code = RestCode.TOO_LARGE if error.is_too_large else RestCode.BAD_REQUEST
                await self.fail(RefusedEntry(code, error.message))
                return False
            if not texts:
                return True
            if not await self._write(texts):
                return False

    async def end(self) -> web.StreamResponse:
        """End the answer behind the last receipt: the whole body was read.

        Raises:
            RestError: 422/42206, the body was empty.
        """
        try:
            self._splitter.check_end()
        except JsonStreamError as error:
            await self.fail(RefusedEntry(RestCode.BAD_REQUEST, error.message))
            return await self.end_early()
        if not self._records:
            raise RestError(422, RestCode.PAYLOAD, _EMPTY_STREAM)
        if self._only_failures:
            row = {"error_code": 200, "records": self._records, "failed": self._failed}
            await self._answer.write(orjson.dumps(row) + LINE_END)
        return await self._answer.end()

    async def fail(self, why: RefusedEntry) -> None:
        """Send a last receipt, for the record that could not be read."""
        await self._send([why], [why])

    async def end_early(self) -> web.StreamResponse:
        """End the answer; the rest of the body is not read."""
        return await self._answer.end(unread=True)

    async def _write(self, texts: Sequence[bytes]) -> bool:
        entries: list[RecordEntry | RefusedEntry] = []
        not_json = None
        for text in texts:
            try:
                entries.append(read_entry(text))
            except NotJsonError as error:
                not_json = RefusedEntry(RestCode.BAD_REQUEST, f"Bad Request: {error.message}")
                break
        if entries:
            outcomes = await self._writer.write(entries)
            await self._send(entries, outcomes)
            if self._writer.is_over:
                return False
        if not_json is not None:
            await self.fail(not_json)
            return False
        return True

    async def _send(
        self, entries: Sequence[RecordEntry | RefusedEntry], outcomes: Sequence[Outcome]
    ) -> None:
        lines: list[bytes] = []
        for number, (entry, outcome) in enumerate(
            zip(entries, outcomes, strict=False), self._records
        ):
            if isinstance(outcome, WrittenRecord):
                if not self._only_failures:
                    assert isinstance(entry, RecordEntry), "a refused entry is not written"
                    lines.append(self._receipts.written(outcome, entry))
                continue
            self._failed += 1
            row = self._receipts.failed(outcome)
            if self._only_failures:
                row["record"] = number
            lines.append(orjson.dumps(row))
        self._records += len(outcomes)
        if lines:
            lines.append(b"")
            await self._answer.write(LINE_END.join(lines))


LINE_END: Final = b"\r\n"
"""End of each receipt, as in Confluent's answers."""


class Receipts:
    """The receipts of one topic's records."""

    def __init__(self, cluster_id: ClusterId, topic: TopicName) -> None:
        self._written = (
            b'{"error_code":200,"cluster_id":"%b","topic_name":"%b","partition_id":%%d,'
            b'"offset":%%d,"timestamp":%%b%%b}'
        ) % (cluster_id.encode(), topic.encode())
        self._topic = topic

    def written(self, written: WrittenRecord, entry: RecordEntry) -> bytes:
        """Return the receipt of a record that is written."""
        time = b"null"
        if written.timestamp_ms is not None:
            time = b'"%b"' % iso_8601(written.timestamp_ms)
        return self._written % (written.partition, written.offset, time, entry.shown)

    def failed(self, why: RefusedEntry | KafkaError) -> dict[str, Any]:
        """Return the receipt of a record that is not acknowledged."""
        if isinstance(why, RefusedEntry):
            return {"error_code": int(why.code), "message": why.message}
        status = REST_STATUS[why.code].status
        code = record_error_code(why)
        if why.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            code = RestCode.TOPIC_NOT_FOUND
        row: dict[str, Any] = {
            "error_code": int(code),
            "message": f"{record_error_name(why)}: {why.message}",
        }
        if status == 409 or status >= 500:
            row |= {"retriable": why.code.retriable, "outcome": why.outcome.value}
        return row


def _check_json(request: web.Request) -> None:
    """Raise 415 for another Content-Type than JSON, 400 for another charset than UTF-8."""
    content_type = request.headers.get(hdrs.CONTENT_TYPE, "")
    if essence(content_type) != JSON:
        raise unsupported_media_type(content_type, JSON)
    charset = request.charset
    if charset is not None and charset.lower() not in {"utf-8", "utf8"}:
        text = f"Bad Request: charset is '{charset[:40]}', expected utf-8 or none"
        raise RestError(400, RestCode.BAD_REQUEST, text)


def _refused_batch(text: str) -> RestError:
    return RestError(422, RestCode.BATCH, text)
