"""Facts about users, access rules and quotas: stored, followed and dumped, enforced by nobody yet.

Names and values are Kafka's (``kafka-acls``, KIP-546, KIP-554), lower case as its REST API has them
upper: the doors translate. Bytes stand as base64.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class QuotaEntityType(Enum):
    """What a quota can hang on (KIP-546)."""

    USER = "user"
    CLIENT_ID = "client-id"
    IP = "ip"


class QuotaEntity(NamedTuple):
    """One part of whom a quota is for; ``name`` None: the default of that type."""

    type: QuotaEntityType
    name: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientQuotaRecord:
    """A quota was set, or taken away when ``value`` is None."""

    entity: tuple[QuotaEntity, ...]
    """Sorted by type, each type at most once."""
    key: str
    """``producer_byte_rate``, ``consumer_byte_rate``, ``request_percentage``, …"""
    value: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AclRecord:
    """An access rule was added."""

    acl_id: str
    """22 characters: what `RemoveAclRecord` names."""
    resource_type: str
    resource_name: str
    pattern_type: str
    principal: str
    host: str
    operation: str
    permission: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveAclRecord:
    """An access rule was taken away."""

    acl_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UserScramRecord:
    """A user's salted password was set (KIP-554): never the password itself."""

    name: str
    mechanism: str
    salt: str
    stored_key: str
    server_key: str
    iterations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveUserScramRecord:
    """A user lost the password of this mechanism."""

    name: str
    mechanism: str
