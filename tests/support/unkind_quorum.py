"""A Raft stand-in for controllers that does everything Raft may do, at the worst moment.

It keeps Raft's promises (one leader per term, committed entries stay, one order everywhere) and no
more: an answer may be unknown and the entry committed later or lost, two voters may believe that
they lead, a follower may jump by a snapshot, a leader may be deposed and elected again with a full
queue. Nothing happens by itself: a test calls each step. No clock and no chance of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import NodeId
from raft_metadata.controller.controller import ControllerConfig
from raft_metadata.image.metadata_delta import MetadataDelta
from raft_metadata.image.metadata_image import MetadataImage
from raft_metadata.image.metadata_state_machine import MetadataStateMachine
from raft_metadata.quorum.active_controller import ActiveController
from raft_metadata.quorum.raft_node import Leadership


@dataclass(eq=False)
class Entry:
    """One log entry; a payload of None is the first entry of a reign."""

    term: int
    payload: bytes | None
    future: asyncio.Future[object] | None = None


@dataclass
class ManualClock:
    """Time that a test sets."""

    now_ms: int = 0

    def monotonic_ms(self) -> int:
        return self.now_ms

    def wall_ms(self) -> int:
        return self.now_ms


class RaisingFaults:
    """A node that should end raises here."""

    def fatal(self, what: str, error: BaseException | None = None) -> None:  # type: ignore[override]
        raise AssertionError(what) from error


@dataclass(eq=False)
class Voter:
    """One controller: its machine, its belief, its queue, and its tail of uncommitted entries."""

    raft: UnkindRaft
    node_id: NodeId
    machine: MetadataStateMachine
    term: int = 0
    is_leader: bool = False
    applied_index: int = 0
    leader_contact_age_ms: int = 0
    queue: list[Entry] = field(default_factory=list)
    tail: list[Entry] = field(default_factory=list)
    refuse: bool = False
    """Answer QUEUE_FULL to whatever is submitted."""
    levels: dict[NodeId, int | None] = field(default_factory=dict)
    """Which ``metadata.version`` each voter said it can follow."""
    controller: ActiveController = field(init=False)

    @property
    def leader_id(self) -> NodeId | None:
        leader = self.raft.leader
        return None if leader is None else leader.node_id

    @property
    def commit_index(self) -> int:
        return self.applied_index

    def voter_feature_levels(self) -> dict[NodeId, int | None]:
        return self.levels

    def submit(self, payload: bytes, term: int) -> asyncio.Future[object]:
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        entry = Entry(term, payload, future)
        if not self.is_leader or term != self.term:
            fail(entry, ErrorCode.NOT_CONTROLLER)
        elif self.refuse:
            fail(entry, ErrorCode.QUEUE_FULL)
        else:
            self.queue.append(entry)
        return future


def fail(entry: Entry, code: ErrorCode) -> None:
    """Answer an entry's submitter, unless it was answered."""
    if entry.future is not None and not entry.future.done():
        entry.future.set_exception(KafkaError(code))
        entry.future.exception()  # nobody has to look at it


class UnkindRaft:
    """Voters, the committed log, and the one true leader of the highest term."""

    def __init__(
        self,
        config: ControllerConfig,
        clock: ManualClock,
        random_source: Callable[[int], bytes],
        voters: int = 3,
        on_change: Callable[[MetadataDelta, MetadataImage], None] | None = None,
    ) -> None:
        self.log: list[Entry] = []
        self.leader: Voter | None = None
        self.term = 0
        self.voters: list[Voter] = []
        for number in range(voters):
            machine = MetadataStateMachine()
            if on_change is not None:
                machine.add_publisher(_Publisher(on_change))
            voter = Voter(self, NodeId(101 + number), machine)
            voter.controller = ActiveController(
                machine,
                config,
                voter,
                clock=clock,
                random_source=random_source,
                faults=RaisingFaults(),  # type: ignore[arg-type]
            )
            self.voters.append(voter)

    # ---- steps

    def append(self, voter: Voter, count: int | None = None) -> None:
        """What is queued goes into the voter's own log."""
        count = len(voter.queue) if count is None else count
        voter.tail += voter.queue[:count]
        del voter.queue[:count]

    def commit(self, count: int | None = None) -> None:
        """A majority holds the first entries of the true leader's tail."""
        if self.leader is not None:
            tail = self.leader.tail
            count = len(tail) if count is None else count
            self.log += tail[:count]
            del tail[:count]

    def apply(self, voter: Voter, count: int | None = None) -> None:
        """The voter applies what is committed; a deposed leader learns of it by that."""
        end = len(self.log)
        if count is not None:
            end = min(end, voter.applied_index + count)
        for index in range(voter.applied_index, end):
            entry = self.log[index]
            if voter.is_leader and entry.term > voter.term:
                self.notice(voter)
            voter.applied_index = index + 1
            mine = voter.is_leader and entry.term == voter.term
            if entry.payload is None:
                if mine:
                    voter.controller.on_activated(Leadership(entry.term, index + 1))
                continue
            result = voter.machine.apply(index + 1, entry.term, entry.payload)
            if mine and entry.future is not None and not entry.future.done():
                entry.future.set_result(result)
        voter.controller.on_applied()

    def notice(self, voter: Voter) -> None:
        """The voter stops believing that it leads."""
        if not voter.is_leader:
            return
        voter.is_leader = False
        for entry in voter.queue:
            fail(entry, ErrorCode.NOT_CONTROLLER)
        for entry in (*voter.tail, *self.log[voter.applied_index :]):
            if entry.term == voter.term:
                fail(entry, ErrorCode.OUTCOME_UNKNOWN)
        voter.queue = []
        if voter is not self.leader:
            voter.tail = []
        voter.controller.on_deactivated()

    def elect(self, voter: Voter, survivors: int) -> None:
        """A new term. The first ``survivors`` entries of the old leader's tail reach the new one.

        The old leader goes on believing until it notices.
        """
        old, self.term = self.leader, self.term + 1
        survived = [] if old is None else old.tail[:survivors]
        if voter is old:
            survived = old.tail
        self.notice(voter)
        if old is not None and old is not voter:
            old.tail = list(old.tail)
        self.leader = voter
        voter.term, voter.is_leader = self.term, True
        voter.tail = [Entry(entry.term, entry.payload, entry.future) for entry in survived]
        voter.tail.append(Entry(self.term, None))

    def jump(self, voter: Voter, source: Voter) -> None:
        """The voter is sent a snapshot instead of entries."""
        if source.applied_index <= voter.applied_index or voter is self.leader:
            return
        self.notice(voter)
        chunks = list(source.machine.chunks(source.machine.capture()))
        voter.machine.restore(chunks, source.machine.index, source.machine.term)
        voter.applied_index = source.applied_index
        voter.controller.on_applied()

    # ---- a kind moment

    async def settle(self, rounds: int = 30, voters: Iterable[Voter] | None = None) -> None:
        """Append, commit and apply everything, with a tick of every controller between."""
        for _ in range(rounds):
            for voter in self.voters if voters is None else voters:
                voter.controller.tick()
                self.append(voter)
            self.commit()
            for voter in self.voters if voters is None else voters:
                self.apply(voter)
            await turn()


async def turn() -> None:
    """Let everything that is ready run: answers, then whoever waits for them, then their own."""
    for _ in range(8):
        await asyncio.sleep(0)


@dataclass(frozen=True)
class _Publisher:
    on_change: Callable[[MetadataDelta, MetadataImage], None]

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        self.on_change(delta, image)
