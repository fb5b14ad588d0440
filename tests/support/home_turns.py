"""The turns of a home as transcripts: each line a command, its answer, and the records of it.

    init p               -> epoch 1 | epoch p 1
    commit p 1.0 A a2 b1 -> decided | txn p 1.0 committing A a:0+2 b:0+1, next a 2, next b 1

`1.0` is a producer's position, `#5` with `run=` and `input=` one of a numbered id, `-` that of a
key; `a2` two rows for target a, `a2@17` staged at offset 17 in leader epoch 1, `a2@17e3` in 3.

`HomeTurns` folds what a turn returns and keeps it as bytes, as a shard does; `play` runs a script.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from difflib import ndiff

from broker.coordinator.records import (
    ShardRecord,
    UndecodableRecord,
    decode_record,
    encode_key,
    encode_value,
)
from broker.record.batch import RecordFormat
from broker.transactions import home_decisions
from broker.transactions.home_decisions import ChunkPlaced, Content, Decided, MustWait, Part
from broker.transactions.home_records import (
    HOME_KEYS,
    EpochKey,
    EpochValue,
    FloorKey,
    HomeRecord,
    HomeValue,
    HorizonKey,
    NextKey,
    NextValue,
    NumberValue,
    StagedPlace,
    Target,
    TransactionKey,
    TransactionValue,
    Unit,
)
from broker.transactions.home_state import HomeLimits, HomeState
from broker.transactions.messages import (
    KeyPosition,
    LastPosition,
    LogPlace,
    NumberedPosition,
    PlacedRows,
    Position,
    PositionFate,
    ProducerPosition,
    TargetRows,
    TransactionalId,
)
from raft_metadata.common.errors import KafkaError
from raft_metadata.common.ids import GroupId, LeaderEpoch, PartitionId, TopicId

NUMBERING = (1 << 62) + 3
STAGE = PartitionId(4)
NOW_MS = 1_000_000
Records = tuple[HomeRecord, ...]


def named(name: str) -> TransactionalId:
    """Return the id of a name without a group; ``key:_1`` is a one-shot without a key."""
    return TransactionalId(GroupId(""), name.replace("_", " "))


def target(letter: str) -> Target:
    """Return a partition of a letter's topic: ``a`` is partition 0 of topic id ``id-a``."""
    return Target(TopicId(f"id-{letter}"), PartitionId(0))


def staged_at(text: str) -> StagedPlace:
    """Return the place of ``17``, ``@17`` or ``@17e3``: an offset of the stage, a leader epoch."""
    offset, _, epoch = text.removeprefix("@").partition("e")
    return StagedPlace(STAGE, LogPlace(LeaderEpoch(int(epoch or 1)), int(offset)))


def inline_rows(where: Target, rows: int) -> TargetRows:
    """Return so many rows, as text, for a target."""
    return TargetRows(
        topic_id=where.topic_id,
        partition=where.partition,
        key_format=RecordFormat.JSON,
        value_format=RecordFormat.JSON,
        rows=rows,
        records=b"[%b]" % b",".join([b"[null,1]"] * rows),
    )


@dataclass(frozen=True, slots=True)
class BelowHorizon:
    """A commit named a chunk that may be gone: its stages are asked again."""


CommitAnswer = TransactionValue | Decided | MustWait | BelowHorizon


@dataclass(slots=True, kw_only=True)
class HomeTurns:
    """A home whose turns are folded and written at once; its log keeps each turn as bytes."""

    limits: HomeLimits = field(default_factory=HomeLimits)
    numbering: int = NUMBERING
    now_ms: int | None = NOW_MS
    loaded_ms: int = NOW_MS
    home: HomeState = field(default_factory=HomeState)
    log: list[list[tuple[bytes, bytes]]] = field(default_factory=list)
    watch: Callable[[Records], None] = lambda _: None
    """Called with the records of each turn before they are folded."""

    def write(self, records: Records) -> None:
        """Fold the records of a turn, and append them as one batch."""
        self.watch(records)
        for record in records:
            self.home.fold(record)
        if records:
            self.log.append([(encode_key(key), encode_value(value)) for key, value in records])

    def load(self) -> None:
        """Load the state from the log again, as a new leader does."""
        self.home = folded([record for batch in self.log for record in batch])

    def init(self, id_: TransactionalId) -> home_decisions.ProducerInitialized:
        """Give an id its next epoch."""
        answer, records = home_decisions.init(self.home, id_, self.now_ms, self.limits)
        self.write(records)
        return answer

    def commit(
        self, content: Content, parts: Sequence[Part], inline: tuple[TargetRows, ...] = ()
    ) -> CommitAnswer:
        """Judge a commit, and decide it if it is new."""
        judged = home_decisions.judge(self.home, content)
        match judged:
            case MustWait():
                return judged
            case Decided():
                self.write(judged.records)
                return judged
            case _:
                pass
        if home_decisions.is_below_horizon(self.home, parts):
            return BelowHorizon()
        decision = home_decisions.Decision(
            content=content,
            numbering=self.numbering,
            metadata_offset=7,
            parts=parts,
            inline=inline,
            now_ms=self.now_ms,
        )
        value, records = home_decisions.decide(self.home, decision, self.limits)
        self.write(records)
        return value

    def abort(self, id_: TransactionalId, position: ProducerPosition) -> PositionFate | MustWait:
        """Abort a position."""
        answer, records = home_decisions.abort(self.home, id_, position, self.now_ms)
        self.write(records)
        return answer

    def complete(
        self,
        id_: TransactionalId,
        placed: tuple[PlacedRows, ...] = (),
        dropped: tuple[Target, ...] = (),
    ) -> None:
        """Record that every target has acknowledged."""
        self.write(home_decisions.complete(self.home, id_, placed, dropped, self.now_ms))

    def lose(self, id_: TransactionalId, gone: Collection[Unit]) -> None:
        """Record that the rows of units are lost."""
        self.write(home_decisions.lose(self.home, id_, gone))

    def may_go(self, chunk: ChunkPlaced) -> bool:
        """Answer a stage."""
        answer, records = home_decisions.may_go(self.home, chunk)
        self.write(records)
        return answer

    def forget(self, id_: TransactionalId) -> None:
        """Forget an id by request."""
        self.write(home_decisions.forget(self.home, id_))

    def forget_by_age(self, to_check: Sequence[TransactionalId] | None = None) -> None:
        """Forget what is old; look at all ids unless some are named."""
        ids = list(self.home.epochs) if to_check is None else to_check
        now_ms = self.loaded_ms if self.now_ms is None else self.now_ms
        self.write(
            home_decisions.forget_by_age(self.home, ids, now_ms, self.loaded_ms, self.limits)
        )


def folded(log: Sequence[tuple[bytes, bytes]]) -> HomeState:
    """Return the fold of records that were read from a log."""
    home = HomeState()
    for offset, (key, value) in enumerate(log):
        record = decode_record(key, value, offset)
        assert not isinstance(record, UndecodableRecord), record
        home.fold(as_of_home(record))
    return home


def as_of_home(record: ShardRecord) -> HomeRecord:
    """Return a decoded record as one of a home."""
    key, value = record
    assert isinstance(key, HOME_KEYS)
    assert value is None or isinstance(value, HomeValue)
    return HomeRecord(key, value)


# transcripts


def position_of(text: str, options: dict[str, str]) -> Position:
    """Return the position of ``1.0`` (a producer's), ``#5`` (numbered) or ``-`` (a key's)."""
    if text == "-":
        return KeyPosition()
    if text.startswith("#"):
        return NumberedPosition(int(text[1:]), options.get("run", "r1"), options.get("input"))
    epoch, number = text.split(".")
    return ProducerPosition(int(epoch), int(number))


def play(script: str, turns: HomeTurns | None = None) -> str:
    """Run the commands of a script, and return it with the answers and records that came.

    A correct script is returned as it is, with its columns aligned anew.
    """
    turns = turns or HomeTurns()
    lines = []
    for line in script.strip().splitlines():
        command = line.partition("->")[0].strip()
        if not command:
            continue
        written: list[HomeRecord] = []
        turns.watch = written.extend
        try:
            answer = _run(turns, command)
        except KafkaError as error:
            answer = f"{error.code.name} {error.outcome}"
        lines.append((command, answer, ", ".join(map(show_record, written))))
    return _aligned(lines)


def aligned(script: str) -> str:
    """Return a script with its columns aligned."""
    lines = []
    for line in filter(None, map(str.strip, script.strip().splitlines())):
        command, _, rest = line.partition("->")
        answer, _, records = rest.partition("|")
        lines.append((command.strip(), answer.strip(), records.strip()))
    return _aligned(lines)


def check(script: str, turns: HomeTurns | None = None) -> None:
    """Run a script; fail unless all its answers and records come as they stand there."""
    came, expected = play(script, turns), aligned(script)
    if came != expected:
        raise AssertionError("\n".join(ndiff(expected.splitlines(), came.splitlines())))


def _aligned(lines: list[tuple[str, str, str]]) -> str:
    widest = max((len(command) for command, _, _ in lines), default=0)
    return "\n".join(
        f"{command:{widest}} -> {answer} | {records}".rstrip(" |")
        for command, answer, records in lines
    )


def _run(turns: HomeTurns, command: str) -> str:
    verb, *words = command.split()
    options = dict(word.split("=", 1) for word in words if "=" in word)
    words = [word for word in words if "=" not in word]
    match verb, words:
        case "init", [name]:
            answer = turns.init(named(name))
            last = "" if answer.last is None else f", last {show_last(answer.last)}"
            floor = answer.forgotten_to_epoch
            return f"epoch {answer.epoch}{last}" + (f", forgotten to {floor}" if floor else "")
        case "commit", [name, at, digest, *rows]:
            content = Content(named(name), position_of(at, options), digest)
            return show_answer(turns.commit(content, *parts_of(rows)))
        case "hear", [name, at, digest]:
            content = Content(named(name), position_of(at, options), digest)
            return show_answer(home_decisions.fate(turns.home, content))
        case "abort", [name, at]:
            position = position_of(at, options)
            assert isinstance(position, ProducerPosition)
            fate = turns.abort(named(name), position)
            return "must wait" if isinstance(fate, MustWait) else show_fate(fate)
        case "complete", [name, *dropped]:
            placed = tuple(
                PlacedRows(*target(letter), 1, int(offset)) for letter, offset in options.items()
            )
            turns.complete(named(name), placed, tuple(map(target, dropped)))
            return "done"
        case "lose", [name, *places]:
            last = turns.home.newest[named(name)]
            gone = [unit for unit in last.units if unit.source in map(staged_at, places)]
            turns.lose(named(name), gone)
            return "done"
        case "forget", [name]:
            turns.forget(named(name))
            return "forgotten"
        case "age", [by_ms]:
            assert turns.now_ms is not None
            turns.now_ms += int(by_ms)
            turns.forget_by_age()
            return "checked"
        case "ask", [name, at, place, *flags]:
            position = position_of(at, options)
            copy = options.get("copy")
            chunk = ChunkPlaced(
                id=named(name),
                is_producer=isinstance(position, ProducerPosition),
                at=home_decisions.place_of(position),
                place=staged_at(place),
                records=int(options.get("records", "1")),
                copy=None if copy is None else staged_at(copy),
                is_aged="aged" in flags,
                is_passed="passed" in flags,
            )
            return "may go" if turns.may_go(chunk) else "stays"
        case "deleted", [letter, image_offset]:

            def is_deleted(where: Target, metadata_offset: int) -> bool:
                return where == target(letter) and int(image_offset) >= metadata_offset

            turns.write(
                home_decisions.forget_numbers(turns.home, [*turns.home.next_rows], is_deleted)
            )
            return "checked"
        case "load", []:
            turns.load()
            return "loaded"
    raise AssertionError(command)


def parts_of(words: Sequence[str]) -> tuple[list[Part], tuple[TargetRows, ...]]:
    """Return parts and inline rows of words like ``a2`` and ``b3@17`` (staged at offset 17)."""
    parts, inline = list[Part](), list[TargetRows]()
    for word in words:
        rows, at, place = word[1:].partition("@")
        where = target(word[0])
        source: int | StagedPlace = len(inline)
        if at:
            source = staged_at(place)
        else:
            inline.append(inline_rows(where, int(rows)))
        parts.append(Part(where, int(rows), source))
    return parts, tuple(inline)


def show_answer(answer: CommitAnswer) -> str:
    """Return the answer of a commit in words."""
    match answer:
        case TransactionValue():
            return "decided"
        case MustWait():
            return "must wait"
        case BelowHorizon():
            return "below the horizon"
    word = "already" if answer.already else "again"
    return f"{word} {answer.value.epoch}.{answer.value.number} {answer.value.state.value}"


def show_fate(fate: PositionFate) -> str:
    """Return what an abort hears in words."""
    lost = "".join(f" without {one.rows} of {one.topic_id[-1]}" for one in fate.lost)
    return f"{fate.state.value}{lost}"


def show_last(last: LastPosition) -> str:
    """Return a last position in words."""
    lost = f" without {last.lost_rows} rows" if last.lost_rows else ""
    return f"{last.epoch}.{last.number} {last.state.value}{lost}"


def show_record(record: HomeRecord) -> str:
    """Return a record in words."""
    key, value = record
    match key:
        case TransactionKey():
            shown = f"txn {key.name.replace(' ', '_')}"
        case EpochKey():
            shown = f"epoch {key.name}"
        case NextKey():
            shown = f"next {key.topic_id[-1]}"
        case HorizonKey():
            shown = "horizon"
        case FloorKey():
            shown = "floor"
    match value:
        case None:
            return f"no {shown}"
        case TransactionValue():
            return f"{shown} {show_value(value)}"
        case EpochValue():
            return f"{shown} {value.epoch}"
        case NumberValue() | NextValue():
            return f"{shown} {value.number}"
        case LogPlace():
            return f"{shown} {show_place(value)}"


def show_value(value: TransactionValue) -> str:
    """Return a position and its content in words."""
    words = [f"{value.epoch}.{value.number}", value.state.value, value.digest]
    words += [f"run={value.run_id}"] if value.run_id is not None else []
    words += [f"input={value.input}"] if value.input is not None else []
    words += [f"+{run}:{digest}" for run, digest in value.others]
    words += map(show_unit, value.units)
    words += [f"{each.topic_id[-1]}={each.base_offset}" for each in value.placed]
    words += [f"dropped:{each.topic_id[-1]}" for each in value.dropped]
    words += [f"lost:{each.topic_id[-1]}+{each.rows}" for each in value.lost]
    return " ".join(filter(None, words))


def show_place(at: LogPlace) -> str:
    """Return the place of a staged record in words."""
    return f"{at.offset}" + (f"e{at.leader_epoch}" if at.leader_epoch != 1 else "")


def show_unit(unit: Unit) -> str:
    """Return a unit in words: ``a:7+2`` two rows from number 7 on, ``@17`` staged there.

    ``@lost``: they were staged, and are nowhere.
    """
    staged = f"@{show_place(unit.source.at)}" if isinstance(unit.source, StagedPlace) else ""
    staged = "@lost" if unit.is_lost else staged
    return f"{unit.topic_id[-1]}:{unit.number}+{unit.rows}{staged}"
