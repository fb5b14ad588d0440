"""``quorumlog group``: consumer groups, their lag, their offsets and their members.

Calls are those of `http_api.client.groups`. `seek` resolves a target (an end, an offset or a time)
to an offset per partition and commits it for the group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import click

from http_api.cli.options import (
    POSITION,
    RECORD,
    SELECTION,
    dry_run_option,
    examples,
    resolve_position,
)
from http_api.cli.partition import partition_cell
from http_api.cli.session import (
    Columns,
    CommandSession,
    Row,
    cluster_command,
    or_dash,
    table,
)
from http_api.client import admin, groups
from http_api.client.consumer import ends
from http_api.client.groups import Place
from http_api.contract.grammar import Position, RecordPlace, TopicPartitions


@click.group()
def group() -> None:
    """List, describe, delete, repair consumer groups, and move their offsets."""


@examples("quorumlog group list")
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
    "PARTITION": partition_cell,
    "CURRENT-OFFSET": lambda row: row["current_offset"] if row["is_committed"] else None,
    "LOG-END-OFFSET": "log_end_offset",
    "LAG": "lag",
    "MEMBER-ID": or_dash("member_id"),
    "CLIENT-ID": or_dash("client_id"),
}


# describe


@examples("quorumlog group describe kitchen")
@group.command()
@click.argument("names", metavar="GROUP...", nargs=-1, required=True)
@cluster_command
def describe(session: CommandSession, names: tuple[str, ...]) -> int:
    """Show members, committed offsets and lag per partition.

    Also records at which members stand, because they can't show them. A name that fails does not
    stop the next, but the exit code is 1.
    """
    return session.for_each(names, lambda name: _describe(session, name), _description_lines)


def _describe(session: CommandSession, name: str) -> Row:
    """Return a group with its members, and the partitions that it committed or a member owns."""
    info = session.call(groups.describe_group, name)
    members = session.call(groups.members, name)
    partitions = [asdict(one) for one in session.call(groups.lags, name)]
    lags = [row["lag"] for row in partitions]
    known, unknown = sum(lag for lag in lags if lag is not None), None in lags
    return asdict(info) | {
        "members": [asdict(member) for member in members],
        "total_lag": None if unknown else known,
        "known_lag": known,
        "partitions": partitions,
    }


def _description_lines(row: Row) -> str:
    head = f"group {row['group']} state={row['state'].lower()} coordinator={row['coordinator']}"
    lag = f"at least {row['known_lag']}" if row["total_lag"] is None else row["total_lag"]
    counts = f"members={len(row['members'])} total_lag={lag}"
    lines = [f"{head} {counts}", table(row["partitions"], PARTITION_COLUMNS)]
    owners = {partition["member_id"] for partition in row["partitions"]}
    idle = [one["member_id"] for one in row["members"] if one["member_id"] not in owners]
    if idle:
        lines.append(f"without partitions: {', '.join(idle)}")
    lines += [
        f"{one['member_id']} stands at {place} since {one['since']}: {one['message']}; "
        f"step over it with `quorumlog group skip {row['group']} {place}`"
        for one in row["blocked"]
        for place in (f"{one['topic']}:{one['partition']}:{one['offset']}",)
    ]
    return "\n".join(lines)


# seek


@examples(
    "quorumlog group seek kitchen --to earliest --topic orders:0,1",
    "quorumlog group seek kitchen --to -10 --dry-run",
)
@group.command()
@click.argument("name", metavar="GROUP")
@click.option(
    "--to",
    "target",
    required=True,
    type=POSITION,
    help="Move to earliest, latest, an offset, -N (the last N of each partition), @MILLISECONDS "
    "or a time like 2026-01-31T12:00:00Z.",
)
@click.option(
    "-t",
    "--topic",
    "topics",
    metavar="TOPIC[:PARTITION,…]",
    type=SELECTION,
    multiple=True,
    help="Move only in this topic, or in these partitions.  [default: all that it committed]",
)
@dry_run_option
@cluster_command
def seek(
    session: CommandSession,
    name: str,
    target: Position,
    topics: tuple[TopicPartitions, ...],
    dry_run: bool,  # noqa: FBT001 a flag of the command line
) -> None:
    """Set the committed offsets of a group.

    The group must have no live members. An offset outside of a partition's log becomes its nearer
    end.
    """
    before = {
        (one.topic, one.partition): one.offset for one in session.call(groups.group_offsets, name)
    }
    places = _partitions_to_seek(session, topics) if topics else sorted(before)
    if not places:
        msg = f"group {name} has committed nothing: name a topic, as in --topic orders"
        raise click.ClickException(msg)
    after = {place: _resolve(session, place, target) for place in places}
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
    "PARTITION": partition_cell,
    "PRIOR-OFFSET": "prior_offset",
    "NEW-OFFSET": "new_offset",
}


def _partitions_to_seek(session: CommandSession, wanted: Sequence[TopicPartitions]) -> list[Place]:
    found: set[Place] = set()
    for each in wanted:
        there = session.run(admin.partition_ids(each.topic))
        absent = [number for number in each.partitions or () if number not in there]
        if absent:
            text = f"Partition '{each.topic}:{absent[0]}' not found"
            msg = f"{text}: the topic has partitions 0 to {len(there) - 1}"
            raise click.ClickException(msg)
        found.update((each.topic, number) for number in each.partitions or there)
    return sorted(found)


def _resolve(session: CommandSession, place: Place, target: Position) -> int:
    limits = session.run(ends(*place))
    offset = resolve_position(session.client, *place, target, limits)
    return max(limits.beginning, min(offset, limits.end))


# removal

groups_argument = click.argument("names", metavar="GROUP...", nargs=-1, required=True)


@examples("quorumlog group delete old-kitchen --dry-run")
@group.command()
@groups_argument
@dry_run_option
@cluster_command
def delete(session: CommandSession, names: tuple[str, ...], dry_run: bool) -> int:  # noqa: FBT001 a flag
    """Delete groups without live members, with their offsets."""

    def remove(name: str) -> Row:
        found = session.call(groups.members, name)
        if dry_run and found:
            named = ", ".join(one.member_id for one in found[:MEMBERS_NAMED_MAX])
            msg = f"group {name} has live members: {named}"
            raise click.ClickException(msg)
        if not dry_run:
            session.call(groups.delete_group, name)
        return {"group": name, "dry_run": dry_run}

    could = "could be deleted" if dry_run else "deleted"
    return session.for_each(names, remove, lambda row: f"{could} {row['group']}")


@examples("quorumlog group delete-offsets old-kitchen --topic orders:0,1 --dry-run")
@group.command("delete-offsets")
@click.argument("name", metavar="GROUP")
@click.option(
    "-t",
    "--topic",
    "topics",
    metavar="TOPIC[:PARTITION,…]",
    type=SELECTION,
    multiple=True,
    help="Delete only in this topic, or in these partitions.  [default: all offsets]",
)
@dry_run_option
@cluster_command
def delete_offsets(
    session: CommandSession,
    name: str,
    topics: tuple[TopicPartitions, ...],
    dry_run: bool,  # noqa: FBT001 a flag of the command line
) -> None:
    """Delete committed offsets.

    A topic that a live member reads is refused.
    """
    found = session.call(groups.group_offsets, name)
    rows = [
        {"topic": one.topic, "partition": one.partition, "offset": one.offset, "dry_run": dry_run}
        for one in found
        if not topics or any(_holds(each, one.topic, one.partition) for each in topics)
    ]
    if not dry_run:
        for topic, partition in _removals(topics):
            session.call(groups.delete_offsets, name, topic, partition)
    session.show_rows(rows, OFFSET_COLUMNS)


def _holds(wanted: TopicPartitions, topic: str, partition: int) -> bool:
    return wanted.topic == topic and (wanted.partitions is None or partition in wanted.partitions)


def _removals(
    topics: tuple[TopicPartitions, ...],
) -> list[tuple[str | None, int | None]]:
    """Return what each call deletes: (topic, partition), None for all of them."""
    if not topics:
        return [(None, None)]
    return [(each.topic, number) for each in topics for number in each.partitions or (None,)]


OFFSET_COLUMNS: Columns = {"PARTITION": partition_cell, "OFFSET": "offset"}
MEMBERS_NAMED_MAX = 10


@examples("quorumlog group evict old-kitchen --all")
@group.command()
@click.argument("name", metavar="GROUP")
@click.argument("members", metavar="[MEMBER]...", nargs=-1)
@click.option("--static", "static_id", metavar="ID", help="Evict the member with this static id.")
@click.option("--all", "everyone", is_flag=True, help="Evict all members.")
@dry_run_option
@cluster_command
def evict(
    session: CommandSession,
    name: str,
    members: tuple[str, ...],
    static_id: str | None,
    everyone: bool,  # noqa: FBT001 a flag of the command line
    dry_run: bool,  # noqa: FBT001 a flag of the command line
) -> int:
    """Remove members from a group without a commit.

    Their partitions go to other members, which read on from the last commit.
    """
    if sum((bool(members), static_id is not None, everyone)) != 1:
        msg = "expected MEMBER, --static ID or --all, as in quorumlog group evict kitchen cook"
        raise click.UsageError(msg)
    found = session.call(groups.members, name)
    wanted = list(members) or [
        one.member_id for one in found if everyone or one.static_id == static_id
    ]
    if static_id is not None and not wanted:
        msg = f"group {name} has no member with group.instance.id {static_id}"
        raise click.ClickException(msg)

    def remove(member: str) -> Row:
        if not dry_run:
            session.call(groups.evict, name, member)
        return {"group": name, "member_id": member, "dry_run": dry_run}

    could = "could be evicted" if dry_run else "evicted"
    return session.for_each(wanted, remove, lambda row: f"{could} {row['member_id']}")


# a group that stands still


@examples("quorumlog group skip kitchen orders:0:17 --dry-run")
@group.command()
@click.argument("name", metavar="GROUP")
@click.argument(
    "records", metavar="TOPIC:PARTITION:OFFSET...", nargs=-1, required=True, type=RECORD
)
@dry_run_option
@cluster_command
def skip(
    session: CommandSession,
    name: str,
    records: tuple[RecordPlace, ...],
    dry_run: bool,  # noqa: FBT001 a flag of the command line
) -> None:
    """Step over records that the members can't show.

    Exactly these records are left out. A record that stops no member is refused: then nothing is
    done.
    """
    if dry_run:
        found = session.call(groups.describe_group, name).blocked
        standing = {(one.topic, one.partition, one.offset) for one in found}
        for one in records:
            if one not in standing:
                msg = (
                    f"offset {one.offset} of {one.topic}:{one.partition} stops no member of {name}"
                )
                raise click.ClickException(msg)
    else:
        session.call(groups.skip_records, name, records)
    rows = [
        {"topic": one.topic, "partition": one.partition, "offset": one.offset, "dry_run": dry_run}
        for one in records
    ]
    session.show_rows(rows, OFFSET_COLUMNS)
    if dry_run and session.form == "text":
        click.echo("dry run: nothing was changed", err=True)


@examples("quorumlog group repair kitchen --dry-run")
@group.command()
@groups_argument
@dry_run_option
@cluster_command
def repair(session: CommandSession, names: tuple[str, ...], dry_run: bool) -> int:  # noqa: FBT001 a flag
    """Let groups go on that are held.

    A group is held if a record of it can't be decoded. Such records and all members are forgotten,
    the other offsets stay. Members join anew and read on from the last offset that is left: some
    records may be delivered again.
    """

    def go_on(name: str) -> Row:
        found = session.call(groups.repair_group, name, validate_only=dry_run)
        return {
            "group": name,
            "dry_run": dry_run,
            "forgotten": [asdict(record) for record in found.forgotten],
            "members": list(found.members),
            "offsets": [
                {"topic": topic, "partition": number, "offset": offset}
                for (topic, number), offset in found.offsets.items()
            ],
        }

    return session.for_each(names, go_on, _repair_lines)


def _repair_lines(row: Row) -> str:
    could = "could be repaired" if row["dry_run"] else "repaired"
    members = ", ".join(row["members"]) or "none"
    counts = f"{len(row['forgotten'])} records forgotten, members that join anew: {members}"
    return "\n".join(
        (
            f"{could} {row['group']}: {counts}",
            table(row["forgotten"], FORGOTTEN_COLUMNS),
            table(row["offsets"], OFFSET_COLUMNS),
        )
    )


FORGOTTEN_COLUMNS: Columns = {
    "OFFSETS-PARTITION": "partition",
    "AT-OFFSET": "offset",
    "KEY": "key",
    "REASON": "reason",
}
