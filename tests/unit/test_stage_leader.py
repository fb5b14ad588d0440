"""The leader of a stage over a real log: acknowledgements, proof, loads, and letting go."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from broker.record.batch import walk
from broker.replication.log_start_manager import LogTrimming
from broker.server.stage_leader import StageLeader, StagePorts, StageSettings, rows_at
from broker.transactions.chunk_records import RowsChunk
from broker.transactions.messages import AttemptNamed, TransactionalId
from broker.transactions.stage_index import AttemptRefs, StageLimits
from broker.transactions.stage_messages import (
    FindRefs,
    StageChunk,
    StatusQuestion,
    Word,
)
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import GroupId, LeaderEpoch, PartitionId
from tests.support.one_broker import HERE, ME, OTHER, Here, image, one_broker
from tests.support.stage_world import chunk, home_of, place_at, rows_for
from tests.support.waiting import until

BOTH, ALONE = (ME, OTHER), (ME,)
STAGE = PartitionId(0)


@dataclasses.dataclass
class Times:
    """A clock that the test sets."""

    wall: int = 1_000_000
    monotonic: int = 0

    def wall_ms(self) -> int:
        return self.wall

    def monotonic_ms(self) -> int:
        return self.monotonic


@dataclasses.dataclass
class Heartbeats:
    """Proof of leading by heartbeats; none while ``proven`` is False."""

    proven: bool = True

    def check_proof(self) -> bool:
        return self.proven

    async def prove(self, timeout_ms: int) -> bool:
        return self.proven


class Stage:
    """One stage partition of a broker whose follower and homes the test plays."""

    def __init__(self, here: Here) -> None:
        self.here = here
        self.times, self.proof = Times(), Heartbeats()
        self.trusted = True
        self.asked: list[StatusQuestion] = []
        self.gone: set[str] = set()
        """Names of ids whose chunks may go; a copied one always may."""
        self.named: set[str] = set()
        """Names of ids that are decided anew, with chunks that were let go."""
        self.settings = StageSettings(
            limits=StageLimits(
                transaction_bytes=1 << 30,
                transaction_chunks=100,
                transaction_partitions=100,
                staged_bytes=1 << 30,
            ),
            age_max_ms=60_000,
            move_bytes=1 << 30,
        )
        self.ports = StagePorts(
            local=here.local,
            trimming=LogTrimming(
                here.config, here.manager, here.logs, self.times, lambda: self.trusted
            ),
            clock=self.times,
            proof=self.proof,
            ask_home=self.answer,
            home_of=home_of,
            settings=lambda: self.settings,
            is_clock_trusted=lambda: self.trusted,
            clock_error_max_ms=60_000,
        )
        self.leader = self.at_epoch(1)

    def at_epoch(self, epoch: int) -> StageLeader:
        return StageLeader(HERE, LeaderEpoch(epoch), self.ports)

    async def answer(self, question: StatusQuestion) -> Word:
        self.asked.append(question)
        if question.is_passed:
            return Word.KEEP if question.id.name in self.named else Word.GONE
        may_go = question.id.name in self.gone or question.copy is not None or question.is_aged
        return Word.GONE if may_go else Word.KEEP

    def stage(self, new: RowsChunk, timeout_ms: int = 5_000) -> asyncio.Task[int]:
        request = StageChunk(partition=STAGE, chunk=new, timeout_ms=timeout_ms)
        return asyncio.create_task(self.leader.stage(request))

    async def refs(self, name: str = "a", chunks: int = 1, rows: int = 1) -> AttemptRefs:
        request = FindRefs(
            partition=STAGE,
            id=TransactionalId(GroupId(""), name),
            epoch=1,
            number=0,
            attempts=(AttemptNamed("1.0", chunks, rows),),
        )
        (found,) = await self.leader.refs(request)
        return found

    @property
    def log_end(self) -> int:
        replica = self.here.manager.replica(HERE)
        assert replica is not None
        return replica.log.log_end_offset

    async def start_at(self, offset: int) -> None:
        replica = self.here.manager.replica(HERE)
        assert replica is not None
        await until(lambda: replica.log.log_start_offset == offset)


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with one_broker(tmp_path) as here:
        here.manager.on_metadata_update(image(1, BOTH))
        yield Stage(here)


async def alone(stage: Stage) -> None:
    """The follower leaves: what was appended is committed, and so is all that comes."""
    stage.here.manager.on_metadata_update(image(1, ALONE))
    await stage.leader.load()


async def refused(task: asyncio.Task[int]) -> KafkaError:
    with pytest.raises(KafkaError) as caught:
        await task
    return caught.value


def big(name: str, sequence: int = 0) -> RowsChunk:
    """A chunk of 1.2 MB for two targets."""
    rows = [rows_for(partition, [b'"' + b"x" * 600_000 + b'"']) for partition in range(2)]
    return replace(chunk(name, sequence), targets=tuple(rows))


async def test_rule_s9_a_chunk_is_acknowledged_and_named_once_it_is_committed(
    stage: Stage,
) -> None:
    await stage.leader.load()
    staged = stage.stage(chunk("a", targets=2))
    await until(lambda: stage.log_end == 2)
    again = stage.stage(chunk("a", targets=2))
    await asyncio.sleep(0.01)
    assert (staged.done(), again.done(), stage.log_end) == (False, False, 2)
    assert "0 of 1 chunks" in str((await stage.refs(rows=2)).missing)
    stage.here.manager.on_metadata_update(image(1, ALONE))
    assert (await staged, await again) == (2, 2)
    assert [ref.at.offset for ref in (await stage.refs(rows=2)).refs] == [0, 1]


async def test_rule_s9_a_chunk_is_one_batch_however_large(stage: Stage) -> None:
    await alone(stage)
    await stage.stage(big("a"))
    replica = stage.here.manager.replica(HERE)
    assert replica is not None
    counts = [header.count for _, header in walk(replica.log.read_raw(0, 1 << 24, 2))]
    assert counts == [2]


async def test_a_chunk_of_another_content_or_above_a_limit_is_not_written(stage: Stage) -> None:
    await alone(stage)
    await stage.stage(chunk("a"))
    error = await refused(stage.stage(chunk("a", digest="other")))
    assert error.code is ErrorCode.TRANSACTION_CONFLICT
    error = await refused(stage.stage(chunk("a", 100)))
    assert (error.code, "max.chunks" in error.message) == (ErrorCode.MESSAGE_TOO_LARGE, True)
    limits = replace(stage.settings.limits, staged_bytes=400)
    stage.settings = replace(stage.settings, limits=limits)
    error = await refused(stage.stage(chunk("a", 1)))
    assert error.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert stage.log_end == 1


async def test_a_chunk_that_is_not_committed_in_time_may_be_staged_later(stage: Stage) -> None:
    await stage.leader.load()
    first = stage.stage(chunk("a"), timeout_ms=5_000)
    await until(lambda: stage.log_end == 1)
    error = await refused(stage.stage(chunk("a"), timeout_ms=10))
    assert (error.code, error.outcome.value) == (ErrorCode.REQUEST_TIMED_OUT, "unknown")
    stage.here.manager.on_metadata_update(image(1, ALONE))
    assert await first == 1


async def test_rule_g3_a_stage_says_what_is_missing_with_proof_only(stage: Stage) -> None:
    await stage.leader.load()
    stage.proof.proven = False
    asked = asyncio.create_task(stage.refs())
    await until(lambda: stage.log_end == 1)  # the probe, which the other replica must take
    await asyncio.sleep(0.01)
    assert not asked.done()
    stage.here.manager.on_metadata_update(image(1, ALONE))
    assert "0 of 1 chunks" in str((await asked).missing)


async def test_rule_g3_a_committed_probe_is_proof_and_no_chunk(stage: Stage) -> None:
    await alone(stage)
    stage.proof.proven = False
    assert (await stage.refs()).missing is not None
    await stage.stage(chunk("a"))
    assert [ref.at.offset for ref in (await stage.refs()).refs] == [1]
    await stage.leader.load()
    assert [ref.at.offset for ref in (await stage.refs()).refs] == [1]


async def test_rule_g1_a_new_leader_serves_once_all_that_it_found_is_committed(
    stage: Stage,
) -> None:
    await stage.leader.load()
    staged = stage.stage(chunk("a"))
    await until(lambda: stage.log_end == 1)
    stage.here.manager.on_metadata_update(image(2, BOTH))
    stage.leader, loading = stage.at_epoch(2), None
    loading = asyncio.create_task(stage.leader.load())
    await asyncio.sleep(0.01)
    assert not loading.done()
    error = await refused(stage.stage(chunk("a")))
    assert error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    stage.here.manager.on_metadata_update(image(2, ALONE))
    await loading
    assert [ref.at for ref in (await stage.refs()).refs] == [place_at(0, epoch=1)]
    await stage.stage(chunk("b"))
    assert [ref.at for ref in (await stage.refs("b")).refs] == [place_at(1, epoch=2)]
    staged.cancel()  # it was asked of a leader whose epoch has ended


async def test_rule_s10_the_log_start_moves_over_what_homes_let_go(stage: Stage) -> None:
    await alone(stage)
    for name in "abc":
        await stage.stage(big(name))
    stage.gone = {"a", "b"}
    await stage.leader.trim_round()
    await stage.start_at(4)
    await stage.leader.trim_round()
    await stage.leader.load()
    assert [id_.name for id_, _ in stage.leader.attempts()] == ["c"]


async def test_rule_s10_the_log_start_passes_nothing_before_its_home_agrees(stage: Stage) -> None:
    """A position was forgotten behind the home's word, and decided anew with the same chunk."""
    await alone(stage)
    for name in "abc":
        await stage.stage(big(name))
    stage.gone, stage.named = {"a", "b"}, {"b"}
    await stage.leader.trim_round()
    last = [(q.id.name, q.place, q.records) for q in stage.asked if q.is_passed]
    assert last.count(("b", place_at(2), 2)) == 1, "not again in each wave"
    replica = stage.here.manager.replica(HERE)
    assert replica is not None
    assert replica.log.requested_log_start == 0
    stage.named.clear()
    await stage.leader.trim_round()
    await stage.start_at(4)


async def test_rule_s10_a_silent_home_keeps_its_chunks(stage: Stage) -> None:
    await alone(stage)
    await stage.stage(big("a"))
    await stage.stage(big("b"))

    async def silent(question: StatusQuestion) -> Word:
        if question.id.name == "a":
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE)
        return Word.GONE

    stage.ports = replace(stage.ports, ask_home=silent)
    stage.leader = stage.at_epoch(1)
    await stage.leader.load()
    await stage.leader.trim_round()
    assert [id_.name for id_, _ in stage.leader.attempts()] == ["a"]
    stage.ports = replace(stage.ports, ask_home=stage.answer)


async def test_rule_s10_a_living_chunk_is_moved_and_read_at_its_new_place(stage: Stage) -> None:
    await alone(stage)
    living = big("a")
    await stage.stage(living)
    await stage.stage(big("b"))
    stage.gone = {"b"}
    stage.settings = replace(stage.settings, move_bytes=1 << 20)
    await stage.leader.trim_round()
    asked = [(q.id.name, q.place, q.copy) for q in stage.asked if not q.is_passed]
    assert asked[-1] == ("a", place_at(4), None)
    assert ("a", place_at(0), place_at(4)) in asked
    await stage.start_at(4)
    refs = (await stage.refs(rows=2)).refs
    assert [ref.at.offset for ref in refs] == [4, 5]
    replica = stage.here.manager.replica(HERE)
    assert replica is not None
    assert [rows_at(replica.log, place_at(at)) for at in (4, 5)] == list(living.targets)


async def test_rule_s10_rows_are_gone_for_good_by_the_word_of_a_leader_that_is_loaded_and_proven(
    stage: Stage,
) -> None:
    """An unclean election cut the log: it ends before the place, or has another record there."""
    stage.here.manager.on_metadata_update(image(2, ALONE))
    stage.leader = stage.at_epoch(2)
    with pytest.raises(KafkaError) as caught:
        await stage.leader.read([place_at(5)])
    assert caught.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    await stage.leader.load()
    await stage.stage(chunk("a"))
    stage.here.manager.on_metadata_update(image(3, BOTH))
    stage.leader = stage.at_epoch(3)
    await stage.leader.load()
    stage.proof.proven = False
    asking = asyncio.create_task(stage.leader.read([place_at(5), place_at(0)]))
    await until(lambda: stage.log_end == 2)  # the probe, which the other replica must take
    await asyncio.sleep(0.01)
    assert not asking.done()
    stage.here.manager.on_metadata_update(image(3, ALONE))
    assert await asking == [None, None]
    stage.proof.proven = True
    assert await stage.leader.read([place_at(0, epoch=2)]) == [*chunk("a").targets]


async def test_rule_s10_what_is_not_committed_or_of_a_newer_leader_is_not_gone(
    stage: Stage,
) -> None:
    await stage.leader.load()
    staged = stage.stage(chunk("a"))
    await until(lambda: stage.log_end == 1)
    for place, code in (
        (place_at(0), ErrorCode.OFFSET_NOT_AVAILABLE),
        (place_at(1), ErrorCode.OFFSET_NOT_AVAILABLE),
        (place_at(0, epoch=2), ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (place_at(7, epoch=2), ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ):
        with pytest.raises(KafkaError) as caught:
            await stage.leader.read([place])
        assert caught.value.code is code
    staged.cancel()


async def test_rule_r10_a_chunk_does_not_age_while_the_clock_is_doubted(stage: Stage) -> None:
    await alone(stage)
    await stage.stage(chunk("a"))
    stage.times.wall += 60_001
    stage.trusted = False
    await stage.leader.trim_round()
    stage.trusted = True
    await stage.leader.trim_round()
    assert [one.is_aged for one in stage.asked if not one.is_passed] == [False, True]


async def test_rule_r10_a_chunk_from_the_future_ages_by_the_time_it_is_known(
    stage: Stage,
) -> None:
    await alone(stage)
    stage.times.wall += 1 << 40
    await stage.stage(chunk("a"))
    stage.times.wall -= 1 << 40
    await stage.leader.trim_round()
    stage.times.monotonic += 60_001
    await stage.leader.trim_round()
    assert [one.is_aged for one in stage.asked if not one.is_passed] == [False, True]


async def test_a_leader_whose_epoch_has_ended_answers_nothing(stage: Stage) -> None:
    await alone(stage)
    await stage.stage(chunk("a"))
    stage.leader.close()
    for asked in (stage.stage(chunk("a")), stage.stage(chunk("b"))):
        assert (await refused(asked)).code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    with pytest.raises(KafkaError):
        stage.leader.attempts()
