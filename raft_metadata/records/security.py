"""Records about users, access rules and quotas: stored and replicated, but not enforced yet.

Names and values are Kafka's (``kafka-acls``, KIP-546, KIP-554) in lower case; Kafka's REST API has
them in upper case, and the HTTP layer translates. Bytes are base64 text.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class QuotaEntityType(Enum):
    """The kind of entity that a quota can be set for (KIP-546)."""

    USER = "user"
    CLIENT_ID = "client-id"
    IP = "ip"


class QuotaEntity(NamedTuple):
    """A part of the entity that a quota is for; ``name`` None: the default of that type."""

    type: QuotaEntityType
    name: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientQuotaRecord:
    """A quota was set, or removed when ``value`` is None."""

    entity: tuple[QuotaEntity, ...]
    """Sorted by type, each type at most once."""
    key: str
    """``producer_byte_rate``, ``consumer_byte_rate``, ``request_percentage``, …"""
    value: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AclRecord:
    """An access rule was added."""

    acl_id: str
    """22 characters by which `RemoveAclRecord` refers to this rule."""
    resource_type: str
    resource_name: str
    pattern_type: str
    principal: str
    host: str
    operation: str
    permission: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveAclRecord:
    """An access rule was removed."""

    acl_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UserScramRecord:
    """A user's salted password was set (KIP-554); the password itself is never stored."""

    name: str
    mechanism: str
    salt: str
    stored_key: str
    server_key: str
    iterations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveUserScramRecord:
    """A user's password for this mechanism was removed."""

    name: str
    mechanism: str
