"""Client quotas: the valid entities, keys and values (KIP-546). Pure deciders."""

from __future__ import annotations

import ipaddress
import math

from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import MetadataOffset
from raft_metadata.image.metadata_image import MetadataImage
from raft_metadata.records.commands import AlterAnswer, AlterClientQuotas
from raft_metadata.records.records import ClientQuotaRecord, QuotaEntity, QuotaEntityType

QUOTA_ENTITIES_MAX = 10_000
"""Entities with quotas of their own; each is kept in memory on every node."""
NAME_CHARS_MAX = 255

_RATES = frozenset(
    {"producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate"}
)
_WHOLE = frozenset({"producer_byte_rate", "consumer_byte_rate", "connection_creation_rate"})
_KEYS = {
    frozenset({QuotaEntityType.USER}): _RATES,
    frozenset({QuotaEntityType.CLIENT_ID}): _RATES,
    frozenset({QuotaEntityType.USER, QuotaEntityType.CLIENT_ID}): _RATES,
    frozenset({QuotaEntityType.IP}): frozenset({"connection_creation_rate"}),
}
"""The valid quota keys of each kind of entity, as in Kafka."""


def decide_alter_client_quotas(
    image: MetadataImage, command: AlterClientQuotas
) -> tuple[tuple[ClientQuotaRecord, ...], AlterAnswer]:
    """Make all changes or none; an unchanged value adds no record.

    Raises INVALID_REQUEST, POLICY_VIOLATION (too many entities).
    """
    entity = _checked_entity(command.entity)
    keys = _KEYS[frozenset(part.type for part in entity)]
    before = image.quotas.get(entity, {})
    if not before and len(image.quotas) >= QUOTA_ENTITIES_MAX:
        message = f"{len(image.quotas)} entities have quotas, at most {QUOTA_ENTITIES_MAX} can"
        raise KafkaError(ErrorCode.POLICY_VIOLATION, message)
    records = []
    for key, value in sorted(command.changes.items()):
        if key not in keys:
            raise _refused(f"unknown quota {key[:100]!r}: expected {', '.join(sorted(keys))}")
        if value is not None:
            _check_value(key, value)
        if value != before.get(key):
            records.append(ClientQuotaRecord(entity=entity, key=key, value=value))
    next_offset = MetadataOffset(image.next_offset + len(records))
    return tuple(records), AlterAnswer(next_offset=next_offset)


def _checked_entity(entity: tuple[QuotaEntity, ...]) -> tuple[QuotaEntity, ...]:
    """Return the entity sorted by type; raise INVALID_REQUEST for an invalid one."""
    types = [part.type for part in entity]
    if len(set(types)) != len(types) or frozenset(types) not in _KEYS:
        named = ", ".join(sorted(each.value for each in types)) or "nothing"
        raise _refused(f"a quota is for a user, a client-id, both, or an ip, not for {named}")
    for part in entity:
        if part.name is None:
            continue
        if not 1 <= len(part.name) <= NAME_CHARS_MAX:
            raise _refused(f"a {part.type.value} has 1 to {NAME_CHARS_MAX} characters")
        if part.type is QuotaEntityType.IP and not _is_address(part.name):
            raise _refused(f"{part.name!r} is not an IP address")
    return tuple(sorted(entity, key=lambda part: part.type.value))


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _check_value(key: str, value: float) -> None:
    whole = key in _WHOLE
    if not (math.isfinite(value) and value > 0) or (whole and value != int(value)):
        expected = "a whole number above 0" if whole else "a number above 0"
        raise _refused(f"{key} = {value}: expected {expected}")


def _refused(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)
