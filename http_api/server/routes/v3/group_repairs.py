"""``…/consumer-groups/G/offsets:skip`` and ``…/G:repair``: ways on for a group that stands still.

A group stands still in front of a record that its members' formats can't show, or because a record
of the group itself can't be decoded. The coordinator decides; nothing is skipped without a request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.coordinator.group_messages import RepairGroup, SkippedRecord, SkipRecords
from http_api.contract import group_shapes as shapes
from http_api.contract.media_types import JSON
from http_api.contract.operations import group_operations as declared
from http_api.contract.operations.declaration import fields_of
from http_api.server.answers import reply
from http_api.server.request_parsing import (
    OFFSET_MAX,
    check_fields,
    flag,
    needed_integer,
    partition_id,
    read_json_object,
    read_optional_json_object,
    rows,
    topic_name,
    wrong_kind,
)
from http_api.server.routes.v3.clusters import V3Routes
from http_api.server.routes.v3.consumer_groups import no_such_group, parse_group_id
from raft_metadata.common.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from aiohttp import web

    from http_api.server.routing import PathRouter
    from raft_metadata.common.ids import GroupId

_SKIP = '{"data":[{"topic_name":…,"partition_id":…,"offset":…}]}'
_REPAIR = '{"validate_only":true}, or no body'


class GroupRepairRoutes(V3Routes):
    """Stepping over a record, and repairing a group."""

    def add_to(self, router: PathRouter) -> None:
        self._serve(router, declared.SKIP, self.skip)
        self._serve(router, declared.REPAIR, self.repair)

    async def skip(self, request: web.Request, group: str) -> web.Response:
        """Step over records that stop members of the group; all of them or none."""
        name = parse_group_id(group)
        fields = await read_json_object(request, self._body_bytes_max, _SKIP)
        check_fields(fields, fields_of(declared.SKIP))
        found = rows(fields, declared.SKIPPED_MAX, "record")
        records = tuple(_record(number, row) for number, row in enumerate(found))
        try:
            await self._apis.group(SkipRecords(group=name, records=records))
        except KafkaError as error:
            raise _not_found(error, name) from None
        return reply(b"", JSON, 204)

    async def repair(self, request: web.Request, group: str) -> shapes.JsonObject:
        """Let a held group go on without the records that this cluster can't decode."""
        name = parse_group_id(group)
        fields = await read_optional_json_object(request, self._body_bytes_max, _REPAIR)
        check_fields(fields, fields_of(declared.REPAIR))
        is_dry = flag(fields, "validate_only")
        try:
            found = await self._apis.group(RepairGroup(group=name, validate_only=is_dry))
        except KafkaError as error:
            raise _not_found(error, name) from None
        return shapes.group_repair(
            self._links,
            name,
            validate_only=is_dry,
            forgotten=[
                {
                    "partition_id": one.partition,
                    "offset": one.offset,
                    "key": one.key,
                    "reason": one.reason,
                }
                for one in found.forgotten
            ],
            members=found.members,
            offsets=[
                {
                    "topic_name": one.topic,
                    "partition_id": one.partition,
                    "offset": one.offset,
                    "metadata": one.metadata,
                }
                for one in found.offsets
            ],
        )


def _not_found(error: KafkaError, name: GroupId) -> Exception:
    return no_such_group(name) if error.code is ErrorCode.GROUP_ID_NOT_FOUND else error


def _record(number: int, row: dict[str, Any]) -> SkippedRecord:
    where = f"data[{number}]."
    check_fields(row, declared.SKIP_ROW_FIELDS, where)
    topic, offset = row.get("topic_name"), row.get("offset")
    if not isinstance(topic, str):
        raise wrong_kind(where + "topic_name", topic, "the name of a topic")
    if not isinstance(offset, int) or isinstance(offset, bool) or not 0 <= offset <= OFFSET_MAX:
        raise wrong_kind(where + "offset", offset, "an offset from 0 on")
    partition = needed_integer(row, "partition_id")
    if partition < 0:
        raise wrong_kind(where + "partition_id", partition, "the number of a partition")
    return SkippedRecord(topic_name(topic), partition_id(str(partition)), offset)
