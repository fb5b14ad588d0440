"""Access rules, users' credentials and client quotas: what may be stored. Not enforced yet.

`admin_control` calls these pure deciders; each returns the records to append or raises a KafkaError
that names the value (KIP-546, KIP-554).
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import math
import re
from collections.abc import Iterable
from dataclasses import replace

from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.image.metadata_image import MetadataImage
from raft_metadata.records.commands import AlterAcls, AlterAnswer, AlterClientQuotas, AlterUsers
from raft_metadata.records.records import (
    AclRecord,
    ClientQuotaRecord,
    MetadataRecord,
    QuotaEntity,
    QuotaEntityType,
    RemoveAclRecord,
    RemoveUserScramRecord,
    UserScramRecord,
)

ACL_CHANGES_MAX = 1_000
"""Changes in one command: their records (800 bytes each at most, usually 250) fit one batch."""
ACLS_MAX = 20_000
USER_CHANGES_MAX = 500
USERS_MAX = 20_000
NAME_CHARS_MAX = 249
SALT_BYTES_MAX = 128

CLUSTER_RESOURCE = "kafka-cluster"
"""The name of the only resource of type ``cluster``."""

_OPERATIONS = {
    "topic": {
        "read", "write", "create", "describe", "delete", "alter",
        "describe_configs", "alter_configs",
    },
    "group": {"read", "describe", "delete", "describe_configs", "alter_configs"},
    "cluster": {
        "create", "cluster_action", "describe_configs", "alter_configs", "idempotent_write",
        "alter", "describe",
    },
    "transactional_id": {"describe", "write", "two_phase_commit"},
    "delegation_token": {"describe"},
    "user": {"create_tokens", "describe_tokens"},
}  # fmt: skip
"""Operations on each type of resource, as in ``AclEntry.supportedOperations``, without ``all``."""
_PATTERNS = ("literal", "prefixed")
_PERMISSIONS = ("allow", "deny")
_ACL_ID = re.compile(r"[A-Za-z0-9_-]{22}")
_PRINCIPAL = re.compile(r"[A-Za-z]{1,32}:.{1,249}")
_HOST = re.compile(r"\*|[0-9A-Fa-f.:]{2,45}")

_KEY_BYTES = {"SCRAM-SHA-256": 32, "SCRAM-SHA-512": 64}
"""Length in bytes of the keys of each mechanism."""
ITERATIONS_MIN, ITERATIONS_MAX = 4_096, 16_384


def _refused(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)


# ---- access rules


def decide_alter_acls(
    image: MetadataImage, command: AlterAcls
) -> tuple[tuple[MetadataRecord, ...], AlterAnswer]:
    """Add and remove all these access rules, or none.

    A rule that exists already under another id is not added again; removing an unknown one changes
    nothing. Raises INVALID_REQUEST, POLICY_VIOLATION (too many).
    """
    count = len(command.add) + len(command.remove)
    if count > ACL_CHANGES_MAX:
        raise _refused(f"{count} changes of access rules, at most {ACL_CHANGES_MAX} at once")
    records: list[MetadataRecord] = [
        RemoveAclRecord(acl_id=acl_id)
        for acl_id in dict.fromkeys(command.remove)
        if acl_id in image.acls
    ]
    gone = set(command.remove)
    known = {_content(acl) for acl in image.acls.values() if acl.acl_id not in gone}
    ids = image.acls.keys() - gone
    for acl in command.add:
        _check_acl(acl)
        if _content(acl) in known:
            continue
        if acl.acl_id in ids:
            raise _refused(f"access rule {acl.acl_id} exists already, with other contents")
        known.add(_content(acl))
        ids.add(acl.acl_id)
        records.append(acl)
    if len(known) > ACLS_MAX:
        message = f"{len(known)} access rules, at most {ACLS_MAX} can be kept"
        raise KafkaError(ErrorCode.POLICY_VIOLATION, message)
    return tuple(records), AlterAnswer(next_offset=image.offset_after(len(records)))


def _content(acl: AclRecord) -> AclRecord:
    """Return a rule without its id."""
    return replace(acl, acl_id="")


def _check_acl(acl: AclRecord) -> None:
    _one_of("resource type", acl.resource_type, _OPERATIONS)
    _one_of("pattern type", acl.pattern_type, _PATTERNS)
    _one_of("permission", acl.permission, _PERMISSIONS)
    allowed = {"all", *_OPERATIONS[acl.resource_type]}
    _one_of(f"operation on a {acl.resource_type}", acl.operation, sorted(allowed))
    if not _ACL_ID.fullmatch(acl.acl_id):
        raise _refused(f"access rule id {acl.acl_id[:40]!r} is not 22 characters of base64")
    if not 1 <= len(acl.resource_name) <= NAME_CHARS_MAX:
        raise _refused(f"a resource name has 1 to {NAME_CHARS_MAX} characters")
    if acl.resource_type == "cluster" and acl.resource_name != CLUSTER_RESOURCE:
        raise _refused(f"the only cluster is {CLUSTER_RESOURCE}, not {acl.resource_name!r}")
    if not _PRINCIPAL.fullmatch(acl.principal):
        raise _refused(f"principal {acl.principal[:300]!r}: expected Type:name, as User:alice")
    if not _HOST.fullmatch(acl.host):
        raise _refused(f"host {acl.host[:60]!r}: expected an IP address or *")


def _one_of(what: str, value: str, choices: Iterable[str]) -> None:
    words = tuple(choices)
    if value not in words:
        raise _refused(f"unknown {what} {value[:60]!r}: expected {', '.join(words)}")


# ---- users


def decide_alter_users(
    image: MetadataImage, command: AlterUsers
) -> tuple[tuple[MetadataRecord, ...], AlterAnswer]:
    """Set and remove all these credentials, or none (KIP-554); an unchanged one adds no record.

    Raises INVALID_REQUEST for a credential named twice, an unknown one to remove, or a bad field,
    and POLICY_VIOLATION for too many.
    """
    count = len(command.put) + len(command.remove)
    if count > USER_CHANGES_MAX:
        raise _refused(f"{count} changes of users, at most {USER_CHANGES_MAX} at once")
    named: set[tuple[str, str]] = set()
    keys = [(put.name, put.mechanism) for put in command.put]
    for key in (*keys, *((gone.name, gone.mechanism) for gone in command.remove)):
        if key in named:
            raise _refused(f"user {key[0][:100]!r} is named twice for {key[1][:40]}")
        named.add(key)
    records: list[MetadataRecord] = []
    for gone in command.remove:
        _check_user(gone.name, gone.mechanism)
        if (gone.name, gone.mechanism) not in image.users:
            raise _refused(f"user {gone.name!r} has no password for {gone.mechanism}")
        records.append(RemoveUserScramRecord(name=gone.name, mechanism=gone.mechanism))
    for put in command.put:
        _check_credential(put)
        if image.users.get((put.name, put.mechanism)) != put:
            records.append(put)
    if len(image.users.keys() | named) > USERS_MAX:
        message = f"at most {USERS_MAX} credentials of users can be kept"
        raise KafkaError(ErrorCode.POLICY_VIOLATION, message)
    return tuple(records), AlterAnswer(next_offset=image.offset_after(len(records)))


def _check_user(name: str, mechanism: str) -> None:
    if not 1 <= len(name) <= NAME_CHARS_MAX or not name.isprintable():
        raise _refused(f"a user's name has 1 to {NAME_CHARS_MAX} printable characters")
    _one_of("mechanism", mechanism, _KEY_BYTES)


def _check_credential(user: UserScramRecord) -> None:
    _check_user(user.name, user.mechanism)
    if not ITERATIONS_MIN <= user.iterations <= ITERATIONS_MAX:
        message = f"{user.iterations} iterations: expected {ITERATIONS_MIN} to {ITERATIONS_MAX}"
        raise _refused(message)
    salt = _decoded("salt", user.salt)
    if not 1 <= len(salt) <= SALT_BYTES_MAX:
        raise _refused(f"a salt has 1 to {SALT_BYTES_MAX} bytes")
    length = _KEY_BYTES[user.mechanism]
    for what, text in (("stored_key", user.stored_key), ("server_key", user.server_key)):
        if len(_decoded(what, text)) != length:
            raise _refused(f"the {what} of {user.mechanism} has {length} bytes")


def _decoded(what: str, text: str) -> bytes:
    """Return the bytes of base64 text; the error never shows the text, which may be a secret."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise _refused(f"the {what} is not base64") from None


QUOTA_ENTITIES_MAX = 10_000
"""Entities with quotas of their own; each is kept in memory on every node."""
ENTITY_NAME_CHARS_MAX = 255

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
    next_offset = image.offset_after(len(records))
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
        if not 1 <= len(part.name) <= ENTITY_NAME_CHARS_MAX:
            raise _refused(f"a {part.type.value} has 1 to {ENTITY_NAME_CHARS_MAX} characters")
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
