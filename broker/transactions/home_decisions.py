"""The turns of a home: each looks at the state and returns an answer and the records of it. Pure.

The table of `DESIGN.md`, row by row. A caller folds and writes the records of one turn as one batch
(rule S1), and answers once all that the answer rests on is committed; refusals are proven (G3).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

from broker.record.numbering import NumbersExhaustedError, RowNumber, number_of_unit
from broker.transactions.home_records import (
    OTHERS_KEPT,
    EpochKey,
    EpochValue,
    FloorKey,
    HomeRecord,
    HorizonKey,
    NextKey,
    NextValue,
    NumberValue,
    OtherRun,
    StagedPlace,
    Target,
    TransactionKey,
    TransactionValue,
    Unit,
)
from broker.transactions.home_state import HomeLimits, HomeState, slim
from broker.transactions.messages import (
    KeyPosition,
    LastPosition,
    LostRows,
    NumberedPosition,
    PlacedRows,
    Position,
    PositionFate,
    ProducerInitialized,
    ProducerPosition,
    TargetRows,
    TransactionalId,
    TransactionState,
)
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome

Records = tuple[HomeRecord, ...]
FORGOTTEN_AT_ONCE = 1_000
"""Most keys, one-shots without a key, and ids that one turn looks at to forget them."""
ONCE_KEPT_MS = 120_000
"""Time for which a one-shot without a key is known: twice the longest deadline of a request, which
brokers repeat between them until then (rule S12)."""
UNITS_MAX = 100_000
"""Most units of one transaction: its decision is one batch, of some 7 MB then."""


class Content(NamedTuple):
    """The position that a commit names, and its content as far as it is compared (rule S7)."""

    id: TransactionalId
    position: Position
    digest: str

    @property
    def at(self) -> tuple[int, int]:
        """Epoch and number; those of a numbered id begin with 0, as does the one of a key."""
        return place_of(self.position)

    @property
    def run_id(self) -> str | None:
        """The run of a numbered position."""
        return self.position.run_id if isinstance(self.position, NumberedPosition) else None

    @property
    def input(self) -> str | None:
        """The input of a numbered position."""
        return self.position.input if isinstance(self.position, NumberedPosition) else None


def place_of(position: Position) -> tuple[int, int]:
    """Return the epoch and the number of a position."""
    match position:
        case ProducerPosition():
            return (position.epoch, position.number)
        case NumberedPosition():
            return (0, position.number)
        case _:
            return (0, 0)


# init


def init(
    home: HomeState, id_: TransactionalId, now_ms: int | None, limits: HomeLimits
) -> tuple[ProducerInitialized, Records]:
    """Give a producer's id its next epoch; a decision that is open stays as it is (rule S2).

    Raises:
        KafkaError: TRANSACTION_CONFLICT for a numbered id or a key; THROTTLING_QUOTA_EXCEEDED.
    """
    present, last = home.epochs.get(id_), home.newest.get(id_)
    if id_.is_key:
        raise _conflict(f"{id_.name} is an idempotency key, it has no epochs")
    if present is None:
        if last is not None:
            raise _conflict(f"{id_.name} is a numbered id, it has no epochs")
        _check_room_for_ids(home, limits)
    epoch = max(home.floor, 0 if present is None else present.epoch) + 1
    answer = ProducerInitialized(
        epoch=epoch, last=last_position(last), forgotten_to_epoch=home.floor
    )
    return answer, (HomeRecord(EpochKey(*id_), EpochValue(epoch, now_ms)),)


def last_position(last: TransactionValue | None) -> LastPosition | None:
    """Return the newest position of an id as clients hear of it."""
    if last is None:
        return None
    rows = sum(one.rows for one in _lost_of(last))
    return LastPosition(last.epoch, last.number, last.state, rows)


# commit


@dataclass(frozen=True, slots=True)
class MayDecide:
    """The position is new: it may be decided in this turn."""


@dataclass(frozen=True, slots=True)
class MustWait:
    """The id's last decision is not complete: nothing is decided beside it (rule S2)."""


@dataclass(frozen=True, slots=True)
class Decided:
    """The position is decided: its fate is told once it is complete (rule S7)."""

    value: TransactionValue
    already: bool = False
    """True for a run that came later: its rows are discarded."""
    records: Records = ()
    """The content of a run that came later, to be remembered."""
    is_new: bool = False
    """True if the present turn decided it."""


Judgement = MayDecide | MustWait | Decided


def judge(home: HomeState, content: Content) -> Judgement:
    """Judge a commit by what stands in the log: a repeat first, then the fence (rules S6, S7).

    Raises:
        KafkaError: TRANSACTION_CONFLICT, TRANSACTION_ABORTED, TRANSACTION_SUPERSEDED,
            PRODUCER_FENCED. To be proven.
    """
    last = home.newest.get(content.id)
    _check_kind(home, content.id, content.position, last)
    if last is not None and content.at < last.at:
        raise _superseded(content.id, last)
    if last is not None and content.at == last.at:
        return _judge_repeat(content, last)
    _check_epoch(home, content.id, content.position)
    return MustWait() if last is not None and last.is_open else MayDecide()


def fate(home: HomeState, content: Content) -> Decided:
    """Return the fate of a position that another home has decided; nothing is changed.

    Raises:
        KafkaError: TRANSACTIONAL_ID_NOT_FOUND, it is not the id's newest position, or of a run that
            is not known here; TRANSACTION_CONFLICT. Both say nothing of the decision.
    """
    last = home.newest.get(content.id)
    if last is not None and content.at == last.at and last.state is not TransactionState.ABORTED:
        found = _judge_repeat(content, last)
        if not found.records:
            return found
    text = f"position {content.at[0]}.{content.at[1]} of {content.id.name} is not the newest here"
    raise KafkaError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, text)


def _check_kind(
    home: HomeState, id_: TransactionalId, position: Position, last: TransactionValue | None
) -> None:
    if id_.is_key != isinstance(position, KeyPosition):
        raise _conflict(f"{id_.name} {'has' if id_.is_key else 'is no key that has'} one position")
    if isinstance(position, NumberedPosition) and home.is_producer(id_):
        raise _conflict(f"{id_.name} is a producer's id: its commits name an epoch")
    if isinstance(position, ProducerPosition) and last is not None and not home.is_producer(id_):
        text = f"{id_.name} is a numbered id: its commits name a run and no epoch"
        outcome = _outcome_of_epoch(home, position.epoch)
        raise KafkaError(ErrorCode.TRANSACTION_CONFLICT, text, outcome=outcome)


def _judge_repeat(content: Content, last: TransactionValue) -> Decided:
    if last.state is TransactionState.ABORTED:
        text = f"position {_shown(last)} of {content.id.name} was aborted"
        raise KafkaError(ErrorCode.TRANSACTION_ABORTED, text, outcome=Outcome.NOT_WRITTEN)
    where = f"position {_shown(last)} of {content.id.name}"
    if content.input != last.input:
        raise _conflict(f"{where} was decided of input {last.input!r}, not of {content.input!r}")
    if content.run_id == last.run_id:
        if content.digest != last.digest:
            raise _conflict(f"{where} was decided with another content")
        return Decided(last)
    assert content.run_id is not None, "only a numbered id has runs"
    brought = dict(last.others).get(content.run_id)
    if brought is not None:
        if brought != content.digest:
            raise _conflict(f"run {content.run_id} brought another content for {where}")
        return Decided(last, already=True)
    others = (*last.others, OtherRun(content.run_id, content.digest))[-OTHERS_KEPT:]
    value = replace(last, others=others)
    return Decided(value, already=True, records=(HomeRecord(TransactionKey(*content.id), value),))


def _check_epoch(home: HomeState, id_: TransactionalId, position: Position) -> None:
    """Refuse an epoch that is not the present one (rule S6)."""
    if not isinstance(position, ProducerPosition):
        return
    present = home.epochs.get(id_)
    if present is not None and present.epoch == position.epoch:
        return
    text = f"epoch {position.epoch} of {id_.name} is over"
    if present is None:
        text = f"{id_.name} has no epoch {position.epoch}: initialise it first"
    elif present.epoch < position.epoch:
        text = f"epoch {position.epoch} of {id_.name} was never given"
    newest = "" if present is None else f"; the present one is {present.epoch}"
    outcome = _outcome_of_epoch(home, position.epoch)
    raise KafkaError(ErrorCode.PRODUCER_FENCED, f"{text}{newest}", outcome=outcome)


def _outcome_of_epoch(home: HomeState, epoch: int) -> Outcome:
    """Return UNKNOWN for an epoch that may be forgotten, as its decisions are then (rule S6)."""
    return Outcome.UNKNOWN if epoch <= home.floor else Outcome.NOT_WRITTEN


class Part(NamedTuple):
    """Rows for one target in one piece, before they have a number."""

    target: Target
    rows: int
    source: int | StagedPlace


class StagedParts(NamedTuple):
    """The parts of all attempts of a commit, and the bytes of their rows."""

    parts: Sequence[Part]
    size_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """All that a decision adds to the position that it decides."""

    content: Content
    numbering: int
    metadata_offset: int
    parts: Sequence[Part]
    chunks: int = 0
    """Chunks of all attempts, if the rows are staged."""
    staged_bytes: int = 0
    """Bytes of their rows."""
    inline: tuple[TargetRows, ...] = ()
    layout: int = 0
    now_ms: int | None = None


def is_below_horizon(home: HomeState, parts: Sequence[Part]) -> bool:
    """Return True if a staged part may be gone: its stage must be asked again (rule S10)."""
    return any(isinstance(source, StagedPlace) and _is_below(home, source) for *_, source in parts)


def _is_below(home: HomeState, place: StagedPlace) -> bool:
    """Return True if the home's horizon in the stage is behind a place, or of a newer history."""
    horizon = home.horizons.get(place.stage)
    return horizon is not None and place.at < horizon


def decide(
    home: HomeState, decision: Decision, limits: HomeLimits
) -> tuple[TransactionValue, Records]:
    """Return the position as decided, and its batch: itself, and each target's next number (S4).

    The position was judged in this turn (`judge`), and no part is below its horizon.

    Raises:
        KafkaError: CONCURRENT_TRANSACTIONS, THROTTLING_QUOTA_EXCEEDED, MESSAGE_TOO_LARGE: a limit,
            which is named. Nothing was decided.
    """
    content = decision.content
    _check_room(home, decision, limits)
    numbers: dict[NextKey, int] = {}
    units = []
    for target, rows, source in decision.parts:
        if not rows:
            continue
        key = NextKey(decision.numbering, *target)
        if key not in numbers:
            known = home.next_rows.get(key)
            numbers[key] = 0 if known is None else known.number
        after = numbers[key]
        number = _number_of(after, rows)
        units.append(Unit(*target, number, rows, after, source))
        numbers[key] = number + rows
    epoch, number = content.at
    value = TransactionValue(
        epoch=epoch,
        number=number,
        state=TransactionState.COMMITTING if units else TransactionState.COMPLETE,
        digest=content.digest,
        run_id=content.run_id,
        input=content.input,
        numbering=decision.numbering,
        metadata_offset=decision.metadata_offset,
        units=tuple(units),
        inline=decision.inline if units else (),
        decided_ms=decision.now_ms,
        completed_ms=None if units else decision.now_ms,
        layout=decision.layout,
    )
    nexts = (
        HomeRecord(key, NextValue(number, decision.metadata_offset))
        for key, number in numbers.items()
    )
    return value, (HomeRecord(TransactionKey(*content.id), value), *nexts)


def _number_of(after: int, rows: int) -> int:
    try:
        return number_of_unit(RowNumber(after), rows)
    except NumbersExhaustedError as error:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, str(error)) from error


def _check_size(decision: Decision, limits: HomeLimits) -> None:
    """Refuse a transaction that is too large, all attempts of the commit together."""
    targets = {target for target, _, _ in decision.parts}
    for count, of_what, most, name in (
        (len(targets), "partitions", limits.partitions_max, "transaction.max.partitions"),
        (decision.chunks, "chunks", limits.chunks_max, "transaction.max.chunks"),
        (decision.staged_bytes, "bytes", limits.bytes_max, "transaction.max.bytes"),
    ):
        if count > most:
            text = f"{count} {of_what}, {name} is {most}"
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, text)
    if len(decision.parts) > UNITS_MAX:
        text = f"{len(decision.parts)} parts of chunks, at most {UNITS_MAX}: stage larger chunks"
        raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, text)


def _check_room(home: HomeState, decision: Decision, limits: HomeLimits) -> None:
    _check_size(decision, limits)
    id_, targets = decision.content.id, {target for target, _, _ in decision.parts}
    if id_ not in home.newest:
        if id_.is_key and len(home.keys) + len(home.once) >= limits.keys_max:
            text = f"idempotency.keys.max ({limits.keys_max}) is reached at this home"
            raise KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, text)
        if isinstance(decision.content.position, NumberedPosition):
            _check_room_for_ids(home, limits)
    if not decision.parts:
        return
    if len(home.open) >= limits.committing_max:
        text = f"transaction.committing.max ({limits.committing_max}) is reached at this home"
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, text)
    if home.open_bytes > limits.committing_bytes_max:
        text = f"{limits.committing_bytes_max} bytes wait for their completion at this home"
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, text)
    for target in targets:
        if home.open_units[target] >= limits.units_max:
            text = (
                f"{limits.units_max} units wait for partition {target.partition} of topic id "
                f"{target.topic_id}"
            )
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, text)


def _check_room_for_ids(home: HomeState, limits: HomeLimits) -> None:
    if home.ids_count >= limits.ids_max:
        text = f"transactional.ids.max ({limits.ids_max}) is reached at this home"
        raise KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, text)


# abort


def abort(
    home: HomeState, id_: TransactionalId, position: ProducerPosition, now_ms: int | None
) -> tuple[PositionFate | MustWait, Records]:
    """Abort a position, or return the fate that it has; behind a decision nothing changes (S2).

    Raises:
        KafkaError: TRANSACTION_CONFLICT, TRANSACTION_SUPERSEDED, PRODUCER_FENCED. To be proven.
    """
    last, at = home.newest.get(id_), place_of(position)
    _check_kind(home, id_, position, last)
    if last is not None and at < last.at:
        raise _superseded(id_, last)
    if last is not None and at == last.at:
        return PositionFate(last.state, _lost_of(last)), ()
    _check_epoch(home, id_, position)
    if last is not None and last.is_open:
        return MustWait(), ()
    value = TransactionValue(
        epoch=position.epoch,
        number=position.number,
        state=TransactionState.ABORTED,
        decided_ms=now_ms,
        completed_ms=now_ms,
    )
    return PositionFate(value.state), (HomeRecord(TransactionKey(*id_), value),)


# completion


def complete(
    home: HomeState,
    id_: TransactionalId,
    placed: tuple[PlacedRows, ...],
    dropped: tuple[Target, ...],
    now_ms: int | None = None,
) -> Records:
    """Record that every target has acknowledged, or lost its topic behind the decision (S2)."""
    last = home.newest.get(id_)
    if last is None or not last.is_open:
        return ()
    value = replace(
        slim(last),
        state=TransactionState.COMPLETE,
        placed=placed,
        dropped=dropped,
        lost=lost_rows(last, dropped),
        completed_ms=now_ms,
    )
    return (HomeRecord(TransactionKey(*id_), value),)


def lose(home: HomeState, id_: TransactionalId, gone: Collection[Unit]) -> Records:
    """Record that rows are lost: ``gone`` are units whose stages proved that they do not have them.

    Where the open decision names another place by now the rows were moved, and nothing is lost: it
    is asked for them there (rule S10). Nothing may act on this before it is committed (rule S1):
    another home, that this one does not know of, may have moved them.
    """
    last = home.newest.get(id_)
    if last is None or not last.is_open:
        return ()
    nowhere = frozenset(gone)
    units = tuple(unit._replace(source=None) if unit in nowhere else unit for unit in last.units)
    if units == last.units:
        return ()
    return (HomeRecord(TransactionKey(*id_), replace(last, units=units)),)


def lost_rows(value: TransactionValue, dropped: Collection[Target]) -> tuple[LostRows, ...]:
    """Return the rows of an open decision that are lost, but for those of deleted topics."""
    rows: Counter[Target] = Counter()
    for unit in value.units:
        if unit.is_lost and unit.target not in dropped:
            rows[unit.target] += unit.rows
    return tuple(LostRows(*target, count) for target, count in rows.items())


def _lost_of(value: TransactionValue) -> tuple[LostRows, ...]:
    """Return the rows of a position that are known to be lost."""
    return lost_rows(value, ()) if value.is_open else value.lost


# the stages ask


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkPlaced:
    """A chunk that a stage asks about: may it go? (rule S10)."""

    id: TransactionalId
    is_producer: bool
    at: tuple[int, int]
    place: StagedPlace
    """Place of its first record."""
    records: int = 1
    """Records of the chunk, one after another: one for each of its targets."""
    copy: StagedPlace | None = None
    """Its new place, where its records stand once more, in the same order, and are committed."""
    is_aged: bool = False
    """True if it is older than ``transaction.max.age.ms``."""
    is_passed: bool = False
    """True if the stage is about to trim it, and all older chunks of this home, which were let go:
    nothing that it still names of this home is older."""


def may_go(home: HomeState, chunk: ChunkPlaced) -> tuple[bool, Records]:
    """Return True, once the records are committed, if nothing will name the chunk at this place.

    It is asked of the first chunk that is left of this home in its stage only, because a horizon
    must not pass what is alive.
    """
    if chunk.is_passed:
        return _may_pass(home, chunk)
    last = home.newest.get(chunk.id)
    key = TransactionKey(*chunk.id)
    if last is not None and any(_record_in(unit.source, chunk) is not None for unit in last.units):
        if chunk.copy is None:
            return False, ()
        units = tuple(
            unit._replace(source=StagedPlace(chunk.copy.stage, chunk.copy.at.moved(record)))
            if (record := _record_in(unit.source, chunk)) is not None
            else unit
            for unit in last.units
        )
        return True, (HomeRecord(key, replace(last, units=units)),)
    is_over = last is not None and chunk.at <= last.at
    present = home.epochs.get(chunk.id)
    is_fenced = chunk.is_producer and (
        chunk.at[0] <= home.floor if present is None else chunk.at[0] < present.epoch
    )
    if is_over or is_fenced or _is_below(home, chunk.place):
        return True, ()
    if chunk.copy is None and not chunk.is_aged:
        return False, ()
    stage, at = chunk.place
    return True, (HomeRecord(HorizonKey(stage), at.moved(chunk.records)),)


def _may_pass(home: HomeState, chunk: ChunkPlaced) -> tuple[bool, Records]:
    """Raise the horizon behind a chunk that is about to be trimmed.

    The word that let a chunk go as over holds only until its position is forgotten: a commit that
    comes then, or that asked the stage before, may name it again, and may be decided already.
    """
    stage, end = chunk.place.stage, chunk.place.at.moved(chunk.records)
    for id_ in home.open:
        for unit in home.newest[id_].units:
            source = unit.source
            if isinstance(source, StagedPlace) and source.stage == stage and source.at < end:
                return False, ()
    horizon = home.horizons.get(stage)
    if horizon is not None and end <= horizon:
        return True, ()
    return True, (HomeRecord(HorizonKey(stage), end),)


def _record_in(source: int | StagedPlace | None, chunk: ChunkPlaced) -> int | None:
    """Return which of the chunk's records stands at a place: 0 for the first; None for no one."""
    if not isinstance(source, StagedPlace):
        return None
    record = source.at.offset - chunk.place.at.offset
    is_of_batch = source._replace(at=source.at.moved(-record)) == chunk.place
    return record if is_of_batch and 0 <= record < chunk.records else None


# what is forgotten


def forget(home: HomeState, id_: TransactionalId) -> Records:
    """Forget a numbered id or a key by request; a producer's id with its epoch goes by age.

    Raises:
        KafkaError: TRANSACTIONAL_ID_NOT_FOUND, CONCURRENT_TRANSACTIONS while it is committing,
            TRANSACTION_CONFLICT for a producer's id. To be proven.
    """
    last = home.newest.get(id_)
    if home.is_producer(id_):
        raise _conflict(f"{id_.name} is a producer's id: it is forgotten by its age only")
    if last is None:
        text = f"there is no transaction {id_.name}"
        raise KafkaError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, text)
    if last.is_open:
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, f"{id_.name} is committing")
    return (HomeRecord(TransactionKey(*id_), None),)


def forget_by_age(
    home: HomeState,
    to_check: Collection[TransactionalId],
    now_ms: int,
    loaded_ms: int,
    limits: HomeLimits,
) -> Records:
    """Return the records by which old keys, and old ones of these producers' ids, are forgotten.

    Only what is complete, by the later one of its decision and its completion, and numbered ids
    never (rules S2, S12): a client that is answered "committing" repeats its request until then.
    ``loaded_ms`` stands in for a time that is not known: since then, without a break, this home is
    loaded and its clock trusted, so that what it stands for happened before.
    """
    records: list[HomeRecord] = []

    def newest(times_ms: Iterable[int | None]) -> int:
        return max(loaded_ms if at is None else at for at in times_ms)

    once_kept_ms = min(ONCE_KEPT_MS, limits.key_retention_ms)
    for keys, kept_ms in ((home.keys, limits.key_retention_ms), (home.once, once_kept_ms)):
        complete_keys = (id_ for id_ in keys if not home.newest[id_].is_open)
        for id_ in islice(complete_keys, FORGOTTEN_AT_ONCE):
            last = home.newest[id_]
            at_ms = newest((last.decided_ms, last.completed_ms))
            if at_ms + kept_ms < now_ms:
                records.append(HomeRecord(TransactionKey(*id_), None))
            elif at_ms <= now_ms:
                break  # those behind it are younger; a time in the future, of a wrong clock, is not
    floor = home.floor
    for id_ in to_check:
        present, decided = home.epochs.get(id_), home.newest.get(id_)
        if present is None or (decided is not None and decided.is_open):
            continue
        times_ms = [present.used_ms]
        if decided is not None:
            times_ms += [decided.decided_ms, decided.completed_ms]
        if newest(times_ms) + limits.id_expiration_ms < now_ms:
            floor = max(floor, present.epoch)
            records.append(HomeRecord(EpochKey(*id_), None))
            if decided is not None:
                records.append(HomeRecord(TransactionKey(*id_), None))
    if floor > home.floor:
        records.insert(0, HomeRecord(FloorKey(), NumberValue(floor)))
    return tuple(records)


def forget_numbers(
    home: HomeState,
    to_check: Iterable[NextKey],
    is_deleted: Callable[[Target, int], bool],
) -> Records:
    """Return the records by which the numbers of deleted topics' rows are forgotten.

    ``is_deleted``: whether an image as new as this offset lacks the topic (rule S11); the image
    that decided the rows had it, so it was deleted since. A new leader of the home whose image is
    older may number its rows anew: they are dropped with all others of that topic.
    """
    return tuple(
        HomeRecord(key, None)
        for key in to_check
        if (value := home.next_rows.get(key)) is not None
        and not home.open_units[key.target]
        and is_deleted(key.target, value.metadata_offset)
    )


def _conflict(text: str) -> KafkaError:
    return KafkaError(ErrorCode.TRANSACTION_CONFLICT, text, outcome=Outcome.NOT_WRITTEN)


def _superseded(id_: TransactionalId, last: TransactionValue) -> KafkaError:
    text = f"{id_.name} has decided position {_shown(last)}, which is newer"
    return KafkaError(ErrorCode.TRANSACTION_SUPERSEDED, text, outcome=Outcome.UNKNOWN)


def _shown(value: TransactionValue) -> str:
    return f"{value.epoch}.{value.number}"
