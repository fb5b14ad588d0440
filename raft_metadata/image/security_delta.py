"""Applying records about users, access rules and quotas, which are stored but not enforced yet."""

from __future__ import annotations

from types import MappingProxyType
from typing import TypeAlias, assert_never

from raft_metadata.image.metadata_image import MetadataImage
from raft_metadata.image.tables import TableDelta, table_delta
from raft_metadata.records.security import (
    AclRecord,
    ClientQuotaRecord,
    RemoveAclRecord,
    RemoveUserScramRecord,
    UserScramRecord,
)

SecurityRecord: TypeAlias = (
    ClientQuotaRecord | AclRecord | RemoveAclRecord | UserScramRecord | RemoveUserScramRecord
)
SECURITY_RECORDS = (
    ClientQuotaRecord,
    AclRecord,
    RemoveAclRecord,
    UserScramRecord,
    RemoveUserScramRecord,
)


class SecurityDelta:
    """Changes of quotas, access rules and users. Owned by a `MetadataDelta`."""

    def __init__(self, image: MetadataImage) -> None:
        self.quotas = TableDelta(image.quotas)
        self.acls = TableDelta(image.acls)
        self.users = TableDelta(image.users)

    @property
    def is_empty(self) -> bool:
        """True if nothing changed."""
        return self.quotas.is_empty and self.acls.is_empty and self.users.is_empty

    def replay(self, record: SecurityRecord) -> None:
        """Fold in one record."""
        match record:
            case ClientQuotaRecord():
                self._set_quota(record)
            case AclRecord():
                assert self.acls.get(record.acl_id) is None, record
                self.acls.put(record.acl_id, record)
            case RemoveAclRecord():
                assert self.acls.get(record.acl_id) is not None, record
                self.acls.remove(record.acl_id)
            case UserScramRecord():
                self.users.put((record.name, record.mechanism), record)
            case RemoveUserScramRecord():
                assert self.users.get((record.name, record.mechanism)) is not None, record
                self.users.remove((record.name, record.mechanism))
            case _:
                assert_never(record)

    def _set_quota(self, record: ClientQuotaRecord) -> None:
        values = dict(self.quotas.get(record.entity) or {})
        if record.value is None:
            values.pop(record.key, None)
        else:
            values[record.key] = record.value
        if values:
            self.quotas.put(record.entity, MappingProxyType(values))
        else:
            self.quotas.remove(record.entity)

    @classmethod
    def between(cls, before: MetadataImage, after: MetadataImage) -> SecurityDelta:
        """Return the delta that leads from one image's tables to another's."""
        delta = cls(before)
        delta.quotas = table_delta(before.quotas, after.quotas)
        delta.acls = table_delta(before.acls, after.acls)
        delta.users = table_delta(before.users, after.users)
        return delta
