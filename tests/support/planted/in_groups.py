"""Lines of the group coordinator's decisions, each switched off (rules G2, G4, G5; KIP-345)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from broker.coordinator import (
    commits,
    direct_members,
    instances,
    membership,
    rebalance,
    removal,
)
from broker.coordinator.group_state import Group, GroupsState, Instance
from broker.coordinator.read_tokens import DeliveredPart, ReadTokens
from broker.coordinator.records import (
    InstanceKey,
    InstanceValue,
    MemberKey,
    MemberValue,
    ShardRecord,
)
from raft_metadata.common.ids import InstanceId
from tests.support.planted.registry import Patch, group_fault


@group_fault("rule G4: a commit without its check of the member epoch", "G7")
def _no_epoch_check(patch: Patch) -> None:
    real = commits.commit_without_instance

    def commit(state: GroupsState, request: Any, *args: Any) -> None:
        if request.member_id is not None:
            _, member, _ = state.find(InstanceKey(request.group, request.member_id))
            request = dataclasses.replace(request, member_epoch=member.member_epoch)
        real(state, request, *args)

    patch.setattr(commits, "commit_without_instance", commit)


@group_fault("KIP-848: a partition is assigned before its owner gave it up", "G2")
def _assign_before_revoke(patch: Patch) -> None:
    def free(_group: Group, member: Instance) -> Any:
        return member.target - member.owned

    patch.setattr(rebalance, "free_partitions", free)
    patch.setattr(direct_members, "free_partitions", free)


@group_fault("rule G5: the server alone acknowledges a token reader's answers", "G11", "G10")
def _acknowledged_by_the_server(patch: Patch) -> None:
    real = ReadTokens.note

    def note(self: ReadTokens, parts: Iterable[DeliveredPart]) -> str:
        kept = list(parts)
        token = real(self, kept)
        for part in kept:
            part.position.confirmed = part.next
        self.root = self.newest
        self.answers.clear()
        return token

    patch.setattr(ReadTokens, "note", note)


@group_fault("KIP-345: a seat is given twice", "G12", "G2")
def _seat_given_twice(patch: Patch) -> None:
    def take_seat(
        state: GroupsState, group: Group, holder: Instance, name: InstanceId, value: InstanceValue
    ) -> None:
        old, member = holder.value, holder.member
        taken = dataclasses.replace(value, topics=old.topics, pattern=old.pattern)
        state.apply(ShardRecord(InstanceKey(group.name, name), taken))
        if member is not None:
            kept = MemberValue(member.epoch + 1, member.target, member.owned)
            state.apply(ShardRecord(MemberKey(group.name, name), kept))

    patch.setattr(membership, "take_seat", take_seat)
    patch.setattr(instances, "take_seat", take_seat)


@group_fault("KIP-211: an offset expires while its group uses it", "G15")
def _expires_in_use(patch: Patch) -> None:
    patch.setattr(removal, "topics_in_use", lambda *_: frozenset())
