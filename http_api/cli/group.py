"""``quorumlog group list | describe | seek``: consumer groups, their lag and their offsets.

Calls are those of `http_api.client.groups`. `seek` resolves a target (an end, an offset or a time)
to an offset per partition and commits it for the group.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime

import click

from http_api.cli.session import Columns, CommandSession, Row, cluster_command, table
from http_api.client import admin, groups
from http_api.client.calls import ApiError
from http_api.client.consumer import ends, offset_at
from http_api.client.groups import Place

_TOPIC = re.compile(r"([^:]+)(?::([0-9]+(?:,[0-9]+)*))?")
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d")


@click.group()
def group() -> None:
    """List and describe consumer groups, move their offsets."""


@group.command("list")
@cluster_command
def list_groups(session: CommandSession) -> None:
    """List the groups with their state and coordinator."""
    found = session.call(groups.list_groups)
    session.show_rows(map(asdict, found), GROUP_COLUMNS)


GROUP_COLUMNS: Columns = {
    "GROUP": "group",
    "STATE": lambda row: row["state"].lower(),
    "COORDINATOR": "coordinator",
}
PARTITION_COLUMNS: Columns = {
    "TOPIC": "topic",
    "PARTITION": "partition",
    "CURRENT-OFFSET": "current_offset",
    "LOG-END-OFFSET": "log_end_offset",
    "LAG": "lag",
    "MEMBER-ID": "member_id",
    "CLIENT-ID": lambda row: row["client_id"] or None,
}


# describe


@group.command()
@click.argument("names", nargs=-1, required=True)
@cluster_command
def describe(session: CommandSession, names: tuple[str, ...]) -> int:
    """Show members, committed offsets and lag per partition.

    A name that fails does not stop the next, but the exit code is 1.
    """
    return session.for_each(names, lambda name: _describe(session, name), _description_lines)


def _describe(session: CommandSession, name: str) -> Row:
    """Return a group with its members, and the partitions that it committed or a member owns."""
    info = session.call(groups.describe_group, name)
    members = session.call(groups.members, name)
    offsets = session.call(groups.group_offsets, name)
    owners = {
        place: member
        for member in members
        for place in _assignment(session, name, member.member_id)
    }
    committed = {(one.topic, one.partition): one for one in offsets}
    partitions = [
        _partition_row(place, committed.get(place), owners.get(place))
        for place in sorted(committed.keys() | owners.keys())
    ]
    return asdict(info) | {
        "members": [asdict(member) for member in members],
        "total_lag": sum(row["lag"] or 0 for row in partitions),
        "partitions": partitions,
    }


def _partition_row(
    place: Place, one: groups.CommittedOffset | None, owner: groups.GroupMember | None
) -> Row:
    lag = None if one is None else one.lag
    return {
        "topic": place[0],
        "partition": place[1],
        "current_offset": None if one is None else one.offset,
        "log_end_offset": None if one is None or lag is None else one.offset + lag,
        "lag": lag,
        "member_id": None if owner is None else owner.member_id,
        "client_id": None if owner is None else owner.client_id,
    }


def _assignment(session: CommandSession, name: str, member_id: str) -> list[Place]:
    try:
        return session.call(groups.member_assignment, name, member_id)
    except ApiError as error:
        if error.status != 404:
            raise
        return []  # the member has left since the list was read


def _description_lines(row: Row) -> str:
    head = f"group {row['group']} state={row['state'].lower()} coordinator={row['coordinator']}"
    counts = f"members={len(row['members'])} total_lag={row['total_lag']}"
    lines = [f"{head} {counts}", table(row["partitions"], PARTITION_COLUMNS)]
    owners = {partition["member_id"] for partition in row["partitions"]}
    idle = [one["member_id"] for one in row["members"] if one["member_id"] not in owners]
    if idle:
        lines.append(f"without partitions: {', '.join(idle)}")
    return "\n".join(lines)


# seek


@group.command()
@click.argument("name")
@click.option(
    "--to",
    "target",
    required=True,
    metavar="WHERE",
    help="beginning, end, an offset, or a time: 2026-01-31T12:00:00Z or @MILLISECONDS.",
)
@click.option(
    "-t",
    "--topic",
    "topics",
    metavar="TOPIC[:P,P…]",
    multiple=True,
    help="This topic, or these partitions of it.  [default: all the group has committed]",
)
@click.option("-n", "--dry-run", is_flag=True, help="Show what would be done, do nothing.")
@cluster_command
def seek(
    session: CommandSession,
    name: str,
    target: str,
    topics: tuple[str, ...],
    dry_run: bool,  # noqa: FBT001 a flag of the command line
) -> None:
    """Set the committed offsets of a group that has no live members.

    An offset outside of a partition's log becomes its nearer end.
    """
    where = _parse_target(target)
    wanted = [_parse_topic(text) for text in topics]
    before = {
        (one.topic, one.partition): one.offset for one in session.call(groups.group_offsets, name)
    }
    places = _partitions_to_seek(session, wanted) if wanted else sorted(before)
    if not places:
        msg = f"group {name} has committed nothing; say --topic"
        raise click.ClickException(msg)
    after = {place: _resolve(session, place, where) for place in places}
    if not dry_run:
        session.call(groups.commit_group, name, after)
    rows = [
        {
            "topic": topic,
            "partition": number,
            "prior_offset": before.get((topic, number)),
            "new_offset": offset,
            "dry_run": dry_run,
        }
        for (topic, number), offset in after.items()
    ]
    session.show_rows(rows, MOVE_COLUMNS)
    if dry_run and session.form == "text":
        click.echo("dry run: nothing was changed", err=True)


MOVE_COLUMNS: Columns = {
    "TOPIC": "topic",
    "PARTITION": "partition",
    "PRIOR-OFFSET": "prior_offset",
    "NEW-OFFSET": "new_offset",
}

SeekTo = str | int | datetime
"""Target of a seek: ``beginning``, ``end``, an offset, or a time."""


def _parse_target(text: str) -> SeekTo:
    if text in {"beginning", "end"}:
        return text
    if text.isascii() and text.isdecimal():
        return int(text)
    try:
        if text.startswith("@"):
            return datetime.fromtimestamp(int(text[1:]) / 1000, tz=UTC)
        if _MOMENT.match(text):
            moment = datetime.fromisoformat(text)
            return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError, OSError):
        pass
    msg = f"--to {text!r}: expected beginning, end, an offset, @MILLISECONDS or a time like "
    raise click.UsageError(msg + "2026-01-31T12:00:00Z")


def _parse_topic(text: str) -> tuple[str, list[int] | None]:
    found = _TOPIC.fullmatch(text)
    if found is None:
        msg = f"--topic {text!r}: expected TOPIC or TOPIC:0,1"
        raise click.UsageError(msg)
    return found[1], None if found[2] is None else [int(part) for part in found[2].split(",")]


def _partitions_to_seek(
    session: CommandSession, wanted: Sequence[tuple[str, list[int] | None]]
) -> list[Place]:
    found: set[Place] = set()
    for topic, numbers in wanted:
        there = session.run(admin.partition_ids(topic))
        absent = [number for number in numbers or () if number not in there]
        if absent:
            msg = f"--topic {topic}:{absent[0]}: the topic has partitions 0 to {len(there) - 1}"
            raise click.ClickException(msg)
        found.update((topic, number) for number in (there if numbers is None else numbers))
    return sorted(found)


def _resolve(session: CommandSession, place: Place, where: SeekTo) -> int:
    limits = session.run(ends(*place))
    if isinstance(where, int):
        return max(limits.beginning, min(where, limits.end))
    if where == "beginning":
        return limits.beginning
    if isinstance(where, datetime):
        milliseconds = max(0, round(where.timestamp() * 1000))
        return session.run(offset_at(*place, milliseconds))
    return limits.end
