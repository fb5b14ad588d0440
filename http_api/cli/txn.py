"""``quorumlog txn``: transactional ids, what became of their transactions, and what is staged.

Calls are those of `http_api.client.transaction_calls`. What is decided is never touched here: an
abort fences the producer, so that what it staged may go.
"""

from __future__ import annotations

from dataclasses import asdict

import click

from http_api.cli.options import examples
from http_api.cli.session import Columns, CommandSession, Row, cluster_command, or_dash, table
from http_api.client import transaction_calls as calls

STATES = ("empty", "staging", "committing", "complete", "aborted")

group_option = click.option(
    "-g",
    "--group",
    "group_id",
    metavar="GROUP",
    help="The group below which the id is: it may commit the group's offsets.  [default: none]",
)
ids_argument = click.argument("names", metavar="ID...", nargs=-1, required=True)


@click.group()
def txn() -> None:
    """List, describe, abort, forget transactions.

    An id is a producer's, a numbered one, or key:K of an idempotency key K.
    """


@examples("quorumlog txn list", "quorumlog txn list --state committing")
@txn.command("list")
@click.option("--state", type=click.Choice(STATES), help="List only ids in this state.")
@click.option(
    "-g",
    "--group",
    "group_id",
    metavar="GROUP",
    help="List only ids below this group.  [default: all, also those of no group]",
)
@cluster_command
def list_ids(session: CommandSession, state: str | None, group_id: str | None) -> None:
    """List the ids with their last position and what is staged."""
    found = session.call(calls.list_transactions, state=state, group_id=group_id)
    session.show_rows(map(asdict, found), ID_COLUMNS)


def _last(row: Row) -> str | None:
    """Return the last decided position, the epoch in front where there are epochs."""
    last = row["last"]
    if last is None:
        return None
    number = last["number"]
    return str(number) if row["epoch"] is None else f"{last['epoch']}.{number}"


def _fate(row: Row) -> str:
    """Return the last decided position and what became of it."""
    last = row["last"]
    lost = f", {last['lost_rows']} rows lost" if last["lost_rows"] else ""
    return f"last={_last(row)} ({last['state']}{lost})"


def _sum_of(field: str, row: Row) -> int:
    return sum(one[field] for one in row["attempts"])


ID_COLUMNS: Columns = {
    "ID": "transaction_id",
    "GROUP": or_dash("group"),
    "STATE": "state",
    "EPOCH": "epoch",
    "LAST": _last,
    "WAITING": lambda row: len(row["pending"]),
    "STAGED-ROWS": lambda row: _sum_of("rows", row),
    "STAGED-BYTES": lambda row: _sum_of("bytes", row),
    "AGE-MS": lambda row: max((one["age_ms"] for one in row["attempts"]), default=None),
}


@examples("quorumlog txn describe billing-1", "quorumlog txn describe key:transfer-17")
@txn.command()
@ids_argument
@group_option
@cluster_command
def describe(session: CommandSession, names: tuple[str, ...], group_id: str | None) -> int:
    """Show the last position, its rows, and what is staged.

    A name that fails does not stop the next, but the exit code is 1.
    """
    return session.for_each(
        names,
        lambda name: asdict(session.call(calls.describe_transaction, name, group_id=group_id)),
        _description,
    )


def _description(row: Row) -> str:
    of_group = f" group={row['group']}" if row["group"] else ""
    epoch = "" if row["epoch"] is None else f" epoch={row['epoch']}"
    fate = "" if row["last"] is None else f" {_fate(row)}"
    home = f"home={row['home_topic']}-{row['home_partition']} leader={row['leader']}"
    lines = [f"{row['transaction_id']}{of_group} state={row['state']}{epoch}{fate} {home}"]
    waits = {(one["topic"], one["partition"]): one["reason"] for one in row["pending"]}
    targets = [
        one | {"waits": waits.pop((one["topic"], one["partition"]), None)}
        for one in row["partitions"]
    ]
    targets += [
        {"topic": topic, "partition": number, "rows": None, "base_offset": None, "waits": reason}
        for (topic, number), reason in waits.items()
    ]
    if targets:
        lines.append(table(targets, TARGET_COLUMNS))
    lines += [
        f"dropped with its topic: {one['topic_id']}-{one['partition']}" for one in row["dropped"]
    ]
    lines += [
        f"lost with its stage: {one['rows']} rows of "
        f"{one['topic'] or one['topic_id']}:{one['partition']}"
        for one in row["lost"]
    ]
    if row["attempts"]:
        lines.append(table(row["attempts"], ATTEMPT_COLUMNS))
    return "\n".join(lines)


TARGET_COLUMNS: Columns = {
    "PARTITION": lambda row: f"{row['topic'] or '(deleted)'}:{row['partition']}",
    "ROWS": "rows",
    "BASE-OFFSET": "base_offset",
    "WAITS-FOR": or_dash("waits"),
}
ATTEMPT_COLUMNS: Columns = {
    "ATTEMPT": "attempt_id",
    "NUMBER": "number",
    "CHUNKS": "chunks",
    "ROWS": "rows",
    "BYTES": "bytes",
    "AGE-MS": "age_ms",
}


@examples("quorumlog txn abort billing-1 --yes")
@txn.command()
@click.argument("name", metavar="ID")
@group_option
@click.option("-y", "--yes", is_flag=True, help="Accept that a running producer is fenced.")
@cluster_command
def abort(
    session: CommandSession,
    name: str,
    group_id: str | None,
    yes: bool,  # noqa: FBT001 a flag of the command line
) -> None:
    """Fence a producer by the next epoch of its id.

    What it staged may go then. What is decided is not touched: a committing transaction completes.
    """
    if not yes:
        msg = f"a producer that runs as {name} is over then: add --yes"
        raise click.UsageError(msg)
    life = asdict(session.call(calls.init_producer, name, group_id=group_id))
    fate = "nothing was decided" if life["last"] is None else _fate(life)
    session.show(life, f"fenced {name}: epoch={life['epoch']}, {fate}")


@examples("quorumlog txn forget nightly-load --yes")
@txn.command()
@ids_argument
@group_option
@click.option("-y", "--yes", is_flag=True, help="Accept that a repeat would be written again.")
@cluster_command
def forget(
    session: CommandSession,
    names: tuple[str, ...],
    group_id: str | None,
    yes: bool,  # noqa: FBT001 a flag of the command line
) -> int:
    """Forget numbered ids and keys.

    A repeat of what they decided is a new transaction then.
    """
    if not yes:
        msg = "a repeat of what was decided would be written again: add --yes"
        raise click.UsageError(msg)

    def remove(name: str) -> Row:
        session.call(calls.forget_transaction, name, group_id=group_id)
        return {"transaction_id": name, "group": group_id}

    return session.for_each(names, remove, lambda row: f"forgot {row['transaction_id']}")
