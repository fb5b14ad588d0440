"""Operation that reads many partitions in one waiting request, and the bounds of its body."""

from __future__ import annotations

from typing import Any, Final

import orjson

from http_api.contract.media_types import JSON, NDJSON, PAGES
from http_api.contract.operations.declaration import CLUSTER, Body, Operation, Reply
from http_api.contract.operations.fetch_operations import RACK_CHARS_MAX
from http_api.contract.operations.parameters import INT32_MAX, OFFSET_MAX
from http_api.contract.operations.schemas import nullable
from http_api.contract.operations.shared import (
    BASE_URL,
    FROM_LEADER,
    ISOLATION,
    NAME_SCHEMA,
    TOPIC,
    TOPIC_ID,
)

BODY_BYTES_MAX: Final = 4 << 20
"""Largest body: 10,000 rows of 400 bytes; a topic's name may have 249."""
ROWS_MAX: Final = 10_000
"""Most partitions of one poll. They are decoded and placed in 30 ms."""
WAIT_MS_DEFAULT: Final = 1_000
MAX_BYTES_DEFAULT: Final = 8 << 20
MAX_PARTITION_BYTES_DEFAULT: Final = 1 << 20

_NUMBER: Final = {"type": "integer", "minimum": 0, "maximum": INT32_MAX}
_OFFSET: Final = {"type": "integer", "format": "int64", "minimum": 0, "maximum": OFFSET_MAX}
_ROW: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "topic_name": NAME_SCHEMA,
        "partition_id": _NUMBER,
        "offset": _OFFSET,
        "leader_epoch": nullable(_NUMBER)
        | {"description": "Epoch of the offset: of the record right before it."},
        "topic_id": {
            "type": ["string", "null"],
            "pattern": "^[A-Za-z0-9_-]{22}$",
            "description": "The topic that is meant: another one of its name is an error.",
        },
    },
    "required": ["topic_name", "partition_id", "offset"],
    "additionalProperties": False,
}


def _bytes(default: int, description: str) -> dict[str, Any]:
    return {"type": "integer", "minimum": 1, "default": default, "description": description}


_PAGE: Final = {
    "topic_name": TOPIC,
    "topic_id": TOPIC_ID,
    "partition_id": 1,
    "offset": 7,
    "next_offset": 8,
    "next_leader_epoch": 3,
    "leader_id": 2,
    "leader_epoch": 5,
    "leader_url": BASE_URL,
    "high_watermark": 8,
    "log_start_offset": 0,
    "records": 1,
}
_LINES: Final = (
    '{"batch":{"offset":7,"next_offset":8,"count":1,"timestamp":1795354422224,"key_format":"json",'
    '"value_format":"json","leader_epoch":3}}\n'
    '{"offset":7,"key":null,"value":{"a":1}}\n'
)
_EXAMPLE: Final = (
    orjson.dumps({"page": _PAGE | {"bytes": len(_LINES), "coding": None}}).decode() + "\n" + _LINES
)

POLL: Final = Operation(
    "POST",
    CLUSTER + "/records:poll",
    tag="Records",
    summary="Read many partitions at once, and wait for the first record",
    description=(
        "A pure read: it may be repeated. Pages stand one behind the other, in the order of the "
        "rows as far as the room goes: a line about the page, then exactly `bytes` bytes. Only "
        "partitions with records, news (with `news_only`) or an error have one; an error has "
        "`error_code`, `message` and `retriable`. Nothing in time: an empty body."
    ),
    body=Body(
        fields={
            "partitions": {
                "type": "array",
                "minItems": 1,
                "maxItems": ROWS_MAX,
                "items": _ROW,
                "description": "Each partition once.",
            },
            "wait_ms": {
                "type": "integer",
                "minimum": 0,
                "default": WAIT_MS_DEFAULT,
                "description": "Milliseconds to wait for the first page.",
            },
            "min_bytes": _bytes(1, "Bytes that one partition must have to end the wait."),
            "max_bytes": _bytes(MAX_BYTES_DEFAULT, "Room for the records of all pages."),
            "max_partition_bytes": _bytes(
                MAX_PARTITION_BYTES_DEFAULT, "Most bytes of lines in one page; it has one record."
            ),
            "news_only": {
                "type": "boolean",
                "default": False,
                "description": "No records: only where each partition ends, and its `epochs`.",
            },
            "rack": {
                "type": ["string", "null"],
                "minLength": 1,
                "maxLength": RACK_CHARS_MAX,
                "description": (
                    "Where the reader is: an in-sync replica there may serve it, and is named in "
                    "the page by `served_by` and `served_by_url`."
                ),
            },
            "zstd": {
                "type": "boolean",
                "default": False,
                "description": f"Stored zstd frames may be sent; the answer is `{PAGES}`.",
            },
            ISOLATION.name: {
                "enum": [*ISOLATION.words, None],
                "description": ISOLATION.description,
            },
        },
        needed=("partitions",),
        example={"partitions": [{"topic_name": TOPIC, "partition_id": 1, "offset": 7}]},
    ),
    replies=(Reply(200, "Pages.", {NDJSON: _EXAMPLE, PAGES: _EXAMPLE}),),
    errors=FROM_LEADER,
    error_type=JSON,
    carries_records=True,
)
"""Codes of single rows are fields of their pages: 40002, 40402, 40950, 40951, 50302."""
