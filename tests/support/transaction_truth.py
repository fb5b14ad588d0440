"""The truth of the world of transactions: what is committed, and whether answers agree with it.

`Truth` notes what the simulated logs commit, in the order in which they do, and holds each answer
against it. A `TransactionViolation` names the rule (S) or invariant (T).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import orjson

from broker.coordinator.records import MemberKey, MemberValue, OffsetKey, OffsetValue, ShardRecord
from broker.record.numbering import row_of_claim
from broker.transactions.chunk_records import decode_head, rows_in
from broker.transactions.home_messages import AbortPosition, CommitPosition, HomeRequest
from broker.transactions.home_records import EpochKey, StagedPlace, Target, TransactionKey
from broker.transactions.home_records import TransactionValue as Value
from broker.transactions.messages import (
    NO_GROUP,
    LogPlace,
    PositionFate,
    ProducerInitialized,
    ProducerPosition,
    TransactionalId,
    TransactionOutcome,
    TransactionState,
)
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import (
    InstanceId,
    LeaderEpoch,
    PartitionId,
    TopicId,
    TopicIdPartition,
    TopicName,
    is_reserved,
)
from tests.support.transaction_logs import LogBatch, ReplicatedLog, name_of

if TYPE_CHECKING:
    from tests.support.transaction_world import World

ORDERS = TopicName("orders")
HOMES = ("home-0", "group-0")
STAGE = "stage-0"
FOR_GOOD = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.TRANSACTION_CONFLICT,
        ErrorCode.TRANSACTION_ABORTED,
        ErrorCode.OFFSET_NOT_EXPECTED,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.UNKNOWN_MEMBER_ID,
    }
)


class TransactionViolation(AssertionError):
    """A rule or an invariant that does not hold."""

    def __init__(self, check: str, text: str) -> None:
        super().__init__(f"{check}: {text}")
        self.check = check


@dataclass(eq=False)
class Content:
    """A client's wish for a decision: rows for targets, and a move of the group's offset."""

    number: int
    rows: tuple[tuple[Target, tuple[str, ...]], ...]
    moves: tuple[int, int] | None = None
    """The group's offset: expected, and next."""
    source: PartitionId = PartitionId(0)
    """The partition of orders that it moves in."""
    member: tuple[InstanceId, int] | None = None
    """The member of the group that moves the offset, and its epoch."""
    asked: int = 0
    """The number of times it was brought to a home."""
    told: str = ""
    staged_s: float | None = None
    """Time at which its staging began, once all of its chunks are acknowledged."""
    is_forgotten: bool = False
    """True once an operator had its id forgotten: it may be decided anew."""

    @property
    def digest(self) -> str:
        """Return what homes compare."""
        return str(self.number)


@dataclass(eq=False)
class Truth:
    """All that was committed, in order, and what clients were told."""

    world: World
    contents: list[Content] = field(default_factory=list)
    decided: dict[tuple[TransactionalId, tuple[int, int]], Value] = field(default_factory=dict)
    newest: dict[TransactionalId, Value] = field(default_factory=dict)
    epochs: dict[TransactionalId, int] = field(default_factory=dict)
    epochs_told: set[tuple[TransactionalId, int]] = field(default_factory=set)
    places: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Each row that is committed, with its log and offset."""
    lost: set[str] = field(default_factory=set)
    """Rows that an unclean election of a target took back."""
    once_lost: set[str] = field(default_factory=set)
    """The same with those that a newer home brought again, which the former one does not know."""
    unstaged: set[str] = field(default_factory=set)
    """Rows that an unclean election of the stage took; some were staged again, or moved before."""
    ends: dict[tuple[str, int], int] = field(default_factory=dict)
    """Row number behind the last row, by target and numbering."""
    offsets: Counter[PartitionId] = field(default_factory=Counter)
    """The group's committed offset in each partition of orders."""
    members: dict[InstanceId, MemberValue] = field(default_factory=dict)
    """Ownership of each member of the group."""
    has_lost: bool = False
    """True once an unclean election of a home took back some of its records."""
    excused: set[str] = field(default_factory=set)
    """Contents whose decision an unclean election of their home took back."""
    decided_digests: set[str] = field(default_factory=set)
    asked: dict[TransactionalId, list[Content]] = field(default_factory=dict)
    """Contents that clients mean to commit under each id."""

    def fail(self, check: str, text: str) -> None:
        """Remember the first violation; the loop would swallow one that is raised in a callback."""
        if self.world.violation is None:
            self.world.violation = TransactionViolation(check, text)

    def hold(self, check: str, is_true: bool, text: object) -> None:
        """Note a violation unless the check holds."""
        if not is_true:
            self.fail(check, str(text))

    def content(self, rows: Sequence[tuple[Target, int]], moves: Any = None) -> Content:
        """Return a new content with so many rows for each target."""
        number = len(self.contents)
        named = tuple(
            (target, tuple(f"{number}.{part}.{row}" for row in range(count)))
            for part, (target, count) in enumerate(rows)
        )
        self.contents.append(Content(number, named, moves))
        return self.contents[-1]

    # what homes commit

    def home_committed(self, records: Sequence[ShardRecord]) -> None:
        """Note a decision of a home."""
        for key, value in records:
            if isinstance(key, EpochKey):
                if value is not None:
                    epoch = cast("Any", value).epoch
                    self.hold("T13", epoch > self.epochs.get(key.id, 0), f"{key} {epoch} again")
                    self.epochs[key.id] = epoch
            elif isinstance(key, TransactionKey):
                if value is None:
                    self._forgotten(key.id)
                else:
                    self._position(key.id, cast("Value", value))
            elif isinstance(key, MemberKey):
                if isinstance(value, MemberValue):
                    self.members[key.instance] = value
                else:
                    self.members.pop(key.instance, None)
            elif isinstance(key, OffsetKey) and isinstance(value, OffsetValue):
                before = self.offsets[key.partition]
                self.hold("T14", value.offset >= before, f"{before} back to {value}")
                self.offsets[key.partition] = value.offset
        moved = any(isinstance(key, OffsetKey) for key, _ in records)
        if moved:
            self.hold(
                "S8", any(isinstance(key, TransactionKey) for key, _ in records), "offsets alone"
            )

    def _forgotten(self, id_: TransactionalId) -> None:
        """Take note that nothing is known of an id any more: its contents may be decided anew."""
        last = self._forget(id_)
        self.hold("S2", last is None or not last.is_open, f"{id_} is forgotten while it is open")
        for content in self.asked.get(id_, ()):
            content.is_forgotten = True

    def _forget(self, id_: TransactionalId) -> Value | None:
        for place in [place for place in self.decided if place[0] == id_]:
            del self.decided[place]
        return self.newest.pop(id_, None)

    def _position(self, id_: TransactionalId, value: Value) -> None:
        last = self.newest.get(id_)
        if last is not None:
            self.hold("T9", value.at >= last.at, f"{id_}: {value.at} behind {last.at}")
            is_next = value.at > last.at
            self.hold("S2", not (is_next and last.is_open), f"{id_} {value.at} beside {last.at}")
        self.newest[id_] = value
        known = self.decided.get((id_, value.at))
        if value.state is TransactionState.ABORTED:
            self.hold("S2", known is None, f"{id_} {value.at} is aborted behind its decision")
            return
        if known is not None:
            same = known.digest == value.digest
            self.hold("T9", same, f"{id_} {value.at} has content {known.digest}, {value.digest}")
        else:
            self._decided(id_, value)
        self.decided[id_, value.at] = value
        if self.has_lost:
            self._note_moves_lost(value)
        if not value.is_open:
            gone = {target.topic_id for target in value.dropped}
            missing = self.missing(self.contents[int(value.digest)], gone)
            self.hold("S2", not missing, f"{id_} {value.at} is complete without {missing}")

    def _note_moves_lost(self, value: Value) -> None:
        """A home that lost the record of a move names a place that was trimmed: told as lost."""
        lost = {unit.target for unit in value.units if unit.is_lost}
        for target, rows in self.contents[int(value.digest)].rows:
            if target in lost:
                self.unstaged.update(rows)
                self.world.figures["moves lost"] += 1

    def _decided(self, id_: TransactionalId, value: Value) -> None:
        self.world.figures["decisions"] += 1
        content = self.contents[int(value.digest)]
        if value.epoch:
            self.hold("T13", value.epoch >= self.epochs.get(id_, 0), f"{id_} {value.at} is fenced")
        if content.member is not None:
            name, epoch = content.member
            owner = self.members.get(name)
            right = owner is not None and owner.epoch == epoch
            right = right and content.source in owner.owned.get(ORDERS, ())
            self.hold("T14", right, f"{content.member} commits what is of {owner}")
        topics = self.world.topics_at(value.metadata_offset)
        unknown = [unit.topic_id for unit in value.units if unit.topic_id not in topics]
        self.hold("S11", not unknown, f"{id_} {value.at} is decided for {unknown}, which are not")
        again = value.digest in self.decided_digests and value.digest not in self.excused
        if content.is_forgotten and content.moves is None:
            self._anew(content)
        else:
            is_refused = content.told == "not_written" and not self.has_lost
            is_once = content.told == "once" and content.asked == 1 and not self.has_lost
            self.hold("refused wrongly", not is_refused, f"{value.digest} is decided later")
            self.hold("told not written", not is_once, f"{value.digest} is decided later")
            self.hold("S7", not again, f"{value.digest} is decided twice")
        self.decided_digests.add(value.digest)

    def _anew(self, content: Content) -> None:
        """Expect all rows of a content once more, whose id was forgotten."""
        self.world.figures["decided anew"] += content.digest in self.decided_digests
        for _, rows in content.rows:
            for row in rows:
                self.places.pop(row, None)

    # what targets commit

    def rows_committed(self, log: ReplicatedLog, batch: LogBatch) -> None:
        """Note rows that any reader may have read now."""
        rows = [orjson.loads(line)["value"] for line in batch.payload.splitlines()]
        if batch.claim is None:
            return
        assert is_reserved(batch.claim.producer_id)
        key = (log.name, batch.claim.producer_id)
        number = row_of_claim(batch.claim)
        is_dense = number == self.ends.get(key, 0)
        is_dense |= (
            self.has_lost or max(log.unclean_epoch, self.world.logs[STAGE].unclean_epoch) >= 0
        )
        self.hold("T10", is_dense, f"{key}: {number} behind {self.ends.get(key, 0)}")
        self.ends[key] = number + len(rows)
        for at, row in enumerate(rows):
            digest, part, _ = row.split(".")
            target = self.contents[int(digest)].rows[int(part)][0]
            is_own = name_of(TopicIdPartition(*target)) == log.name
            self.hold("S11", is_own, f"{row} of {target} stands in {log.name}")
            if digest not in self.excused:
                self.hold("T7", digest in self.decided_digests, f"{row} is not decided")
                self.hold("T11", row not in self.places, f"{row} stands twice")
            self.places[row] = (log.name, batch.base + at)
            self.lost.discard(row)

    def cut(self, log: ReplicatedLog, batches: Sequence[LogBatch]) -> None:
        """Take back what an unclean election lost."""
        for batch in batches:
            if log.name in HOMES:
                self._cut_home(batch.payload)
            elif log.name == STAGE:
                self.unstaged.update(staged_in(batch))
            else:
                for line in batch.payload.splitlines():
                    row = orjson.loads(line)["value"]
                    self.places.pop(row, None)
                    self.lost.add(row)
                    self.once_lost.add(row)

    def trimmed(self, log: ReplicatedLog, batches: Sequence[LogBatch]) -> None:
        """T8: no stage begins behind a chunk that an open decision names."""
        self.world.figures["stage trims"] += log.name == STAGE and bool(batches)
        if log.name != STAGE or self.has_lost:
            return
        gone = {
            LogPlace(LeaderEpoch(one.epoch), at)
            for one in batches
            for at in range(one.base, one.end)
        }
        for id_, value in self.newest.items():
            for unit in value.units if value.is_open else ():
                is_gone = isinstance(unit.source, StagedPlace) and unit.source.at in gone
                self.hold("T8", not is_gone, f"{id_} {value.at} names {unit.source}")

    def _cut_home(self, records: Sequence[ShardRecord]) -> None:
        self.has_lost = True
        for key, value in records:
            if isinstance(key, TransactionKey) and isinstance(value, Value) and value.digest:
                self.excused.add(value.digest)

    def refold(self, log: ReplicatedLog) -> None:
        """Know of the ids of a home what its log still has."""
        for known in (self.newest, self.epochs):
            for id_ in [id_ for id_ in known if id_.group == NO_GROUP]:
                del known[id_]
        self.decided = {at: one for at, one in self.decided.items() if at[0].group != NO_GROUP}
        for batch in log.view.batches:
            for key, value in batch.payload if batch.end <= log.committed else ():
                if isinstance(key, EpochKey) and value is not None:
                    self.epochs[key.id] = value.epoch
                elif isinstance(key, TransactionKey) and value is None:
                    self._forget(key.id)
                elif isinstance(key, TransactionKey):
                    self.newest[key.id] = value
                    if value.state is not TransactionState.ABORTED:
                        self.decided[key.id, value.at] = value
        self.epochs_told = {one for one in self.epochs_told if one[1] <= self.epochs.get(one[0], 0)}

    def missing(self, content: Content, gone: set[TopicId]) -> list[str]:
        """Return the rows of a content that are nowhere, though their topics live."""
        return [
            row
            for target, rows in content.rows
            for row in rows
            if target.topic_id not in gone | self.world.deleted
            and row not in self.places
            and row not in self.lost
            and row not in self.unstaged
        ]

    # what clients are told

    def told(self, request: HomeRequest[Any], content: Content | None, answer: object) -> None:
        """Hold an answer against what is committed now."""
        match answer:
            case ProducerInitialized():
                key = (request.id, answer.epoch)
                self.hold("T13", key not in self.epochs_told, f"{key} is told twice")
                committed = answer.epoch <= self.epochs.get(request.id, 0)
                self.hold("S6", committed or self.has_lost, f"{key} is not committed")
                self.epochs_told.add(key)
            case TransactionOutcome() if content is not None:
                self._told_outcome(request, content, answer)
            case KafkaError() if content is not None:
                self._told_error(request, content, answer)
            case PositionFate() if isinstance(request, AbortPosition):
                self._told_abort(request, answer)
            case _:
                pass

    def _told_abort(self, request: AbortPosition, answer: PositionFate) -> None:
        """T3: what is told aborted is aborted in the log, and what is told decided is decided."""
        at, last = tuple(request.position), self.newest.get(request.id)
        is_aborted = answer.state is TransactionState.ABORTED
        self.world.figures["told aborted"] += is_aborted
        if self.has_lost:
            return
        is_known = last is not None and last.at >= at
        is_decided = (request.id, at) in self.decided
        right = is_known and is_aborted != is_decided
        self.hold("T3", right, f"{request.id} {at} is told {answer}, its last is {last}")

    def _told_outcome(
        self, request: HomeRequest[Any], content: Content, answer: TransactionOutcome
    ) -> None:
        figure = "already" if answer.already else answer.state.value
        self.world.figures[f"told {figure}"] += 1
        known = self.decided.get((request.id, (answer.epoch, answer.number)))
        if content.is_forgotten or self.has_lost:
            return
        self.hold("T3", known is not None, f"{content.number} is told decided, and is not")
        if answer.already or known is None:
            return
        self.hold("S7", known.digest == content.digest, f"{content.number} hears of {known.digest}")
        if answer.state is TransactionState.COMPLETE:
            missing = self.missing(content, {one[0] for one in answer.dropped})
            self.hold("told ok wrongly", not missing, f"{content.number} lacks {missing}")
            self._check_lost(content, answer)
            for one in answer.placed:
                if one.base_offset is not None:
                    target = Target(one.topic_id, one.partition)
                    self._check_place(content, target, one.base_offset)

    def _check_lost(self, content: Content, answer: TransactionOutcome) -> None:
        """Rows that are nowhere because of their stage are told as lost (S3).

        A request that was under way may have written rows that were recorded as lost meanwhile.
        """
        gone = {one[0] for one in answer.dropped}
        told = {Target(one.topic_id, one.partition): one.rows for one in answer.lost}
        for target, rows in content.rows:
            unstaged = self.unstaged.intersection(rows)
            nowhere = unstaged.difference(self.places, self.lost)
            if target.topic_id not in gone | self.world.deleted:
                right = len(nowhere) <= told.get(target, 0) <= len(unstaged)
                self.hold("S3", right, f"{content.number} tells {told}, nowhere are {nowhere}")
        self.world.figures["told lost"] += bool(told)

    def _check_place(self, content: Content, target: Target, offset: int) -> None:
        rows = [row for each, some in content.rows if each == target for row in some]
        place = self.places.get(rows[0]) if rows else None
        if place is not None and rows[0] not in self.once_lost:
            self.hold("wrong offset", place[1] == offset, f"{rows[0]} at {place}, told {offset}")

    def _told_error(self, request: HomeRequest[Any], content: Content, error: KafkaError) -> None:
        self.world.figures[f"told {error.code.name}"] += 1
        if error.outcome is not Outcome.NOT_WRITTEN or self.has_lost or content.is_forgotten:
            return
        is_decided = content.digest in self.decided_digests
        self._check_fence(request, content, error)
        if error.code in FOR_GOOD:
            self.hold("refused wrongly", not is_decided, f"{content.number} is decided: {error}")
            content.told = "not_written"
        elif error.code is ErrorCode.STAGE_INCOMPLETE:
            # Behind an unclean election of the stage one of two requests may find the chunks.
            if self.unstaged.isdisjoint(row for _, rows in content.rows for row in rows):
                age_s = self.world.stage_settings.age_max_ms / 1000
                is_young = content.staged_s is not None
                is_young = is_young and self.world.now_s < content.staged_s + age_s
                self.hold("S9", not is_young, f"{content.number} was staged: {error}")
                self.hold("refused wrongly", not is_decided, f"{content.number}: {error}")
        elif content.asked == 1:
            self.hold("told not written", not is_decided, f"{content.number} is decided: {error}")
            content.told = content.told or "once"

    def _check_fence(self, request: HomeRequest[Any], content: Content, error: KafkaError) -> None:
        """A fence that does not hold in the newest state was told by an older leader (rule G3)."""
        position = request.position if isinstance(request, CommitPosition) else None
        if error.code is ErrorCode.PRODUCER_FENCED and isinstance(position, ProducerPosition):
            is_present = self.epochs.get(request.id) == position.epoch
            self.hold("refused wrongly", not is_present, f"{request.id} {position}: {error}")
        if error.code is ErrorCode.OFFSET_NOT_EXPECTED and content.moves is not None:
            is_present = content.moves[0] == self.offsets[content.source]
            self.hold("refused wrongly", not is_present, f"{content.moves}: {error}")


def staged_in(batch: LogBatch) -> list[str]:
    """Return the rows of a batch of the stage."""
    lines = batch.payload.split(b"\n")[:-1]
    texts = [rows_in(line).records for line in lines if decode_head(line) is not None]
    return [row["value"] for text in texts for row in orjson.loads(text)]
