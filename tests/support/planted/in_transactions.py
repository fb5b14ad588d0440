"""Lines of homes, completion, targets and stages, each switched off (rules S1 to S11, G1, G3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from broker.coordinator import commits
from broker.coordinator.completion import Completion, OpenDecision
from broker.coordinator.home import Home
from broker.coordinator.records import ShardRecord
from broker.coordinator.runtime import ShardRuntime
from broker.log.partition_log import PartitionLog
from broker.log.unit_check import Take
from broker.server import stage_leader, unit_appends
from broker.server.stage_leader import StageLeader
from broker.server.transaction_ports import Targets
from broker.server.unit_appends import UnitAppends
from broker.transactions.chunk_records import rows_in
from broker.transactions.home_messages import ApplyUnits
from broker.transactions.home_records import Target, TransactionKey
from broker.transactions.messages import LogPlace, TargetRows, TransactionState
from tests.support.planted.registry import Patch, transaction_fault
from tests.support.transaction_logs import HomeLog, ReplicatedLog


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


@transaction_fault("rule S1: a decision behind the committed one of its id is sent", "T7", first=19)
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
    "rule S1: a new home completes what is not known to be committed", "T7", "T9", first=27
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
    "rule S3: a home that lost its state refuses what it decided", "told not written"
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


@transaction_fault("rule S5: whoever starts over is told of no home", "S5", "T10", "T11", first=505)
def _start_over_empty(patch: Patch) -> None:
    real = ReplicatedLog.trim

    def trim(self: ReplicatedLog, start: int) -> None:
        real(self, start)
        self.told = {}

    patch.setattr(ReplicatedLog, "trim", trim)


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


@transaction_fault("rule S9: a stage that may be deposed says that chunks are missing", "S9")
def _stage_no_unproven(patch: Patch) -> None:
    patch.setattr(StageLeader, "_prove", _at_once)


@transaction_fault("rule S9: a new leader of a stage does not know what its log holds", "S9")
def _index_forgotten(patch: Patch) -> None:
    patch.setattr(stage_leader, "decode_head", lambda _: None)


@transaction_fault("rule S10: a stage's records are told by their offsets alone", "T7", first=1403)
def _places_without_epochs(patch: Patch) -> None:
    def rows_at(log: PartitionLog, place: LogPlace) -> TargetRows:
        (piece, *_) = log.read(place.offset, 1, place.offset + 1)
        return rows_in(bytes(piece.lines)[:-1])

    patch.setattr(stage_leader, "rows_at", rows_at)


@transaction_fault("rule S11: deleted is judged by any image", "T6", "S5", "S2", first=144)
def _deleted_by_old_image(patch: Patch) -> None:
    real = Targets.is_deleted
    patch.setattr(Targets, "is_deleted", lambda self, target, _: real(self, target, 0))


@transaction_fault("rule G1: answers rest on what is not committed", "T3", "S6", "T13")
def _answer_unsettled(patch: Patch) -> None:
    patch.setattr(ShardRuntime, "settled", _at_once)


@transaction_fault("rule G3: a home that may be deposed refuses for good", "refused wrongly")
def _unproven_refusal(patch: Patch) -> None:
    patch.setattr(ShardRuntime, "confirm", _at_once)
