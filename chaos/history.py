"""History of a run: records sent, acknowledged, refused or unknown; faults; metadata writes.

Pure data. A run's tasks append to one `History`; after the run the checkers read it. Times are
milliseconds of one monotonic clock. `to_line` renders an event for the history file that stays with
a failed run; a row number there is the line of the input, counted from 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import orjson

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Record(NamedTuple):
    """A record to send: the JSON texts of key and value, byte for byte."""

    key: bytes
    value: bytes


class Position(NamedTuple):
    """Partition and offset that the cluster acknowledged for an input row."""

    row: int
    partition: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledgement:
    """The acknowledged records of one answer.

    `due_ms` is when the client first tried to send them, `sent_ms` when it sent the attempt that
    succeeded.
    """

    broker: int
    due_ms: int
    sent_ms: int
    answered_ms: int
    positions: tuple[Position, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unacknowledged:
    """Rows that one answer, or a missing answer, left without acknowledgement.

    `unknown` is false only if surely nothing was written: the answer contained ``outcome:
    not_written``, or no connection was made.
    """

    broker: int
    sent_ms: int
    answered_ms: int
    rows: tuple[int, ...]
    unknown: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Effect:
    """A countable effect of a fault, measured from outside.

    The fault was felt if the count grew.
    """

    what: str
    before: int
    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault that a run made. `evidence` shows that it was felt (a new epoch, a new term).

    `effects` is the same for the checkers, `healed_ms` the time when the network was whole again
    (None if it was not cut).
    """

    name: str
    target: str
    at_ms: int
    evidence: str = ""
    healed_ms: int | None = None
    effects: tuple[Effect, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLeadership:
    """Leader and ISR of a partition in an epoch, as one broker reported them."""

    partition: int
    leader: int | None
    epoch: int
    isr: tuple[int, ...]
    told_by: int
    seen_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerTerm:
    """A controller's report that it is active in a term."""

    controller: int
    term: int
    seen_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A remark for the reader of the history."""

    at_ms: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataWrite:
    """A topic creation or deletion; `ok` is false after an error or without an answer."""

    due_ms: int
    answered_ms: int
    ok: bool
    what: str


class Line(NamedTuple):
    """A record as a reader received it: the JSON texts of key and value, byte for byte."""

    offset: int
    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Result of one fetch of the log's tail: lines from `offset` on, or the text of a 4xx.

    The text is in `refusal`. A fetch without an answer, or answered with 503, proves nothing and is
    not recorded.
    """

    broker: int
    partition: int
    offset: int
    sent_ms: int
    answered_ms: int
    lines: tuple[Line, ...] = ()
    refusal: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRead:
    """Offsets of one partition that a group member received in one answer."""

    member: str
    partition: int
    offsets: tuple[int, ...]
    sent_ms: int
    answered_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCommit:
    """An acknowledged commit; the group continues at `next_offset`."""

    member: str
    partition: int
    next_offset: int
    answered_ms: int


HistoryEvent = (
    Acknowledgement
    | Unacknowledged
    | Fault
    | MetadataWrite
    | PartitionLeadership
    | ControllerTerm
    | Note
    | Observation
    | GroupRead
    | GroupCommit
)

LINE_KEYS: dict[type[HistoryEvent], str] = {
    Unacknowledged: "unacknowledged",
    Fault: "fault",
    MetadataWrite: "metadatawrite",
    PartitionLeadership: "leadership",
    ControllerTerm: "reign",
    Note: "note",
    Observation: "observation",
    GroupRead: "groupread",
    GroupCommit: "groupcommit",
}
"""The key of each event's line in the history file; docs/guides/chaos.md names them to users.

An acknowledgement has a form of its own: see `to_line`.
"""


@dataclass(frozen=True, slots=True)
class Reading:
    """All records that one broker served: partition → records in the order served."""

    broker: int
    partitions: dict[int, list[Line]]


def _discard(_: bytes) -> None:
    pass


@dataclass(slots=True)
class History:
    """Events of one run. Owned by it; appended to by its tasks on one loop.

    `write` gets one line per event as it happens, so that a run that dies leaves its history.
    """

    records: list[Record]
    write: Callable[[bytes], object] = _discard
    acknowledgements: list[Acknowledgement] = field(default_factory=list)
    unacknowledged: list[Unacknowledged] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    metadata_writes: list[MetadataWrite] = field(default_factory=list)
    leaderships: list[PartitionLeadership] = field(default_factory=list)
    controller_terms: list[ControllerTerm] = field(default_factory=list)
    observations: list[Observation] = field(default_factory=list)
    group_reads: list[GroupRead] = field(default_factory=list)
    group_commits: list[GroupCommit] = field(default_factory=list)

    def add(self, event: HistoryEvent) -> None:
        """Append an event and write its line."""
        match event:
            case Acknowledgement():
                self.acknowledgements.append(event)
            case Unacknowledged():
                self.unacknowledged.append(event)
            case Fault():
                self.faults.append(event)
            case MetadataWrite():
                self.metadata_writes.append(event)
            case PartitionLeadership():
                self.leaderships.append(event)
            case ControllerTerm():
                self.controller_terms.append(event)
            case Observation():
                self.observations.append(event)
            case GroupRead():
                self.group_reads.append(event)
            case GroupCommit():
                self.group_commits.append(event)
            case Note():
                pass
        self.write(to_line(event, self.records))


def to_line(event: HistoryEvent, records: Sequence[Record]) -> bytes:
    """Return an event as one newline-terminated JSON object.

    An acknowledgement's records are ``[row, partition, offset, value text]``, the lines of an
    observation are ``[offset, key text, value text]``.
    """
    if isinstance(event, Acknowledgement):
        positions = [
            [*position, records[position.row].value.decode()] for position in event.positions
        ]
        body: dict[str, object] = {
            "acknowledged": positions,
            "broker": event.broker,
            "due_ms": event.due_ms,
            "sent_ms": event.sent_ms,
            "answered_ms": event.answered_ms,
        }
        return orjson.dumps(body, option=orjson.OPT_APPEND_NEWLINE)
    key = LINE_KEYS[type(event)]
    if isinstance(event, Observation):
        lines = [[line.offset, line.key.decode(), line.value.decode()] for line in event.lines]
        body = {key: replace(event, lines=()), "lines": lines}
        return orjson.dumps(body, option=orjson.OPT_APPEND_NEWLINE)
    return orjson.dumps({key: event}, option=orjson.OPT_APPEND_NEWLINE)
