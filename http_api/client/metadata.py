"""Calls about the metadata itself: the quorum, the cluster's health, the log and the image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from http_api.client.calls import Answer, Call, ProtocolError, Request, path_of
from http_api.contract.media_types import NDJSON

LOG_MARGIN_S = 10.0
"""A long poll of the log that is this late isn't coming."""
NEXT_OFFSET_HEADER = "quorumlog-next-offset"
END_OFFSET_HEADER = "quorumlog-end-offset"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPage:
    """Facts in order, and where to read on."""

    facts: Sequence[Mapping[str, Any]]
    next_offset: int
    end_offset: int


def quorum(cluster_id: str) -> Call[dict[str, Any]]:
    """``KafkaQuorum``."""
    return Call(Request(method="GET", path=_path(cluster_id, "quorum")), _object)


def health(cluster_id: str, *, timeout_s: float = 5.0) -> Call[dict[str, Any]]:
    """``KafkaClusterHealth``."""
    path = f"{_path(cluster_id)}:health"
    return Call(Request(method="GET", path=path, timeout_s=timeout_s), _object)


def image(cluster_id: str, parts: Sequence[str]) -> Call[Any]:
    """Any place of the broker's image; `ApiError` 404 names what there is instead."""
    path = _path(cluster_id, "metadata", "image", *parts)
    return Call(Request(method="GET", path=path), lambda answer: answer.json())


def log(cluster_id: str, offset: int, *, wait_ms: int = 0, facts_max: int = 2_000) -> Call[LogPage]:
    """The log from ``offset`` on; waits at its end."""

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
        path=path_of("v3", "clusters", cluster_id, "metadata", "log", query=query),
        accept=NDJSON,
        timeout_s=wait_ms / 1000 + LOG_MARGIN_S,
    )
    return Call(request, parse)


def _path(cluster_id: str, *parts: object) -> str:
    return path_of("v3", "clusters", cluster_id, *parts)


def _object(answer: Answer) -> dict[str, Any]:
    body = answer.json()
    if not isinstance(body, dict):
        msg = f"expected an object, got {answer.body[:100]!r}"
        raise ProtocolError(msg)
    return body
