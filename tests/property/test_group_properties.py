"""Groups under any order of calls: no two owners, no partition forgotten, no commit taken back."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from broker.coordinator.group_messages import ConsumerSettings, Membership, OffsetReset
from broker.coordinator.rebalance import drop_deleted_topics, retarget
from raft_metadata.common.errors import KafkaError
from raft_metadata.common.ids import InstanceId
from tests.support.group_epochs import no_epoch_is_given_again
from tests.support.group_world import BY_HAND, G, GroupWorld, T, facts, place

NAMES = st.sampled_from(["a", "b", "c", "d"])
DIRECT = st.sampled_from(["e", "x", "y"])
NUMBERS = st.integers(0, 5)


class Groups(RuleBasedStateMachine):
    """Every call a client can make, in any order, with failovers and time between them."""

    @initialize(partitions=st.integers(1, 5))
    def begin(self, partitions: int) -> None:
        self.world = GroupWorld(partitions)
        self.processed: dict[int, int] = {}
        """Partition → how far any client was ever given records, without a gap."""
        self.sought: set[int] = set()
        self.committed: dict[int, int] = {}
        self.beliefs: dict[str, tuple[int, dict[int, int], set[int]]] = {}
        """Member that reads for itself → its epoch, positions, and what it is to give up."""
        self.taken_over: set[str] = set()
        """Members whose name another process has taken, with what they were to give up."""
        self.compacted = 0
        """Entries in front that are no history any more, but what compaction left of one."""

    @rule(name=NAMES, auto=st.booleans(), latest=st.booleans())
    def join(self, name: str, auto: bool, latest: bool) -> None:
        reset = OffsetReset.LATEST if latest else OffsetReset.EARLIEST
        chosen = ConsumerSettings(
            auto_commit=auto, auto_offset_reset=reset, session_timeout_ms=10_000
        )
        with suppress(KafkaError):
            self.world.join(name, chosen)

    @rule(name=NAMES)
    def leave(self, name: str) -> None:
        with suppress(KafkaError):
            self.world.delete(name)
        group = self.world.state.groups.get(G)
        if group is not None and not group.instances:  # whoever comes next resolves anew
            self.processed = {place.partition: one.offset for place, one in group.offsets.items()}

    @rule(name=NAMES, count=st.integers(1, 9))
    def read(self, name: str, count: int) -> None:
        with suppress(KafkaError):
            for number, (begin, end) in self.world.read(name, count).items():
                if number not in self.sought:
                    assert begin <= self.processed.get(number, 0), "a record was skipped"
                self.processed[number] = max(end, self.processed.get(number, 0))

    @rule(name=NAMES, number=NUMBERS, offset=st.integers(1, 40))
    def commit(self, name: str, number: int, offset: int) -> None:
        with suppress(KafkaError):
            self.world.commit(name, number, offset)
            assert place(number) in self.world.instance(name).owned

    @rule(name=DIRECT, static=st.booleans(), by_range=st.booleans())
    def join_directly(self, name: str, static: bool, by_range: bool) -> None:
        chosen = replace(
            BY_HAND,
            session_timeout_ms=10_000,
            static_id="seat" if static else None,
            assignors=("range",) if by_range else (),
        )
        group = self.world.state.groups.get(G)
        if group is not None and InstanceId(name) in group.instances:
            self.taken_over.add(name)
        with suppress(KafkaError):
            self.take(name, self.world.join_directly(name, chosen))

    @rule(name=DIRECT, gives_up=st.booleans(), count=st.integers(0, 9))
    def beat(self, name: str, gives_up: bool, count: int) -> None:
        """A heartbeat; before it the member reads, and it may still name what was revoked."""
        epoch, owned, revoked = self.beliefs.get(name, (-1, {}, set()))
        for number, begin in owned.items():
            end = begin + count
            self.processed[number] = max(end, self.processed.get(number, 0))
            owned[number] = end
        named = set(owned) | (set() if gives_up else revoked)
        with suppress(KafkaError):
            self.take(name, self.world.beat(name, epoch, *named))

    @rule(name=DIRECT, older=st.integers(0, 3))
    def send_a_late_heartbeat(self, name: str, older: int) -> None:
        with suppress(KafkaError):
            self.world.beat(name, self.beliefs.get(name, (-1, {}, set()))[0] - older)

    @rule(name=DIRECT, older=st.integers(0, 2))
    def commit_directly(self, name: str, older: int) -> None:
        epoch, owned, _ = self.beliefs.get(name, (-1, {}, set()))
        for number, offset in owned.items():
            with suppress(KafkaError):
                self.world.commit_group(number, offset, name, epoch - older, offset)
                assert older == 0, "G7: a commit of an older epoch was taken"

    @rule(name=DIRECT, keep_seat=st.booleans())
    def leave_directly(self, name: str, keep_seat: bool) -> None:
        self.beliefs.pop(name, None)
        with suppress(KafkaError):
            self.world.leave(name, keep_seat=keep_seat)

    def take(self, name: str, found: Membership) -> None:
        """Read what an answer assigns. Nothing of it is another live member's."""
        before = self.beliefs.get(name, (-1, {}, set()))
        assert found.member_epoch >= before[0], "G3: a member epoch went back"
        owned = {int(one.partition): one.offset or 0 for one in found.assignment}
        for number, offset in owned.items():
            if number not in self.sought:
                assert offset <= self.processed.get(number, 0), "a record was skipped"
        for other, (epoch, theirs, _) in self.beliefs.items():
            member = self.world.group.instances.get(InstanceId(other))
            if other != name and member is not None and member.member_epoch == epoch:
                assert not owned.keys() & theirs.keys(), "G2: two owners"
        positions = {number: before[1].get(number, offset) for number, offset in owned.items()}
        revoked = {int(one.partition) for one in found.revoked}
        self.beliefs[name] = found.member_epoch, positions, revoked

    @rule(name=NAMES)
    def commit_everything(self, name: str) -> None:
        with suppress(KafkaError):
            self.world.commit_all(name)

    @rule(name=NAMES, number=NUMBERS, offset=st.integers(0, 40))
    def seek(self, name: str, number: int, offset: int) -> None:
        with suppress(KafkaError):
            self.world.seek(name, number, offset)
            self.sought.add(number)

    @rule(ms=st.integers(0, 12_000))
    def time_passes(self, ms: int) -> None:
        self.world.pass_time(ms, rebalance_timeout_ms=5_000)

    @rule(more=st.integers(0, 2))
    def partitions_grow(self, more: int) -> None:
        self.world.topics = {T: facts(self.world.topics[T].partitions_count + more)}
        for group in list(self.world.state.groups.values()):
            drop_deleted_topics(self.world.state, group, self.world.topics)
            retarget(self.world.state, group, self.world.topics)
        self.world.write()

    @rule()
    def fail_over(self) -> None:
        before = self.described()
        self.world.fail_over()
        assert self.described() == before

    @rule(data=st.data())
    def only_part_of_the_log_survives(self, data: st.DataObject) -> None:
        """Any prefix is a state that could have been: no two owners, and no epoch comes twice."""
        length = data.draw(st.integers(self.compacted, len(self.world.log)))
        other = GroupWorld()
        other.topics = self.world.topics
        other.log = self.world.log[:length]
        other.fail_over()
        _one_owner(other)
        no_epoch_is_given_again(other)

    @rule(share=st.floats(0, 1), ahead=st.floats(0, 1), tombstones_go=st.booleans())
    def compact(self, share: float, ahead: float, tombstones_go: bool) -> None:
        """Invariant G9: what compaction keeps says the same, and what it has replaced so far.

        The cleaner replaces the first segments while it has read ``ahead`` of them.
        """
        before, written = self.described(), self.world.log
        end = max(int(share * len(written)), self.compacted)
        known = end + int(ahead * (len(written) - end))
        newest = {(type(entry.key), entry.key): at for at, entry in enumerate(written[:known])}
        kept = [
            entry
            for at, entry in enumerate(written[:end])
            if newest[type(entry.key), entry.key] == at
            and not (tombstones_go and entry.value is None)
        ]
        self.world.log = kept + written[end:]
        self.compacted = len(kept) + known - end
        self.world.fail_over()
        assert self.described() == before

    def described(self) -> object:
        group = self.world.state.groups.get(G)
        if group is None:
            return None
        members = {
            name: (one.owned, one.target, one.member_epoch, dict(one.seeks))
            for name, one in group.instances.items()
        }
        return members, dict(group.offsets), dict(group.starts), group.epoch

    @invariant()
    def every_partition_has_at_most_one_owner(self) -> None:
        """G2, and G6: what is free has no owner."""
        _one_owner(self.world)

    @invariant()
    def a_member_at_its_groups_epoch_owns_nothing_of_another(self) -> None:
        """G4: it has given up what the present targets give to others."""
        group = self.world.state.groups.get(G)
        for member in () if group is None else group.members.values():
            if group is not None and member.member_epoch >= group.epoch:
                is_settled = member.owned <= member.target
                is_taken = member.value.settings.static_id or member.name in self.taken_over
                assert is_settled or is_taken

    @invariant()
    def every_partition_is_somebodys_target(self) -> None:
        """G1: in exactly one target."""
        group = self.world.state.groups.get(G)
        if group is None or not group.members:
            return
        targets = [one for member in group.members.values() for one in member.target]
        wanted = [place(number) for number in range(self.world.topics[T].partitions_count)]
        assert sorted(targets) == wanted
        owned = {one for member in group.members.values() for one in member.owned}
        assert owned == group.owners.keys()
        for partition in wanted:
            reader = group.instances[group.assignees[partition]]
            assert partition in owned or reader.value.reads_itself, "free, and nobody reads it"

    @invariant()
    def a_commit_goes_back_only_behind_a_seek(self) -> None:
        group = self.world.state.groups.get(G)
        for partition, value in {} if group is None else group.offsets.items():
            number = partition.partition
            if number not in self.sought:
                assert value.offset >= self.committed.get(number, 0)
                assert value.offset <= self.processed.get(number, 0), "past what was delivered"
            self.committed[number] = value.offset


def _one_owner(world: GroupWorld) -> None:
    for group in world.state.groups.values():
        owned = [one for member in group.members.values() for one in member.owned]
        assert len(owned) == len(set(owned)), "two owners"


TestGroups = Groups.TestCase
TestGroups.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
