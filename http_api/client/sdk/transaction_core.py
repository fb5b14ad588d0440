"""The deciding core of a producer's transactions: states, positions, staging and repeats. Pure.

A transaction is decided by one request at the end of it. Until then its records wait here, or are
staged by workers while the program goes on. A position (epoch, number) is used for one content
only: a commit that was sent once stays as it is until its fate is known, so repeating it is safe.

    begin → OPEN → commit → SENT → (answered) → IDLE
                 → abort  → ABORTING → (answered) → IDLE

A transaction that failed can only be aborted; a producer that was fenced is over. The shell's lock
is held wherever this runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypeVar

from http_api.client.calls import Call, Request
from http_api.client.client_errors import (
    ApiError,
    BufferFullError,
    CommittingError,
    ConfigError,
    FencedError,
    OutcomeUnknownError,
    QuorumlogError,
    ThrottledError,
    TransactionAbortedError,
    TransactionStateError,
)
from http_api.client.produce_calls import RecordOutcome
from http_api.client.sdk.client_context import MS, ClientContext
from http_api.client.sdk.record_types import ConsumerGroupMetadata, TopicPartition
from http_api.client.sdk.steps import CallBacks, Pause, Steps, doubted, limited, steps_of
from http_api.client.sdk.transaction_rows import (
    Delivery,
    OpenTransaction,
    TransactionChunk,
)
from http_api.client.sdk.value_splitting import SplitOutcome
from http_api.client.transaction_calls import (
    AbortResult,
    DecidedPosition,
    Staging,
    TransactionResult,
    abort_transaction,
    commit_transaction,
    init_producer,
    stage,
)
from http_api.contract.errors import RestCode
from raft_metadata.common.errors import Outcome
from raft_metadata.common.record_placement import Partitioner, partition_for_key

if TYPE_CHECKING:
    from http_api.client.sdk.producer_settings import ProducerConfig
    from http_api.client.sdk.producer_topics import TopicState
    from http_api.client.sdk.record_fields import RecordFields
    from http_api.client.sdk.steps import Shell

T = TypeVar("T")

STAGERS: Final = "stager"
STAGERS_MAX: Final = 4
"""Chunks of one producer under way at once."""
ATTEMPTS: Final = 4
"""A request gives one part in so many of the time left to the broker, so that others can follow."""
ATTEMPT_MS_MIN: Final = 100
ATTEMPT_MS_MAX: Final = 10_000
AGAIN_S: Final = 0.5
"""Pause before a decided transaction is asked about again, and behind a limit of the brokers."""
CHUNK_BYTES_MAX: Final = 900_000
"""Text of a chunk, whatever ``batch_size`` says and the brokers would take."""
BODY_BYTES: Final = len(b'{"records":[]}')
"""Text around a chunk in the body of its request."""
OPEN_SHARE: Final = 4
"""Open chunks take at most one part in so many of the buffer."""
_OVER: Final = {
    int(RestCode.PRODUCER_FENCED),
    int(RestCode.TRANSACTION_CONFLICT),
    int(RestCode.TRANSACTION_SUPERSEDED),
}
"""Codes that say that another producer has the id."""


class TransactionPhase(Enum):
    """State of a producer's transaction."""

    IDLE = "no transaction is open"
    OPEN = "a transaction is open"
    SENT = "the outcome of a commit is not known: repeat it, or abort"
    DECIDED = "a commit is decided, and not all of its rows can be read yet"
    ABORTING = "an abort is not answered yet: repeat it"


@dataclass(slots=True)
class HomeLife:
    """The producer's life at one home: that of a group, or its id's own."""

    group: str | None
    epoch: int
    number: int = 0
    """Number of the next transaction."""


class TransactionCore:
    """Transactions of one producer."""

    def __init__(
        self, config: ProducerConfig, context: ClientContext, now_s: Callable[[], float]
    ) -> None:
        assert config.transactional_id is not None, "a producer without an id has no transactions"
        self._id = config.transactional_id
        self._config = config
        self._context = context
        self._now_s = now_s
        self._group = config.transactional_group or None
        """The group whose offsets may be committed; None: none, or it is not learnt yet."""
        self._is_named = config.transactional_group is not None
        """True if all transactions belong to the group's home, or to the id's own without one."""
        self._homes: dict[str | None, HomeLife] = {}
        self._home: HomeLife | None = None
        """Home of the present transaction; None while it may get offsets, or not."""
        self._chunk_bytes = min(config.batch_size, CHUNK_BYTES_MAX)
        self._is_sticky = config.partitioner == Partitioner.STICKY.value
        self._is_busy = False
        self._is_sealed = False
        """True while a commit waits for the last chunks: what came now would not be in it."""
        self._stagers = 0
        self.state = TransactionPhase.IDLE
        self.transaction = OpenTransaction(self._chunk_bytes)
        self.fatal: QuorumlogError | None = None
        """Error that ended the producer; None: it goes on."""
        self.last: DecidedPosition | None = None
        """Fate of the life before, as the newest init told it."""

    # lives

    @property
    def has_begun(self) -> bool:
        """True once a home gave the producer an epoch."""
        return bool(self._homes)

    def init_steps(self, timeout_s: float | None) -> Steps[None]:
        """Begin the producer's life, which fences the one before; a second call does nothing.

        Raises:
            QuorumlogError: No home answers in time, or it refuses the id.
        """
        with self._call():
            yield from self._life_at(self._first_group, self._until_s(timeout_s))

    @property
    def _first_group(self) -> str | None:
        """The group where the life begins: a learnt one has a home of its own from there on."""
        return self._group if self._is_named else None

    def _life_at(self, group: str | None, until_s: float) -> Steps[HomeLife]:
        """Return the life at the home of a group, or at the id's own; begin it if it is new."""
        known = self._homes.get(group)
        if known is not None:
            return known
        cluster_id = yield from self._cluster_id(until_s)
        call = init_producer(
            cluster_id, self._id, group_id=group, timeout_ms=self._attempt_ms(until_s)
        )
        try:
            life = yield from self._asked(call, until_s)
        except ApiError as error:
            if error.code in _OVER:
                self._end(_fenced(error))
            raise
        self.last = life.last
        most = life.chunk_max_bytes - BODY_BYTES
        self._chunk_bytes = min(self._config.batch_size, CHUNK_BYTES_MAX, most)
        home = self._homes[group] = HomeLife(group, life.epoch)
        return home

    def _cluster_id(self, until_s: float) -> Steps[str]:
        known = self._context.routes.cluster_id
        if known is not None:
            return known
        call = Call(Request(method="GET", path="/v3/clusters"), lambda answer: answer.resources())
        rows = yield from self._asked(call, until_s)
        return self._context.routes.cluster_id or str(rows[0]["cluster_id"])

    # the program's side

    def begin_steps(self, timeout_s: float | None) -> Steps[None]:
        """Begin a transaction; the first one begins the producer's life.

        Raises:
            TransactionStateError: The one before has no end yet.
            FencedError: Another producer has the id.
        """
        with self._call():
            if self.state is TransactionPhase.DECIDED:
                yield from self._told_committed()
            self._expect("begin", TransactionPhase.IDLE)
            life = yield from self._life_at(self._first_group, self._until_s(timeout_s))
            self._home = life if self._is_named else None
            self.transaction = OpenTransaction(self._chunk_bytes)
            self.state = TransactionPhase.OPEN

    def check_open(self) -> None:
        """Raise unless records may be added.

        Raises:
            TransactionStateError: No transaction is open.
            QuorumlogError: Why the open one can only be aborted, or why the producer is over.
        """
        if self.fatal is not None:
            raise self.fatal
        self._expect("produce", TransactionPhase.OPEN)
        if self._is_sealed:
            msg = "produce: the transaction is being committed"
            raise TransactionStateError(msg)
        if self.transaction.failure is not None:
            raise self.transaction.failure

    @property
    def is_full(self) -> bool:
        """True while `put` has to wait for chunks to be staged."""
        return self.transaction.held_bytes >= self._config.buffer_memory

    def check_room(self) -> None:
        """Raise if the buffer is full and no waiting helps.

        Raises:
            BufferFullError: It is full of records whose outcome is awaited.
        """
        if not self.is_full:
            return
        if not self.can_make_room:
            memory = self._config.buffer_memory
            msg = f"records with callbacks fill buffer_memory={memory}: commit more often"
            raise BufferFullError(msg)

    @property
    def can_make_room(self) -> bool:
        """True while chunks are staged, or wait for it."""
        transaction = self.transaction
        return bool(transaction.to_stage or transaction.under_way) and not transaction.failure

    @property
    def waiting(self) -> int:
        """Number of records whose transaction has no end yet."""
        has_end = self.state in {TransactionPhase.IDLE, TransactionPhase.DECIDED}
        return 0 if has_end else self.transaction.rows

    def put(
        self,
        topic: TopicState,
        partition: int | None,
        fields: RecordFields,
        awaiting: Any,
        key: Any,
        value: Any,
        parts: Sequence[RecordFields] | None,
    ) -> int:
        """Add a record, and return its partition; the arguments are those of `ProducerCore.put`."""
        transaction = self.transaction
        if parts is not None:
            outcome = SplitOutcome(len(parts), awaiting)
            partition = self._partition(topic, partition, parts[0])
            for part in parts[:-1]:
                chunk = transaction.chunk_for(topic.name, part)
                transaction.add(chunk, partition, part, outcome, None, None)
            fields, awaiting = parts[-1], outcome
        number = self._partition(topic, partition, fields)
        chunk = transaction.chunk_for(topic.name, fields)
        transaction.add(chunk, number, fields, awaiting, key, value)
        if transaction.open_bytes >= self._config.buffer_memory // OPEN_SHARE:
            transaction.seal_all()
        if self._home is None and self.is_full and not transaction.offsets:
            self._home = self._homes[None]
            transaction.seal_all()  # it can't wait any longer for offsets
        if self._home is not None and not transaction.fits_inline:
            transaction.is_staging = True
        return number

    def _partition(self, topic: TopicState, partition: int | None, fields: RecordFields) -> int:
        if partition is not None:
            return partition
        view = fields[3]
        if view is not None:
            return partition_for_key(view, topic.partitions)
        chunk = self.transaction.chunk_for(topic.name, fields)
        if chunk.keyless_partition is None or not self._is_sticky:
            chunk.keyless_partition = topic.rotation.next_of(topic.candidates)
        return chunk.keyless_partition

    def offsets_steps(
        self,
        offsets: Iterable[TopicPartition],
        group: ConsumerGroupMetadata,
        timeout_s: float | None,
    ) -> Steps[None]:
        """Take offsets to be committed with the open transaction.

        Raises:
            ConfigError: The transactions belong to another group, or to none; or this one grew too
                large to wait for the name of its group.
            TransactionStateError: No transaction is open.
        """
        with self._call():
            self.check_open()
            self._check_group(group.group_id)
            self._group = group.group_id
            self.transaction.add_offsets(offsets, group)
            yield from self._settle_home(self._until_s(timeout_s))
            if not self.transaction.fits_inline:
                self.transaction.is_staging = True

    def _check_group(self, group_id: str) -> None:
        is_learning = not self._is_named and self._group is None
        if group_id != self._group and not is_learning:
            of = f"group {self._group!r}" if self._group else "no group"
            msg = (
                f"offsets of group {group_id!r} in a transaction of {of}: a producer "
                f"commits the offsets of one group, its transactional_group"
            )
            raise ConfigError(msg)
        if self._home is not None and self._home.group != group_id:
            msg = (
                f"offsets of group {group_id!r} behind more than "
                f"buffer_memory={self._config.buffer_memory} bytes, which had to be staged: send "
                f"the offsets first, or name the group by transactional_group"
            )
            raise ConfigError(msg)

    def _settle_home(self, until_s: float) -> Steps[HomeLife]:
        """Return the home of the open transaction, by what it has now.

        Where the group was learnt, only a transaction with offsets goes to the group's home. A new
        life begins at the id's own one, and fences nothing at the group's before it sends offsets,
        too. Until then the comparison of offsets is what refuses the old life there (rule S8).
        """
        if self._home is None:
            group = self._group if self.transaction.offsets else None
            self._home = yield from self._life_at(group, until_s)
        return self._home

    def commit_steps(
        self, shell: Shell, timeout_s: float | None
    ) -> Steps[TransactionResult | None]:
        """Commit, and return the answer; None for an empty transaction, which asks nothing.

        Callbacks run before it returns. Every repeat says the same, so it is safe.

        Raises:
            CommittingError: Decided; not all rows can be read in time.
            OutcomeUnknownError: Not known in time; repeat it, or abort.
            FencedError: Another producer has the id; this one is over.
            ApiError: With the code 50004: it is committed, and rows of it are lost.
            QuorumlogError: It was refused. Abort, unless the error is ``retriable``.
        """
        with self._call():
            until_s = self._until_s(timeout_s)
            if self.state is TransactionPhase.OPEN:
                if (yield from self._prepare(shell, until_s)):
                    return None
            else:
                self._expect("commit", TransactionPhase.SENT, TransactionPhase.DECIDED)
            return (yield from self._decide(until_s))

    def _prepare(self, shell: Shell, until_s: float) -> Steps[bool]:
        """Seal the open transaction and wait for its chunks; return True if there are none."""
        transaction = self.transaction
        if transaction.failure is not None:
            raise transaction.failure
        if transaction.is_empty:
            self._next()
            return True
        home = yield from self._settle_home(until_s)
        transaction.is_staging = transaction.is_staging or not transaction.fits_inline
        transaction.seal_all()
        if transaction.is_staging:
            self._is_sealed = True
            try:
                yield from self.staged_steps(shell, until_s)
            finally:
                self._is_sealed = False
        transaction.freeze(self._attempt_id(home))
        self.state = TransactionPhase.SENT
        return False

    def staged_steps(self, shell: Shell, until_s: float) -> Steps[None]:
        """Wait until every sealed chunk is staged.

        Raises:
            QuorumlogError: A chunk was refused; or it is not known of one in time, so repeat this.
        """
        transaction = self.transaction
        self.bring_stagers(shell)
        while transaction.failure is None and (transaction.to_stage or transaction.under_way):
            left_s = until_s - self._now_s()
            if left_s <= 0 or not self._context.is_usable:
                msg = f"{len(transaction.to_stage) + transaction.under_way} chunks are not staged"
                late = QuorumlogError(f"{msg} in time")
                late.retriable = True
                raise late
            yield Pause(left_s)
        if transaction.failure is not None:
            raise transaction.failure

    def flush_steps(self, shell: Shell, timeout_s: float | None) -> Steps[None]:
        """Wait until what is to be staged is staged.

        Raises:
            QuorumlogError: A chunk was refused, or is not staged in time.
        """
        transaction = self.transaction
        if self.state is TransactionPhase.OPEN and transaction.is_staging:
            with self._call():
                transaction.seal_all()
                yield from self.staged_steps(shell, self._until_s(timeout_s))

    def close_steps(self, timeout_s: float | None) -> Steps[None]:
        """Abort what is open; what stands in the way is logged, as nothing of it is ever read."""
        if self.state is TransactionPhase.OPEN and not self._is_busy:
            try:
                yield from self.abort_steps(timeout_s)
            except QuorumlogError as error:
                self._context.log.warning("open transaction was left to its end: %s", error)
        yield CallBacks(self.give_up())

    def _decide(self, until_s: float) -> Steps[TransactionResult]:
        transaction, home = self.transaction, self._home
        content = transaction.content
        assert content is not None, "it was frozen before it was sent"
        assert home is not None, "it was settled before"
        cluster_id = yield from self._cluster_id(until_s)
        while True:
            transaction.was_sent = True
            call = commit_transaction(
                cluster_id,
                self._id,
                content,
                epoch=home.epoch,
                number=home.number,
                group_id=home.group,
                timeout_ms=self._attempt_ms(until_s),
            )
            try:
                result = yield from doubted(self._asked(call, until_s), self._doubt)
            except QuorumlogError as error:
                raised = self._refused(error)
                yield from self._deliver_failure()
                if isinstance(raised, CommittingError):
                    yield CallBacks(list(transaction.committed(None)))
                raise raised from error
            if result.state == "complete":
                self._next()
                yield CallBacks(list(transaction.committed(result)))
                return result
            self.state = TransactionPhase.DECIDED
            left_s = until_s - self._now_s()
            if left_s <= 0:
                yield CallBacks(list(transaction.committed(None)))
                raise _committing(result)
            yield Pause(min(left_s, AGAIN_S))

    _is_doubtful = False
    """True if an attempt at the present commit may have been decided."""

    def _doubt(self) -> None:
        self._is_doubtful = True

    def _refused(self, error: QuorumlogError) -> QuorumlogError:
        """Take the error of a commit, and return the one to raise."""
        transaction = self.transaction
        if error.code == RestCode.DECIDED_ROWS_LOST:
            transaction.note_offsets()
            self._next()
            self._failed = (transaction, error)
            return error
        if self.state is TransactionPhase.DECIDED:
            told = CommittingError(f"committed; it is not known if all can be read: {error}")
            if error.code in _OVER:
                self.fatal, self.state = _fenced(error), TransactionPhase.IDLE
                told.retriable = False
            return told
        if error.code in _OVER:
            self._end(_fenced(error))
            assert self.fatal is not None
            return self.fatal
        if error.code == RestCode.TRANSACTION_ABORTED:
            self._next()
            self._failed = (transaction, error)
            return error
        if isinstance(error, ApiError) and error.outcome is not Outcome.UNKNOWN:
            is_refusal = error.status < 500 and not isinstance(error, ThrottledError)
            if is_refusal and not self._is_doubtful:
                transaction.failure = error
                self.state = TransactionPhase.OPEN
                return error
        if error.outcome is Outcome.UNKNOWN:
            self._is_doubtful = True
        if not self._is_doubtful:
            return error
        if isinstance(error, OutcomeUnknownError):
            return error
        return OutcomeUnknownError(f"it is not known if the transaction is committed: {error}")

    def abort_steps(self, timeout_s: float | None) -> Steps[None]:
        """Abort the open transaction; without one nothing happens.

        Raises:
            CommittingError: A commit of it was decided before: it is committed.
            FencedError: Another producer has the id; this one is over.
            ApiError: With the code 50004: it is committed, and rows of it are lost.
            QuorumlogError: It is not known if it is aborted; repeat it.
        """
        with self._call():
            transaction = self.transaction
            if self.state is TransactionPhase.IDLE:
                return
            if self.state is TransactionPhase.DECIDED:
                yield from self._told_committed()
                raise _committed_before("it was decided")
            transaction.to_stage.clear()
            if transaction.was_sent:
                self.state = TransactionPhase.ABORTING
                yield from self._abort(self._until_s(timeout_s))
            error = transaction.failure or TransactionAbortedError("the transaction was aborted")
            self._next()
            yield CallBacks(list(transaction.failed(error)))

    def _abort(self, until_s: float) -> Steps[None]:
        home = self._home
        assert home is not None, "a request named the position there"
        cluster_id = yield from self._cluster_id(until_s)
        call = abort_transaction(
            cluster_id,
            self._id,
            epoch=home.epoch,
            number=home.number,
            group_id=home.group,
            timeout_ms=self._attempt_ms(until_s),
        )
        try:
            found = yield from self._asked(call, until_s)
        except QuorumlogError as error:
            if error.code == RestCode.DECIDED_ROWS_LOST:
                self._refused(error)
                yield from self._deliver_failure()
            if error.code not in _OVER:
                raise
            self._end(_fenced(error))
            yield from self._deliver_failure()
            assert self.fatal is not None
            raise self.fatal from error
        if found.lost:
            lost = self._refused(_rows_lost(found))
            yield from self._deliver_failure()
            raise lost
        if found.state != "aborted":
            yield from self._told_committed()
            raise _committed_before(f"state {found.state}")

    def _told_committed(self) -> Steps[None]:
        """End a transaction that is known to be committed; its records may know that already."""
        self._next()
        yield CallBacks(list(self.transaction.committed(None)))

    def give_up(self) -> list[Delivery]:
        """End at once; return the callbacks of what has no outcome."""
        transaction, state = self.transaction, self.state
        if state is TransactionPhase.IDLE:
            return []
        self.state = TransactionPhase.IDLE
        if state is TransactionPhase.DECIDED:
            return list(transaction.committed(None))
        if transaction.content is not None and transaction.failure is None:
            # A commit was sent, and not refused: an abort that has no answer changes nothing.
            return list(transaction.failed(OutcomeUnknownError("the producer was closed")))
        return list(transaction.failed(TransactionAbortedError("the producer was closed")))

    # staging

    def bring_stagers(self, shell: Shell) -> None:
        """Have a worker for each chunk that waits, `STAGERS_MAX` at most."""
        transaction = self.transaction
        if not transaction.is_staging:
            return
        if len(transaction.sealed) == transaction.told:
            return  # a call for each record must cost nothing
        transaction.told = len(transaction.sealed)
        wanted = min(len(transaction.to_stage), STAGERS_MAX)
        while self._stagers < wanted:
            self._stagers += 1
            shell.start(f"stager-{self._stagers}", lambda: self.stager_steps(shell))
        for _ in range(wanted):
            shell.notify_one(STAGERS)

    def stager_steps(self, shell: Shell) -> Steps[None]:
        """Stage the chunks of one transaction after the other, until the producer stops."""
        while not shell.is_stopping:
            transaction = self.transaction
            is_due = transaction.is_staging and self.state is TransactionPhase.OPEN
            home = self._home
            if not transaction.to_stage or not is_due or home is None or transaction.failure:
                yield Pause(None, STAGERS)
                continue
            chunk = transaction.to_stage.popleft()
            transaction.under_way += 1
            transaction.was_sent = True
            try:
                yield from self._stage(transaction, chunk, home)
            except QuorumlogError as error:
                is_fenced = error.code == RestCode.PRODUCER_FENCED
                transaction.failure = transaction.failure or (
                    _fenced(error) if is_fenced else error
                )
            finally:
                if not chunk.is_staged and transaction.failure is None:
                    transaction.failure = QuorumlogError("a chunk could not be staged")
                transaction.under_way -= 1
                shell.notify()

    def _stage(
        self, transaction: OpenTransaction, chunk: TransactionChunk, home: HomeLife
    ) -> Steps[None]:
        """Stage a chunk, repeated as it is until it is taken or its time is over."""
        assert chunk.number is not None, "it was sealed"
        staging = Staging(
            transaction_id=self._id,
            group=home.group or "",
            epoch=home.epoch,
            number=home.number,
            attempt_id=self._attempt_id(home),
            chunk=chunk.number,
        )
        until_s = self._now_s() + self._config.delivery_timeout_ms / MS
        records = chunk.records
        while True:
            call = stage(staging, records, timeout_ms=self._attempt_ms(until_s))
            try:
                rows = yield from self._asked(call, until_s)
            except ThrottledError:
                if self._now_s() + AGAIN_S >= until_s:
                    raise
                yield Pause(AGAIN_S, STAGERS)
                continue
            refused = [row for row in rows if not row.is_written]
            if not refused:
                transaction.note_staged(chunk)
                return
            causes = [row for row in refused if not _is_beside(row)] or refused
            if self._now_s() + AGAIN_S >= until_s or not all(row.retriable for row in causes):
                error = QuorumlogError(f"{chunk.topic}: {causes[0].error}")
                error.code = causes[0].error_code
                raise error
            yield Pause(AGAIN_S, STAGERS)

    # the rest

    def metrics(self) -> dict[str, Any]:
        """Return what waits in the open transaction."""
        return {
            "transaction_state": self.state.name.lower(),
            "transaction_rows": self.transaction.rows,
            "transaction_bytes": self.transaction.held_bytes,
        }

    _failed: tuple[OpenTransaction, QuorumlogError] | None = None
    """A transaction that ended otherwise than by its program's wish: its callbacks are to run."""

    def _end(self, error: QuorumlogError) -> None:
        """Be over: another producer has the id."""
        self.fatal = error
        self._failed = (self.transaction, error)
        self.state = TransactionPhase.IDLE

    def _deliver_failure(self) -> Steps[None]:
        failed, self._failed = self._failed, None
        if failed is not None:
            transaction, error = failed
            yield CallBacks(list(transaction.failed(error)))

    def _next(self) -> None:
        """End the present transaction; the next one has the next number, if it was sent."""
        if self.transaction.was_sent and self._home is not None:
            self._home.number += 1
        self._is_doubtful = False
        self.state = TransactionPhase.IDLE

    def _attempt_id(self, home: HomeLife) -> str:
        return f"{home.epoch}.{home.number}"

    def _expect(self, what: str, *states: TransactionPhase) -> None:
        if self.state not in states:
            msg = f"{what}: {self.state.value}"
            raise TransactionStateError(msg)

    def _call(self) -> _OneCall:
        if self.fatal is not None:
            raise self.fatal
        return _OneCall(self)

    def enter(self) -> None:
        """Begin a call; raises `TransactionStateError` beside another one."""
        if self._is_busy:
            msg = "another call about the transaction is under way"
            raise TransactionStateError(msg)
        self._is_busy = True

    def leave(self) -> None:
        """End a call."""
        self._is_busy = False

    def _until_s(self, timeout_s: float | None) -> float:
        limit_s = self._config.transaction_timeout_ms / MS if timeout_s is None else timeout_s
        return self._now_s() + limit_s

    def _attempt_ms(self, until_s: float) -> int:
        left_ms = round((until_s - self._now_s()) * MS)
        return min(max(left_ms // ATTEMPTS, ATTEMPT_MS_MIN), ATTEMPT_MS_MAX)

    def _asked(self, call: Call[T], until_s: float) -> Steps[T]:
        """Make attempts at a call until a time."""
        left_s = max(until_s - self._now_s(), 0.0)
        steps = steps_of(call, self._context, self._now_s, left_s)
        return limited(steps, self._now_s, until_s)


class _OneCall:
    """The time of one call about the transaction."""

    def __init__(self, core: TransactionCore) -> None:
        self._core = core

    def __enter__(self) -> None:
        self._core.enter()

    def __exit__(self, *_: object) -> None:
        self._core.leave()


def _is_beside(row: RecordOutcome) -> bool:
    """Return True for a row that is not staged because of another one."""
    return (row.error or "").startswith("NOT_STAGED")


def _fenced(error: QuorumlogError) -> FencedError:
    found = FencedError(f"another producer has the transactional id: {error}")
    found.code, found.outcome = error.code, error.outcome
    return found


def _rows_lost(found: AbortResult) -> ApiError:
    """Return the error that a repeat of the commit would be answered with (rule S3)."""
    lost = ", ".join(
        f"{one.rows} rows for partition {one.partition} of {one.topic or one.topic_id}"
        for one in found.lost
    )
    msg = f"the transaction was committed before, and an unclean election of a stage lost {lost}"
    said = {"retriable": False, "outcome": "unknown"}
    return ApiError(500, int(RestCode.DECIDED_ROWS_LOST), msg, said)


def _committed_before(why: str) -> CommittingError:
    """Return the error of an abort that came too late; one more would have nothing to abort."""
    error = CommittingError(f"the transaction was committed before ({why})")
    error.retriable = False
    return error


def _committing(result: TransactionResult) -> CommittingError:
    waiting = ", ".join(f"{one.topic}-{one.partition} ({one.reason})" for one in result.pending)
    return CommittingError(f"committed, and not all of it can be read yet: {waiting or 'waiting'}")
