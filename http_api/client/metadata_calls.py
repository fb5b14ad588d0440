"""Calls that producers and consumers of the SDK make themselves: brokers, partitions, producer ids.

They stand apart from `admin`, whose resources take a fifth of the time that `import quorumlog` may
take. Each function returns a `Call`; nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from http_api.client.calls import (
    Answer,
    Call,
    Request,
    path_of,
    read_nothing,
    read_one,
    v3_path,
)
from http_api.client.client_errors import ProtocolError

CREATE_TIMEOUT_S = 60.0
"""Seconds for one attempt at creating a topic, which is answered once every partition is ready."""


@dataclass(frozen=True, slots=True)
class TopicLimits:
    """Configs of a topic that decide whether a value is split."""

    max_message_bytes: int
    is_compacted: bool


def partition_leaders(topic: str) -> Call[Sequence[int]]:
    """Return the call that lists the broker id of each partition's leader, by number; -1: none.

    404/40401 for a topic that is not there.
    """

    def parse(answer: Answer) -> list[int]:
        return _leaders(topic, answer, answer.json())

    return Call(Request(method="GET", path=path_of("topics", topic, "partitions")), parse)


def leaders_and_limits(topic: str) -> Call[tuple[Sequence[int], TopicLimits]]:
    """Return the call that answers what `partition_leaders` does, and the limits of the topic.

    404/40403 for a topic that is not there.
    """

    def parse(answer: Answer) -> tuple[list[int], TopicLimits]:
        body = answer.json()
        try:
            configs, rows = body["configs"], body["partitions"]
            limit, policy = int(configs["max.message.bytes"]), str(configs["cleanup.policy"])
        except (KeyError, TypeError, ValueError) as error:
            msg = f"expected topic {topic}, got {answer.body[:100]!r}"
            raise ProtocolError(msg) from error
        return _leaders(topic, answer, rows), TopicLimits(limit, "compact" in policy.split(","))

    return Call(Request(method="GET", path=path_of("topics", topic)), parse)


def _leaders(topic: str, answer: Answer, rows: object) -> list[int]:
    try:
        if not isinstance(rows, list):
            raise TypeError
        rows = sorted(rows, key=lambda row: int(row["partition"]))
        return [int(row["leader"]) for row in rows]
    except (KeyError, TypeError, ValueError) as error:
        msg = f"expected the partitions of {topic}, got {answer.body[:100]!r}"
        raise ProtocolError(msg) from error


def auto_create_topic(cluster_id: str, name: str) -> Call[None]:
    """Return the call that creates a topic as a first produce would, unless it exists.

    404/40401 where the cluster does not create topics so.
    """
    body = orjson.dumps({"topic_name": name, "auto_create": True})
    path = v3_path(cluster_id, "topics")
    return read_nothing(
        Request(method="POST", path=path, body=body, timeout_s=CREATE_TIMEOUT_S, repeatable=True)
    )


def broker_urls(cluster_id: str) -> Call[Mapping[int, str]]:
    """Return the call that reads the URLs of the live brokers by id; none behind a proxy."""

    def parse(answer: Answer) -> dict[int, str]:
        rows = [row for row in answer.resources() if row.get("host") is not None]
        return {int(row["broker_id"]): _url(row) for row in rows}

    return Call(Request(method="GET", path=v3_path(cluster_id, "brokers")), parse)


def _url(row: dict[str, Any]) -> str:
    host = str(row["host"])
    return f"http://[{host}]:{row['port']}" if ":" in host else f"http://{host}:{row['port']}"


def new_producer_id(cluster_id: str) -> Call[int]:
    """Return the call that allocates a producer id that is never given out again.

    Its epochs begin with 0. An id whose answer is lost stays unused, which does no harm.
    """
    path = v3_path(cluster_id, "producer-ids")
    request = Request(method="POST", path=path, body=b"{}", repeatable=True)
    return read_one(request, lambda body: int(body["producer_id"]))
