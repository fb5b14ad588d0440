"""``quorumlog quorum describe``: the controllers, their leader, and how far each node is behind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from http_api.cli.options import (
    client_of,
    format_option,
    print_client_errors,
    print_json,
    print_table,
    url_option,
)
from http_api.client import admin
from http_api.client import cluster_state as calls

Row = Mapping[str, Any]
UNKNOWN = "-"


@click.group()
def quorum() -> None:
    """Look at the controllers."""


@quorum.command()
@click.option(
    "--replication",
    is_flag=True,
    help="A row for every voter and observer instead of the summary (text only).",
)
@url_option
@format_option
@print_client_errors
def describe(replication: bool, url: str, form: str) -> None:  # noqa: FBT001 a flag
    """Show who leads, in which epoch, how far voters and brokers have come."""
    with client_of(url) as client:
        cluster_id = client.run(admin.cluster()).cluster_id
        found = client.run(calls.quorum(cluster_id))
    if form == "json":
        print_json(found)
    elif replication:
        _print_replication(found)
    else:
        _print_status(found)
    if form == "text" and not found["is_from_leader"]:
        click.echo(
            f"no active controller answers: told by controller {found['told_by']}, which follows",
            err=True,
        )


def _print_status(found: Row) -> None:
    followers = [voter for voter in found["voters"] if not voter["is_leader"]]
    lags = [voter["lag"] for voter in followers if voter["lag"] is not None]
    ages = [row["caught_up_age_ms"] for row in followers if row["caught_up_age_ms"] is not None]
    rows = (
        ("cluster", found["cluster_id"]),
        ("leader", "none" if found["leader_id"] is None else found["leader_id"]),
        ("leader epoch", found["leader_epoch"]),
        ("high watermark", f"{found['high_watermark']} (entry {found['commit_index']})"),
        ("max follower lag", max(lags) if lags else UNKNOWN),
        ("max follower lag ms", max(ages) if ages else UNKNOWN),
        ("voters", _ids(found["voters"], "voter_id")),
        ("unreachable", _ids(_unreachable(found), "voter_id") or "none"),
        ("observers", _ids(found["observers"], "broker_id")),
        ("metadata.version", found["feature_level"]),
    )
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        click.echo(f"{name.ljust(width)}  {value}")


def _unreachable(found: Row) -> list[Row]:
    return [voter for voter in found["voters"] if not voter["is_reachable"]]


def _ids(rows: list[Row], name: str) -> str:
    return ",".join(str(row[name]) for row in rows)


def _print_replication(found: Row) -> None:
    """Print a row per voter and observer.

    A voter's log end is an index of a Raft entry, an observer's an offset of the metadata log.
    """
    print_table(
        ("NODE", "STATUS", "LOG-END", "LAG", "CONTACT-MS", "CAUGHT-UP-MS", "REACHABLE", "AT"),
        [
            *(
                (
                    *(voter["voter_id"], _voter_status(voter)),
                    *(_cell(voter["log_end_index"]), _cell(voter["lag"])),
                    *(_cell(voter["contact_age_ms"]), _cell(voter["caught_up_age_ms"])),
                    *("yes" if voter["is_reachable"] else "no", voter["url"] or UNKNOWN),
                )
                for voter in found["voters"]
            ),
            *(
                (
                    *(row["broker_id"], f"observer {row['state']}"),
                    *(_cell(row["log_end_offset"]), _cell(row["lag"])),
                    *(_cell(row["contact_age_ms"]), _cell(row["caught_up_age_ms"])),
                    *(UNKNOWN, UNKNOWN),
                )
                for row in found["observers"]
            ),
        ],
    )


def _voter_status(voter: Row) -> str:
    if voter["fence"] not in {None, "none"}:
        return "rejoining"
    return "leader" if voter["is_leader"] else "follower"


def _cell(value: int | None) -> object:
    return UNKNOWN if value is None else value
