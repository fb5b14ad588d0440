"""Calls about the metadata: the quorum, the cluster's health, the metadata log and its image.

Used by `quorumlog quorum`, `metadata` and `cluster health`. Answers are returned as decoded JSON.
Each function returns a `Call`; nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from http_api.client.calls import Answer, Call, Request, v3_path
from http_api.client.client_errors import ProtocolError
from http_api.contract.media_types import NDJSON

HEALTH_TIMEOUT_S = 5.0
LOG_MARGIN_S = 10.0
"""Seconds beyond its wait after which a long poll of the log is given up."""
NEXT_OFFSET_HEADER = "quorumlog-next-offset"
END_OFFSET_HEADER = "quorumlog-end-offset"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPage:
    """Facts of the metadata log in order, and the offset at which the next page starts."""

    facts: Sequence[Mapping[str, Any]]
    next_offset: int
    end_offset: int


def quorum(cluster_id: str) -> Call[dict[str, Any]]:
    """Return the call that reads the state of the quorum (``KafkaQuorum``)."""
    return Call(Request(method="GET", path=v3_path(cluster_id, "quorum")), _object)


def health(cluster_id: str) -> Call[dict[str, Any]]:
    """Return the call that reads the cluster's health with its reasons (``KafkaClusterHealth``)."""
    path = f"{v3_path(cluster_id)}:health"
    return Call(Request(method="GET", path=path, timeout_s=HEALTH_TIMEOUT_S), _object)


def image(cluster_id: str, parts: Sequence[str]) -> Call[Any]:
    """Return the call that reads a part of the broker's metadata image.

    Raises `ApiError` 404 for a path that does not exist; its message lists the names that do.
    """
    path = v3_path(cluster_id, "metadata", "image", *parts)
    return Call(Request(method="GET", path=path), Answer.json)


def log(cluster_id: str, offset: int, *, wait_ms: int = 0, facts_max: int = 2_000) -> Call[LogPage]:
    """Return the call that reads the metadata log from ``offset``.

    At the end of the log the broker waits up to ``wait_ms`` for a fact before it answers.
    """

    def parse(answer: Answer) -> LogPage:
        try:
            facts = [orjson.loads(line) for line in answer.body.splitlines()]
            return LogPage(
                facts=facts,
                next_offset=int(answer.headers[NEXT_OFFSET_HEADER]),
                end_offset=int(answer.headers[END_OFFSET_HEADER]),
            )
        except (ValueError, KeyError) as error:
            msg = f"expected a page of the metadata log, got {answer.body[:100]!r}"
            raise ProtocolError(msg) from error

    query = {"offset": offset, "timeout": wait_ms, "max": facts_max}
    request = Request(
        method="GET",
        path=v3_path(cluster_id, "metadata", "log", query=query),
        accept=NDJSON,
        timeout_s=wait_ms / 1000 + LOG_MARGIN_S,
    )
    return Call(request, parse)


def _object(answer: Answer) -> dict[str, Any]:
    body = answer.json()
    if not isinstance(body, dict):
        msg = f"expected an object, got {answer.body[:100]!r}"
        raise ProtocolError(msg)
    return body
