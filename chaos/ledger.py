"""Ledger of a run with money: every transfer, every request about it, and what producers heard.

Pure data. The clients of `transfers.py` append to one `Ledger`; after the run the checkers of
`checkers/money.py` read it. A transfer moves an amount between accounts by rows in `debits` and
`credits`; its rows name it, so a reader can tell which of them belong together. Times are
milliseconds of one monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec
import orjson

if TYPE_CHECKING:
    from collections.abc import Callable

    from chaos.history import Line, Observation, Reading

DEBITS, CREDITS, ORDERS = "debits", "credits", "orders"
BOOKS = (DEBITS, CREDITS)
"""Topics whose rows are the balances."""
ACCOUNTS = 40
OPENING_BALANCE = 100

Kind = Literal["one shot", "staged", "members", "expected"]
"""Way of making a transfer: in one request with a key; by chunks and a commit; with offsets of a
group whose members are named; with offsets that name the ones they expect."""
KINDS: tuple[Kind, ...] = ("one shot", "staged", "members", "expected")
Told = Literal["complete", "committing", "aborted", "refused", "unknown"]
"""Meaning of one answer for its transfer. `refused`: surely not written by this request."""
What = Literal["commit", "stage", "abort"]


class Entry(NamedTuple):
    """A row of a transfer: what one account loses (below 0, in `debits`) or gets."""

    topic: str
    account: int
    amount: int


class OrderRange(NamedTuple):
    """The records of `orders` that a transfer answers: from `first` up to, without, `end`."""

    group: str
    partition: int
    first: int
    end: int


class TellerPosition(NamedTuple):
    """A position of one producer: transactions count from 0 within an epoch."""

    teller: str
    epoch: int
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """A transfer as its client wants it. Two with one `transaction` are rivals."""

    id: str
    transaction: str
    kind: Kind
    entries: tuple[Entry, ...]
    position: TellerPosition | None = None
    orders: OrderRange | None = None

    def value(self, row: int) -> bytes:
        """Return the value of a row, by which its readers know the transfer."""
        entry = self.entries[row]
        return orjson.dumps(
            {"transfer": self.id, "row": row, "account": entry.account, "amount": entry.amount}
        )


@dataclass(frozen=True, slots=True)
class SentText:
    """A request as it was sent, to be sent again: path with query, headers, body."""

    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferRequest:
    """One request about a transfer, and its answer. `code` is 0 where there is none."""

    transfer: str
    what: What
    broker: int
    sent_ms: int
    answered_ms: int
    told: Told
    code: int = 0
    reason: str = ""
    sent: SentText | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TellerLife:
    """An answered `init`: the epoch it told, and the last position with its fate, if any."""

    teller: str
    epoch: int
    last: tuple[int, int, str] | None
    forgotten_to_epoch: int
    sent_ms: int
    answered_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRead:
    """A group's committed offset in a partition of `orders`, as a broker told it."""

    group: str
    partition: int
    offset: int
    broker: int
    sent_ms: int
    answered_ms: int


@dataclass(frozen=True, slots=True)
class Repeat:
    """A recorded request that was sent once more, late, and what it was told then."""

    transfer: str
    what: What
    first: Told
    again: Told
    reason: str = ""


@dataclass(frozen=True, slots=True)
class NumberedBatch:
    """The head of a batch on a disk: its numbering, the number of its first row, its rows."""

    numbering: int
    first: int
    rows: int


@dataclass(slots=True, kw_only=True)
class MoneyEnd:
    """All that is read once the load has stopped; topic → what one broker served."""

    books: dict[str, Reading] = field(default_factory=dict)
    later_books: dict[str, Reading] = field(default_factory=dict)
    """The same through another broker, behind the late repeats."""
    committed: dict[str, dict[int, int]] = field(default_factory=dict)
    """Group → partition of `orders` → committed offset."""
    repeats: list[Repeat] = field(default_factory=list)
    completed_ms: int | None = None
    """Time until the last decision was complete, once all was whole; None: too long."""
    waiting: tuple[str, ...] = ()
    """Ids that were not complete in time."""


@dataclass(slots=True)
class Ledger:
    """All that clients with money did in one run. Owned by it; appended to on one loop."""

    write: Callable[[bytes], object] = lambda _: None
    transfers: dict[str, Transfer] = field(default_factory=dict)
    requests: list[TransferRequest] = field(default_factory=list)
    lives: list[TellerLife] = field(default_factory=list)
    offset_reads: list[OffsetRead] = field(default_factory=list)
    orders: list[bytes] = field(default_factory=list)
    """Values of the orders that were answered as stored."""
    seen: dict[str, list[Observation]] = field(default_factory=dict)
    """Topic → what the readers of its tail got."""

    def plan(self, transfer: Transfer) -> None:
        """Append a transfer before its first request."""
        self.transfers[transfer.id] = transfer
        self._write("transfer", transfer)

    def add(self, event: TransferRequest | TellerLife | OffsetRead) -> None:
        """Append a request with its answer, an answered init, or an offset that was read."""
        match event:
            case TransferRequest():
                self.requests.append(event)
                facts = {name: getattr(event, name) for name in _SHOWN}
                self._write("transferrequest", facts)
            case TellerLife():
                self.lives.append(event)
                self._write("tellerlife", event)
            case OffsetRead():
                self.offset_reads.append(event)
                self._write("offsetread", event)

    def of(self, transfer: str, what: What = "commit") -> list[TransferRequest]:
        """Return the requests of one kind about a transfer, in the order of their answers."""
        return [one for one in self.requests if (one.transfer, one.what) == (transfer, what)]

    def _write(self, key: str, body: object) -> None:
        self.write(msgspec.json.encode({key: body}) + b"\n")


_SHOWN = ("transfer", "what", "broker", "sent_ms", "answered_ms", "told", "code", "reason")


class BookedRow(NamedTuple):
    """A row as a reader got it from `debits` or `credits`."""

    transfer: str
    row: int
    account: int
    amount: int


def booked(line: Line) -> BookedRow:
    """Return what a row says."""
    found = orjson.loads(line.value)
    return BookedRow(found["transfer"], found["row"], found["account"], found["amount"])
