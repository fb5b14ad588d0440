"""``quorumlog group list | describe | seek``: consumer groups, their lag and their offsets.

Calls are those of `http_api.client.groups`. `seek` resolves a target (an end, an offset or a time)
to an offset per partition and commits it for the group.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

import click

from http_api.cli.options import (
    client_of,
    error_text,
    format_option,
    print_client_errors,
    print_json,
    print_table,
    url_option,
)
from http_api.client import admin, groups
from http_api.client.calls import ApiError
from http_api.client.consumer import ends, offset_at
from http_api.client.groups import Place
from http_api.client.transport import Client

_TOPIC = re.compile(r"([^:]+)(?::([0-9]+(?:,[0-9]+)*))?")
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d")
UNKNOWN = "-"


@click.group()
def group() -> None:
    """List and describe consumer groups, move their offsets."""


@group.command("list")
@url_option
@format_option
@print_client_errors
def list_groups(url: str, form: str) -> None:
    """List the groups with their state and coordinator."""
    with client_of(url) as client:
        cluster_id = client.run(admin.cluster()).cluster_id
        found = client.run(groups.list_groups(cluster_id))
    if form == "json":
        print_json([asdict(item) for item in found])
        return
    rows: list[tuple[object, ...]] = [
        (item.group, item.state.lower(), item.coordinator) for item in found
    ]
    print_table(("GROUP", "STATE", "COORDINATOR"), rows)


# describe


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPartition:
    """A partition with a committed offset of the group, or owned by a member."""

    topic: str
    partition: int
    current_offset: int | None
    log_end_offset: int | None
    lag: int | None
    member_id: str | None
    client_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A group with its members and partitions."""

    info: groups.GroupInfo
    members: Sequence[groups.GroupMember]
    rows: Sequence[GroupPartition]

    @property
    def total_lag(self) -> int:
        """Sum of the lags that are known."""
        return sum(row.lag or 0 for row in self.rows)


@group.command()
@click.argument("names", nargs=-1, required=True)
@url_option
@format_option
@print_client_errors
def describe(names: tuple[str, ...], url: str, form: str) -> int:
    """Show members, committed offsets and lag per partition.

    A name that fails does not stop the next, but the exit code is 1.
    """
    found: list[GroupDescription] = []
    with client_of(url) as client:
        cluster_id = client.run(admin.cluster()).cluster_id
        for name in names:
            try:
                found.append(_describe(client, cluster_id, name))
            except ApiError as error:
                click.echo(error_text(error, form), err=True)
                continue
            if form == "text":
                _print_description(found[-1])
    if form == "json":
        print_json([_description_json(item) for item in found])
    return 0 if len(found) == len(names) else 1


def _describe(client: Client, cluster_id: str, name: str) -> GroupDescription:
    info = client.run(groups.describe_group(cluster_id, name))
    members = client.run(groups.members(cluster_id, name))
    offsets = client.run(groups.group_offsets(cluster_id, name))
    owners = {
        place: member
        for member in members
        for place in _assignment(client, cluster_id, name, member.member_id)
    }
    committed = {(one.topic, one.partition): one for one in offsets}
    rows = []
    for place in sorted(committed.keys() | owners.keys()):
        one, owner = committed.get(place), owners.get(place)
        lag = None if one is None else one.lag
        end = None if one is None or lag is None else one.offset + lag
        rows.append(
            GroupPartition(
                topic=place[0],
                partition=place[1],
                current_offset=None if one is None else one.offset,
                log_end_offset=end,
                lag=lag,
                member_id=None if owner is None else owner.member_id,
                client_id=None if owner is None else owner.client_id,
            )
        )
    return GroupDescription(info=info, members=members, rows=rows)


def _assignment(client: Client, cluster_id: str, name: str, member_id: str) -> list[Place]:
    try:
        return client.run(groups.member_assignment(cluster_id, name, member_id))
    except ApiError as error:
        if error.status != 404:
            raise
        return []  # the member has left since the list was read


def _print_description(found: GroupDescription) -> None:
    info = found.info
    click.echo(
        f"group {info.group} state={info.state.lower()} coordinator={info.coordinator} "
        f"members={len(found.members)} total_lag={found.total_lag}"
    )
    rows: list[tuple[object, ...]] = [
        (
            row.topic,
            row.partition,
            *(
                UNKNOWN if cell is None or cell == "" else cell
                for cell in (
                    *(row.current_offset, row.log_end_offset, row.lag),
                    *(row.member_id, row.client_id),
                )
            ),
        )
        for row in found.rows
    ]
    headings = (
        *("TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG"),
        *("MEMBER-ID", "CLIENT-ID"),
    )
    print_table(headings, rows)
    owners = {row.member_id for row in found.rows}
    idle = [member.member_id for member in found.members if member.member_id not in owners]
    if idle:
        click.echo(f"without partitions: {', '.join(idle)}")


def _description_json(found: GroupDescription) -> dict[str, object]:
    return asdict(found.info) | {
        "members": [asdict(member) for member in found.members],
        "total_lag": found.total_lag,
        "partitions": [asdict(row) for row in found.rows],
    }


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
@url_option
@format_option
@print_client_errors
def seek(
    name: str,
    target: str,
    topics: tuple[str, ...],
    dry_run: bool,  # noqa: FBT001 a flag of the command line
    url: str,
    form: str,
) -> None:
    """Set the committed offsets of a group that has no live members.

    An offset outside of a partition's log becomes its nearer end.
    """
    where = _parse_target(target)
    wanted = [_parse_topic(text) for text in topics]
    with client_of(url) as client:
        cluster_id = client.run(admin.cluster()).cluster_id
        before = {
            (one.topic, one.partition): one.offset
            for one in client.run(groups.group_offsets(cluster_id, name))
        }
        places = _partitions_to_seek(client, wanted) if wanted else sorted(before)
        if not places:
            msg = f"group {name} has committed nothing; say --topic"
            raise click.ClickException(msg)
        after = {place: _resolve(client, place, where) for place in places}
        if not dry_run:
            client.run(groups.commit_group(cluster_id, name, after))
    _print_moves(before, after, form, dry_run=dry_run)


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
    client: Client, wanted: Sequence[tuple[str, list[int] | None]]
) -> list[Place]:
    found: set[Place] = set()
    for topic, numbers in wanted:
        there = client.run(admin.partition_ids(topic))
        absent = [number for number in numbers or () if number not in there]
        if absent:
            msg = f"--topic {topic}:{absent[0]}: the topic has partitions 0 to {len(there) - 1}"
            raise click.ClickException(msg)
        found.update((topic, number) for number in (there if numbers is None else numbers))
    return sorted(found)


def _resolve(client: Client, place: Place, where: SeekTo) -> int:
    limits = client.run(ends(*place))
    if isinstance(where, int):
        return max(limits.beginning, min(where, limits.end))
    if where == "beginning":
        return limits.beginning
    if isinstance(where, datetime):
        milliseconds = max(0, round(where.timestamp() * 1000))
        return client.run(offset_at(*place, milliseconds))
    return limits.end


def _print_moves(
    before: dict[Place, int], after: dict[Place, int], form: str, *, dry_run: bool
) -> None:
    if form == "json":
        print_json(
            [
                {
                    "topic": topic,
                    "partition": number,
                    "prior_offset": before.get((topic, number)),
                    "new_offset": offset,
                    "dry_run": dry_run,
                }
                for (topic, number), offset in after.items()
            ]
        )
        return
    rows: list[tuple[object, ...]] = [
        (*place, before.get(place, UNKNOWN), offset) for place, offset in after.items()
    ]
    print_table(("TOPIC", "PARTITION", "PRIOR-OFFSET", "NEW-OFFSET"), rows)
    if dry_run:
        click.echo("dry run: nothing was changed", err=True)
