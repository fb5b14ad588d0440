"""One home in a world of clients and a stage, and what must hold of each of its turns.

`HomeWorld` keeps a model of its own, from the records and answers that come out of the turns: who
decided each position with which content, which epochs were given, which numbers each target got,
which chunks are gone. A `HomeViolation` names the rule (S) or the invariant (T) that does not hold.
``tests/property/test_home_machine.py`` lets Hypothesis choose the actions; `run` draws them from a
seed, for the planted faults.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import NamedTuple

from broker.transactions.home_decisions import ChunkPlaced, Content, Decided, MustWait, Part
from broker.transactions.home_records import (
    EpochKey,
    HomeRecord,
    NextKey,
    NextValue,
    StagedPlace,
    Target,
    TransactionKey,
    TransactionValue,
)
from broker.transactions.home_state import HomeLimits, HomeState
from broker.transactions.messages import (
    KeyPosition,
    NumberedPosition,
    Position,
    PositionFate,
    ProducerPosition,
    TargetRows,
    TransactionalId,
    TransactionState,
)
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from tests.support.home_turns import (
    NUMBERING,
    HomeTurns,
    Records,
    folded,
    inline_rows,
    named,
    staged_at,
    target,
)

SEQUENCES = 1 << 31
STEPS = 160
LIMITS = HomeLimits(key_retention_ms=100, id_expiration_ms=150, committing_max=6, ids_max=4)
PRODUCERS = (named("p"), named("q"))
NUMBERED = (named("n"),)
KEYS = (named("key:k"), named("key:_1"))
FOR_GOOD = {
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.TRANSACTION_ABORTED,
    ErrorCode.TRANSACTION_CONFLICT,
}
At = tuple[int, int]


class HomeViolation(AssertionError):
    """A rule or an invariant that does not hold."""

    def __init__(self, check: str, text: str) -> None:
        super().__init__(f"{check}: {text}")
        self.check = check


def hold(check: str, is_true: bool, text: object) -> None:
    """Raise the violation of a check unless it holds."""
    if not is_true:
        raise HomeViolation(check, str(text))


def facts(home: HomeState) -> dict[str, object]:
    """Return all that a state knows, whatever the order in which it was told."""
    return {each.name: getattr(home, each.name) for each in fields(home)}


def compacted(log: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the newest record of each key, in the order of the log."""
    newest = {key: at for at, (key, _) in enumerate(log)}
    return [record for at, record in enumerate(log) if newest[record[0]] == at]


class Chunk(NamedTuple):
    """A staged chunk at its present place: a record for each target."""

    id: TransactionalId
    position: Position
    targets: tuple[Target, ...]
    rows: int
    offset: int

    @property
    def places(self) -> list[StagedPlace]:
        """Return the places of its records."""
        return [staged_at(str(self.offset + at)) for at in range(len(self.targets))]

    @property
    def parts(self) -> list[Part]:
        """Return its rows as a decision names them."""
        return [
            Part(each, self.rows, at) for each, at in zip(self.targets, self.places, strict=True)
        ]


class Refs(NamedTuple):
    """A commit whose stages were asked, and that is not decided yet."""

    content: Content
    parts: tuple[Part, ...]


@dataclass(slots=True)
class Model:
    """All that the turns have decided, as clients may rely on it."""

    fates: dict[TransactionalId, dict[At, Content | None]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    """The content decided for each position; None: it was aborted."""
    open: dict[TransactionalId, At] = field(default_factory=dict)
    brought: dict[tuple[TransactionalId, At, str], str] = field(default_factory=dict)
    """The content of each run that came later."""
    ages: dict[TransactionalId, int] = field(default_factory=dict)
    """Time at which each key was decided or completed last."""
    never: set[Content] = field(default_factory=set)
    """Commits that were refused for good."""
    epochs: dict[TransactionalId, int] = field(default_factory=dict)
    """The newest epoch of each producer, also of one that was forgotten."""
    forgotten: dict[TransactionalId, int] = field(default_factory=dict)
    """The last epoch of each producer that was forgotten."""
    ends: dict[NextKey, int] = field(default_factory=dict)

    def newest(self, id_: TransactionalId) -> At | None:
        """Return the newest position of an id that is decided or aborted."""
        return max(self.fates[id_], default=None)

    def forget(self, id_: TransactionalId) -> None:
        """Begin anew with an id: a client that names it means another transaction."""
        del self.fates[id_]
        self.never = {each for each in self.never if each.id != id_}
        self.brought = {key: each for key, each in self.brought.items() if key[0] != id_}


class HomeWorld:
    """A home, a stage, and clients that repeat, contradict themselves and come late."""

    def __init__(self, first_number: int = 0) -> None:
        self.turns = HomeTurns(limits=LIMITS, watch=self._watch)
        self.model = Model()
        self.sent: list[Content] = []
        self.chunks: list[Chunk] = []
        self.index: dict[tuple[TransactionalId, At], dict[int, Chunk]] = defaultdict(dict)
        """Chunks of each position by sequence, each at the newest place."""
        self.copies: dict[int, Chunk] = {}
        self.gone: set[StagedPlace] = set()
        self.asked: list[Refs] = []
        self.staged_end = 0
        self.by_request = False
        self.deciding: Content | None = None
        if first_number:
            key = NextKey(NUMBERING, *target("a"))
            self.model.ends[key] = first_number
            self.turns.write((HomeRecord(key, NextValue(first_number, 0)),))

    @property
    def home(self) -> HomeState:
        """Return the state of the home."""
        return self.turns.home

    @property
    def now_ms(self) -> int:
        """Return the wall time."""
        assert self.turns.now_ms is not None
        return self.turns.now_ms

    # what each turn records

    def _watch(self, records: Records) -> None:
        for key, value in records:
            if isinstance(key, EpochKey) and value is None:
                self.model.forgotten[key.id] = self.model.epochs[key.id]
            if isinstance(key, TransactionKey):
                assert value is None or isinstance(value, TransactionValue)
                self._check_position(key.id, value, records)

    def _check_position(
        self, id_: TransactionalId, after: TransactionValue | None, records: Records
    ) -> None:
        before, model = self.home.newest.get(id_), self.model
        is_open = id_ in model.open
        if after is None:
            hold("S2", not is_open, f"{id_} is forgotten before it is complete")
            if id_.is_key and not self.by_request:
                is_old = model.ages[id_] + LIMITS.key_retention_ms < self.now_ms
                hold("S12", is_old, f"{id_} is forgotten early")
            if id_ not in PRODUCERS:
                model.forget(id_)
            # No request lives as long as an id is kept; a removal by request waits for them here.
            self.asked = [each for each in self.asked if each.content.id != id_]
            return
        if after.at in model.fates[id_]:
            assert before is not None
            self._check_same(id_, before, after)
            return
        hold("S2", not is_open, f"{id_} {after.at} replaces an open decision")
        newest = model.newest(id_)
        hold("T9", newest is None or after.at > newest, f"{id_} {after.at} behind {newest}")
        if id_ in PRODUCERS:
            hold("T13", after.epoch == model.epochs.get(id_), f"{id_} {after.at} of an old epoch")
        if after.state is TransactionState.ABORTED:
            model.fates[id_][after.at] = None
            return
        assert self.deciding is not None
        hold("S7", self.deciding not in model.never, f"refused for good: {self.deciding}")
        model.fates[id_][after.at] = self.deciding
        model.ages[id_] = self.now_ms
        self._check_numbers(after, records)
        if after.is_open:
            model.open[id_] = after.at

    def _check_same(
        self, id_: TransactionalId, before: TransactionValue, after: TransactionValue
    ) -> None:
        """Behind a decision only its completion; what moves or comes later changes nothing."""
        kept = replace(after, others=before.others)
        if id_ in self.model.open and before.is_open:
            if after.state is TransactionState.COMPLETE:
                kept = replace(
                    kept,
                    state=before.state,
                    units=before.units,
                    inline=before.inline,
                    placed=before.placed,
                    completed_ms=before.completed_ms,
                )
                del self.model.open[id_]
                self.model.ages[id_] = self.now_ms
            else:
                moved = tuple(
                    unit._replace(source=old.source)
                    for old, unit in zip(before.units, kept.units, strict=False)
                )
                kept = replace(kept, units=moved if len(moved) == len(kept.units) else kept.units)
        hold("S2", kept == before, f"{id_}: {before} becomes {after}")

    def _check_numbers(self, value: TransactionValue, records: Records) -> None:
        """Numbers of each target are dense, but where sequences wrap, and in the same batch."""
        ends = self.model.ends
        for unit in value.units:
            key = NextKey(value.numbering, *unit.target)
            end = ends.get(key, 0)
            wraps = end % SEQUENCES + unit.rows > SEQUENCES
            number = (end // SEQUENCES + 1) * SEQUENCES if wraps else end
            hold("T10", (unit.after, unit.number) == (end, number), f"{unit} behind {end}")
            ends[key] = number + unit.rows
            hold("T8", unit.source not in self.gone, f"{unit} names a chunk that is gone")
        told = {key: each.number for key, each in records if isinstance(each, NextValue)}
        keys = {NextKey(value.numbering, *unit.target) for unit in value.units}
        hold("S4", told == {key: ends[key] for key in keys}, f"{told} in the batch")

    def _check_state(self) -> None:
        """Compare the state behind a turn with the model."""
        hold("S2", set(self.home.open) == set(self.model.open), f"open are {self.home.open}")
        for id_ in self.home.open:
            for unit in self.home.newest[id_].units:
                hold("T8", unit.source not in self.gone, f"the chunk of {unit} is gone")

    # actions

    def init(self, id_: TransactionalId) -> None:
        """Init, and believe what it says of the last life."""
        try:
            answer = self.turns.init(id_)
        except KafkaError as error:
            hold("limits", error.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED, error)
            return
        model = self.model
        given = model.epochs.get(id_, 0)
        hold("T13", answer.epoch > given, f"{id_}: {answer.epoch} was given before")
        model.epochs[id_] = answer.epoch
        last = None if answer.last is None else answer.last[:2]
        for at, content in model.fates[id_].items():
            is_undecided = at > (last or (0, 0)) and at[0] > answer.forgotten_to_epoch
            hold("S6", not is_undecided or content is None, f"{id_} {at} is decided")
        if answer.last is not None and last is not None:
            is_aborted = answer.last.state is TransactionState.ABORTED
            hold("S6", is_aborted == (model.fates[id_][last] is None), f"{id_} {last}")
        self._check_state()

    def position(self, id_: TransactionalId, back: int, step: int, variant: int) -> Position:
        """Return a position near the newest one: ``back`` epochs below, ``step`` numbers above."""
        if id_.is_key:
            return KeyPosition()
        newest = self.model.newest(id_)
        if id_ in NUMBERED:
            number = max(0, step + (-1 if newest is None else newest[1]))
            return NumberedPosition(number, f"r{variant % 3}", None if variant % 4 else "i")
        epoch = self.model.epochs.get(id_, 0) - back
        last = max((number for of, number in self.model.fates[id_] if of == epoch), default=-1)
        return ProducerPosition(epoch, max(0, last + step))

    def commit(self, content: Content, parts: Sequence[Part] = ()) -> None:
        """Commit, and believe the answer. Without parts its rows are inline."""
        self.sent.append(content)
        inline: tuple[TargetRows, ...] = ()
        if not parts:
            letters = ("a", "ab", "b", "")["ABCD".index(content.digest)]
            inline = tuple(inline_rows(target(letter), 2) for letter in letters)
            parts = [Part(Target(*each[:2]), 2, at) for at, each in enumerate(map(_place, inline))]
        fate = self.model.fates[content.id].get(content.at)
        is_repeat = fate == content and content.at == self.model.newest(content.id)
        is_repeat &= content.at[0] > self.model.forgotten.get(content.id, -1)
        self.deciding = content
        try:
            answer = self.turns.commit(content, parts, inline)
        except KafkaError as error:
            hold("S7", not is_repeat, f"a repeat of what is decided is refused: {error}")
            self._believe(content, error)
            return
        finally:
            self.deciding = None
        match answer:
            case MustWait():
                hold("S2", content.id in self.model.open, f"{content.id} waits for nothing")
            case Decided():
                self._check_repeat(content, fate, answer)
            case _:
                pass
        self._check_state()

    def _believe(self, content: Content, error: KafkaError) -> None:
        """Take a refusal as a client does."""
        if error.outcome is not Outcome.NOT_WRITTEN:
            return
        is_fence = error.code is ErrorCode.PRODUCER_FENCED
        fate = self.model.fates[content.id].get(content.at)
        hold("S6" if is_fence else "S7", fate != content, f"{content} is decided: {error}")
        is_future = isinstance(
            content.position, ProducerPosition
        ) and content.position.epoch > self.model.epochs.get(content.id, 0)
        if error.code in FOR_GOOD and not is_future:
            self.model.never.add(content)

    def _check_repeat(self, content: Content, fate: Content | None, answer: Decided) -> None:
        hold("S7", fate is not None, f"{content} was not decided")
        assert fate is not None
        hold("S7", answer.value.digest == fate.digest, f"{content} hears of {answer.value}")
        if not answer.already:
            hold("S7", fate == content, f"{fate} was decided, not {content}")
            return
        run = content.run_id
        hold("S7", run not in {None, fate.run_id}, f"{content} is the first run")
        hold("S7", content.input == fate.input, f"{content} has another input than {fate}")
        brought = self.model.brought.setdefault((content.id, content.at, str(run)), content.digest)
        hold("S7", brought == content.digest, f"{run} brought {brought}, then {content.digest}")

    def repeat(self, back: int) -> None:
        """Send a commit once more."""
        if self.sent:
            self.commit(self.sent[-1 - back % len(self.sent)])

    def abort(self, id_: TransactionalId, position: ProducerPosition) -> None:
        """Abort, and believe the answer."""
        at = (position.epoch, position.number)
        try:
            answer = self.turns.abort(id_, position)
        except KafkaError:
            return
        if isinstance(answer, PositionFate):
            is_aborted = answer.state is TransactionState.ABORTED
            fate = self.model.fates[id_][at]
            hold("S2", is_aborted == (fate is None), f"{id_} {at} is {answer}")
        self._check_state()

    def complete(self, which: int) -> None:
        """Let all targets acknowledge an open decision."""
        if self.model.open:
            ids = sorted(self.model.open)
            self.turns.complete(ids[which % len(ids)])
            self._check_state()

    def forget(self, id_: TransactionalId) -> None:
        """Forget an id by request."""
        self.by_request = True
        try:
            self.turns.forget(id_)
        except KafkaError as error:
            hold("S2", error.outcome is Outcome.NOT_WRITTEN, error)
        finally:
            self.by_request = False
        self._check_state()

    def age(self, by_ms: int) -> None:
        """Let time go by, and forget what is old."""
        self.turns.now_ms = self.now_ms + by_ms
        self.turns.forget_by_age()
        self._check_state()

    def load(self) -> None:
        """Load again: the compacted log says the same, and nothing is forgotten (T18)."""
        before = facts(self.home)
        records = [record for batch in self.turns.log for record in batch]
        kept = folded(compacted(records))
        hold("T18", facts(kept) == before, "the compacted log differs")
        hold("T18", list(kept.keys) == list(self.home.keys), "keys have another order")
        hold("T18", list(kept.once) == list(self.home.once), "one-shots have another order")
        self.turns.load()
        hold("T18", facts(self.home) == before, "the log differs")

    # the stage

    def stage(self, id_: TransactionalId, position: Position, rows: int) -> None:
        """Stage a chunk."""
        at = Content(id_, position, "").at
        targets = tuple(map(target, ("a", "b", "ab")[rows % 3]))
        chunk = Chunk(id_, position, targets, rows, self.staged_end)
        self.staged_end += len(targets)
        self.chunks.append(chunk)
        known = self.index[id_, at]
        known[len(known)] = chunk

    def ask_stages(self, content: Content) -> None:
        """Take the places of a commit's chunks as they are now; it is decided later."""
        chunks = self.index[content.id, content.at].values()
        if chunks:
            self.sent.append(content)
            parts = tuple(part for chunk in chunks for part in chunk.parts)
            self.asked.append(Refs(content, parts))

    def commit_staged(self, which: int) -> None:
        """Decide a commit by the places that the stages named."""
        if self.asked:
            self.commit(*self.asked.pop(which % len(self.asked)))

    def ask_home(self, *, move: bool, is_aged: bool) -> None:
        """Ask whether the first chunk that is left may go; if so wished, move it before."""
        if not self.chunks:
            return
        chunk = self.chunks[0]
        if move and chunk.offset not in self.copies:
            copy = chunk._replace(offset=self.staged_end)
            self.staged_end += len(copy.targets)
            self.chunks.append(copy)
            self.copies[chunk.offset] = copy
            known = self.index[chunk.id, Content(chunk.id, chunk.position, "").at]
            known.update({at: copy for at, each in known.items() if each == chunk})
        moved = self.copies.get(chunk.offset)
        placed = ChunkPlaced(
            id=chunk.id,
            is_producer=isinstance(chunk.position, ProducerPosition),
            at=Content(chunk.id, chunk.position, "").at,
            place=chunk.places[0],
            records=len(chunk.targets),
            copy=None if moved is None else moved.places[0],
            is_aged=is_aged,
        )
        if self.turns.may_go(placed):
            self.gone.update(chunk.places)
            self.chunks.pop(0)
            known = self.index[chunk.id, placed.at]
            for at in [at for at, each in known.items() if each == chunk]:
                del known[at]
        self._check_state()


def _place(rows: TargetRows) -> Target:
    return Target(rows.topic_id, rows.partition)


def run(seed: int) -> HomeWorld:
    """Draw a story from a seed."""
    draw = random.Random(seed)
    world = HomeWorld(draw.choice([0, SEQUENCES - 5]))
    for _ in range(STEPS):
        act(world, draw)
    world.load()
    return world


def act(world: HomeWorld, draw: random.Random) -> None:
    """Do one thing at random."""
    id_ = draw.choice([*PRODUCERS, *NUMBERED, *KEYS])
    back, step = draw.choice([0, 0, 0, 0, 1]), draw.choice([0, 0, 1, 1, 1, 1, -1])
    position = world.position(id_, back, step, draw.randrange(12))
    content = Content(id_, position, draw.choice("AAABCD"))
    match draw.choices(range(11), [2, 6, 6, 2, 5, 1, 2, 1, 4, 4, 5])[0]:
        case 0:
            world.init(draw.choice(PRODUCERS))
        case 1:
            world.commit(content)
        case 2:
            world.repeat(draw.randrange(1 + draw.choice([1, 6, 40])))
        case 3 if isinstance(position, ProducerPosition):
            world.abort(id_, position)
        case 4:
            world.complete(draw.randrange(8))
        case 5:
            world.forget(id_)
        case 6:
            world.age(draw.choice([10, 40, 100]))
        case 7:
            world.load()
        case 8:
            world.stage(id_, position, draw.randrange(1, 4))
            world.ask_stages(content)
        case 9:
            world.commit_staged(draw.randrange(8))
        case 10:
            is_moved = draw.random() < 0.5
            world.ask_home(move=is_moved, is_aged=draw.random() < 0.2)
        case _:
            pass
