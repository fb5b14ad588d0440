"""Lines of a home's turns, each switched off (rules S2, S4, S6, S7, S10, S12)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from broker.transactions import home_decisions
from broker.transactions.home_decisions import ChunkPlaced, Content, Decided, MayDecide, MustWait
from broker.transactions.home_records import (
    HomeRecord,
    HorizonKey,
    NextKey,
    TransactionKey,
    TransactionValue,
)
from broker.transactions.home_state import HomeLimits, HomeState
from broker.transactions.messages import (
    NumberedPosition,
    PositionFate,
    TransactionalId,
    TransactionState,
)
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from tests.support.planted.registry import Patch, home_fault

Judge = Callable[[HomeState, Content], Any]


def _patch_judge(patch: Patch, change: Callable[[Judge, HomeState, Content], Any]) -> None:
    real = home_decisions.judge
    patch.setattr(home_decisions, "judge", lambda home, content: change(real, home, content))


def _patch_repeat(
    patch: Patch, change: Callable[[Callable[..., Any], Content, TransactionValue], Any]
) -> None:
    real = home_decisions._judge_repeat
    patch.setattr(
        home_decisions, "_judge_repeat", lambda content, last: change(real, content, last)
    )


def _patch_may_go(patch: Patch, change: Callable[[HomeState, ChunkPlaced, Any], Any]) -> None:
    real = home_decisions.may_go
    patch.setattr(
        home_decisions, "may_go", lambda home, chunk: change(home, chunk, real(home, chunk))
    )


def _is_named(home: HomeState, chunk: ChunkPlaced) -> bool:
    last = home.newest.get(chunk.id)
    return last is not None and any(
        home_decisions._record_in(unit.source, chunk) is not None for unit in last.units
    )


@home_fault("rule S2: an abort writes over a decision that is not complete", "S2", first=8)
def _abort_after_decision(patch: Patch) -> None:
    real = home_decisions.abort

    def abort(home: HomeState, id_: TransactionalId, position: Any, now_ms: int | None) -> Any:
        answer, records = real(home, id_, position, now_ms)
        if getattr(answer, "state", None) is TransactionState.COMMITTING:
            value = TransactionValue(
                epoch=position.epoch, number=position.number, state=TransactionState.ABORTED
            )
            return PositionFate(value.state), (HomeRecord(TransactionKey(*id_), value),)
        return answer, records

    patch.setattr(home_decisions, "abort", abort)


@home_fault("rule S2: init writes over a decision that is not complete", "S2")
def _init_replaces_decision(patch: Patch) -> None:
    real = home_decisions.init

    def init(home: HomeState, id_: TransactionalId, *args: Any) -> Any:
        answer, records = real(home, id_, *args)
        last = home.newest.get(id_)
        if last is not None:
            aborted = replace(last, state=TransactionState.ABORTED, units=(), digest="")
            records = (*records, HomeRecord(TransactionKey(*id_), aborted))
        return answer, records

    patch.setattr(home_decisions, "init", init)


@home_fault("rule S2: the next decision of an id waits for no completion", "S2")
def _next_overwrites(patch: Patch) -> None:
    def judge(real: Judge, home: HomeState, content: Content) -> Any:
        judgement = real(home, content)
        return MayDecide() if isinstance(judgement, MustWait) else judgement

    _patch_judge(patch, judge)


@home_fault("rule S2: keys and ids are forgotten by age before they are complete", "S2")
def _forget_open(patch: Patch) -> None:
    real = home_decisions.forget_by_age

    def forget(home: HomeState, *args: Any) -> Any:
        newest = {
            id_: replace(value, state=TransactionState.COMPLETE)
            for id_, value in home.newest.items()
        }
        return real(replace(home, newest=newest), *args)

    patch.setattr(home_decisions, "forget_by_age", forget)


@home_fault("rule S4: a target's next number is not part of the decision", "S4")
def _counter_forgotten(patch: Patch) -> None:
    real = home_decisions.decide

    def decide(*args: Any) -> Any:
        value, records = real(*args)
        return value, tuple(each for each in records if not isinstance(each.key, NextKey))

    patch.setattr(home_decisions, "decide", decide)


@home_fault("rule S6: a decision does not look at the epoch", "T13")
def _no_epoch_check(patch: Patch) -> None:
    patch.setattr(home_decisions, "_check_epoch", lambda *_: None)


@home_fault("rule S6: a forgotten id begins again with the first epoch", "T13")
def _floor_forgotten(patch: Patch) -> None:
    real = home_decisions.init

    def init(home: HomeState, *args: Any) -> Any:
        answer, records = real(replace(home, floor=0), *args)
        return replace(answer, forgotten_to_epoch=home.floor), records

    patch.setattr(home_decisions, "init", init)


@home_fault(
    "rule S6: of an epoch that was forgotten it is said that it decided nothing", "S6", first=37
)
def _forgotten_is_fenced(patch: Patch) -> None:
    patch.setattr(home_decisions, "_outcome_of_epoch", lambda *_: Outcome.NOT_WRITTEN)


@home_fault("rule S7: a position behind the last is decided", "T9", "T13")
def _old_number_accepted(patch: Patch) -> None:
    def judge(real: Judge, home: HomeState, content: Content) -> Any:
        try:
            return real(home, content)
        except KafkaError as error:
            if error.code is not ErrorCode.TRANSACTION_SUPERSEDED:
                raise
            return MustWait() if home.newest[content.id].is_open else MayDecide()

    _patch_judge(patch, judge)


@home_fault("rule S7: a repeat of what is decided is decided again", "S2")
def _no_repeat_memory(patch: Patch) -> None:
    def judge(real: Judge, home: HomeState, content: Content) -> Any:
        judgement = real(home, content)
        if isinstance(judgement, Decided) and not judgement.already:
            return MustWait() if judgement.value.is_open else MayDecide()
        return judgement

    _patch_judge(patch, judge)


@home_fault("rule S7: another content of a decided position is answered as its repeat", "S7")
def _conflict_accepted(patch: Patch) -> None:
    def judge_repeat(real: Any, content: Content, last: TransactionValue) -> Any:
        if content.run_id == last.run_id:
            content = content._replace(digest=last.digest)
        return real(content, last)

    _patch_repeat(patch, judge_repeat)


@home_fault("rule S7: another content of a later run is answered 'already'", "S7")
def _run_ignored(patch: Patch) -> None:
    def judge_repeat(real: Any, content: Content, last: TransactionValue) -> Any:
        brought = dict(last.others).get(content.run_id or "")
        return real(content if brought is None else content._replace(digest=brought), last)

    _patch_repeat(patch, judge_repeat)


@home_fault("rule S7: a later run with another input is answered 'already'", "S7")
def _input_ignored(patch: Patch) -> None:
    def judge_repeat(real: Any, content: Content, last: TransactionValue) -> Any:
        position = content.position
        if isinstance(position, NumberedPosition):
            content = content._replace(position=replace(position, input=last.input))
        return real(content, last)

    _patch_repeat(patch, judge_repeat)


@home_fault("rule S7: what a later run brought first is not remembered", "S7")
def _discarded_forgotten(patch: Patch) -> None:
    def judge_repeat(real: Any, content: Content, last: TransactionValue) -> Any:
        found = real(content, last)
        return replace(found, value=last, records=()) if found.records else found

    _patch_repeat(patch, judge_repeat)


@home_fault("rule S7: a key is forgotten as soon as it is complete", "S12")
def _keys_forgotten(patch: Patch) -> None:
    real = home_decisions.forget_by_age

    def forget(home: HomeState, ids: Any, now_ms: int, loaded_ms: int, limits: HomeLimits) -> Any:
        return real(home, ids, now_ms, loaded_ms, replace(limits, key_retention_ms=0))

    patch.setattr(home_decisions, "forget_by_age", forget)


@home_fault("rule S12: a key is kept from its decision on, not from its completion", "S12")
def _completion_is_no_age(patch: Patch) -> None:
    real = home_decisions.complete

    def complete(*args: Any) -> Any:
        return real(*args[:-1], 0)

    patch.setattr(home_decisions, "complete", complete)


@home_fault("rule S10: a decision names chunks below the horizon of its home", "T8")
def _horizon_unchecked(patch: Patch) -> None:
    patch.setattr(home_decisions, "is_below_horizon", lambda *_: False)


@home_fault("rule S10: a home lets go of a chunk that an open decision names", "T8")
def _trim_decided(patch: Patch) -> None:
    def may_go(home: HomeState, chunk: ChunkPlaced, answer: Any) -> Any:
        return (True, ()) if _is_named(home, chunk) and chunk.copy is None else answer

    _patch_may_go(patch, may_go)


@home_fault("rule S10: a moved chunk's old place goes though an open decision names it", "T8")
def _move_unrecorded(patch: Patch) -> None:
    def may_go(home: HomeState, chunk: ChunkPlaced, answer: Any) -> Any:
        return (True, ()) if _is_named(home, chunk) and chunk.copy is not None else answer

    _patch_may_go(patch, may_go)


@home_fault("rule S10: a moved chunk's old place goes without a horizon", "T8")
def _move_without_horizon(patch: Patch) -> None:
    def may_go(_: HomeState, chunk: ChunkPlaced, answer: Any) -> Any:
        is_raised = any(isinstance(each.key, HorizonKey) for each in answer[1])
        return (True, ()) if is_raised and chunk.copy is not None else answer

    _patch_may_go(patch, may_go)


@home_fault("rule S10: of a moved chunk only the first record is named at its new place", "T8")
def _move_of_the_first_record(patch: Patch) -> None:
    patch.setattr(
        home_decisions, "_record_in", lambda source, chunk: 0 if source == chunk.place else None
    )
