"""``quorumlog consume --group``: records as a member of a consumer group, committed once printed.

The group's member is the SDK's `Consumer`, so records that were printed and not committed, because
the commit failed or the member lost its partitions, come again: at least once. A record is
committed only once it is printed, so one that standard output did not take is delivered again, too.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import click
import msgspec

from http_api.cli.record_output import RecordOutput, encode_headers, shown_half
from http_api.client import admin
from http_api.client.calls import Place
from http_api.client.client_errors import CommitError
from http_api.client.consumer import Record, ends
from http_api.client.sdk import record_types
from http_api.client.sdk.consumer import Consumer
from http_api.client.sdk.page_decoding import StoredText
from http_api.client.sdk.record_types import TopicPartition
from http_api.client.topic_tail import Typed
from http_api.client.transport import Client
from http_api.contract.grammar import Latest, Position

FOLLOW_WAIT_S: Final = 5.0
WAIT_S: Final = 1.0
"""Wait of a read that is to stop at the end, in seconds; if nothing comes the end is checked."""
RECORDS_MAX: Final = 10_000
"""Most records that are printed before they are committed."""

Member = Consumer[StoredText | None, StoredText | None]
MemberRecord = record_types.Record[StoredText | None, StoredText | None]


def consume_as_member(
    client: Client,
    group: str,
    topic: str,
    position: Position,
    output: RecordOutput,
    *,
    count: int | None,
    binary: bool,
    follow: bool,
) -> None:
    """Print records as they are delivered, at most ``count``, and commit those that are printed.

    Without ``follow`` it ends once every partition that this member owns was read up to the end
    that it had at the beginning. ``position`` is the start of a group without commits.

    Raises:
        click.ClickException: a record can't be shown without ``binary``; those before it are
            printed and committed.
        QuorumlogError: no broker answers, or the group refuses the member.
    """
    until = {} if follow else _ends(client, topic)
    left = count
    with Consumer[StoredText | None, StoredText | None](
        client.routes.urls,
        group_id=group,
        client_id="consume",
        auto_offset_reset="latest" if isinstance(position, Latest) else "earliest",
        enable_auto_commit=False,
        large_messages="parts",
        key_deserializer=StoredText,
        value_deserializer=StoredText,
    ) as member:
        member.subscribe([topic])
        while left != 0:
            was_joined = member.metrics()["member_epoch"] is not None
            most = RECORDS_MAX if left is None else min(left, RECORDS_MAX)
            records = member.consume(most, FOLLOW_WAIT_S if follow else WAIT_S)
            if records:
                _print_and_commit(member, records, output, binary=binary)
                left = None if left is None else left - len(records)
            elif not follow and was_joined and _is_at_end(member, until):
                return
            else:
                client.run(admin.cluster())  # raises if no broker answers


def _print_and_commit(
    member: Member, records: list[MemberRecord], output: RecordOutput, *, binary: bool
) -> None:
    """Print records up to the first that can't be shown, commit those, then raise for that one."""
    shown: list[Record] = []
    refusal: click.ClickException | None = None
    for record in records:
        try:
            shown.append(_shown(record, binary=binary))
        except click.ClickException as error:
            refusal = error
            break
    output.print(shown)
    printed = {(each.topic, each.partition): each for each in records[: len(shown)]}
    offsets = [
        TopicPartition(*place, each.offset + 1, leader_epoch=each.leader_epoch)
        for place, each in printed.items()
    ]
    if offsets:
        with suppress(CommitError):  # the next owner of a lost partition reads it again
            member.commit(offsets=offsets)
    if refusal is not None:
        raise refusal


def _shown(record: MemberRecord, *, binary: bool) -> Record:
    """Return a record of the SDK as a page of v2 would hold it."""
    place = f"{record.topic}:{record.partition} at offset {record.offset}"
    return Record(
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        key=shown_half("key", _typed(record.key), place, binary=binary),
        value=shown_half("value", _typed(record.value), place, binary=binary),
        timestamp=record.timestamp,
        headers=encode_headers(record.headers),
    )


def _typed(half: StoredText | None) -> Typed:
    if half is None:
        return Typed("JSON", msgspec.Raw(b"null"))
    return Typed(half.format_word.upper(), msgspec.Raw(half.text))


def _ends(client: Client, topic: str) -> dict[Place, int]:
    numbers = client.run(admin.partition_ids(topic))
    return {(topic, number): client.run(ends(topic, number)).end for number in numbers}


def _is_at_end(member: Member, until: dict[Place, int]) -> bool:
    """Return True if nothing of what this member owns is left before these ends."""
    return all(
        one.offset is not None and one.offset >= until.get((one.topic, one.partition), 0)
        for one in member.position(member.assignment())
    )
