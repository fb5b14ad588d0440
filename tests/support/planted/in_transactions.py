"""Lines of homes, completion, targets and stages, each switched off (rules S1 to S11, G1, G3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from broker.coordinator import commits
from broker.coordinator.completion import Completion, OpenDecision
from broker.coordinator.home import Home, Missing
from broker.coordinator.records import InstanceKey, ShardRecord
from broker.coordinator.runtime import ShardRuntime
from broker.coordinator.transaction_offsets import TransactionOffsets
from broker.log.partition_log import PartitionLog
from broker.log.producer_state import ProducerStates
from broker.log.unit_check import NumberGap, Take, judge_units
from broker.record.numbering import make_numbering
from broker.server import stage_leader, transaction_ports, unit_appends
from broker.server.stage_leader import StageLeader
from broker.server.transaction_ports import Targets
from broker.server.unit_appends import UnitAppends
from broker.transactions import home_decisions
from broker.transactions.chunk_records import rows_in
from broker.transactions.home_decisions import ChunkPlaced
from broker.transactions.home_messages import ApplyUnits
from broker.transactions.home_records import (
    HomeRecord,
    NextKey,
    NextValue,
    Target,
    TransactionKey,
)
from broker.transactions.home_state import HomeState
from broker.transactions.messages import LogPlace, TargetRows, TransactionalId, TransactionState
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import LeaderEpoch, PartitionId
from tests.support import transaction_world
from tests.support.planted.registry import Patch, transaction_fault
from tests.support.transaction_logs import HomeLog, ReplicatedLog
from tests.support.transaction_world import Node


async def _at_once(*_: object) -> None:
    """Wait for nothing."""


@transaction_fault("rule S1: completion begins before the decision is committed", "T7")
def _apply_before_commit(patch: Patch) -> None:
    real = Home._turn

    def turn(self: Home, decision: Any, **options: Any) -> Any:
        kept: list[Any] = []

        def noted(state: Any, home: Any) -> Any:
            answer, records = decision(state, home)
            kept.extend(records)
            return answer, records

        answer = real(self, noted, **options)
        self._on_committed([ShardRecord(*each) for each in kept])
        return answer

    patch.setattr(Home, "_turn", turn)


@transaction_fault("rule S1: a decision behind the committed one of its id is sent", "T7", first=2)
def _newest_is_sent(patch: Patch) -> None:
    real = Home._on_committed

    def on_committed(self: Home, entries: Sequence[ShardRecord]) -> None:
        newest = self._shard.state().home.newest if self._shard.is_ready else {}
        real(
            self,
            [
                ShardRecord(each.key, newest.get(each.key.id))
                for each in entries
                if isinstance(each.key, TransactionKey)
            ],
        )

    patch.setattr(Home, "_on_committed", on_committed)


@transaction_fault(
    "rule S1: a new home completes what is not known to be committed", "T7", "T9", first=90
)
def _load_uncommitted(patch: Patch) -> None:
    patch.setattr(HomeLog, "until_committed", _at_once)


@transaction_fault("rule S1: a decision is split", "S8", "T6", "T10")
def _decision_split(patch: Patch) -> None:
    real = HomeLog.append

    async def append(self: HomeLog, decisions: Sequence[Sequence[ShardRecord]]) -> None:
        await real(self, [[record] for decision in decisions for record in decision])

    patch.setattr(HomeLog, "append", append)


@transaction_fault(
    "rule S2: complete is recorded at the first acknowledgement", "told ok wrongly", "S2"
)
def _complete_early(patch: Patch) -> None:
    def settle(self: Completion, decision: OpenDecision, place: tuple[Target, int]) -> None:
        del decision.waiting[place]
        if decision.id in self._open:
            self._finish(decision)
        decision.done.set()

    patch.setattr(Completion, "_settle", settle)


@transaction_fault("rule S3: a commit is told complete once it is decided", "told ok wrongly")
def _answer_at_decision(patch: Patch) -> None:
    real = Home._outcome
    patch.setattr(Home, "_wait", _at_once)

    async def outcome(self: Home, *args: Any) -> Any:
        return replace(await real(self, *args), state=TransactionState.COMPLETE)

    patch.setattr(Home, "_outcome", outcome)


@transaction_fault(
    "rule S3: a home that lost its state refuses what it decided", "told not written", first=3
)
def _decided_is_refused(patch: Patch) -> None:
    real = Home._outcome

    async def outcome(self: Home, *args: Any) -> Any:
        answer = await real(self, *args)
        self._home()
        return answer

    patch.setattr(Home, "_outcome", outcome)


@transaction_fault("rule S4: a target appends whatever comes", "T10", "T11")
def _no_numbers(patch: Patch) -> None:
    patch.setattr(unit_appends, "judge_units", lambda *_: Take(0))


@transaction_fault("rule S4: what is not committed is told to be there", "told ok wrongly", "S2")
def _already_uncommitted(patch: Patch) -> None:
    patch.setattr(UnitAppends, "_until_committed", _at_once)


@transaction_fault("rule S4: a new home numbers open decisions anew", "T11", "S5", "T10")
def _renumber_on_load(patch: Patch) -> None:
    real = Home._on_loaded

    def on_loaded(self: Home) -> None:
        home = self._shard.state().home
        for id_ in list(home.open):
            value = home.newest[id_]
            units = []
            for unit in value.units:
                key = NextKey(value.numbering, *unit.target)
                at = home.next_rows[key].number if key in home.next_rows else 0
                units.append(unit._replace(number=at, after=at))
                home.fold(HomeRecord(key, NextValue(at + unit.rows, value.metadata_offset)))
            home.fold(HomeRecord(TransactionKey(*id_), replace(value, units=tuple(units))))
        real(self)

    patch.setattr(Home, "_on_loaded", on_loaded)


@transaction_fault(
    "rule S4: a home whose log was cut goes on with its old numbers", "S2", "T6", "T12", first=1
)
def _generation_kept(patch: Patch) -> None:
    def numbered(kind: Any, partition: PartitionId, _: LeaderEpoch) -> int:
        return make_numbering(kind, partition, LeaderEpoch(-1))

    patch.setattr(transaction_world, "make_numbering", numbered)


@transaction_fault("rule S4: units of one request don't follow each other", "broken", first=4)
def _units_part(patch: Patch) -> None:
    real = Completion._next_request

    def next_request(self: Completion, queue: Any, behind: int = -1) -> ApplyUnits | None:
        first = real(self, queue, behind)
        if behind >= 0 or first is None:
            return first
        kept, units = queue.units, list(first.units)
        while len(units) < len(kept):
            queue.units = type(kept)(list(kept)[len(units) :])
            further = real(self, queue)
            assert further is not None
            units += further.units
        queue.units = kept
        return replace(first, units=tuple(units))

    patch.setattr(Completion, "_next_request", next_request)


@transaction_fault("rule S5: whoever starts over is told of no home", "S5", "T10", "T11", first=24)
def _start_over_empty(patch: Patch) -> None:
    real = ReplicatedLog.trim

    def trim(self: ReplicatedLog, start: int) -> None:
        real(self, start)
        self.told = {}

    patch.setattr(ReplicatedLog, "trim", trim)


@transaction_fault(
    "rule S5: whoever starts over is told of what is not committed",
    "told ok wrongly",
    "S2",
    "T10",
    first=24,
)
def _start_over_uncommitted(patch: Patch) -> None:
    patch.setattr(ProducerStates, "as_of", lambda self, _: self)


@transaction_fault("rule S2: an abort is answered, and stands in no log", "T3")
def _abort_unrecorded(patch: Patch) -> None:
    real = home_decisions.abort
    patch.setattr(home_decisions, "abort", lambda *args: (real(*args)[0], ()))


@transaction_fault("rule S2: an operator has an id forgotten that is committing", "S2")
def _forget_committing(patch: Patch) -> None:
    real = home_decisions.forget

    def forget(home: HomeState, id_: TransactionalId) -> Any:
        last = home.newest.get(id_)
        if last is not None and last.is_open and not home.is_producer(id_):
            return (HomeRecord(TransactionKey(*id_), None),)
        return real(home, id_)

    patch.setattr(home_decisions, "forget", forget)


@transaction_fault(
    "rule S6: the epoch is looked at before the stages are asked, and not again", "T13", first=69
)
def _check_before_wait(patch: Patch) -> None:
    real = Home._judge

    def judge(self: Home, *args: Any, request: Any, parts: Any, **rest: Any) -> Any:
        with patch.context() as now:
            if request.attempts and parts is not None:
                now.setattr(home_decisions, "_check_epoch", lambda *_: None)
            return real(self, *args, request=request, parts=parts, **rest)

    patch.setattr(Home, "_judge", judge)


@transaction_fault("rule S8: a member commits in whatever epoch", "T14", first=1)
def _no_member_check(patch: Patch) -> None:
    def find(state: Any, name: Any, member_id: Any, _: object) -> Any:
        return state.find(InstanceKey(name, member_id))

    patch.setattr(commits, "_find_member", find)


@transaction_fault("rule S8: a group's offsets move at the completion", "T14", "T15")
def _offsets_at_completion(patch: Patch) -> None:
    check, complete = TransactionOffsets.check, home_decisions.complete
    late: list[tuple[TransactionalId, Any]] = []

    def checked(self: TransactionOffsets, state: Any, request: Any, prepared: object) -> Any:
        late.append((request.id, check(self, state, request, prepared)))
        return lambda: None

    def completed(home: HomeState, id_: TransactionalId, *args: Any) -> Any:
        for one in [one for one in late if one[0] == id_]:
            late.remove(one)
            one[1]()
        return complete(home, id_, *args)

    patch.setattr(TransactionOffsets, "check", checked)
    patch.setattr(home_decisions, "complete", completed)


@transaction_fault("rule S8: expected offsets are not compared", "T15", "T14")
def _no_expected_check(patch: Patch) -> None:
    patch.setattr(commits, "_check_expected", lambda *_: None)


@transaction_fault("rule S9: a chunk is acknowledged before it is committed", "S9")
def _stage_ack_uncommitted(patch: Patch) -> None:
    real = StageLeader._append

    def append(self: StageLeader, *args: Any) -> Any:
        place, _ = real(self, *args)
        return place, _at_once()

    patch.setattr(StageLeader, "_append", append)
    patch.setattr(StageLeader, "_until_committed", _at_once)


@transaction_fault(
    "rule S9: a stage that may be deposed says that chunks are missing", "S9", first=71
)
def _stage_no_unproven(patch: Patch) -> None:
    patch.setattr(StageLeader, "_prove", _at_once)


@transaction_fault("rule S9: a new leader of a stage does not know what its log holds", "S9")
def _index_forgotten(patch: Patch) -> None:
    patch.setattr(stage_leader, "decode_head", lambda _: None)


@transaction_fault("rule S9: of a chunk the first target's rows alone are staged", "S9")
def _second_target_left_out(patch: Patch) -> None:
    real = stage_leader.encode_chunk
    patch.setattr(stage_leader, "encode_chunk", lambda chunk: list(real(chunk))[:1])


@transaction_fault(
    "rule S9: that chunks are missing is told without a second look",
    "S9",
    "refused wrongly",
    first=51,
)
def _missing_not_judged(patch: Patch) -> None:
    real = Node.parts

    async def parts(self: Node, *args: Any) -> Any:
        found = await real(self, *args)
        if isinstance(found, Missing):
            raise KafkaError(ErrorCode.STAGE_INCOMPLETE, found.reason)
        return found

    patch.setattr(Node, "parts", parts)


@transaction_fault(
    "rule S10: a home's word is given before it is committed", "T8", "S9", "S2", first=14
)
def _word_uncommitted(patch: Patch) -> None:
    async def word(_shard: Any, home: Home, _proof: Any, chunk: ChunkPlaced) -> bool:
        return home._turn(lambda _, state: home_decisions.may_go(state, chunk))

    patch.setattr(transaction_world, "word_proven", word)


@transaction_fault(
    "rule S10: a stage moves its log start, and asks no home once more", "S2", "S5", "T8", first=165
)
def _passed_without_a_word(patch: Patch) -> None:
    patch.setattr(stage_leader, "last_questions", lambda *_: [])


@transaction_fault(
    "rule S10: no horizon rises behind what a stage trims", "S2", "told ok wrongly", first=135
)
def _passed_without_a_horizon(patch: Patch) -> None:
    real = home_decisions._may_pass
    patch.setattr(home_decisions, "_may_pass", lambda *args: (real(*args)[0], ()))


@transaction_fault("rule S11: rows go to the topic of that name, whatever its id", "S11", "T10")
def _by_topic_name(patch: Patch) -> None:
    real, decided = Node.apply, transaction_ports._decided

    async def apply(self: Node, request: ApplyUnits) -> Any:
        if request.target.topic_id in self.world.deleted:
            new = next(topic for topic in self.world.topics if topic.startswith("c"))
            request = replace(request, target=request.target._replace(topic_id=new))
        return await real(self, request)

    def decided_here(target: Target, number: int, count: int, rows: TargetRows | None) -> Any:
        here = None if rows is None else replace(rows, topic_id=target.topic_id)
        return decided(target, number, count, here)

    patch.setattr(Node, "apply", apply)
    patch.setattr(transaction_ports, "_decided", decided_here)
    patch.setattr(Targets, "is_deleted", lambda *_: False)


@transaction_fault("rule S11: a decision does not look whether its targets are there", "S11")
def _topics_unchecked(patch: Patch) -> None:
    patch.setattr(Node, "check_able", lambda *_: None)


@transaction_fault("rule S4: a target takes a unit whose predecessors it lacks", "T10", "T6")
def _gap_accepted(patch: Patch) -> None:
    def judge(end: Any, after: Any, units: Any) -> Any:
        found = judge_units(end, after, units)
        return Take(0) if isinstance(found, NumberGap) else found

    patch.setattr(unit_appends, "judge_units", judge)


@transaction_fault("rule G3: a home that may be deposed lets a chunk go", "S2", "S5", "T8")
def _word_unproven(patch: Patch) -> None:
    async def word(_shard: Any, home: Home, _proof: Any, chunk: ChunkPlaced) -> bool:
        return await home.may_go(chunk)

    patch.setattr(transaction_world, "word_proven", word)


@transaction_fault("rule S10: a stage's records are told by their offsets alone", "T7", first=83)
def _places_without_epochs(patch: Patch) -> None:
    def rows_at(log: PartitionLog, place: LogPlace) -> TargetRows:
        (piece, *_) = log.read(place.offset, 1, place.offset + 1)
        return rows_in(bytes(piece.lines)[:-1])

    patch.setattr(stage_leader, "rows_at", rows_at)


@transaction_fault("rule S11: deleted is judged by any image", "T6", "S5", "S2")
def _deleted_by_old_image(patch: Patch) -> None:
    real = Targets.is_deleted
    patch.setattr(Targets, "is_deleted", lambda self, target, _: real(self, target, 0))


@transaction_fault("rule G1: answers rest on what is not committed", "T3", "S6", "T13")
def _answer_unsettled(patch: Patch) -> None:
    patch.setattr(ShardRuntime, "settled", _at_once)


@transaction_fault("rule G3: a home that may be deposed refuses for good", "refused wrongly")
def _unproven_refusal(patch: Patch) -> None:
    patch.setattr(ShardRuntime, "confirm", _at_once)
