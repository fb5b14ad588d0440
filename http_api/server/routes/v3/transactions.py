"""``…/transactions`` below the cluster and below a group: one shot, init, commit, abort, lists.

Each handler reads what the request says, and makes one call of `TransactionApis`. The group of the
path decides the home, so it is part of every id. Chunks are staged by produces
(`http_api.server.routes.v2.transactional_produce`).
"""

from __future__ import annotations

import itertools
import secrets
from typing import TYPE_CHECKING

from aiohttp import hdrs

from broker.coordinator.records import OFFSETS_TOPIC
from broker.server.transaction_apis import CommitRequest
from broker.transactions.messages import (
    NO_GROUP,
    KeyPosition,
    NumberedPosition,
    ProducerPosition,
    TransactionalId,
    TransactionState,
)
from http_api.contract import transaction_shapes as shapes
from http_api.contract.errors import RestCode, RestError
from http_api.contract.idempotence import HEADER_LIMITS as PRODUCER_HEADERS
from http_api.contract.media_types import JSON, essence
from http_api.contract.operations import transaction_operations as declared
from http_api.contract.operations.declaration import fields_of
from http_api.contract.transaction_headers import (
    EPOCH_MAX,
    IDEMPOTENCY_KEY,
    KEY_PREFIX,
    NUMBER_MAX,
    STAGING_HEADERS,
    check_transactional_id,
    is_key,
    key_of,
    refuse_headers,
    unrepeatable_id,
)
from http_api.contract.transaction_resources import (
    AbortResult,
    AttemptInfo,
    DecidedPosition,
    DroppedPartition,
    LostPartition,
    PlacedPartition,
    ProducerLife,
    TransactionInfo,
    TransactionResult,
    WaitingPartition,
)
from http_api.server.answers import IN_TRANSACTION, json_reply, reply
from http_api.server.request_parsing import (
    check_fields,
    read_body,
    read_json_object,
    read_optional_json_object,
    refuse_doubled,
    unsupported_media_type,
)
from http_api.server.request_site import broker_url
from http_api.server.routes.v2.transactional_produce import too_large_inline
from http_api.server.routes.v3.clusters import V3Handler, V3Routes
from http_api.server.routes.v3.consumer_groups import parse_group_id
from http_api.server.routes.v3.transaction_bodies import (
    BESIDE_ROWS_BYTES_MAX,
    CommitBody,
    read_commit,
)
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.internal_topics import TRANSACTIONS_TOPIC

if TYPE_CHECKING:
    from typing import Any

    from aiohttp import web

    from broker.server.requests import BrokerApis
    from broker.server.transaction_apis import Committed
    from broker.transactions.messages import (
        LastPosition,
        LostRows,
        PendingTarget,
        PlacedRows,
        Position,
        TransactionDescription,
    )
    from http_api.contract.v3 import JsonObject
    from http_api.server.routing import PathRouter
    from raft_metadata.common.ids import BrokerId, GroupId, PartitionId, TopicId
    from raft_metadata.image.metadata_image import MetadataImage

RETRY_AFTER_COMMITTING: dict[str, str] = {"Retry-After": "1"}
"""Header of a 202: completion takes milliseconds, or waits for a partition that can't be written.
"""
NEW_IDS_TRIED = 10
"""Ids drawn until one has its home here; a broker of many may lead none."""
_UNKNOWN_TOPIC = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})


class TransactionRoutes(V3Routes):
    """Transactions of the v3 API."""

    def add_to(self, router: PathRouter) -> None:
        for (plain, of_group), handler in (
            (declared.ONE_SHOT, self.one_shot),
            (declared.INIT, self.init),
            (declared.COMMIT, self.commit),
            (declared.ABORT, self.abort),
            (declared.LIST, self.list_ids),
            (declared.DESCRIBE, self.describe),
            (declared.FORGET, self.forget),
        ):
            self._serve(router, plain, _without_group(handler))
            self._serve(router, of_group, _below_group(handler))

    # decisions

    async def one_shot(self, request: web.Request, group: GroupId) -> web.Response:
        """Commit the rows and offsets of the body, once for each key."""
        refuse_headers(request.headers, PRODUCER_HEADERS, "belongs to a produce")
        refuse_headers(request.headers, STAGING_HEADERS, "belongs to a staged produce")
        refuse_doubled(request, (IDEMPOTENCY_KEY,))
        key = key_of(request.headers)
        timeout_ms = declared.TIMEOUT.read(request.query)
        body = await self._commit_body(request, of_an_id=False)
        if key is None and body.attempts:
            text = f"'attempts' are staged under a key: expected the header {IDEMPOTENCY_KEY}"
            raise _bad(text)
        if key is None:
            id_ = self._new_id(group)
        else:
            id_ = TransactionalId(group, KEY_PREFIX + key)
        self._context.check_connected(request)
        return await self._commit(id_, KeyPosition(), body, timeout_ms)

    def _new_id(self, group: GroupId) -> TransactionalId:
        """Return the id of a transaction without a key, whose home is led here if one is.

        That saves it the way to another broker. The home of a group is where it is.
        """
        ids = (
            TransactionalId(group, unrepeatable_id(secrets.token_hex(16)))
            for _ in range(NEW_IDS_TRIED)
        )
        first = next(ids)
        if group != NO_GROUP:
            return first
        leader_of, here = self._apis.transactions.home_leader, self._apis.broker_id
        return next((id_ for id_ in itertools.chain([first], ids) if leader_of(id_) == here), first)

    async def commit(self, request: web.Request, group: GroupId, name: str) -> web.Response:
        """Commit a transaction of a producer, a numbered id or a key."""
        id_ = _id(group, name)
        _refuse_all_headers(request)
        timeout_ms = declared.TIMEOUT.read(request.query)
        body = await self._commit_body(request, of_an_id=True)
        self._context.check_connected(request)
        return await self._commit(id_, position_of(id_, body), body, timeout_ms)

    async def _commit_body(self, request: web.Request, *, of_an_id: bool) -> CommitBody:
        content_type = request.headers.get(hdrs.CONTENT_TYPE, "")
        if essence(content_type) != JSON:
            raise unsupported_media_type(content_type, JSON)
        most = self._apis.transactions.limits
        limit = most.inline_bytes + BESIDE_ROWS_BYTES_MAX
        if limit < self._limits.max_body_bytes:
            body = await read_body(request, limit, lambda _: too_large_inline(most.inline_bytes))
        else:
            body = await read_body(request, self._limits.max_body_bytes)
        return read_commit(body, self._limits, most, of_an_id=of_an_id)

    async def _commit(
        self, id_: TransactionalId, position: Position, body: CommitBody, timeout_ms: int
    ) -> web.Response:
        if id_.group == NO_GROUP and (body.offsets or body.member_id is not None):
            text = "offsets are committed for a group: expected the path "
            raise _bad(f"{text}/consumer-groups/{{consumer_group_id}}/transactions")
        request = CommitRequest(
            id=id_,
            position=position,
            digest=body.digest,
            topics=body.topics,
            attempts=body.attempts,
            offsets=body.offsets,
            member_id=body.member_id,
            member_epoch=body.member_epoch,
            timeout_ms=timeout_ms,
        )
        try:
            committed = await self._apis.transactions.commit(request)
        except KafkaError as error:
            if error.code not in _UNKNOWN_TOPIC:
                raise
            raise _topic_not_found(self._apis.image, request, error) from None
        found = result_of(self._apis.image, id_, committed)
        headers = home_headers(self._apis, committed.home_leader)
        if committed.outcome.state is TransactionState.COMMITTING:
            headers |= RETRY_AFTER_COMMITTING
            return json_reply(shapes.result(self._links, found), JSON, 202, headers)
        return json_reply(shapes.result(self._links, found), JSON, headers=headers)

    # producers

    async def init(self, request: web.Request, group: GroupId, name: str) -> web.Response:
        """Give a producer's id the next epoch; say what became of its last life."""
        id_ = _producer_id(group, name)
        _refuse_all_headers(request)
        timeout_ms = declared.TIMEOUT.read(request.query)
        check_fields(await read_optional_json_object(request, self._body_bytes_max, "{}"), ())
        self._context.check_connected(request)
        found = await self._apis.transactions.init(id_, timeout_ms)
        life = ProducerLife(
            transaction_id=id_.name,
            group=id_.group or None,
            epoch=found.epoch,
            last=_last(found.last),
            forgotten_to_epoch=found.forgotten_to_epoch,
            chunk_max_bytes=min(
                self._apis.transactions.limits.chunk_bytes, self._limits.max_body_bytes
            ),
        )
        return json_reply(shapes.life(self._links, life), JSON, headers=self._home_headers(id_))

    async def abort(self, request: web.Request, group: GroupId, name: str) -> web.Response:
        """Abort a producer's position; answer what was decided before, if anything was."""
        id_ = _producer_id(group, name)
        _refuse_all_headers(request)
        timeout_ms = declared.TIMEOUT.read(request.query)
        shape = '{"epoch":…,"number":…}'
        fields = await read_json_object(request, self._body_bytes_max, shape)
        check_fields(fields, fields_of(declared.ABORT[0]))
        position = ProducerPosition(
            _needed(fields, "epoch", EPOCH_MAX), _needed(fields, "number", NUMBER_MAX)
        )
        self._context.check_connected(request)
        fate = await self._apis.transactions.abort(id_, position, timeout_ms)
        found = AbortResult(fate.state.value, _lost(self._apis.image, fate.lost))
        return json_reply(shapes.abort(found), JSON, headers=self._home_headers(id_))

    # reads, and the end of an id

    async def list_ids(self, request: web.Request, group: GroupId) -> JsonObject:
        """Answer the ids of a group; without one those of all groups, too."""
        word = declared.STATE.read_optional(request.query)
        state = None if word is None else TransactionState(word)
        found = await self._apis.transactions.transactions(state)
        image = self._apis.image
        return self._page(
            request,
            shapes.KIND,
            [one for one in found if group in {NO_GROUP, one.id.group}],
            key=lambda one: (one.id.group, one.id.name),
            shape=lambda one: shapes.info(self._links, info_of(image, one)),
            path=shapes.transactions_path(group),
        )

    async def describe(self, request: web.Request, group: GroupId, name: str) -> web.Response:
        """Answer one id: its last position, what it waits for, and what is staged."""
        id_ = _id(group, name, described=True)
        found = await self._apis.transactions.describe(id_)
        info = info_of(self._apis.image, found)
        headers = home_headers(self._apis, found.home_leader)
        return json_reply(shapes.info(self._links, info), JSON, headers=headers)

    async def forget(self, request: web.Request, group: GroupId, name: str) -> web.Response:
        """Forget a numbered id or a key: a repeat of what it decided would be a new transaction."""
        id_ = _id(group, name, described=True)
        self._context.check_connected(request)
        try:
            await self._apis.transactions.forget(id_)
        except KafkaError as error:
            if error.code is not ErrorCode.CONCURRENT_TRANSACTIONS:
                raise
            raise KafkaError(ErrorCode.ILLEGAL_STATE, error.message) from None
        return reply(b"", JSON, 204)

    def _home_headers(self, id_: TransactionalId) -> dict[str, str]:
        return home_headers(self._apis, self._apis.transactions.home_leader(id_))


def _without_group(handler: V3Handler) -> V3Handler:
    async def handle(request: web.Request, *names: str) -> Any:
        request[IN_TRANSACTION] = True
        return await handler(request, NO_GROUP, *names)

    return handle


def _below_group(handler: V3Handler) -> V3Handler:
    async def handle(request: web.Request, group: str, *names: str) -> Any:
        request[IN_TRANSACTION] = True
        return await handler(request, parse_group_id(group), *names)

    return handle


def _id(group: GroupId, name: str, *, described: bool = False) -> TransactionalId:
    where = "Parameter 'transactional_id'"
    return TransactionalId(group, check_transactional_id(where, name, described=described))


def _producer_id(group: GroupId, name: str) -> TransactionalId:
    """Return the id of a producer; a key has one position, which is neither begun nor aborted."""
    id_ = _id(group, name)
    if id_.is_key:
        raise _bad(f"'{name}' is a key: expected the id of a producer")
    return id_


def position_of(id_: TransactionalId, body: CommitBody) -> Position:
    """Return the position that a commit of an id names.

    Raises:
        RestError: 400/40002 for fields that belong to another kind of id, or are missing.
    """
    given = [
        name
        for name, value in (("epoch", body.epoch), ("run_id", body.run_id), ("input", body.input))
        if value is not None
    ]
    if is_key(id_.name):
        if given or body.number not in {None, 0}:
            wrong = given[0] if given else "number"
            raise _bad(f"'{wrong}' contradicts the id '{id_.name}': a key has one position")
        return KeyPosition()
    if body.number is None:
        raise _bad("'number' is missing: expected the number of the transaction")
    if body.epoch is not None:
        if len(given) > 1:
            raise _bad(f"'epoch' and '{given[1]}': expected 'epoch' of a producer, or 'run_id'")
        return ProducerPosition(body.epoch, body.number)
    if body.run_id is None:
        raise _bad("'epoch' of a producer, or 'run_id' of a numbered id, is missing")
    return NumberedPosition(body.number, body.run_id, body.input)


def _refuse_all_headers(request: web.Request) -> None:
    """Refuse headers that would say once more, or otherwise, what the path and the body say."""
    refuse_headers(request.headers, (IDEMPOTENCY_KEY,), "stands in the path here, as 'key:K'")
    refuse_headers(request.headers, PRODUCER_HEADERS, "belongs to a produce")
    refuse_headers(request.headers, STAGING_HEADERS, "belongs to a staged produce")


def _needed(fields: dict[str, Any], name: str, most: int) -> int:
    value = fields.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        got = "is missing" if value is None else f"is {value!r:.40}"
        raise _bad(f"'{name}' {got}: expected an integer from 0 to {most}")
    return value


def _topic_not_found(image: MetadataImage, request: CommitRequest, error: KafkaError) -> RestError:
    """Return the 404 of a topic, or of a partition where all topics are there."""
    named = [*(rows.topic for rows in request.topics), *(move.topic for move in request.offsets)]
    there = bool(named) and all(image.topic(name) is not None for name in named)
    code = RestCode.PARTITION_NOT_FOUND if there else RestCode.TOPIC_NOT_FOUND
    return RestError(404, code, error.message)


def _bad(text: str) -> RestError:
    return RestError(400, RestCode.KAFKA_BAD_REQUEST, text)


# what the broker says, as resources


def home_headers(apis: BrokerApis, leader: BrokerId | None) -> dict[str, str]:
    """Return the headers that name the leader of a transaction's home, if there is one."""
    if leader is None:
        return {}
    headers = {"Quorumlog-Leader": str(leader)}
    url = broker_url(apis.image, leader)
    if url is not None:
        headers["Quorumlog-Leader-Url"] = url
    return headers


def result_of(image: MetadataImage, id_: TransactionalId, found: Committed) -> TransactionResult:
    """Return what a commit is answered with; names of topics are those of the image."""
    outcome = found.outcome
    return TransactionResult(
        transaction_id=id_.name,
        group=id_.group or None,
        epoch=outcome.epoch,
        number=outcome.number,
        state=outcome.state.value,
        already=outcome.already,
        rows=sum(one.rows for one in outcome.placed),
        partitions=_placed(image, outcome.placed),
        pending=_pending(image, outcome.pending),
        dropped=_dropped(outcome.dropped),
        lost=_lost(image, outcome.lost),
    )


def info_of(image: MetadataImage, found: TransactionDescription) -> TransactionInfo:
    """Return an id as it is shown; names of topics are those of the image."""
    return TransactionInfo(
        transaction_id=found.id.name,
        group=found.id.group or None,
        epoch=None if found.epoch < 0 else found.epoch,
        last=_last(found.last),
        state=found.state.value,
        decided_ms=found.decided_ms,
        member_id=found.member_id,
        partitions=_placed(image, found.placed),
        pending=_pending(image, found.pending),
        dropped=_dropped(found.dropped),
        lost=_lost(image, found.lost),
        attempts=tuple(
            AttemptInfo(
                attempt_id=one.attempt_id,
                epoch=one.epoch,
                number=one.number,
                chunks=one.chunks,
                rows=one.rows,
                bytes=one.bytes,
                age_ms=one.age_ms,
            )
            for one in found.attempts
        ),
        home_topic=OFFSETS_TOPIC if found.id.group else TRANSACTIONS_TOPIC,
        home_partition=found.home_partition,
        leader=found.home_leader,
    )


def _name(image: MetadataImage, topic_id: TopicId) -> str | None:
    topic = image.topics.get(topic_id)
    return None if topic is None else topic.name


def _last(found: LastPosition | None) -> DecidedPosition | None:
    if found is None:
        return None
    return DecidedPosition(found.epoch, found.number, found.state.value, found.lost_rows)


def _placed(image: MetadataImage, found: tuple[PlacedRows, ...]) -> tuple[PlacedPartition, ...]:
    return tuple(
        PlacedPartition(
            topic=_name(image, one.topic_id),
            topic_id=one.topic_id,
            partition=one.partition,
            base_offset=one.base_offset,
            rows=one.rows,
        )
        for one in found
    )


def _pending(
    image: MetadataImage, found: tuple[PendingTarget, ...]
) -> tuple[WaitingPartition, ...]:
    return tuple(
        WaitingPartition(
            topic=_name(image, one.topic_id), partition=one.partition, reason=one.reason
        )
        for one in found
    )


def _dropped(found: tuple[tuple[TopicId, PartitionId], ...]) -> tuple[DroppedPartition, ...]:
    return tuple(DroppedPartition(topic_id, number) for topic_id, number in found)


def _lost(image: MetadataImage, found: tuple[LostRows, ...]) -> tuple[LostPartition, ...]:
    return tuple(
        LostPartition(
            topic=_name(image, one.topic_id),
            topic_id=one.topic_id,
            partition=one.partition,
            rows=one.rows,
        )
        for one in found
    )
