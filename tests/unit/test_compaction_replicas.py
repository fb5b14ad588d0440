"""Compaction between replicas (rule R7): each cleans its own log, and nobody shows an old value."""

from __future__ import annotations

import random

from broker.log.compaction import CompactionConfig
from broker.log.log_directory import LogConfig
from broker.log.partition_log import PartitionLog
from broker.replication.cleaning import replicated_to
from broker.replication.frames import (
    PREFIX,
    START_OVER,
    Ack,
    Diverging,
    Open,
    Push,
    Valid,
    decode,
    encode_push_head,
    key_of,
)
from broker.replication.leader_state import LeaderState, Settings
from broker.replication.partition import Partition, PushResult
from raft_metadata.common.ids import (
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    PartitionId,
    TopicId,
    TopicIdPartition,
)
from tests.support.compaction_model import (
    Said,
    append_keyed,
    check_promises,
    clean,
    headers_of,
    read_all,
)
from tests.support.logs import Life
from tests.support.registered import broker, partition
from tests.support.simulated_disk import SimulatedDisk

HERE = TopicIdPartition(TopicId("A" * 22), PartitionId(0))
ALL = ONE, TWO, THREE = BrokerId(1), BrokerId(2), BrokerId(3)
BROKERS = {number: broker(number) for number in ALL}
CONFIG = LogConfig(
    segment_bytes=400,
    compaction=CompactionConfig(delete_retention_ms=0, segment_bytes=400),
)


class Replica:
    """A partition on a disk of its own."""

    def __init__(self, broker: BrokerId) -> None:
        self.broker = broker
        self.life = Life(SimulatedDisk(), CONFIG)
        self.log = self.life.log()
        self.partition = Partition(HERE, broker, self.log, Settings(1, by_durable=True))

    def take(self, leader: BrokerId, epoch: int, isr: tuple[BrokerId, ...]) -> None:
        registration = partition(ALL, leader, epoch, isr=isr)
        self.partition.apply_image(registration, BROKERS, BrokerEpoch(int(self.broker)), 0)

    def append(self, key: int, value: int | None) -> None:
        append_keyed(self.log, [(key, value)], epoch=self.partition.role.epoch)
        self.life.flush()
        self.partition.advance()
        self.log.high_watermark = self.partition.high_watermark

    def ask(self, leader: Replica, session: int) -> Valid | Diverging:
        """Open a session; what is said is taken."""
        message = self.partition.open_message(session, 0)
        assert message is not None
        answer = leader.partition.on_open(self.broker, message, BROKERS, session, 0)
        if isinstance(answer, Diverging):
            assert self.partition.on_diverging(answer)
            self.life.flush()
            return answer
        assert isinstance(answer, Valid)
        assert self.partition.on_valid(answer)
        return answer

    def follow(self, leader: Replica, session: int, up_to: int | None = None) -> None:
        """Be pushed what the leader has, a batch at a time."""
        end = leader.log.log_end_offset if up_to is None else up_to
        while self.log.log_end_offset < end:
            at = self.log.log_end_offset
            raw = leader.log.read_raw(at, 1, leader.log.log_end_offset)
            known = replicated_to(leader.partition)
            push = Push(
                session, leader.partition.role.epoch, at, at + 1,
                leader.partition.high_watermark, leader.log.log_start_offset, raw, known,
            )  # fmt: skip
            assert self.partition.on_push(push) is PushResult.APPENDED
            self.life.flush()
            ack = self.partition.ack_message()
            assert isinstance(ack, Ack)
            leader.partition.on_ack(self.broker, ack, 0)
            self.log.high_watermark = self.partition.high_watermark
            leader.log.high_watermark = leader.partition.high_watermark

    def clean(self, now_ms: int = 1 << 40) -> None:
        everywhere = replicated_to(self.partition)
        clean(self.log, now_ms, replicated_to=everywhere)


def world() -> tuple[Replica, Replica, Replica]:
    """One leads epoch 1 and two follows: a value at 0, its tombstone at 4, then other keys."""
    one, two, three = Replica(ONE), Replica(TWO), Replica(THREE)
    for each in (one, two):
        each.take(ONE, 1, (ONE, TWO))
    two.ask(one, 11)
    one.append(1, 1)
    for number in range(3):
        one.append(2, number)
    one.append(1, None)
    for number in range(14):
        one.append(3 + number % 2, number)
    two.follow(one, 11)
    return one, two, three


def test_rule_r7_a_replica_that_is_not_known_holds_nothing() -> None:
    one, two, _ = world()
    assert replicated_to(one.partition) == 0, "the third was never heard of in this epoch"
    assert replicated_to(two.partition) == 0
    assert replicated_to(Replica(THREE).partition) == 0


def test_rule_r7_a_push_says_what_every_replica_holds_until_the_epoch_ends() -> None:
    one, two, three = world()
    three.take(ONE, 1, (ONE, TWO))
    three.ask(one, 12)
    three.follow(one, 12)
    end = one.log.log_end_offset
    assert replicated_to(one.partition) == end
    one.append(9, 9)
    two.follow(one, 11)
    assert replicated_to(two.partition) == end, "as the leader knew when it pushed"
    two.take(THREE, 2, (ONE, TWO, THREE))
    assert replicated_to(two.partition) == 0, "another leader, who has not said anything"
    role = one.partition.role
    assert isinstance(role, LeaderState)
    role.reassign([ONE, TWO, THREE, BrokerId(4)])
    assert replicated_to(one.partition) == 0


def test_the_frame_carries_it() -> None:
    key = key_of(HERE.topic_id, HERE.partition)
    push = Push(5, 1, 10, 12, 9, 3, b"batches", 8)
    raw = encode_push_head(key, push, 7) + b"batches"
    length, kind = PREFIX.unpack_from(raw)
    assert length == len(raw) - PREFIX.size
    assert decode(kind, memoryview(raw)[PREFIX.size :]) == (key, push)


def two_drops_the_tombstone(one: Replica, two: Replica) -> None:
    """In the time before the third replica: it compacts twice, once all is on both."""
    for each in (one, two):
        role = each.partition.role
        if isinstance(role, LeaderState):
            role.reassign([ONE, TWO])
    one.append(9, 9)
    two.follow(one, 11)
    two.clean()
    one.append(9, 10)
    for number in range(8):
        one.append(5, number)
    two.follow(one, 11)
    two.clean()
    assert two.log.dropped_to > 4
    assert not {0, 4} & read_all(two.log, 0, 300).keys()


def test_rule_r7_a_replica_filled_by_one_leader_misses_no_tombstone_at_the_next() -> None:
    """The third has the value from one, who never compacted; two has dropped its tombstone."""
    one, two, three = world()
    two_drops_the_tombstone(one, two)
    role = one.partition.role
    assert isinstance(role, LeaderState)
    role.reassign([ONE, TWO, THREE])
    three.take(ONE, 1, (ONE, TWO))
    three.ask(one, 12)
    three.follow(one, 12, up_to=3)
    assert read_all(three.log, 0, 300)[0] == (1, 1)
    two.take(TWO, 2, (ONE, TWO))
    three.take(TWO, 2, (ONE, TWO))
    answer = three.ask(two, 13)
    assert isinstance(answer, Diverging)
    assert (answer.at_epoch, answer.end) == (START_OVER, 0)
    assert three.log.log_end_offset == three.partition.high_watermark == 0
    assert isinstance(three.ask(two, 14), Valid), "an empty log is asked nothing"
    three.follow(two, 14)
    assert read_all(three.log, 0, 300) == read_all(two.log, 0, 300)


def test_rule_r7_a_replica_filled_without_a_tombstone_lacks_it_for_its_followers_too() -> None:
    """The third never dropped anything itself: it was filled by two, who had."""
    one, two, three = world()
    two_drops_the_tombstone(one, two)
    two.take(TWO, 2, (ONE, TWO))
    three.take(TWO, 2, (ONE, TWO))
    assert isinstance(three.ask(two, 13), Valid)
    three.follow(two, 13)
    three.take(THREE, 3, (TWO, THREE))
    one.log.truncate_to(3)
    assert read_all(one.log, 0, 300)[0] == (1, 1)
    one.take(THREE, 3, (TWO, THREE))
    answer = one.ask(three, 14)
    assert isinstance(answer, Diverging)
    assert answer.at_epoch == START_OVER


def test_rule_r7_a_member_of_the_isr_is_never_told_to_start_over() -> None:
    one, two, _ = world()
    two_drops_the_tombstone(one, two)
    two.take(TWO, 2, (ONE, TWO))
    one.log.truncate_to(4)
    one.take(TWO, 2, (ONE, TWO))
    message = Open(20, LeaderEpoch(2), BrokerEpoch(1), 1, 4, 4)
    assert isinstance(two.partition.on_open(ONE, message, BROKERS, 20, 0), Valid)


def test_rule_r7_replicas_cleaned_at_different_times_promise_the_same() -> None:
    """Appends, cleanings here and there, in any order: both show the newest of each key."""
    for seed in range(25):
        rng = random.Random(seed)
        one, two, three = Replica(ONE), Replica(TWO), Replica(THREE)
        replicas = (one, two, three)
        for each in replicas:
            each.take(ONE, 1, (ONE, TWO, THREE))
        two.ask(one, 11)
        three.ask(one, 12)
        said: list[Said] = []
        for _ in range(80):
            what = rng.randrange(8)
            if what < 5:
                for _ in range(rng.randint(1, 4)):
                    pair = (rng.randrange(4), rng.choice((None, rng.randrange(9))))
                    one.append(*pair)
                    said.append(Said(1, *pair))
            elif what == 5:
                two.follow(one, 11, rng.randint(0, one.log.log_end_offset))
            elif what == 6:
                three.follow(one, 12, rng.randint(0, one.log.log_end_offset))
            elif (cleaned := rng.choice(replicas)).log.stored is not None:
                cleaned.clean()
        two.follow(one, 11)
        three.follow(one, 12)
        newest = {one.key: at for at, one in enumerate(said)}
        for each in replicas:
            log: PartitionLog = each.log
            state = log.stored.cleaned if log.stored is not None else None
            headers_of(log)
            check_promises(
                log,
                said,
                may_drop_below=log.dropped_to if each is one else len(said),
                unclean_from=max(
                    (r.log.stored.cleaned.cleaned_to for r in replicas if r.log.stored is not None),
                    default=0,
                ),
                max_bytes=300,
            )
            assert state is not None
            shown = read_all(log, 0, 300)
            for key, at in newest.items():
                last = max((o for o, (k, _) in shown.items() if k == key), default=None)
                assert last == at or (last is None and said[at].value is None), (seed, key)
