"""The service that answers requests of other brokers.

`PeerRequests` answers a forwarded request locally or refuses it, and never forwards it again
(decision D7); the peer plane sends it at most once (rules F1, F2).
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from broker.coordinator import group_messages
from broker.log.read_positions import PositionTruncatedError
from broker.server.local_partitions import local_progress
from broker.server.peer_codec import PeerRequestKind as Kind
from broker.server.peer_codec import (
    decode_append,
    encode_fetched,
    encode_truncated,
    join_body,
    partition_in,
    place_fields,
    read_in,
    split_body,
)
from broker.server.poll_messages import encode_leg_pages, leg_in, poll_id_in
from broker.transactions.home_messages import (
    decode_apply,
    decode_home_request,
    decode_list,
    encode_apply_answer,
    encode_home_answer,
)
from broker.transactions.stage_messages import decode_status, encode_word
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import BrokerId, MetadataOffset, PartitionId

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.ports import Answered
    from broker.replication.leader_stream import LeaderStream
    from broker.replication.log_start_manager import LogTrimming
    from broker.replication.replica_manager import ReplicaManager
    from broker.server.fetch import FollowerReads
    from broker.server.home_words import HomeWords
    from broker.server.local_partitions import LocalPartitions
    from broker.server.local_polls import LocalPolls
    from broker.server.metadata_loader import MetadataLoader
    from broker.server.requests import OwnFacts
    from broker.server.stages import Stages
    from broker.server.transactions import Coordinators


class PeerRequests:
    """Implementation of `broker.ports.PeerServices`: answers other brokers, never forwards.

    Owned by the `BrokerServer`, on its loop. Stateless.
    """

    def __init__(  # noqa: PLR0913, PLR0917 the parts of a broker
        self,
        local: LocalPartitions,
        manager: ReplicaManager,
        loader: MetadataLoader,
        coordinators: Coordinators,
        stages: Stages,
        home_words: HomeWords,
        own_facts: Callable[[], OwnFacts],
        follower_reads: FollowerReads,
        polls: LocalPolls,
        trimming: LogTrimming,
    ) -> None:
        self._polls = polls
        self._own_facts = own_facts
        self._follower_reads = follower_reads
        self._trimming = trimming
        self._coordinators = coordinators
        self._stages = stages
        self._home_words = home_words
        self._local = local
        self._manager = manager
        self._loader = loader

    async def answer(self, kind: int, body: bytes, timeout_ms: int) -> bytes:
        """Answer a request of a `PeerRequestKind`.

        Raises KafkaError: INVALID_REQUEST for an unknown kind or a malformed body, METADATA_BEHIND
        at the time-out of AWAIT_METADATA, or the error of the request itself.
        """
        try:
            return await self._dispatch(kind, body, timeout_ms)
        except KeyError as error:
            text = f"request of kind {kind} lacks {error}"
            raise KafkaError(ErrorCode.INVALID_REQUEST, text) from error
        except TimeoutError as error:
            raise KafkaError(ErrorCode.METADATA_BEHIND) from error

    async def _dispatch(self, kind: int, body: bytes, timeout_ms: int) -> bytes:
        head, payload = split_body(body)
        match kind:
            case Kind.APPEND | Kind.APPEND_CLAIMED | Kind.REPEAT_CLAIMED:
                return await self._append(kind, head, payload)
            case Kind.FETCH | Kind.FETCH_FOLLOWER | Kind.OFFSETS | Kind.POLL | Kind.END_POLL:
                return await self._read(kind, head)
            case Kind.AWAIT_METADATA:
                async with asyncio.timeout(timeout_ms / 1000):
                    await self._loader.wait_for(MetadataOffset(head["offset"]))
                return join_body({})
            case Kind.GROUP:
                request = group_messages.decode_request(body)
                return group_messages.encode_answer(await self._coordinators.groups.answer(request))
            case Kind.LIST_GROUPS:
                groups = await self._coordinators.groups.list_groups(PartitionId(head["partition"]))
                return group_messages.encode_answer(tuple(groups))
            case Kind.TXN | Kind.APPLY | Kind.LIST_TXNS | Kind.LIST_GROUP_TXNS:
                return await self._of_transactions(kind, body, timeout_ms)
            case Kind.STAGE | Kind.REFS | Kind.READ_STAGED | Kind.LIST_STAGED:
                return join_body(*await self._stages.answer(kind, head, payload))
            case Kind.STATUS:
                word = await self._home_words.answer(decode_status(head))
                return join_body(*encode_word(word))
            case Kind.PROGRESS:
                return self._progress(head)
            case Kind.OWN_FACTS:
                return self._facts()
            case Kind.DELETE_RECORDS:
                return await self._delete_records(head, timeout_ms)
            case _:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"unknown request kind {kind}")

    async def _of_transactions(self, kind: int, body: bytes, timeout_ms: int) -> bytes:
        match kind:
            case Kind.TXN:
                request = decode_home_request(body)
                # The frame says what is left when it is written; the rest passed before (S12).
                left_ms = min(request.timeout_ms, timeout_ms)
                request = replace(request, timeout_ms=left_ms)
                return encode_home_answer(await self._coordinators.answer_id(request))
            case Kind.APPLY:
                answer = await self._coordinators.targets.append(decode_apply(body), timeout_ms)
                return encode_apply_answer(answer)
            case Kind.LIST_TXNS:
                found = await self._coordinators.transactions.descriptions(*decode_list(body))
            case _:
                found = await self._coordinators.groups.descriptions(*decode_list(body))
        return encode_home_answer(tuple(found))

    async def _read(self, kind: int, head: dict[str, Any]) -> bytes:
        match kind:
            case Kind.FETCH:
                try:
                    return encode_fetched(await self._local.fetch(read_in(head)))
                except PositionTruncatedError as error:
                    return encode_truncated(error)
            case Kind.FETCH_FOLLOWER:
                return encode_fetched(await self._follower_reads.serve(read_in(head)))
            case Kind.OFFSETS:
                found = self._local.offsets(partition_in(head), head["seen_epoch"])
                return join_body(
                    {
                        "beginning_offset": found.beginning_offset,
                        "end_offset": found.end_offset,
                        "end_leader_epoch": found.end_leader_epoch,
                    }
                )
            case Kind.POLL:
                return encode_leg_pages(await self._polls.serve_peer(*leg_in(head)))
            case Kind.END_POLL:
                # Behind its POLL on the same connection: that one's task has begun before.
                self._polls.end(poll_id_in(head))
                return join_body({})
            case _:
                raise AssertionError(kind)

    async def _delete_records(self, head: dict[str, Any], timeout_ms: int) -> bytes:
        start = await self._trimming.delete_records(
            partition_in(head), head["before_offset"], timeout_ms
        )
        return join_body({"log_start_offset": start})

    def answer_directly(self, kind: int, body: bytes, answered: Answered) -> bool:
        """Answer APPEND_CLAIMED, which is nearly all that other brokers send, without a task."""
        if kind != Kind.APPEND_CLAIMED:
            return False

        def appended(_: PartitionId, base_offset: int, error: KafkaError | None) -> None:
            answered(b"" if error else join_body({"base_offset": base_offset}), error)

        request = decode_append(kind, *split_body(body))
        self._local.append_directly(request, [(0, appended)])
        return True

    async def _append(self, kind: int, head: dict[str, Any], payload: bytes) -> bytes:
        append = decode_append(kind, head, payload)
        if kind == Kind.REPEAT_CLAIMED:
            append = replace(append, refused=KafkaError(ErrorCode.INVALID_RECORD, "no repeat"))
        return join_body({"base_offset": await self._local.append(append)})

    def _facts(self) -> bytes:
        facts = self._own_facts()
        rows = [place_fields(where) | {"reason": why} for where, why in facts.damage.partitions]
        return join_body(
            {
                "static_configs": dict(facts.static_configs),
                "shutdown_blocked_by": facts.shutdown_blocked_by,
                "damage": {"count": facts.damage.count, "partitions": rows},
                "troubles": facts.troubles,
            }
        )

    def _progress(self, head: dict[str, Any]) -> bytes:
        rows = [
            place_fields(place)
            | {
                "log_end_offset": one.log_end_offset,
                "high_watermark": one.high_watermark,
                "follower_ends": list(one.follower_ends.items()),
            }
            for place in map(partition_in, head["partitions"])
            if (one := local_progress(self._local, place)) is not None
        ]
        return join_body({"rows": rows})

    def accept_stream(self, follower: BrokerId) -> LeaderStream:
        return self._manager.accept_stream(follower)
