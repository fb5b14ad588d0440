"""``quorumlog consume --group``: records as a member of a consumer group, committed once printed.

The group's member is a `GroupConsumer`, so after a lost answer, or the death of the coordinator,
records that were printed and not committed come again: at least once. A record is committed only
once it is printed, so one that standard output did not take is delivered again, too.
"""

from __future__ import annotations

import click

from http_api.cli.record_output import RecordOutput
from http_api.client import admin, groups
from http_api.client.calls import Place
from http_api.client.client_errors import ApiError
from http_api.client.consumer import Record, ends
from http_api.client.group_consumer import GroupConsumer
from http_api.client.groups import InstanceSettings
from http_api.client.transport import Client
from http_api.contract.errors import RestCode
from http_api.contract.grammar import Latest, Position

FOLLOW_WAIT_MS = 5_000
WAIT_MS = 1_000
"""Wait of a read that is to stop at the end. One that finds nothing asks where it stands."""


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
    """
    reset = "latest" if isinstance(position, Latest) else "earliest"
    settings = InstanceSettings(auto_offset_reset=reset, binary=binary)
    until = {} if follow else _ends(client, topic)
    left = count
    with GroupConsumer(client, group, settings, name="consume") as member:
        member.subscribe([topic])
        while left != 0:
            records = _poll(member, FOLLOW_WAIT_MS if follow else WAIT_MS)[:left]
            if not records:
                if not follow and _is_at_end(client, group, member, until):
                    return
                continue
            output.print(records)
            member.commit({(each.topic, each.partition): each.offset + 1 for each in records})
            left = None if left is None else left - len(records)


def _poll(member: GroupConsumer, wait_ms: int) -> list[Record]:
    try:
        return member.poll(wait_ms=wait_ms)
    except ApiError as error:
        if error.code == RestCode.JSON_CONVERSION:
            msg = f"{error.message}; try --binary"
            raise click.ClickException(msg) from error
        raise


def _ends(client: Client, topic: str) -> dict[Place, int]:
    numbers = client.run(admin.partition_ids(topic))
    return {(topic, number): client.run(ends(topic, number)).end for number in numbers}


def _is_at_end(client: Client, group: str, member: GroupConsumer, until: dict[Place, int]) -> bool:
    """Return True if nothing of what this member owns is left before these ends."""
    if member.instance is None:
        return False
    positions = client.run(groups.positions(group, member.instance))
    return all(offset >= until.get(place, 0) for place, offset in positions.items())
