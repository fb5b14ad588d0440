"""Request bodies of v2's consumer paths, decoded into the coordinator's requests.

`consumers.py` calls these functions. An unknown field is refused: a mistyped ``offsets`` would
otherwise mean "commit everything". Inside a row further fields are accepted, so that a record that
was read can be sent back as a position.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from aiohttp import hdrs

from broker.coordinator.assignors import ASSIGNORS, find_assignor
from broker.coordinator.group_messages import (
    AtTime,
    ConsumerSettings,
    Edge,
    GroupOffset,
    OffsetReset,
    SeekTarget,
    UnreadableRecords,
)
from broker.server.requests import UNKNOWN_EPOCH
from http_api.contract.errors import RestCode, RestError, excerpt, excerpt_of_value
from http_api.contract.group_shapes import (
    IGNORED_NAMED_MAX,
    ONE_SUBSCRIPTION_ONLY,
    check_name_in_body,
    is_setting_name,
)
from http_api.contract.media_types import V2, EmbeddedFormat, produce_format
from http_api.contract.operations.shared import ISOLATION
from http_api.server.request_parsing import (
    INT32_MAX,
    OFFSET_MAX,
    object_in,
    read_body,
    unsupported_media_type,
)
from raft_metadata.common.ids import InstanceId, PartitionId, TopicName, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aiohttp import web


MAX_ROWS = 10_000
"""Most partitions named in one body: as many as a topic may have."""
MAX_BODY_BYTES = 4_194_304
"""Largest body: `MAX_ROWS` rows with the longest names. Decoding more would block the loop."""
MAX_SETTINGS = 1_000
"""Most settings of one instance; Kafka's consumer has about eighty."""
NEW_INSTANCE = '{"name":…,"format":"json"}'
SUBSCRIPTION = '{"topics":[…]} or {"topic_pattern":…}'
PARTITIONS = '{"partitions":[{"topic":…,"partition":…}]}'
OFFSETS = '{"offsets":[{"topic":…,"partition":…,"offset":…}]}'
"""Objects that the bodies below hold, for messages."""
ASSIGNORS_NAMED_MAX = 10
RACK_CHARS_MAX = 255
STATIC_ID_CHARS_MAX = 249
_NUMBER = re.compile(r"-?[0-9]{1,18}")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


async def read_object(
    request: web.Request, limit: int, shape: str, *, empty_needs_no_type: bool = False
) -> dict[str, Any]:
    """Return the body's JSON object; ``{}`` for an empty body, whatever its Content-Type.

    ``shape`` shows an object that is expected. ``empty_needs_no_type``: a written ``{}`` needs no
    Content-Type either.

    Raises:
        RestError: 415 for another Content-Type, 400 for a body that is not a JSON object.
    """
    body = (await read_body(request, min(limit, MAX_BODY_BYTES))).strip()
    if not body or (empty_needs_no_type and body == b"{}"):
        return {}
    content_type = request.headers.get(hdrs.CONTENT_TYPE)
    if request.method == "POST" and produce_format(content_type) is None:
        raise unsupported_media_type(content_type, V2)
    return object_in(body, shape)


# creating an instance


@dataclass(frozen=True, slots=True, kw_only=True)
class NewInstance:
    """A decoded create body. ``instance`` None: a name is to be generated."""

    instance: InstanceId | None
    settings: ConsumerSettings
    client_id: str
    ignored: tuple[str, ...]
    """Kafka's settings that have no effect here, sorted; at most `IGNORED_NAMED_MAX` are named."""


def new_instance(fields: dict[str, Any]) -> NewInstance:
    """Return a decoded create body; a null counts as an absent key.

    Raises:
        RestError: 422 for a wrong value or an unknown key.
    """
    if len(fields) > MAX_SETTINGS:
        text = f"{len(fields)} settings: at most {MAX_SETTINGS} are taken"
        raise RestError(422, RestCode.CONSUMER_CONFIG, text)
    given = {key: value for key, value in fields.items() if value is not None}
    return NewInstance(
        ignored=_ignored(given),
        instance=_instance_name(given),
        client_id=_text(given, "client.id") or "",
        settings=_settings(given),
    )


def _bad_setting(key: str, value: object, expected: str) -> RestError:
    text = f"Invalid value {excerpt_of_value(value)} for '{excerpt(key)}': expected {expected}"
    return RestError(422, RestCode.CONSUMER_CONFIG, text)


def _flag(key: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    known = {"true": True, "false": False}.get(value.lower()) if isinstance(value, str) else None
    if known is None:
        raise _bad_setting(key, value, "true or false")
    return known


def _integer(key: str, value: object) -> int:
    number = _number(value)
    if number is None or abs(number) > INT32_MAX:
        raise _bad_setting(key, value, "an integer")
    return number


def _format(key: str, value: object) -> str:
    known = [embedded.value for embedded in EmbeddedFormat]
    if not isinstance(value, str) or value.lower() not in known:
        raise _bad_setting(key, value, f"one of {', '.join(known)}")
    return value.lower()


def _reset(key: str, value: object) -> OffsetReset:
    known = [reset.value for reset in OffsetReset]
    if not isinstance(value, str) or value.lower() not in known:
        raise _bad_setting(key, value, f"one of {', '.join(known)}")
    return OffsetReset(value.lower())


def _assignors(key: str, value: object) -> tuple[str, ...]:
    """Return the assignors that a list, or a text with commas, names; Kafka's names are taken."""
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list) or not 1 <= len(names) <= ASSIGNORS_NAMED_MAX:
        raise _bad_setting(key, value, f"one to {ASSIGNORS_NAMED_MAX} of {', '.join(ASSIGNORS)}")
    found = [find_assignor(name.strip()) if isinstance(name, str) else None for name in names]
    if None in found:
        raise _bad_setting(key, value, f"{', '.join(ASSIGNORS)}, or Kafka's name of an assignor")
    return tuple(dict.fromkeys(name for name in found if name is not None))


def _rack(key: str, value: object) -> str | None:
    if not isinstance(value, str) or len(value) > RACK_CHARS_MAX:
        raise _bad_setting(key, value, f"a string of at most {RACK_CHARS_MAX} characters")
    return value or None


def _unreadable(key: str, value: object) -> UnreadableRecords:
    known = [one.value for one in UnreadableRecords]
    if not isinstance(value, str) or value.lower() not in known:
        raise _bad_setting(key, value, f"one of {', '.join(known)}")
    return UnreadableRecords(value.lower())


def _static_id(key: str, value: object) -> str | None:
    if not isinstance(value, str) or len(value) > STATIC_ID_CHARS_MAX:
        raise _bad_setting(key, value, f"a string of at most {STATIC_ID_CHARS_MAX} characters")
    return value or None


_SETTINGS: Mapping[str, tuple[str, Callable[[str, Any], Any]]] = {
    "format": ("format", _format),
    "auto.offset.reset": ("auto_offset_reset", _reset),
    "enable.auto.commit": ("auto_commit", _flag),
    "auto.commit.enable": ("auto_commit", _flag),
    "auto.commit.interval.ms": ("auto_commit_interval_ms", _integer),
    "fetch.min.bytes": ("fetch_min_bytes", _integer),
    "responseMinBytes": ("fetch_min_bytes", _integer),
    "consumer.request.timeout.ms": ("request_timeout_ms", _integer),
    "requestWaitMs": ("request_timeout_ms", _integer),
    "session.timeout.ms": ("session_timeout_ms", _integer),
    "max.poll.records": ("max_poll_records", _integer),
    "client.rack": ("rack", _rack),
    "group.instance.id": ("static_id", _static_id),
    "partition.assignment.strategy": ("assignors", _assignors),
    "unreadable.records": ("unreadable_records", _unreadable),
}
"""Key of the body → (field of `ConsumerSettings`, function that decodes its value)."""
_NAMES = ("id", "name", "client.id")
ISOLATION_LEVEL = "isolation.level"
"""A setting that is checked and has no effect: only committed records are ever read."""


def _settings(given: dict[str, Any]) -> ConsumerSettings:
    """Return the settings of a create body; types are checked here, ranges by the coordinator."""
    chosen: dict[str, Any] = {}
    for key, (field, read) in _SETTINGS.items():
        if key in given:
            chosen[field] = read(key, given[key])
    level = given.get(ISOLATION_LEVEL, ISOLATION.default)
    if not isinstance(level, str) or level.lower() not in ISOLATION.words:
        raise _bad_setting(ISOLATION_LEVEL, level, " or ".join(ISOLATION.words))
    strimzi = "enable.auto.commit" in given and "auto.commit.enable" not in given
    return ConsumerSettings(**chosen, strimzi=strimzi)


def _ignored(given: dict[str, Any]) -> tuple[str, ...]:
    """Return the dotted keys that have no effect here, sorted; any other unknown key is refused."""
    unknown = sorted(given.keys() - _SETTINGS.keys() - {*_NAMES, ISOLATION_LEVEL})
    for key in unknown:
        if not is_setting_name(key):
            expected = ", ".join(("name", *_SETTINGS, ISOLATION_LEVEL))
            text = (
                f"Unrecognized field: {excerpt(key)}; expected {expected}, or a setting of Kafka's"
            )
            raise RestError(422, RestCode.CONSUMER_CONFIG, text)
    if len(unknown) > IGNORED_NAMED_MAX:
        more = len(unknown) - IGNORED_NAMED_MAX
        return (*unknown[:IGNORED_NAMED_MAX], f"and {more} more")
    return tuple(unknown)


def _instance_name(given: dict[str, Any]) -> InstanceId | None:
    """Return the name in ``id``, else in ``name`` (Confluent's order), else None."""
    for key in ("id", "name"):
        name = _text(given, key)
        if name is not None:
            return InstanceId(check_name_in_body("instance", name))
    return None


def _text(given: dict[str, Any], key: str) -> str | None:
    value = given.get(key)
    if value is not None and (not isinstance(value, str) or len(value) > 1_000):
        raise _bad_setting(key, value, "a string of at most 1000 characters")
    return value


# subscription, assignment, offsets, positions


def unprocessable(text: str) -> RestError:
    """Return the 422 for a body whose fields do not form a request."""
    return RestError(422, RestCode.UNPROCESSABLE, text)


def subscription(fields: dict[str, Any]) -> tuple[tuple[TopicName, ...] | None, str | None]:
    """Return (topics, pattern): exactly one of them is set; topics may be empty."""
    _only(fields, "topics", "topic_pattern")
    topics, pattern = fields.get("topics"), fields.get("topic_pattern")
    if topics is not None and not isinstance(topics, list):
        raise unprocessable("'topics': expected a list of topic names")
    if pattern is not None and not (isinstance(pattern, str) and pattern):
        raise unprocessable("'topic_pattern': expected a regular expression")
    if topics is not None and pattern is not None:
        raise RestError(409, RestCode.ILLEGAL_STATE, ONE_SUBSCRIPTION_ONLY)
    if topics is None:
        if pattern is None:
            raise unprocessable('expected {"topics": […]} or {"topic_pattern": "…"}')
        return None, pattern
    _count(topics)
    return tuple(dict.fromkeys(_topic(name) for name in topics)), None


def partitions(fields: dict[str, Any]) -> tuple[TopicPartition, ...]:
    """Return the partitions of ``{"partitions": [{"topic", "partition"}]}``, without repeats."""
    _only(fields, "partitions")
    rows = _rows(fields, "partitions")
    return tuple(dict.fromkeys(_place(row) for row in rows))


def commit(fields: dict[str, Any]) -> tuple[GroupOffset, ...] | None:
    """Return the offsets to commit; None for an empty body: everything delivered.

    The body is ``{"offsets": [{"topic", "partition", "offset", "leader_epoch"?, "metadata"?}]}``;
    the epoch is that of the offset as it is stored. Redpanda's clients name the list ``partitions``
    instead.
    """
    if not fields:
        return None
    _only(fields, "offsets", "partitions")
    name = "offsets" if "offsets" in fields else "partitions"
    _only(fields, name)
    found = []
    for row in _rows(fields, name):
        place = _place(row)
        metadata = row.get("metadata")
        if not isinstance(metadata, str | None):
            raise unprocessable("'metadata': expected a string")
        found.append(GroupOffset(*place, _offset(row), metadata or "", _leader_epoch(row)))
    return tuple(found)


def positions(fields: dict[str, Any]) -> tuple[SeekTarget, ...]:
    """Return the targets of a seek, by offset or by time.

    The body is ``{"offsets": [{"topic", "partition", "offset", "leader_epoch"?}], "timestamps":
    [{…, "timestamp"}]}``.
    """
    _only(fields, "offsets", "timestamps")
    if fields.get("offsets") is None and fields.get("timestamps") is None:
        raise unprocessable('expected {"offsets": [{"topic", "partition", "offset"}]}')
    found = []
    for row in _rows(fields, "offsets") if fields.get("offsets") is not None else ():
        place = _place(row)
        found.append(SeekTarget(*place, _offset(row), _leader_epoch(row)))
    for row in _rows(fields, "timestamps") if fields.get("timestamps") is not None else ():
        place = _place(row)
        found.append(SeekTarget(place.topic, place.partition, AtTime(_time_ms(row))))
    return tuple(found)


def beginnings(fields: dict[str, Any]) -> tuple[SeekTarget, ...]:
    """Return targets at the log start for ``{"partitions": [{"topic", "partition"}]}``."""
    return tuple(SeekTarget(*place, Edge.BEGINNING) for place in partitions(fields))


def ends(fields: dict[str, Any]) -> tuple[SeekTarget, ...]:
    """Return targets after the last record for ``{"partitions": [{"topic", "partition"}]}``."""
    return tuple(SeekTarget(*place, Edge.END) for place in partitions(fields))


def _only(fields: dict[str, Any], *known: str) -> None:
    unknown = sorted(fields.keys() - set(known))
    if unknown:
        text = f"Unrecognized field: {excerpt(unknown[0])}; expected {' or '.join(known)}"
        raise unprocessable(text)


def _rows(fields: dict[str, Any], name: str) -> list[dict[str, Any]]:
    rows = fields.get(name)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise unprocessable(f"'{name}': expected a list of objects")
    _count(rows)
    return rows


def _count(rows: list[Any]) -> None:
    if len(rows) > MAX_ROWS:
        text = f"the body names {len(rows)} topics or partitions, at most {MAX_ROWS} are taken"
        raise RestError(413, RestCode.TOO_LARGE, text)


def _topic(name: object) -> TopicName:
    if not isinstance(name, str):
        raise unprocessable(f"'topic' is {excerpt_of_value(name)}, expected a topic name")
    return TopicName(check_name_in_body("topic_name", name))


def _place(row: dict[str, Any]) -> TopicPartition:
    topic, number = _topic(row.get("topic")), _number(row.get("partition"))
    if number is None or not 0 <= number <= INT32_MAX:
        got = excerpt_of_value(row.get("partition"))
        raise unprocessable(f"'partition' is {got}, expected the number of a partition")
    return TopicPartition(topic, PartitionId(number))


def _offset(row: dict[str, Any]) -> int:
    number = _number(row.get("offset"))
    if number is None or not 0 <= number <= OFFSET_MAX:
        got = excerpt_of_value(row.get("offset"))
        raise unprocessable(f"'offset' is {got}, expected an offset from 0 on")
    return number


def _leader_epoch(row: dict[str, Any]) -> int:
    """Return the epoch of a row's offset (KIP-320); -1 if the row names none."""
    value = row.get("leader_epoch")
    number = UNKNOWN_EPOCH if value is None else _number(value)
    if number is None or not UNKNOWN_EPOCH <= number <= INT32_MAX:
        got = excerpt_of_value(value)
        raise unprocessable(f"'leader_epoch' is {got}, expected the epoch of the offset or null")
    return number


def _time_ms(row: dict[str, Any]) -> int:
    """Return a row's time in milliseconds since 1970.

    The value is ISO-8601 (UTC if it names no zone) or a number of milliseconds.
    """
    value = row.get("timestamp")
    number = _number(value)
    if number is None and isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            pass
        else:
            moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
            number = round((moment - _EPOCH).total_seconds() * 1000)
    if number is None or not 0 <= number <= OFFSET_MAX:
        got = excerpt_of_value(value)
        raise unprocessable(f"'timestamp' is {got}, expected a time like 2026-01-31T12:00:00Z")
    return number


def _number(value: object) -> int | None:
    """Return a JSON number or a string of digits (as of Redpanda's clients) as int, or None."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    return int(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else None
