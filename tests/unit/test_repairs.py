"""A running broker's damaged replicas: when they may be emptied, when they must lead on."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from broker.log.directory_files import DirectoryFiles
from broker.log.log_directory import UnreadableError
from broker.log.log_manager import LogManager, OfflineLog
from broker.replication import leader_stream, repair
from broker.replication.frames import Open
from broker.replication.leader_state import LeaderState
from broker.replication.leader_stream import LeaderStream
from broker.replication.partition import Following, Unassigned
from broker.replication.repair import LOOK_AGAIN_MS
from raft_metadata.common.disk import Disk
from raft_metadata.common.errors import CorruptionError, ErrorCode, KafkaError
from raft_metadata.common.ids import (
    NO_LEADER,
    BrokerEpoch,
    BrokerId,
    DirectoryId,
    LeaderEpoch,
    PartitionEpoch,
    PartitionId,
    TopicId,
    TopicIdPartition,
)
from raft_metadata.records.feature_levels import SUPPORTED_FEATURE_LEVEL
from raft_metadata.records.partition_set import PartitionSet
from raft_metadata.records.records import (
    BrokerRegistrationChangeRecord,
    BrokerState,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionChangeRecord,
)
from tests.support.doors.log import flusher_of
from tests.support.hosted_replicas import (
    FIRST_ID,
    ME,
    ORDERS,
    OTHER,
    ZERO,
    StreamTransport,
    created,
    hosted,
    images,
    registered,
)
from tests.support.logs import append, values_of
from tests.support.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from broker.replication.partition import Role
    from broker.replication.replica import Replica
    from broker.replication.replica_manager import ReplicaManager
    from raft_metadata.image.metadata_image import PartitionRegistration

HERE = TopicIdPartition(FIRST_ID, ZERO)
BOTH = (OTHER, ME)
SECOND_ID = TopicId("zSecond")


class Host:
    """Broker `ME` with one partition of which it holds three batches."""

    def __init__(self, folder: Path, leader: BrokerId = OTHER) -> None:
        self.folder = folder
        first = (leader, *(each for each in BOTH if each != leader))
        self.batches: list[tuple[MetadataRecord, ...]] = [
            (FeatureLevelRecord(level=SUPPORTED_FEATURE_LEVEL),),
            (registered(OTHER, 1, "other"),),
            (registered(ME, 2, "me"),),
            created(FIRST_ID, first),
        ]
        self.epochs = [0, 0]
        self.logs: LogManager
        self.manager: ReplicaManager
        self.logs, self.manager = hosted(folder, "me")
        self.begun_ms, self.passed_ms = self.manager.now_ms(), 0
        self.follow()
        for value in ("a" * 100, "b" * 100, "c" * 100):
            append(self.replica.log, [value], epoch=0)
        flusher_of(self.logs).flush_all()

    def follow(self) -> None:
        for image in images(*self.batches):
            if image.next_offset > self.manager.image.next_offset:
                self.manager.on_metadata_update(image)

    def learn(
        self,
        leader: BrokerId,
        isr: tuple[BrokerId, ...],
        elr: tuple[BrokerId, ...] = (),
        *,
        new_epoch: bool = False,
    ) -> None:
        self.epochs[0] += int(new_epoch)
        self.epochs[1] += 1
        record = PartitionChangeRecord(
            topic_id=FIRST_ID,
            partition=ZERO,
            directories=tuple(
                DirectoryId(f"d{replica}") for replica in self.registration().replicas
            ),
            isr=isr,
            elr=elr,
            leader=leader,
            leader_epoch=LeaderEpoch(self.epochs[0]),
            partition_epoch=PartitionEpoch(self.epochs[1]),
        )
        self.batches.append((record,))
        self.follow()

    def registration(self) -> PartitionRegistration:
        found = self.manager.image.partition(*HERE)
        assert found is not None
        return found

    def tick(self, after_ms: int = 0) -> None:
        """A look at the damage, ``after_ms`` from the beginning or as soon as it is due again."""
        self.passed_ms = max(after_ms, self.passed_ms + LOOK_AGAIN_MS)
        self.manager.repairs.look(self.begun_ms + self.passed_ms)

    def rot(self) -> UnreadableError:
        """Flip a byte of the second batch; what a reader of it is told."""
        file = self.folder / "log" / f"{ORDERS}-0" / f"{0:020}.log"
        data = bytearray(file.read_bytes())
        data[data.index(b"bbbb")] ^= 1
        file.write_bytes(data)
        with pytest.raises(UnreadableError) as caught:
            self.replica.log.read(1, 1000, 3)
        return caught.value

    @property
    def replica(self) -> Replica:
        found = self.manager.replica(HERE)
        assert found is not None
        return found

    def role(self) -> Role:
        return self.replica.partition.role

    def is_emptied(self) -> bool:
        return self.replica.log.log_end_offset == 0


def test_invariant_l22_a_reader_of_damage_is_told_and_nothing_more_is_written(
    tmp_path: Path,
) -> None:
    host = Host(tmp_path, leader=ME)
    error = host.rot()
    assert error.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert isinstance(error, CorruptionError)
    assert f"{ORDERS}-0/{0:020}.log" in str(error)
    with pytest.raises(KafkaError):
        append(host.replica.log, ["d"], epoch=0)
    assert [str(why) for why in host.logs.offline.values()]
    assert list(host.logs.unclean) == [HERE]


def test_rule_r4_a_damaged_follower_is_emptied_behind_the_epoch_it_took_part_in(
    tmp_path: Path,
) -> None:
    """Out of the ISR is not enough: its leader may have proposed it a moment ago."""
    host = Host(tmp_path)
    host.rot()
    host.tick()
    assert isinstance(host.role(), Unassigned), "it acknowledges nothing more"
    (said,) = host.manager.repairs.report()
    assert (said.leader_epoch, said.can_lead) == (0, True)
    host.learn(OTHER, (OTHER,))
    assert not host.is_emptied()
    host.learn(OTHER, (OTHER,), new_epoch=True)
    assert host.is_emptied()
    role = host.replica.partition.role
    assert isinstance(role, Following)
    assert (role.leader, role.epoch) == (OTHER, 1)
    assert host.manager.repairs.report() == ()
    assert (host.logs.offline, host.logs.unclean) == ({}, {})
    assert host.logs.quarantined() == [f"{FIRST_ID}:0"]
    host.logs.close(None)
    again, _ = hosted(tmp_path, "again")
    assert again.offline == again.unclean == {}


@pytest.mark.parametrize(
    ("leader", "isr", "elr"),
    [(OTHER, BOTH, ()), (OTHER, (OTHER,), (ME,)), (NO_LEADER, (), (OTHER,))],
    ids=["in the ISR", "in the ELR", "without a leader"],
)
def test_rule_q2_a_damaged_replica_that_may_be_needed_is_not_emptied(
    tmp_path: Path, leader: BrokerId, isr: tuple[BrokerId, ...], elr: tuple[BrokerId, ...]
) -> None:
    host = Host(tmp_path)
    host.rot()
    host.tick()
    host.learn(leader, isr, elr, new_epoch=True)
    host.tick()
    assert not host.is_emptied()
    assert host.logs.quarantined() == []
    host.learn(OTHER, (OTHER,), new_epoch=True)
    assert host.is_emptied()


def test_rule_g3_a_damaged_leader_serves_until_another_leads_and_is_emptied_once_it_is_out(
    tmp_path: Path,
) -> None:
    host = Host(tmp_path, leader=ME)
    host.rot()
    host.tick()
    assert isinstance(host.role(), LeaderState), "it is the leader still"
    assert values_of(host.replica.log, 2) == ["c" * 100]
    host.learn(OTHER, BOTH, new_epoch=True)
    assert isinstance(host.role(), Unassigned)
    assert not host.is_emptied()
    host.learn(OTHER, (OTHER,))
    assert host.is_emptied()
    assert isinstance(host.role(), Following)


def test_the_last_replica_goes_on_but_for_what_can_not_be_read(tmp_path: Path) -> None:
    host = Host(tmp_path, leader=ME)
    host.learn(ME, (ME,))
    host.rot()
    host.tick()
    log = host.replica.log
    append(log, ["d"], epoch=0)
    with pytest.raises(UnreadableError):
        log.read(1, 1000, 4)
    append(log, ["e"], epoch=0)
    assert values_of(log, 2) == ["c" * 100, "d", "e"]
    assert host.logs.unclean == {}, "a start may open it"
    assert len(host.manager.repairs.report()) == 1, "the controllers know, for when others count"
    host.learn(ME, BOTH)
    with pytest.raises(KafkaError):
        append(log, ["f"], epoch=0)
    assert list(host.logs.unclean) == [HERE]
    host.learn(OTHER, (OTHER,), new_epoch=True)
    assert host.is_emptied()


def test_a_damaged_replica_that_is_elected_leads_with_what_it_has(tmp_path: Path) -> None:
    """No other replica could lead, or an operator chose it."""
    host = Host(tmp_path)
    host.rot()
    host.tick()
    host.learn(ME, (ME,), new_epoch=True)
    assert isinstance(host.role(), LeaderState)
    append(host.replica.log, ["d"], epoch=1)


def test_rule_r6_a_restart_before_it_is_emptied_reports_it(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.rot()
    host.tick()
    host.logs.close(None)
    again, _ = hosted(tmp_path, "again")
    assert list(again.offline) == list(again.unclean) == [HERE]


@pytest.mark.parametrize("opens", [True, False])
def test_a_replica_that_a_start_refused_is_opened_where_it_alone_may_lead(
    tmp_path: Path, opens: bool
) -> None:
    """Found while it ran, a start can read over it; damage that recovery finds stays refused."""
    host = Host(tmp_path)
    host.rot()
    if opens:
        host.tick()
    host.logs.close(None)
    logs = tmp_path / "log"
    if opens:  # as if it stood in a sealed segment, where no start looks
        file = logs / f"{ORDERS}-0" / f"{0:020}.log"
        file.write_bytes(file.read_bytes().replace(b"cbbb", b"bbbb"))
    host.batches.append((registered(ME, sum(map(len, host.batches)), "again"),))
    host.logs, host.manager = hosted(tmp_path, "again")
    host.follow()
    assert host.manager.replica(HERE) is None
    assert [one.can_lead for one in host.manager.repairs.report()] == [True]
    host.learn(ME, (ME,), new_epoch=True)
    if opens:
        assert values_of(host.replica.log) == ["a" * 100, "b" * 100, "c" * 100]
        assert host.manager.repairs.report() == ()
    else:
        assert host.manager.replica(HERE) is None
        assert [one.can_lead for one in host.manager.repairs.report()] == [False]
        assert list(host.logs.unclean) == [HERE]
        left = (logs / f"{ORDERS}-0" / f"{0:020}.log").read_bytes()
        assert b"c" * 100 in left, "nothing is cut: it may be all there is"


async def test_a_follower_that_needs_what_is_damaged_waits_and_its_connection_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last replica leads on: the others come back, and get what is before the damage."""
    host = Host(tmp_path, leader=ME)
    host.learn(ME, (ME,))
    host.rot()
    host.tick()
    monkeypatch.setattr(leader_stream, "DAMAGE_RETRY_S", 0)
    stream = LeaderStream(OTHER, host.manager)
    stream.connection_made(transport := StreamTransport())
    opens = Open(1, LeaderEpoch(0), BrokerEpoch(1), -1, 0, 0)
    host.manager.follower_opens(stream, host.replica.key, opens)
    (session,) = stream.sessions.values()
    for _ in range(5):
        await asyncio.sleep(0)
    assert session.next == 1, "up to the damaged batch"
    sent = len(b"".join(transport.sent))
    monkeypatch.setattr(leader_stream, "DAMAGE_RETRY_S", 60)
    await until(lambda: host.replica.sessions == ())  # nothing is offered to it
    assert stream.sessions, "and its connection is open"
    host.replica.log.advance_log_start(2)
    flusher_of(host.logs).flush_all()
    stream.resume_session(session)
    for _ in range(5):
        await asyncio.sleep(0)
    assert session.next == 3, "an operator has let go of it"
    assert len(b"".join(transport.sent)) > sent


def test_no_copy_that_was_set_aside_is_overwritten_and_there_are_not_many(tmp_path: Path) -> None:
    host = Host(tmp_path)
    for copies in range(1, 4):
        host.rot()
        host.tick()
        host.learn(OTHER, (OTHER,), new_epoch=True)
        assert len(host.logs.quarantined()) == copies
        assert host.is_emptied()
        for value in ("a" * 100, "b" * 100, "c" * 100):
            append(host.replica.log, [value], epoch=0)
        flusher_of(host.logs).flush_all()
    host.rot()
    host.tick()
    host.learn(OTHER, (OTHER,), new_epoch=True)
    assert not host.is_emptied(), "one more would fill the disk with copies"
    assert len(host.logs.quarantined()) == 3
    host.logs.purge([host.logs.quarantined()[0]])
    host.tick()
    assert host.is_emptied(), "an operator looked at them"


def test_a_full_disk_keeps_a_damaged_replica_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Host(tmp_path)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(DirectoryFiles, "write_damaged", full)
        host.rot()
        host.tick()
        host.learn(OTHER, (OTHER,), new_epoch=True)
        assert not host.is_emptied()
    host.tick()
    assert host.is_emptied()
    assert (host.logs.offline, host.logs.unclean) == ({}, {})
    again = DirectoryFiles(Disk(), host.logs.root).read_damaged()
    assert again == {}


def test_a_start_that_finds_damage_in_many_partitions_says_all_of_them(tmp_path: Path) -> None:
    """One start handles all of it: they are reported together, and filled side by side."""
    count = 5
    logs, _ = hosted(tmp_path, "me")
    for number in range(count):
        log = logs.get_or_create(ORDERS, PartitionId(number), FIRST_ID)
        for value in ("a" * 100, "b" * 100, "c" * 100):
            append(log, [value], epoch=0)
            flusher_of(logs).flush_all()
    logs.close(None)
    for number in range(count):
        file = tmp_path / "log" / f"{ORDERS}-{number}" / f"{0:020}.log"
        data = bytearray(file.read_bytes())
        data[data.index(b"aaaa")] ^= 1
        file.write_bytes(data)
    again, _ = hosted(tmp_path, "again")
    assert len(again.offline) == len(again.unclean) == count


def full_disk(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_the_last_copy_that_is_kept_is_no_reason_to_wait_once_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The move is done, the mark is still to go: that needs no other place."""
    host = Host(tmp_path)
    for copies in range(1, 4):
        host.rot()
        host.tick()
        with monkeypatch.context() as patched:
            if copies == 3:
                patched.setattr(DirectoryFiles, "write_damaged", full_disk)
            host.learn(OTHER, (OTHER,), new_epoch=True)
        assert len(host.logs.quarantined()) == copies
        host.tick()
        assert host.is_emptied()
        for value in ("a" * 100, "b" * 100, "c" * 100):
            append(host.replica.log, [value], epoch=0)
        flusher_of(host.logs).flush_all()


def test_rule_m5_a_damaged_replica_that_was_given_away_does_not_stay_for_those_who_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a replica could follow no leader, and nothing would report its damage any more."""
    host = Host(tmp_path, leader=ME)
    host.rot()
    host.tick()
    parked = type(host.replica.partition.delayed_produces)
    monkeypatch.setattr(parked, "__len__", lambda _: 1)
    host.epochs = [1, 1]
    given = PartitionChangeRecord(
        topic_id=FIRST_ID,
        partition=ZERO,
        replicas=(OTHER,),
        directories=(DirectoryId(f"d{OTHER}"),),
        isr=(OTHER,),
        elr=(),
        leader=OTHER,
        leader_epoch=LeaderEpoch(1),
        partition_epoch=PartitionEpoch(1),
    )
    host.batches.append((given,))
    host.follow()
    assert host.manager.replica(HERE) is None
    assert host.manager.repairs.damaged == {}


def settled_again(epoch: int) -> list[tuple[MetadataRecord, ...]]:
    """What the controllers record of a next life that reports the damage."""
    again = replace(registered(ME, epoch, "again"), unclean_ranges=PartitionSet.of((HERE,)).ranges)
    settled = BrokerRegistrationChangeRecord(
        broker_id=ME, broker_epoch=BrokerEpoch(epoch), state=BrokerState.UNFENCED, settled=True
    )
    return [(again,), (settled,)]


def test_rule_q5_what_a_start_refused_waits_for_room_and_ends_no_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Host(tmp_path)
    host.rot()
    host.tick()
    host.logs.close(None)
    host.logs, host.manager = hosted(tmp_path, "again")
    host.batches += settled_again(sum(map(len, host.batches)))
    with monkeypatch.context() as patched:
        patched.setattr(DirectoryFiles, "write_damaged", full_disk)
        host.follow()
        assert host.manager.replica(HERE) is None
    host.tick()
    assert host.is_emptied()
    assert (host.logs.offline, host.logs.unclean) == ({}, {})


@pytest.mark.parametrize("found", ["by a start", "by a reader"])
def test_an_operator_is_told_to_remove_one_of_three_damaged_copies(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, found: str
) -> None:
    host = Host(tmp_path)
    copies = [tmp_path / "log" / ".deleted" / f"{FIRST_ID}:0{mark}" for mark in ("", ":2", ":3")]
    for copy in copies:
        copy.mkdir(parents=True)
    host.rot()
    host.tick()
    if found == "by a start":
        host.logs.close(None)
        host.logs, host.manager = hosted(tmp_path, "again")
        host.batches += settled_again(sum(map(len, host.batches)))
        host.follow()
    else:
        host.learn(OTHER, (OTHER,), new_epoch=True)
    told = "3 damaged copies of it are kept in log/.deleted, remove one"
    for after_ms, times in ((0, 0), (9_000, 0), (11_000, 1), (600_000, 1), (612_000, 2)):
        host.tick(after_ms)
        assert sum(told in line for line in caplog.messages) == times
    assert host.manager.repairs.reasons()[HERE].endswith(f"; not filled again: {told}")
    copies[1].rmdir()
    host.tick()
    assert host.is_emptied()
    assert host.manager.repairs.reasons() == {}


def test_rule_g3_a_deposed_leader_whose_disk_is_full_leads_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its heartbeats say that it has heard of its successor: the mark of its damage can wait."""
    host = Host(tmp_path, leader=ME)
    with monkeypatch.context() as patched:
        patched.setattr(DirectoryFiles, "write_damaged", full_disk)
        host.rot()
        host.tick()
        host.learn(OTHER, BOTH, new_epoch=True)
        assert isinstance(host.role(), Unassigned)
    host.learn(OTHER, (OTHER,))
    assert host.is_emptied()


def test_all_that_is_damaged_is_reported_in_order_with_the_state_of_the_partition_it_is_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replicas refused at a start stand beside those found since; their number is bounded."""
    host = Host(tmp_path)
    host.rot()
    host.tick()
    host.learn(OTHER, BOTH)
    refused = [TopicIdPartition(SECOND_ID, PartitionId(index)) for index in reversed(range(150))]
    host.logs.offline |= dict.fromkeys(refused, OfflineLog(CorruptionError("planted")))
    host.tick()
    said = host.manager.repairs.report()
    places = [(one.topic_id, one.partition) for one in said]
    assert places == sorted(places)
    assert len(said) == 151
    assert {one.partition_epoch for one in said if one.topic_id == FIRST_ID} == {1}
    assert {one.partition_epoch for one in said if one.topic_id == SECOND_ID} == {-1}
    assert host.manager.repairs.report() is said, "it costs nothing while nothing changes"
    host.learn(OTHER, (OTHER,))
    assert {one.partition_epoch for one in host.manager.repairs.report()} == {-1, 2}
    monkeypatch.setattr(repair, "REPORTED_REPLICAS_MAX", 20)
    host.tick()
    few = host.manager.repairs.report()
    assert len(few) == 20
    assert FIRST_ID in {one.topic_id for one in few}, "what can be mended now goes first"
