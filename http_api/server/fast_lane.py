"""Fast lane: answers plain produces and direct fetches, from parsed request to bytes.

`lane_connection.py` offers each request. The lane handles one common case of each kind and refuses
everything else (an unusual path, parameter, header or body, a partition led elsewhere, nothing to
read yet); the request is then handled by the routes, as if the lane did not exist. So every error
is worded in one place, and the answers given here are byte for byte those of the routes
(tests/contract/test_fast_lane.py).
"""

from __future__ import annotations

import re
from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from broker.record.batch import BatchError, RecordFormat
from broker.record.compression import framed, framed_as_single
from broker.record.render import array_of, batch_line, batch_pieces, render_v2
from broker.server.requests import (
    ACKS_ALL,
    FINAL,
    UNKNOWN_EPOCH,
    DirectProduce,
    RecordResult,
)
from http_api.contract import v2
from http_api.contract.errors import RestError
from http_api.contract.forwarding import HEADERS as FORWARDING_HEADERS
from http_api.contract.media_types import (
    DECODED_LENGTH_HEADER,
    LINES,
    NDJSON,
    PRODUCE_FORMATS,
    READ_REPLIES,
    V2,
    V2_JSON,
    V2_REPLIES,
    ZSTD,
    accepts_zstd,
    choose_reply,
)
from http_api.contract.operations import fetch_operations as fetches
from http_api.contract.operations import produce_operations as produces
from http_api.contract.operations.produce_operations import PARTITIONS_HEADER, TOPIC_ID_HEADER
from http_api.contract.operations.shared import ISOLATION
from http_api.server.access_log import LogEntry, error_code_in, shown_query
from http_api.server.answers import SERVER
from http_api.server.request_parsing import INT32_MAX, OFFSET_MAX
from http_api.server.request_site import leader_url
from http_api.server.routes.v2.fetch_records import (
    MANY_FRAMES,
    in_one_frame,
    readable_bytes,
)
from http_api.server.routes.v2.produce_records import (
    ACKS,
    STORED_FORMATS,
    AnswerForm,
    answer_with_failures,
    read_records,
)
from raft_metadata.common.errors import Outcome
from raft_metadata.common.ids import PartitionId, TopicName

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from broker.server.requests import FetchResult
    from http_api.server.answers import ApiContext, RequestIds
    from raft_metadata.common.clock import Clock
    from raft_metadata.common.errors import KafkaError
    from raft_metadata.image.metadata_image import MetadataImage, TopicImage

K = TypeVar("K", bound="bytes | str | None")
V = TypeVar("V")

CACHE_ENTRIES_MAX = 4_096
"""Most entries of each cache (paths, header names, Accept values, heads); a full one is cleared."""
PIECES_MAX: Final = 256
"""Most pieces of an answer; more are joined, as handing each to the kernel costs more than a
copy."""
CACHE_KEY_LENGTH_MAX: Final = 1_024
"""Longest key of a cache: 4,096 keys of ``max.header.bytes`` would be 130 MB in each cache."""
_PRODUCE = re.compile(r"/topics/([A-Za-z0-9._-]{1,249})(?:/partitions/([0-9]{1,9}))?(?:\?(.+))?")
_FETCH = re.compile(r"/topics/([A-Za-z0-9._-]{1,249})/partitions/([0-9]{1,9})/records\?(.+)")
_PARTITION_OF_ROW = re.compile(rb'"partition":([0-9]{1,9})')
BATCHES: Final = "batches"
_FETCH_PARAMETERS = frozenset(
    {
        *("offset", "max_bytes", "timeout", "frames", "include", "leader_epoch", "seen_epoch"),
        ISOLATION.name,
    }
)
"""Parameters of a fetch that the lane takes; any other is left to the routes."""
_DOTS = frozenset({".", ".."})
_DIGITS = re.compile(r"[0-9]{1,18}")
_PRODUCE_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: " + V2.encode() + b"\r\nContent-Length: %d\r\nDate: %b\r\n"
    b"Server: " + SERVER.encode() + b"\r\nX-Request-Id: %b\r\n"
)
_TOPIC_HEADERS = TOPIC_ID_HEADER.encode() + b": %b\r\n" + PARTITIONS_HEADER.encode() + b": %d\r\n"
_FETCH_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nQuorumlog-High-Watermark: %d\r\n"
    b"Quorumlog-Log-Start-Offset: %d\r\nQuorumlog-Next-Offset: %d\r\nQuorumlog-Leader: %d\r\n"
    b"Quorumlog-Leader-Epoch: %d\r\nQuorumlog-Topic-Id: %b\r\n%b%bContent-Length: %d\r\n"
    b"Date: %b\r\nServer: " + SERVER.encode() + b"\r\nX-Request-Id: %b\r\n\r\n"
)
_FAILED = b"%b\r\nContent-Length: %d\r\nDate: %b\r\nServer: %b\r\nX-Request-Id: %b\r\n%b\r\n%b"
_NEXT_EPOCH = b"Quorumlog-Next-Leader-Epoch: %d\r\n"
_VARY = b"Vary: Accept-Encoding\r\n"
_ZSTD_HEAD = (
    b"Content-Encoding: " + ZSTD.encode() + b"\r\n" + _VARY + DECODED_LENGTH_HEADER.encode()
) + b": %d\r\n"

_LEFT_TO_ROUTES, _PLAIN, _CONTENT_TYPE, _ACCEPT, _REQUEST_ID, _ENCODING, _HOST = range(7)
_ROLES = {
    b"content-type": _CONTENT_TYPE,
    b"accept": _ACCEPT,
    b"accept-encoding": _ENCODING,
    b"host": _HOST,
    b"origin": _LEFT_TO_ROUTES,
    b"x-request-id": _REQUEST_ID,
    b"authorization": _LEFT_TO_ROUTES,
    b"content-encoding": _LEFT_TO_ROUTES,
    b"cookie": _LEFT_TO_ROUTES,
    b"expect": _LEFT_TO_ROUTES,
    b"idempotency-key": _LEFT_TO_ROUTES,
    b"transfer-encoding": _LEFT_TO_ROUTES,
    b"upgrade": _LEFT_TO_ROUTES,
}
"""Header name → its role. Every ``Quorumlog-`` header is left to the routes (`_LEFT_TO_ROUTES`),
any other is ignored (`_PLAIN`)."""

_OF_PROXIES = frozenset(name.lower().encode() for name in FORWARDING_HEADERS)
"""Names of headers that have a meaning on connections from trusted proxies."""

RawHeaders = tuple[tuple[bytes, bytes], ...]


class Headers(NamedTuple):
    """The request headers that the lane uses; only the request id is decoded."""

    content_type: bytes | None
    accept: bytes | None
    request_id: str | None
    encoding: bytes | None = None
    """Value of Accept-Encoding."""


class ProducePath(NamedTuple):
    """Target of a produce, and the acknowledgement it requests."""

    topic: TopicName
    partition: PartitionId | None
    acks: int
    timeout_ms: int
    as_range: bool
    """True: the answer is one range and not a row for each record."""


class FetchQuery(NamedTuple):
    """The query parameters of a fetch."""

    offset: int
    max_bytes: int
    many_frames: bool
    leader_epoch: int
    seen_epoch: int
    batches: bool
    """True: a line about each batch precedes the batch's lines."""


class KnownHead(NamedTuple):
    """Meaning of a request head that was parsed before: a produce that the lane handles."""

    path: ProducePath
    stored_as: RecordFormat
    length: int
    """Length of the body in bytes."""


class FastLane:
    """Handler of common produces and fetches; one per listener, used on its loop.

    Caches the meaning of paths and headers, each cache within `CACHE_ENTRIES_MAX`; otherwise
    stateless.
    """

    def __init__(self, context: ApiContext, ids: RequestIds, clock: Clock) -> None:
        self._context = context
        self._clock = clock
        self._apis = context.apis
        self._direct = context.apis.direct
        self._limits = context.limits
        self._settings = context.settings
        self._ids = ids
        self._max_bytes_default = fetches.MAX_BYTES.default_value(context.limits)
        self._wait_ms_default = fetches.TIMEOUT.default_value(context.limits)
        self.heads: dict[bytes, KnownHead] = {}
        """Head of an earlier request, byte for byte, → its meaning."""
        self._paths: dict[str, ProducePath | None] = {}
        self._roles: dict[bytes, int] = {}
        self._replies: dict[bytes | None, tuple[bool, str | None]] = {}
        self._image: MetadataImage | None = None
        """The image that was seen last; by it the next two."""
        self._heads_of: dict[TopicName, bytes] = {}
        """Head of the answers to produces to a topic."""
        self._is_off = False
        """True while answers about records may go as gzip: the lane gives none of these."""
        self._zstd: dict[bytes, bool] = {}
        """Accept-Encoding → True if zstd is accepted."""
        self._hosts: dict[bytes, bool] = {}
        """Value of ``Host`` → True if it is a name of this listener."""
        self._formats = {
            name.encode(): STORED_FORMATS[embedded]
            for name, embedded in PRODUCE_FORMATS.items()
            if embedded in STORED_FORMATS
        }
        self._second = -1
        self._date = b""

    def headers(self, raw: RawHeaders) -> Headers | None:
        """Return the headers that the lane uses; None if one of them is left to the routes."""
        found: list[bytes | None] = [None, None, None, None, None, None, None]
        roles = self._roles
        for name, value in raw:
            role = roles.get(name)
            if role is None:
                role = self._learn(name)
            if role is _PLAIN:
                continue
            if role is _LEFT_TO_ROUTES or found[role] is not None:
                return None
            found[role] = value
        host = found[_HOST]
        if host is not None and not self._is_trusted(host):
            return None
        given = found[_REQUEST_ID]
        request_id = None if given is None else given.decode("utf-8", "surrogateescape")
        return Headers(found[_CONTENT_TYPE], found[_ACCEPT], request_id, found[_ENCODING])

    def _is_trusted(self, host: bytes) -> bool:
        """Return True if requests with this ``Host`` are served; the routes refuse the others."""
        trusted = self._hosts.get(host)
        if trusted is None:
            text = host.decode("utf-8", "surrogateescape")
            trusted = self._context.trusted.is_trusted_host(text)
            _remember(self._hosts, host, trusted)
        return trusted

    def _learn(self, name: bytes) -> int:
        lower = name.lower()
        role = _LEFT_TO_ROUTES if lower.startswith(b"quorumlog-") else _ROLES.get(lower, _PLAIN)
        if lower in _OF_PROXIES and self._context.proxies.networks:
            role = _LEFT_TO_ROUTES
        _remember(self._roles, name, role)
        return role

    def _reply_to(self, accept: bytes | None) -> tuple[bool, str | None]:
        """Return (True if Accept permits a produce's answer, content type of a fetch's answer)."""
        known = self._replies.get(accept)
        if known is None:
            text = None if accept is None else accept.decode("utf-8", "surrogateescape")
            known = (choose_reply(text, V2_REPLIES) is not None, choose_reply(text, READ_REPLIES))
            _remember(self._replies, accept, known)
        return known

    def _follow(self, image: MetadataImage) -> None:
        """Take a new image: what was computed by the last one may not hold any more."""
        self._image, self._heads_of = image, {}
        self._is_off = self._settings.current().gzips_records

    # produce

    def produce_path(self, path: str) -> ProducePath | None:
        """Return the target of a POST, or None if it is no plain produce; cached: paths repeat."""
        try:
            return self._paths[path]
        except KeyError:
            parsed_path = self._read_produce_path(path)
            _remember(self._paths, path, parsed_path)
            return parsed_path

    def _read_produce_path(self, path: str) -> ProducePath | None:
        match = _PRODUCE.fullmatch(path)
        if match is None or match[1] in _DOTS:
            return None
        partition = None if match[2] is None else PartitionId(int(match[2]))
        longest = self._limits.max_produce_timeout_ms
        acks, timeout_ms = ACKS_ALL, produces.TIMEOUT.default_value(self._limits)
        query = _query(match[3] or "", {"acks", "timeout", "receipts"})
        if query is None:
            return None
        if "acks" in query:
            if query["acks"] not in ACKS:
                return None
            acks = ACKS[query["acks"]]
        if "timeout" in query:
            if not _DIGITS.fullmatch(query["timeout"]):
                return None
            timeout_ms = int(query["timeout"])
        receipts = query.get("receipts", produces.ROWS.default)
        if receipts not in produces.ROWS.words or not 1 <= timeout_ms <= longest:
            return None
        as_range = receipts == AnswerForm.RANGES.value
        return ProducePath(TopicName(match[1]), partition, acks, timeout_ms, as_range)

    def produce(
        self,
        path: ProducePath,
        headers: Headers,
        body: bytes,
        answered: Callable[[list[bytes] | None], None],
    ) -> bool:
        """Append a body's records; False: nothing was done, and the routes must handle the request.

        ``answered`` is called once, perhaps before this returns: with the answer, or with None if
        the routes must handle the request after all. It must not raise.
        """
        stored_as = self._stored_as(headers)
        if stored_as is None or len(body) > self._limits.max_body_bytes:
            return False
        return self.append(path, stored_as, body, headers.request_id, answered)

    def learn(
        self, head: bytes, method: str, path: str, raw_headers: RawHeaders, length: int
    ) -> None:
        """Remember a head that the parser has read, if it is a produce that the lane handles.

        A head with a request id is not remembered, because it does not repeat.
        """
        if method != "POST" or not 0 < length <= self._limits.max_body_bytes:
            return
        parsed_path, headers = self.produce_path(path), self.headers(raw_headers)
        if parsed_path is None or headers is None or headers.request_id is not None:
            return
        stored_as = self._stored_as(headers)
        if stored_as is not None:
            _remember(self.heads, head, KnownHead(parsed_path, stored_as, length))

    def _stored_as(self, headers: Headers) -> RecordFormat | None:
        """Return the format of a produce's records; None if a type is not for the lane."""
        stored_as = self._formats.get(headers.content_type or b"")
        return stored_as if self._reply_to(headers.accept)[0] else None

    def append(
        self,
        path: ProducePath,
        stored_as: RecordFormat,
        body: bytes,
        request_id: str | None,
        answered: Callable[[list[bytes] | None], None],
    ) -> bool:
        """Append the records of a request whose headers were checked; else as `produce`."""
        image = self._apis.image
        if image is not self._image:
            self._follow(image)
        if self._is_off:
            return False
        try:
            records = read_records(body, stored_as, stored_as, self._limits, path.partition)
        except RestError:
            return False  # the route finds the same error and answers it
        head = self._heads_of.get(path.topic) or self._produce_head(path.topic)
        if not head:
            return False
        count = len(records)

        def done(partition: PartitionId, base: int, error: KafkaError | None) -> None:
            if error is None:
                if path.as_range:
                    reply = v2.consecutive_range(partition, base, count)
                else:
                    reply = v2.consecutive_reply(partition, base, count)
                made_id = self._ids.of(request_id).encode()
                answered([head % (len(reply), self._http_date(), made_id) + reply])
            elif error.outcome is Outcome.NOT_WRITTEN and base != FINAL:
                answered(None)
            else:
                answered([self._failed(path.topic, partition, error, count, request_id)])

        return self._direct.produce(
            DirectProduce(
                path.topic, path.partition, records, body, stored_as,
                path.acks, path.timeout_ms,
            ),
            done,
        )  # fmt: skip

    def _produce_head(self, topic: TopicName) -> bytes:
        """Return the head of an answer, to be completed; empty if the topic is not known here.

        The broker routes the records in the same turn of the loop, so by the same image.
        """
        described = self._topic_headers(topic)
        if not described:
            return b""
        head = _PRODUCE_HEAD + described + b"\r\n"
        _remember(self._heads_of, topic, head)
        return head

    def _topic_headers(self, name: TopicName) -> bytes:
        topic = self._apis.image.topic(name)
        if topic is None:
            return b""
        return _TOPIC_HEADERS % (topic.topic_id.encode(), topic.routed_count)

    def _failed(
        self,
        topic: TopicName,
        partition: PartitionId,
        error: KafkaError,
        count: int,
        request_id: str | None,
    ) -> bytes:
        """Return the answer to a produce with an unknown outcome: an error row per record."""
        response = answer_with_failures([RecordResult(partition, None, error)] * count)
        body = response.body
        assert isinstance(body, bytes), "the routes answer with bytes"
        status = HTTPStatus(response.status)
        lines = [f"HTTP/1.1 {status.value} {status.phrase}"]
        lines += [f"{name}: {value}" for name, value in response.headers.items()]
        head = "\r\n".join(lines).encode()
        made_id = self._ids.of(request_id).encode()
        date, described = self._http_date(), self._topic_headers(topic)
        return _FAILED % (head, len(body), date, SERVER.encode(), made_id, described, body)

    # fetch

    def fetch(self, path: str, headers: Headers) -> list[bytes | memoryview] | None:
        """Return the pieces of an answer to a GET, or None if the routes must handle it.

        None also if nothing can be read yet.
        """
        match = _FETCH.fullmatch(path)
        image = self._apis.image
        if image is not self._image:
            self._follow(image)
        if match is None or match[1] in _DOTS or self._is_off:
            return None
        content_type = self._reply_to(headers.accept)[1]
        if content_type not in {NDJSON, LINES, V2_JSON}:
            return None
        asked = self._read_fetch_query(match[3])
        if asked is None or (asked.batches and content_type != NDJSON):
            return None
        topic, partition = TopicName(match[1]), PartitionId(int(match[2]))
        packed = content_type == NDJSON and self._takes_zstd(headers.encoding)
        found = self._direct.fetch(
            topic,
            partition,
            asked.offset,
            readable_bytes(asked.max_bytes, many=asked.many_frames) if packed else asked.max_bytes,
            packed=packed,
            bare=content_type != V2_JSON and not asked.batches,
            leader_epoch=asked.leader_epoch,
            seen_epoch=asked.seen_epoch,
        )
        if found is None:
            return None
        result, topic_image = found
        if result.packed and not asked.many_frames:
            result = in_one_frame(result)
        pieces: Sequence[bytes | memoryview]
        if result.packed:
            form = framed if asked.many_frames else framed_as_single
            try:
                pieces, lines_size = form(result.packed, batch_line if asked.batches else None)
            except BatchError:
                return None  # a rotten batch: the route reads it as lines and reports the damage
            coding = _ZSTD_HEAD % lines_size
        elif asked.batches:
            pieces, coding = _limit_pieces(batch_pieces(result.slices)), _VARY
        else:
            pieces = _pieces(result, content_type, topic, partition)
            coding = _VARY if content_type == NDJSON else b""
        head = self._fetch_head(
            result, topic_image, content_type, coding, pieces, headers.request_id
        )
        return [head, *pieces]

    def _read_fetch_query(self, text: str) -> FetchQuery | None:
        query = _query(text, _FETCH_PARAMETERS)
        if query is None:
            return None
        if "isolation" in query and query.pop("isolation") not in ISOLATION.words:
            return None
        frames, include = query.pop("frames", None), query.pop("include", None)
        if frames not in {None, MANY_FRAMES} or include not in {None, BATCHES}:
            return None
        if not all(map(_DIGITS.fullmatch, query.values())):
            return None
        offset = int(query.get("offset", -1))
        max_bytes = int(query.get("max_bytes", self._max_bytes_default))
        timeout_ms = int(query.get("timeout", self._wait_ms_default))
        leader_epoch = seen_epoch = UNKNOWN_EPOCH
        if "leader_epoch" in query:
            leader_epoch = int(query["leader_epoch"])
        if "seen_epoch" in query:
            seen_epoch = int(query["seen_epoch"])
        limits = self._limits
        if not (
            0 <= offset <= OFFSET_MAX
            and 1 <= max_bytes <= limits.max_fetch_bytes
            and timeout_ms <= limits.max_fetch_wait_ms
            and leader_epoch <= INT32_MAX
            and seen_epoch <= INT32_MAX
        ):
            return None
        return FetchQuery(
            offset, max_bytes, frames == MANY_FRAMES, leader_epoch, seen_epoch, include == BATCHES
        )

    def _takes_zstd(self, encoding: bytes | None) -> bool:
        if encoding is None:
            return False
        takes = self._zstd.get(encoding)
        if takes is None:
            takes = accepts_zstd(encoding.decode("utf-8", "surrogateescape"))
            _remember(self._zstd, encoding, takes)
        return takes

    def _fetch_head(
        self,
        result: FetchResult,
        topic: TopicImage,
        content_type: str,
        coding: bytes,
        pieces: Iterable[bytes | memoryview],
        request_id: str | None,
    ) -> bytes:
        url = leader_url(self._apis.image, result.leader_id)
        return _FETCH_HEAD % (
            content_type.encode(),
            result.high_watermark,
            result.log_start_offset,
            result.next_offset,
            result.leader_id,
            result.leader_epoch,
            topic.topic_id.encode(),
            b"" if url is None else b"Quorumlog-Leader-Url: %b\r\n" % url.encode(),
            coding
            if result.next_leader_epoch == UNKNOWN_EPOCH
            else _NEXT_EPOCH % result.next_leader_epoch + coding,
            sum(map(len, pieces)),
            self._http_date(),
            self._ids.of(request_id).encode(),
        )

    # both

    def entry_of(
        self,
        method: str,
        target: str,
        status: int,
        answer: Sequence[bytes | memoryview],
        *,
        bytes_in: int,
        duration_ms: float,
        host: str,
        wall_ms: int,
    ) -> LogEntry:
        """Return the entry of the access log for an answer of the lane."""
        path, _, query = target.partition("?")
        head, _, body = bytes(answer[0]).partition(b"\r\n\r\n")
        request_id = head.rpartition(b"X-Request-Id: ")[2].partition(b"\r\n")[0]
        return LogEntry(
            wall_ms=wall_ms,
            request_id=request_id.decode("latin-1"),
            host=host,
            method=method,
            path=path,
            query=shown_query(query, None),
            status=status,
            error_code=error_code_in(status, body),
            bytes_in=bytes_in,
            bytes_out=len(body) + sum(map(len, answer[1:])),
            duration_ms=duration_ms,
            forwarded_to=self._forwarded_to(target, body) if method == "POST" else (),
            client_id=None,
            lane="fast",
        )

    def _forwarded_to(self, target: str, body: bytes) -> tuple[int, ...]:
        """Return the broker that a produce was passed to: another one that leads its partition."""
        path, found = self.produce_path(target), _PARTITION_OF_ROW.search(body)
        apis = self._context.apis
        topic = None if path is None else apis.image.topic(path.topic)
        if topic is None or found is None or int(found[1]) >= len(topic.partitions):
            return ()
        leader = topic.partitions[int(found[1])].leader
        return () if leader == apis.broker_id or leader < 0 else (leader,)

    def _http_date(self) -> bytes:
        second = self._clock.wall_ms() // 1000
        if second != self._second:
            self._second = second
            self._date = formatdate(second, usegmt=True).encode()
        return self._date


def _query(text: str, known: Collection[str]) -> dict[str, str] | None:
    """Return the query's parameters; None if one is repeated, escaped or not in ``known``."""
    found: dict[str, str] = {}
    for pair in text.split("&") if text else ():
        name, _, value = pair.partition("=")
        if name not in known or name in found:
            return None
        found[name] = value
    return found


def _remember(kept: dict[K, V], key: K, value: V) -> None:
    if key is not None and len(key) > CACHE_KEY_LENGTH_MAX:
        return
    if len(kept) >= CACHE_ENTRIES_MAX:
        kept.clear()
    kept[key] = value


def _pieces(
    result: FetchResult, content_type: str, topic: TopicName, partition: PartitionId
) -> Sequence[bytes | memoryview]:
    if content_type == V2_JSON:
        rendered = [
            render_v2(piece, topic=topic, partition=partition, door=RecordFormat.JSON)
            for piece in result.slices
        ]
        return [b"[" + b",".join(rendered) + b"]"]
    lines = result.lines or [piece.lines for piece in result.slices]
    if content_type == LINES:
        return array_of(lines)
    return _limit_pieces(lines)


def _limit_pieces(pieces: Sequence[bytes | memoryview]) -> Sequence[bytes | memoryview]:
    return pieces if len(pieces) <= PIECES_MAX else [b"".join(pieces)]
