"""``quorumlog quorum describe``: the controllers, their leader, and how far each node is behind."""

from __future__ import annotations

import click

from http_api.cli.options import examples
from http_api.cli.session import (
    UNKNOWN,
    Columns,
    CommandSession,
    Row,
    cell_text,
    cluster_command,
    table,
)
from http_api.client import cluster_state as calls


@click.group()
def quorum() -> None:
    """Show the controllers."""


@examples("quorumlog quorum describe", "quorumlog quorum describe --replication")
@quorum.command()
@click.option(
    "--replication",
    is_flag=True,
    help="Show a row for each voter and observer instead of the summary.",
)
@cluster_command
def describe(session: CommandSession, replication: bool) -> None:  # noqa: FBT001 a flag
    """Show the leader, its epoch, and how far voters and brokers are."""
    found = session.call(calls.quorum)
    if replication:
        rows = [*map(_voter_row, found["voters"]), *map(_observer_row, found["observers"])]
        session.show(found, table(rows, REPLICATION_COLUMNS))
    else:
        session.show(found, _status_lines(found))
    if session.form == "text" and not found["is_from_leader"]:
        click.echo(
            f"no active controller answers: reported by controller {found['told_by']}, a follower",
            err=True,
        )


def _status_lines(found: Row) -> str:
    voters = found["voters"]
    followers = [voter for voter in voters if not voter["is_leader"]]
    lags = [voter["lag"] for voter in followers if voter["lag"] is not None]
    ages = [row["caught_up_age_ms"] for row in followers if row["caught_up_age_ms"] is not None]
    unreachable = tuple(voter["voter_id"] for voter in voters if not voter["is_reachable"])
    rows = (
        ("cluster", found["cluster_id"]),
        ("leader", "none" if found["leader_id"] is None else found["leader_id"]),
        ("leader epoch", found["leader_epoch"]),
        ("high watermark", f"{found['high_watermark']} (entry {found['commit_index']})"),
        ("max follower lag", max(lags, default=UNKNOWN)),
        ("max follower lag ms", max(ages, default=UNKNOWN)),
        ("voters", tuple(voter["voter_id"] for voter in voters)),
        ("unreachable", unreachable or "none"),
        ("observers", tuple(row["broker_id"] for row in found["observers"])),
        ("metadata.version", found["feature_level"]),
    )
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name.ljust(width)}  {cell_text(value)}" for name, value in rows)


REPLICATION_COLUMNS: Columns = {
    "NODE": "node",
    "STATUS": "status",
    "LOG-END": "log_end",
    "LAG": "lag",
    "CONTACT-MS": "contact_age_ms",
    "CAUGHT-UP-MS": "caught_up_age_ms",
    "REACHABLE": "reachable",
    "AT": "url",
}
"""A voter's log end is an index of a Raft entry, an observer's an offset of the metadata log."""


def _voter_row(voter: Row) -> Row:
    status = "leader" if voter["is_leader"] else "follower"
    return {
        **voter,
        "node": voter["voter_id"],
        "status": status if voter["fence"] in {None, "none"} else "rejoining",
        "log_end": voter["log_end_index"],
        "reachable": "yes" if voter["is_reachable"] else "no",
        "url": voter["url"] or None,
    }


def _observer_row(observer: Row) -> Row:
    return {
        **observer,
        "node": observer["broker_id"],
        "status": f"observer {observer['state']}",
        "log_end": observer["log_end_offset"],
        "reachable": None,
        "url": None,
    }
