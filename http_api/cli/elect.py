"""``quorumlog elect preferred | unclean``: elect leaders of one, many or all partitions."""

from __future__ import annotations

from dataclasses import asdict

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
from http_api.client.admin import ElectionInfo

all_option = click.option("--all", "everywhere", is_flag=True, help="Every partition.")
topic_option = click.option("-t", "--topic", help="One topic.")
partition_option = click.option("-p", "--partition", type=int, help="One partition of --topic.")


@click.group()
def elect() -> None:
    """Elect leaders where that changes something. Exit 1 where one could not be elected."""


@elect.command()
@all_option
@topic_option
@partition_option
@url_option
@format_option
@print_client_errors
def preferred(
    everywhere: bool,  # noqa: FBT001 a flag of the command line
    topic: str | None,
    partition: int | None,
    url: str,
    form: str,
) -> int:
    """Give leadership to the first replica, where it is in sync."""
    return _elect("preferred", topic, partition, url, form, everywhere=everywhere)


@elect.command()
@all_option
@topic_option
@partition_option
@click.option("-y", "--yes", is_flag=True, help="Yes: acknowledged records may be lost.")
@url_option
@format_option
@print_client_errors
def unclean(
    everywhere: bool,  # noqa: FBT001 a flag of the command line
    topic: str | None,
    partition: int | None,
    yes: bool,  # noqa: FBT001 a flag of the command line
    url: str,
    form: str,
) -> int:
    """Have any live replica lead partitions that no eligible one can: records may be lost."""
    if not yes:
        msg = "an unclean leader may lack acknowledged records, which are then lost: say --yes"
        raise click.UsageError(msg)
    return _elect("unclean", topic, partition, url, form, everywhere=everywhere)


def _elect(
    election: str,
    topic: str | None,
    partition: int | None,
    url: str,
    form: str,
    *,
    everywhere: bool,
) -> int:
    if everywhere == (topic is not None) or (partition is not None and topic is None):
        msg = "expected --all, or --topic T and perhaps --partition P"
        raise click.UsageError(msg)
    with client_of(url) as client:
        cluster_id = client.run(admin.cluster()).cluster_id
        if topic is None or partition is None:
            rows = client.run(admin.elect_leaders(cluster_id, topic, election))
        else:
            call = admin.elect_leader(cluster_id, topic, partition, election)
            leader = client.run(call).leader
            rows = [
                ElectionInfo(
                    topic=topic, partition=partition, leader=leader, error_code=None, error=None
                )
            ]
    if form == "json":
        print_json([asdict(one) for one in rows])
    else:
        shown: list[tuple[object, ...]] = [
            (one.topic, one.partition, "-" if one.leader is None else one.leader, one.error or "")
            for one in rows
        ]
        print_table(("TOPIC", "PARTITION", "LEADER", "ERROR"), shown)
    return 1 if any(one.error_code is not None for one in rows) else 0
