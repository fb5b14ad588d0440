"""Homes and producers that a replica whose log begins anew is told, and keeps (rule S5)."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from broker.log.checkpoints import encode_checkpoint
from broker.log.log_directory import LogConfig
from broker.record.batch import RecordFormat
from broker.record.numbering import HomeKind, RowNumber, claim_of_row, make_numbering
from broker.replication import frames
from broker.replication.frames import PREFIX, Diverging, Skip, Valid, key_of
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import BrokerEpoch, Claim, LeaderEpoch, PartitionId
from tests.support.logs import Life, append, formatted_disk, records
from tests.unit.test_log_start import Side, ask, fill, leads, push, trim
from tests.unit.test_replication_partition import HERE, ONE, TWO, brokers, registration

HOME = make_numbering(HomeKind.TRANSACTIONS, PartitionId(3), LeaderEpoch(-1))
PRODUCER = 77


def claimed(side: Side, claim: Claim, rows: int, epoch: int = 1) -> None:
    side.log.append_as_leader(
        records(["row"] * rows),
        key_format=RecordFormat.JSON,
        value_format=RecordFormat.JSON,
        leader_epoch=epoch,
        now_ms=1_000,
        claim=claim,
    )


def begun() -> tuple[Side, Side]:
    """Return a leader whose log starts behind all batches of a home and of a producer, and another.

    Batches of both stand behind 20 others; the log ends at 36 and begins at 30.
    """
    leader, follower = Side(ONE), Side(TWO)
    leads(leader, [f"{n}" + "x" * 300 for n in range(20)])
    for number in range(0, 6, 2):
        claimed(leader, claim_of_row(HOME, RowNumber(number)), 2)
    claimed(leader, Claim(PRODUCER, 2, 0), 2)
    for n in range(8):
        append(leader.log, [f"{n}" + "y" * 300], epoch=1)
    leader.life.flush()
    leader.partition.advance()
    trim(leader, 30)
    follower.takes(ONE, 1)
    return leader, follower


def knows(side: Side) -> bool:
    """Return whether a log knows the end of the home and the producer's last batch."""
    states = side.log.producers
    if states is None:
        return False
    repeat = states.get(PRODUCER)
    return states.end_of(HOME) == 6 and repeat is not None and repeat.epoch == 2


def test_rule_s5_a_replica_that_is_filled_behind_all_batches_of_a_home_knows_its_end() -> None:
    leader, follower = begun()
    fill(follower, leader)
    assert follower.log.log_start_offset == 30
    assert knows(follower)
    follower.takes(TWO, 2)
    repeated = follower.log.repeated(Claim(PRODUCER, 2, 0), 2, 2_000)
    assert repeated is not None
    assert (repeated.first_offset, repeated.last_offset) == (26, 27)


@pytest.mark.parametrize("seed", range(2, 8))
@pytest.mark.parametrize("step", ["told", "pushed", "syncing", "synced", "again"])
def test_rule_s5_what_is_told_is_on_the_disk_before_the_new_start_counts(
    step: str, seed: int
) -> None:
    leader, follower = begun()
    valid = ask(follower, leader)
    assert valid is not None
    if step in {"pushed", "syncing", "synced"}:
        assert push(follower, leader, valid)
    if step == "syncing":
        follower.log.begin_flush()
    if step in {"synced", "again"}:
        follower.life.flush()
    follower.crash(seed)
    if follower.log.log_start_offset == 30:
        assert knows(follower)
    follower.takes(ONE, 1)
    fill(follower, leader)
    follower.crash(seed + 1)
    assert (follower.log.log_start_offset, follower.log.log_end_offset) == (30, 36)
    assert knows(follower)


def test_rule_s5_it_does_not_join_before_what_it_was_told_is_durable() -> None:
    leader, follower = begun()
    valid = ask(follower, leader)
    assert valid is not None
    while follower.log.log_end_offset < 36:
        assert push(follower, leader, valid)

    def joins() -> bool:
        message = follower.partition.ack_message()
        assert message is not None
        assert leader.partition.on_ack(TWO, message, 0) is not None
        return leader.partition.propose_isr(brokers(), 1, 0, None) is not None

    assert not joins()
    follower.life.flush()
    assert joins()


def test_rule_s5_a_log_that_is_trimmed_to_its_end_forgets_nothing_at_a_follower_either() -> None:
    """`delete-records` up to the end, and the follower, which holds all, does not hear of it."""
    leader, follower = begun()
    fill(follower, leader)
    trim(leader, 36)
    fill(follower, leader)
    assert (follower.log.log_start_offset, follower.log.log_end_offset) == (36, 36)
    assert knows(follower)
    follower.crash(3)
    assert knows(follower)


def test_rule_s5_a_follower_that_is_overtaken_by_the_log_start_is_told_in_its_session() -> None:
    leader, follower = begun()
    fill(follower, leader)
    follower.log.start_over(0)
    valid = ask(follower, leader)
    assert valid is not None
    trim(leader, 33)
    assert push(follower, leader, valid)
    assert follower.log.log_start_offset == 33
    follower.life.flush()
    assert knows(follower)


def test_rule_s5_a_follower_that_diverged_before_the_log_start_is_told_of_the_leaders() -> None:
    """Its own rows of another history, which are cut, must not count as there."""
    leader, follower = begun()
    leads(leader, ["next"], epoch=3)
    trim(leader, 37)
    leads(follower, [f"other{n}" for n in range(40)], epoch=2)
    claimed(follower, claim_of_row(HOME, RowNumber(6)), 5, epoch=2)
    follower.partition.high_watermark = 0
    follower.takes(ONE, 3)
    assert ask(follower, leader) is None
    assert knows(follower)
    assert follower.log.log_start_offset == 37
    fill(follower, leader)
    follower.crash(2)
    assert knows(follower)


def test_rule_s5_a_replica_that_is_cut_below_its_log_start_learns_of_the_homes_again() -> None:
    """An unclean leader ends before its start, and has the batches of homes that it deleted."""
    old, new = Side(ONE), Side(TWO)
    leads(old, [f"{n}" + "x" * 300 for n in range(20)])
    claimed(old, claim_of_row(HOME, RowNumber(0)), 6)
    claimed(old, Claim(PRODUCER, 2, 0), 2)
    old.life.flush()
    old.partition.advance()
    new.takes(ONE, 1)
    fill(new, old)
    leads(old, ["lost"] * 8)
    trim(old, 33)
    leads(new, ["next"], epoch=3)
    made = replace(registration(TWO, 3, isr=(TWO,)), unclean_epoch=LeaderEpoch(3))
    old.partition.apply_image(made, brokers(), BrokerEpoch(int(ONE)), 0)
    fill(old, new)
    assert old.log.log_end_offset == 29
    assert knows(old)
    old.crash(3)
    assert knows(old)


def test_rule_s5_nothing_is_told_that_is_not_committed() -> None:
    """Said to be there already, it would be nowhere once the leader is deposed."""
    leader, follower = begun()
    claimed(leader, claim_of_row(HOME, RowNumber(6)), 4)
    claimed(leader, Claim(PRODUCER, 2, 2), 1)
    assert leader.log.producers is not None
    assert leader.log.producers.end_of(HOME) == 10
    assert ask(follower, leader) is not None
    assert knows(follower)
    assert follower.log.producers is not None
    state = follower.log.producers.get(PRODUCER)
    assert state is not None
    assert state.last_sequence == 1


def test_rule_s5_what_no_undo_reaches_is_read_from_the_log() -> None:
    leader, follower = begun()
    assert leader.log.producers is not None
    leader.log.producers.committed(36)
    claimed(leader, claim_of_row(HOME, RowNumber(6)), 4)
    leader.log.producers.committed(40)  # as if more batches stood behind than can be undone
    assert leader.log.producers.as_of(36) is None
    fill(follower, leader)
    assert follower.log.producers is not None
    leader.partition.high_watermark = 36
    told = leader.log.producers_told(36)
    assert told is not None
    assert b"[[0" in told


def test_rule_s5_a_start_over_that_was_not_told_is_refused_and_changes_nothing() -> None:
    leader, follower = begun()
    message = follower.partition.open_message(9, 0)
    assert message is not None
    answer = leader.partition.on_open(TWO, message, brokers(), 9, 0)
    assert isinstance(answer, Valid)
    with pytest.raises(KafkaError, match="did not tell") as untold:
        follower.partition.on_valid(answer._replace(producers=None))
    assert untold.value.code is ErrorCode.CORRUPT_MESSAGE
    for wrong in (b"{}", encode_checkpoint({"offset": 29})):
        with pytest.raises(KafkaError):
            follower.partition.on_valid(answer._replace(producers=wrong))
    assert (follower.log.log_start_offset, follower.log.log_end_offset) == (0, 0)


def test_frames_carry_what_is_told_and_a_stale_skip_changes_nothing() -> None:
    key = key_of(*HERE)
    for frame in (
        Valid(1, 2, 3, 4, 5, b"told"),
        Valid(1, 2, 3, 4, 5),
        Diverging(1, 2, -1, 4, b"told"),
        Diverging(1, 2, 3, 4),
        Skip(1, 2, 3, b"told"),
    ):
        raw = frames.encode(key, frame)
        size, kind = PREFIX.unpack_from(raw)
        assert size == len(raw) - PREFIX.size
        assert frames.decode(kind, memoryview(raw)[PREFIX.size :]) == (key, frame)
    leader, follower = begun()
    fill(follower, leader)
    skip = leader.partition.skip_message(9)
    assert skip is not None
    for stale in (
        skip,
        skip._replace(start=40, session=8),
        skip._replace(start=40, leader_epoch=0),
        skip._replace(start=36),
    ):
        assert not follower.partition.on_skip(stale)
    assert follower.log.log_start_offset == 30


@pytest.mark.parametrize("seed", range(2))
def test_rule_s5_a_crash_amid_a_start_over_backwards_leaves_a_log_that_is_told_or_begins_at_0(
    seed: int,
) -> None:
    """No log may claim to begin behind 0 and know nothing of what was before."""

    class PowerCutError(Exception):
        """The power goes."""

    config = LogConfig(segment_bytes=1_000)
    for step in range(1, 60):
        disk = formatted_disk()
        life = Life(disk, config)
        log = life.log()
        for number in range(40):
            log.append_as_leader(
                records(["x" * 100]),
                key_format=RecordFormat.JSON,
                value_format=RecordFormat.JSON,
                leader_epoch=1,
                now_ms=1,
                claim=claim_of_row(HOME, RowNumber(number)),
            )
        life.flush()
        log.advance_log_start(25)
        life.flush()
        life.manager.removals.rename_some()
        told = log.producers_told(40)
        assert told is not None
        calls: list[str] = []

        def before(operation: str, path: str, calls: list[str] = calls, step: int = step) -> None:
            calls.append(f"{operation} {path}")
            if len(calls) == step:
                raise PowerCutError

        disk.before = before
        try:
            log.start_over(25, told)
        except PowerCutError:
            pass
        disk.before = None
        disk.cut_power(random.Random(seed + step))
        log = Life(disk, config).log()
        ends = 0 if log.producers is None else log.producers.end_of(HOME)
        assert ends == 40 or log.log_start_offset == 0 or ends >= log.log_end_offset > 25, calls


def test_rule_s5_a_rotted_snapshot_that_nothing_can_replace_takes_the_log_offline() -> None:
    leader, follower = begun()
    fill(follower, leader)
    disk, directory = follower.disk, follower.log.directory
    snapshots = [each for each in disk.names(directory) if each.endswith(".producers")]
    assert snapshots
    follower.disk.kill()
    for name in snapshots:
        disk.write(disk.open(f"{directory}/{name}"), b"rot", 3)
    assert Life(disk, LogConfig(segment_bytes=2_000)).manager.offline
