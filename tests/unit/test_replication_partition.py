"""The replication protocol of one partition, rule by rule, without a network or a disk."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.replication.delayed_produces import AppendOutcome, DelayedProduce
from broker.replication.frames import Ack, Diverging, Open, Push, Refused, Valid
from broker.replication.leader_state import NOT_COUNTED, LeaderState, Settings
from broker.replication.partition import (
    DEPOSED_WAIT_MS,
    Following,
    Partition,
    PushResult,
    Unassigned,
)
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import (
    NO_LEADER,
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    PartitionEpoch,
    PartitionId,
    TopicId,
    TopicIdPartition,
)
from raft_metadata.image.metadata_image import BrokerRegistration, PartitionRegistration
from tests.support.memory_log import MemoryLog, encode
from tests.support.registered import broker, partition

ONE, TWO, THREE = BrokerId(1), BrokerId(2), BrokerId(3)
HERE = TopicIdPartition(TopicId("A" * 22), PartitionId(0))


def registration(
    leader: BrokerId = ONE,
    epoch: int = 1,
    *,
    isr: tuple[BrokerId, ...] = (ONE, TWO, THREE),
    partition_epoch: int = 1,
    set_at: int = 100,
) -> PartitionRegistration:
    return partition(
        (ONE, TWO, THREE), leader, epoch, isr=isr, partition_epoch=partition_epoch, set_at=set_at
    )


def brokers(**epochs: int) -> dict[BrokerId, BrokerRegistration]:
    return {number: broker(number, epoch=epochs.get(f"b{number}")) for number in (ONE, TWO, THREE)}


def make(broker: BrokerId = ONE, *, by_durable: bool = True, min_isr: int = 2) -> Partition:
    return Partition(HERE, broker, MemoryLog(), Settings(min_isr, by_durable))


def lead(partition: Partition, **facts: object) -> LeaderState:
    partition.apply_image(registration(**facts), brokers(), BrokerEpoch(1), 0)  # type: ignore[arg-type]
    assert isinstance(partition.role, LeaderState)
    return partition.role


def log_of(partition: Partition) -> MemoryLog:
    assert isinstance(partition.log, MemoryLog)
    return partition.log


def opens(partition: Partition, follower: BrokerId, session: int, ends: tuple[int, int]) -> None:
    role = partition.role
    last = log_of(partition).epoch_at(ends[0] - 1)
    message = Open(9, role.epoch, int(follower), last, *ends)
    assert isinstance(partition.on_open(follower, message, brokers(), session, 0), Valid)


def append(partition: Partition, value: int) -> list[AppendOutcome]:
    fates: list[AppendOutcome] = []
    log = log_of(partition)
    log.append((partition.role.epoch, value))
    at = log.log_end_offset - 1
    partition.add_delayed_produce(
        DelayedProduce(partition.role.epoch, at, at, True, 10_000, fates.append)
    )
    return fates


def test_rule_r1_high_watermark_is_the_least_durable_end() -> None:
    partition = make()
    lead(partition)
    fates = append(partition, 7)
    opens(partition, TWO, 11, (0, 0))
    opens(partition, THREE, 12, (0, 0))
    log_of(partition).flush_now()
    partition.advance()
    partition.on_ack(TWO, Ack(11, 1, 1, 1), 1)
    partition.on_ack(THREE, Ack(12, 1, 1, 0), 1)  # written there, not on its disk
    assert (partition.high_watermark, fates) == (0, [])
    partition.on_ack(THREE, Ack(12, 1, 1, 1), 2)
    assert (partition.high_watermark, fates) == (1, [AppendOutcome.OK])


def test_rule_r1_flush_os_counts_log_ends() -> None:
    partition = make(by_durable=False)
    lead(partition)
    fates = append(partition, 7)
    opens(partition, TWO, 11, (0, 0))
    opens(partition, THREE, 12, (0, 0))
    partition.on_ack(TWO, Ack(11, 1, 1, 0), 1)
    partition.on_ack(THREE, Ack(12, 1, 1, 0), 1)
    assert fates == [AppendOutcome.OK]


def test_rule_r1_a_follower_that_never_syncs_does_not_join() -> None:
    partition = make()
    lead(partition, isr=(ONE, TWO))
    append(partition, 7)
    log_of(partition).flush_now()
    opens(partition, TWO, 11, (1, 1))
    opens(partition, THREE, 12, (1, 0))
    assert partition.high_watermark == 1
    assert partition.propose_isr(brokers(), 1, 0, None) is None
    partition.on_ack(THREE, Ack(12, 1, 1, 1), 5)
    proposal = partition.propose_isr(brokers(), 2, 5, None)
    assert proposal is not None
    assert [b for b, _ in proposal.isr] == [1, 2, 3]


def test_rule_r1_a_member_that_stops_syncing_is_removed_after_the_lag_time() -> None:
    partition = make()
    lead(partition)
    opens(partition, TWO, 11, (0, 0))
    opens(partition, THREE, 12, (0, 0))
    append(partition, 7)
    log_of(partition).flush_now()
    partition.on_ack(TWO, Ack(11, 1, 1, 1), 2_000)
    partition.on_ack(THREE, Ack(12, 1, 1, 0), 2_000)
    assert partition.propose_isr(brokers(), 1, 2_900, 3_000) is None
    proposal = partition.propose_isr(brokers(), 2, 3_100, 3_000)
    assert proposal is not None
    assert [b for b, _ in proposal.isr] == [1, 2]
    assert partition.high_watermark == 0, "a proposed shrink counts only once it is committed"


def test_rule_r1_lag_begins_with_the_append_that_ends_an_idle_time() -> None:
    """The last acknowledgement is as old as the idle time, and the append takes time to sync."""
    partition = make()
    role = lead(partition)
    opens(partition, TWO, 11, (0, 0))
    opens(partition, THREE, 12, (0, 0))
    log = log_of(partition)
    for step, appended_ms in enumerate((60_000, 60_010, 60_020)):  # several are under way
        log.append((1, step))
        role.appended(step, appended_ms)
    partition.on_ack(TWO, Ack(11, 1, 3, 3), 60_030)
    partition.on_ack(THREE, Ack(12, 1, 3, 0), 60_030)  # not synced
    assert partition.propose_isr(brokers(), 1, 60_030, 3_000) is None
    assert partition.propose_isr(brokers(), 2, 63_000, 3_000) is None
    proposal = partition.propose_isr(brokers(), 3, 63_001, 3_000)
    assert proposal is not None
    assert [b for b, _ in proposal.isr] == [1, 2]


def test_a_follower_that_was_behind_is_given_no_time_by_further_appends() -> None:
    partition = make()
    role = lead(partition)
    opens(partition, TWO, 11, (0, 0))
    opens(partition, THREE, 12, (0, 0))
    log = log_of(partition)
    for step in range(100):
        log.append((1, step))
        role.appended(step, step * 50)
        partition.on_ack(TWO, Ack(11, 1, step + 1, step + 1), step * 50)
    assert role.laggards(log.log_end_offset, 3_000, 3_000) == frozenset()
    assert role.laggards(log.log_end_offset, 3_001, 3_000) == {THREE}


def test_overlapping_acknowledgements_keep_a_healthy_follower_in_the_isr() -> None:
    """Each one comes before the follower reaches the end the leader had at the one before."""
    partition = make()
    role = lead(partition)
    opens(partition, TWO, 11, (0, 0))
    opens(partition, THREE, 12, (0, 0))
    log = log_of(partition)
    for step in range(1, 1_001):  # 10 s at one record and one acknowledgement in 10 ms, 50 behind
        log.append((1, step))
        if step > 50:
            partition.on_ack(TWO, Ack(11, 1, step - 50, step - 50), step * 10)
    assert role.laggards(log.log_end_offset, 10_000, 3_000) == {THREE}


def test_high_watermark_stands_below_min_isr_committed() -> None:
    partition = make()
    role = lead(partition, isr=(ONE,))
    append(partition, 7)
    log_of(partition).flush_now()
    opens(partition, TWO, 11, (1, 1))
    partition.advance()
    assert partition.high_watermark == 0
    proposal = partition.propose_isr(brokers(), 5, 0, None)
    assert proposal is not None
    assert role.maximal_isr() == {1, 2}
    partition.advance()
    assert partition.high_watermark == 0, "a joiner not yet committed does not count"
    partition.isr_accepted(proposal, PartitionEpoch(2), (ONE, TWO))
    assert partition.high_watermark == 1


def test_rule_r3_leads_only_in_epochs_set_after_its_own_registration() -> None:
    partition = make()
    partition.apply_image(registration(set_at=4), brokers(b1=9), BrokerEpoch(9), 0)
    assert isinstance(partition.role, Unassigned)
    partition.apply_image(registration(epoch=2, set_at=10), brokers(b1=9), BrokerEpoch(9), 0)
    assert isinstance(partition.role, LeaderState)


def test_rule_r4_acknowledgements_of_another_session_or_epoch_are_dropped() -> None:
    partition = make()
    role = lead(partition)
    append(partition, 7)
    opens(partition, TWO, 11, (0, 0))
    assert partition.on_ack(TWO, Ack(10, 1, 1, 1), 1) is None
    assert partition.on_ack(TWO, Ack(11, 0, 1, 1), 1) is None
    assert role.end_of(TWO) == 0


def test_rule_r4_a_new_leader_epoch_forgets_what_followers_said() -> None:
    partition = make()
    lead(partition)
    append(partition, 7)
    opens(partition, TWO, 11, (1, 1))
    partition.apply_image(registration(epoch=2, partition_epoch=2), brokers(), BrokerEpoch(1), 0)
    assert isinstance(partition.role, LeaderState)
    assert partition.role.end_of(TWO) == 0


def test_rule_r4_a_new_broker_epoch_closes_the_older_stream() -> None:
    partition = make()
    role = lead(partition)
    opens(partition, TWO, 11, (0, 0))
    partition.apply_image(registration(), brokers(b2=50), BrokerEpoch(1), 0)
    assert TWO not in role.followers
    late = Open(9, LeaderEpoch(1), 2, -1, 0, 0)
    answer = partition.on_open(TWO, late, brokers(b2=50), 13, 0)
    assert answer == Refused(9, 1, ErrorCode.STALE_BROKER_EPOCH.number)


def test_rule_r9_an_open_ahead_of_the_image_is_parked() -> None:
    partition = make()
    lead(partition)
    assert partition.on_open(TWO, Open(9, 1, 77, -1, 0, 0), brokers(), 11, 0) is None
    assert partition.on_open(THREE, Open(9, 2, 3, -1, 0, 0), brokers(), 12, 0) is None
    assert set(partition.early_opens) == {TWO, THREE}


def test_divergence_is_answered_by_epoch_and_records_nothing() -> None:
    partition = make()
    log = log_of(partition)
    log.recover([(1, 10), (1, 11), (3, 12)], keep_cache=False)
    role = lead(partition, epoch=4)
    answer = partition.on_open(TWO, Open(9, 4, 2, 2, 3, 3), brokers(), 11, 0)
    assert answer == Diverging(9, 4, 1, 2)
    assert TWO not in role.followers


def following(log: list[tuple[int, int]], *, epoch: int = 4) -> Partition:
    partition = make(TWO)
    log_of(partition).recover(log, keep_cache=False)
    partition.apply_image(registration(epoch=epoch), brokers(), BrokerEpoch(2), 0)
    assert isinstance(partition.role, Following)
    return partition


def test_a_follower_truncates_to_where_the_epochs_agree() -> None:
    partition = following([(1, 10), (1, 11), (2, 99)])
    message = partition.open_message(9, 0)
    assert message == Open(9, 4, 2, 2, 3, 0, 0)
    assert partition.on_diverging(Diverging(9, 4, 1, 2))
    assert log_of(partition).entries == [(1, 10), (1, 11)]
    assert partition.high_watermark == 0, "never taken from a diverging answer"


def test_a_follower_never_truncates_below_its_high_watermark() -> None:
    partition = following([(1, 10), (1, 11)])
    partition.open_message(9, 0)
    partition.high_watermark = 2
    with pytest.raises(AssertionError, match="below the high watermark"):
        partition.on_diverging(Diverging(9, 4, 0, 0))


def test_only_an_unclean_election_since_cuts_below_the_high_watermark() -> None:
    """Records that an operator gave up go on every replica: an offset has one content."""
    partition = following([(1, 10), (1, 11)], epoch=4)
    partition.open_message(9, 0)
    partition.on_valid(Valid(9, 4, 5, 0))
    partition.high_watermark = 2
    after = replace(registration(THREE, 6, partition_epoch=3), unclean_epoch=LeaderEpoch(6))
    partition.apply_image(after, brokers(), BrokerEpoch(2), 0)
    partition.open_message(10, 0)
    assert partition.on_diverging(Diverging(10, 6, 1, 1))
    assert (log_of(partition).entries, partition.high_watermark) == ([(1, 10)], 1)
    partition.open_message(11, 0)
    partition.on_valid(Valid(11, 6, 7, 0))
    later = replace(registration(ONE, 7, partition_epoch=4), unclean_epoch=LeaderEpoch(6))
    partition.apply_image(later, brokers(), BrokerEpoch(2), 0)
    partition.open_message(12, 0)
    with pytest.raises(AssertionError, match="below the high watermark"):
        partition.on_diverging(Diverging(12, 7, 0, 0))


@pytest.mark.parametrize(("compacted_to", "kept"), [(2, []), (1, [(1, 10)]), (0, [(1, 10)])])
def test_rule_r7_what_compaction_took_for_newer_records_that_are_lost_is_fetched_again(
    compacted_to: int, kept: list[tuple[int, int]]
) -> None:
    """Elected uncleanly, the leader lacks the newer ones and holds the older: so do all, then."""
    partition = following([(1, 10), (1, 11)], epoch=4)
    after = replace(registration(THREE, 6, partition_epoch=3), unclean_epoch=LeaderEpoch(6))
    partition.apply_image(after, brokers(), BrokerEpoch(2), 0)
    partition.high_watermark = 2
    log_of(partition).compacted_to = compacted_to
    partition.open_message(10, 0)
    assert partition.on_diverging(Diverging(10, 6, 1, 1))
    assert (log_of(partition).entries, partition.high_watermark) == (kept, len(kept))


def test_rule_r4_answers_to_earlier_requests_are_dropped() -> None:
    partition = following([(1, 10), (2, 99)])
    partition.open_message(8, 0)
    partition.open_message(9, 0)
    assert not partition.on_diverging(Diverging(8, 4, 1, 1))
    assert not partition.on_valid(Valid(8, 4, 5, 0))
    assert not partition.on_valid(Valid(9, 3, 5, 0))
    assert partition.on_valid(Valid(9, 4, 5, 0))
    assert log_of(partition).log_end_offset == 2


def test_rule_r4_pushes_of_another_session_are_dropped() -> None:
    partition = following([])
    partition.open_message(9, 0)
    raw = encode([(4, 1)])
    assert partition.on_push(Push(5, 4, 0, 1, 0, 0, raw)) is PushResult.STALE, "before validation"
    partition.on_valid(Valid(9, 4, 5, 0))
    assert partition.on_push(Push(6, 4, 0, 1, 0, 0, raw)) is PushResult.STALE
    assert partition.on_push(Push(5, 4, 0, 1, 9, 0, raw)) is PushResult.APPENDED
    assert partition.high_watermark == 1, "the smaller of the frame's and its own log end"
    assert partition.on_push(Push(5, 4, 3, 4, 9, 0, raw)) is PushResult.GAP, "a gap: ask again"


def test_a_push_moves_the_log_start_of_a_follower_to_the_leaders() -> None:
    partition = following([(1, 10), (2, 11)])
    partition.open_message(9, 0)
    partition.on_valid(Valid(9, 4, 5, 0))
    log = log_of(partition)
    for leader_start, start in ((1, 1), (0, 1), (3, 1)):
        partition.on_push(Push(5, 4, 2, 2, 2, leader_start, b""))
        assert log.log_start_offset == start, "never back, and never beyond what this log holds"


def test_refusals_are_counted_since_the_last_appended_push() -> None:
    partition = following([])
    role = partition.role
    assert isinstance(role, Following)
    for number in (9, 10):
        partition.open_message(number, 0)
        partition.on_refused(Refused(number, 4, 0))
    assert role.refusals == 2
    partition.open_message(11, 0)
    partition.on_valid(Valid(11, 4, 5, 0))
    partition.on_push(Push(5, 4, 0, 1, 0, 0, encode([(4, 1)])))
    assert role.refusals == 0


def test_a_delayed_produce_whose_outcome_is_certain_is_completed_as_it_is_added() -> None:
    partition = make(min_isr=1)
    lead(partition, isr=(ONE,))
    log_of(partition).flush_start()
    log_of(partition).flush_end()
    first = append(partition, 7)
    assert first == []
    log_of(partition).append((1, 8))
    partition.high_watermark = 2
    outcomes: list[AppendOutcome] = []
    partition.add_delayed_produce(DelayedProduce(LeaderEpoch(1), 1, 1, True, 9, outcomes.append))
    assert outcomes == first == [AppendOutcome.OK]


def test_rule_r5_parked_work_is_judged_by_epoch_not_by_offset() -> None:
    partition = make()
    lead(partition)
    fates = append(partition, 7)
    log = log_of(partition)
    partition.apply_image(registration(TWO, 2, partition_epoch=2), brokers(), BrokerEpoch(1), 0)
    log.truncate_to(0)
    partition.open_message(9, 0)
    partition.on_valid(Valid(9, 2, 5, 0))
    assert fates == [], "truncation here alone proves nothing"
    partition.on_push(Push(5, 2, 0, 1, 1, 0, encode([(2, 8)])))
    assert fates == [AppendOutcome.NOT_WRITTEN]


def test_rule_r5_an_entry_that_survives_the_change_of_leader_is_ok() -> None:
    partition = make()
    lead(partition)
    fates = append(partition, 7)
    partition.apply_image(registration(TWO, 2, partition_epoch=2), brokers(), BrokerEpoch(1), 0)
    partition.open_message(9, 0)
    partition.on_valid(Valid(9, 2, 5, 0))
    partition.on_push(Push(5, 2, 1, 2, 1, 0, encode([(2, 8)])))
    assert fates == [AppendOutcome.OK]


def test_rule_r5_a_request_whose_first_batch_alone_survived_is_unknown() -> None:
    partition = make()
    lead(partition)
    log = log_of(partition)
    for value in (7, 8):
        log.append((1, value))
    fates: list[AppendOutcome] = []
    partition.add_delayed_produce(DelayedProduce(LeaderEpoch(1), 0, 1, True, 10_000, fates.append))
    partition.apply_image(registration(TWO, 2, partition_epoch=2), brokers(), BrokerEpoch(1), 0)
    partition.open_message(9, 0)
    partition.on_diverging(Diverging(9, 2, 1, 1))
    partition.open_message(10, 0)
    partition.on_valid(Valid(10, 2, 5, 0))
    partition.on_push(Push(5, 2, 1, 2, 2, 0, encode([(2, 9)])))
    assert fates == [AppendOutcome.UNKNOWN]


def test_rule_r5_what_only_the_old_leader_held_is_unknown_before_its_client_gives_up() -> None:
    partition = make()
    lead(partition)
    fates = append(partition, 7)
    partition.apply_image(registration(TWO, 2, partition_epoch=2), brokers(), BrokerEpoch(1), 500)
    log_of(partition).truncate_to(0)
    partition.delayed_produces.expire(500 + DEPOSED_WAIT_MS - 1)
    assert fates == [], "somebody may write behind it, and it is certain"
    partition.delayed_produces.expire(500 + DEPOSED_WAIT_MS)
    assert fates == [AppendOutcome.UNKNOWN]


def test_a_retired_partition_serves_and_pushes_nothing() -> None:
    partition = make()
    lead(partition)
    opens(partition, TWO, 11, (0, 0))
    fates = append(partition, 7)
    partition.retire()
    assert isinstance(partition.role, Unassigned)
    assert fates == [AppendOutcome.UNKNOWN]


def test_rule_r5_unknown_at_the_deadline() -> None:
    partition = make()
    lead(partition)
    fates = append(partition, 7)
    partition.delayed_produces.expire(9_999)
    assert fates == []
    partition.delayed_produces.expire(10_000)
    assert fates == [AppendOutcome.UNKNOWN]


def test_rule_m3_each_attempt_counts_until_it_is_refused_itself() -> None:
    partition = make(min_isr=1)
    role = lead(partition, isr=(ONE,))
    opens(partition, TWO, 11, (0, 0))
    first = partition.propose_isr(brokers(), 21, 0, None)
    assert first is not None
    partition.isr_unknown(first, 200)
    append(partition, 7)
    log_of(partition).flush_now()
    partition.advance()
    assert partition.high_watermark == 0, "nothing is rolled back on a time-out"
    assert partition.propose_isr(brokers(), 22, 100, 3_000) is None, "not before the retry time"
    second = partition.propose_isr(brokers(), 23, 200, None)
    assert second is not None
    partition.isr_refused(second)
    assert role.maximal_isr() == {1, 2}, "a refusal removes only its own attempt"
    assert partition.high_watermark == 0
    role.closed(TWO, 11)  # the unanswered joiner died: the committed ISR is proposed again
    third = partition.propose_isr(brokers(), 24, 300, 3_000)
    assert third is not None
    assert [b for b, _ in third.isr] == [1]
    partition.isr_accepted(third, PartitionEpoch(2), (ONE,))
    assert partition.high_watermark == 1


def test_produce_is_refused_before_the_append_below_min_isr() -> None:
    partition = make()
    lead(partition, isr=(ONE,))
    with pytest.raises(KafkaError) as caught:
        partition.check_may_append(all_replicas=True)
    assert caught.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    partition.check_may_append(all_replicas=False)


# ---------------------------------------------------------------- configs that change


def all_in_sync(partition: Partition) -> None:
    opens(partition, TWO, 11, (0, 0))
    opens(partition, THREE, 12, (0, 0))


def acks(partition: Partition, *ends: tuple[int, int]) -> None:
    """(log end, durable end) of brokers 2 and 3."""
    for follower, session, (log_end, durable_end) in zip((TWO, THREE), (11, 12), ends, strict=True):
        partition.on_ack(follower, Ack(session, 1, log_end, durable_end), 1)


def test_rule_r1_from_os_to_ack_answers_once_all_that_was_there_is_durable() -> None:
    partition = make(by_durable=False)
    lead(partition)
    all_in_sync(partition)
    append(partition, 7)
    acks(partition, (1, 0), (1, 0))
    assert partition.high_watermark == 1, "by log ends"
    waiting = append(partition, 8)
    partition.configure(Settings(2, True))
    assert log_of(partition).wants_flush, "what decides from now on is asked for at once"
    fates = append(partition, 9)
    acks(partition, (3, 0), (3, 0))
    assert (partition.high_watermark, waiting, fates) == (1, [], []), "it stays where it was"
    log_of(partition).flush_now()
    partition.advance()
    acks(partition, (3, 3), (3, 1))
    assert (partition.high_watermark, waiting, fates) == (1, [], [])
    acks(partition, (3, 3), (3, 2))
    assert (partition.high_watermark, waiting, fates) == (2, [AppendOutcome.OK], [])
    acks(partition, (3, 3), (3, 3))
    assert (waiting, fates) == ([AppendOutcome.OK], [AppendOutcome.OK])


def test_rule_r1_after_os_to_ack_a_joiner_needs_a_durable_end() -> None:
    partition = make(by_durable=False, min_isr=1)
    role = lead(partition, isr=(ONE,))
    append(partition, 7)
    partition.advance()
    partition.configure(Settings(1, True))
    opens(partition, TWO, 11, (1, 0))
    assert not role.may_join(TWO, partition.high_watermark, BrokerEpoch(2))
    partition.on_ack(TWO, Ack(11, 1, 1, 1), 1)
    assert role.may_join(TWO, partition.high_watermark, BrokerEpoch(2))


def test_from_ack_to_os_answers_at_once() -> None:
    partition = make()
    lead(partition)
    all_in_sync(partition)
    fates = append(partition, 7)
    acks(partition, (1, 0), (1, 0))
    assert fates == []
    partition.configure(Settings(2, False))
    assert (partition.high_watermark, fates) == (1, [AppendOutcome.OK])


def test_rule_r1_a_leader_ahead_in_os_counts_what_an_ack_follower_has_synced() -> None:
    """The follower has not noted yet that this topic goes by the page cache: rule R6 needs that."""
    partition = following([(1, 10), (1, 11)])
    log_of(partition).durable_end = 1
    partition.open_message(9, 0)
    partition.on_valid(Valid(9, 4, 5, 0))
    assert partition.ack_message() == Ack(5, 4, 1, 1, 0)
    partition.configure(Settings(2, False))
    assert partition.ack_message() == Ack(5, 4, 2, 1, 0)


def test_a_follower_that_shall_be_durable_syncs_what_it_has() -> None:
    partition = make(TWO, by_durable=False)
    log_of(partition).recover([(1, 10)], keep_cache=False)
    partition.apply_image(registration(epoch=4), brokers(), BrokerEpoch(2), 0)
    log_of(partition).wants_flush = False
    partition.configure(Settings(2, True))
    assert log_of(partition).wants_flush


def test_a_raised_min_isr_refuses_at_once_and_a_lowered_one_answers_at_once() -> None:
    partition = make(min_isr=1)
    lead(partition, isr=(ONE, TWO))
    opens(partition, TWO, 11, (0, 0))
    fates = append(partition, 7)
    log_of(partition).flush_now()
    partition.configure(Settings(3, True))
    with pytest.raises(KafkaError) as caught:
        partition.check_may_append(all_replicas=True)
    assert caught.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    partition.on_ack(TWO, Ack(11, 1, 1, 1), 1)
    assert (partition.high_watermark, fates) == (0, []), "invariant L9: it stands below min ISR"
    partition.configure(Settings(2, True))
    assert (partition.high_watermark, fates) == (1, [AppendOutcome.OK])
    partition.check_may_append(all_replicas=True)


# ---------------------------------------------------------------- reassignment


def test_only_a_replica_of_this_image_may_join() -> None:
    """A follower that is being removed, or whose image is ahead, streams but is not proposed."""
    partition = make()
    image = replace(registration(isr=(ONE, TWO)), replicas=(ONE, TWO))
    partition.apply_image(image, brokers(), BrokerEpoch(1), 0)
    opens(partition, THREE, 12, (0, 0))
    assert partition.propose_isr(brokers(), 21, 0, None) is None
    grown = registration(isr=(ONE, TWO), partition_epoch=2)
    partition.apply_image(grown, brokers(), BrokerEpoch(1), 0)
    proposal = partition.propose_isr(brokers(), 22, 0, None)
    assert proposal is not None
    assert [broker for broker, _ in proposal.isr] == [1, 2, 3]


def test_a_follower_that_only_observes_never_joins_in_that_session() -> None:
    """A removed replica follows to learn the outcome of its produces; then its log goes."""
    partition = make(by_durable=False)
    lead(partition, isr=(ONE, TWO))
    append(partition, 7)
    log_of(partition).flush_now()
    opens(partition, THREE, 12, (1, NOT_COUNTED))
    partition.on_ack(THREE, Ack(12, 1, 1, NOT_COUNTED), 1)
    assert partition.propose_isr(brokers(), 21, 0, None) is None
    opens(partition, THREE, 13, (1, 1))
    assert partition.propose_isr(brokers(), 22, 0, None) is not None


def test_a_partition_without_leader_is_idle() -> None:
    partition = make()
    lead(partition)
    partition.apply_image(
        registration(NO_LEADER, 2, partition_epoch=2), brokers(), BrokerEpoch(1), 0
    )
    assert isinstance(partition.role, Unassigned)
    with pytest.raises(KafkaError):
        partition.check_may_append(all_replicas=False)


def test_rule_m7_a_stalled_judge_blames_nobody() -> None:
    partition = make()
    role = lead(partition)
    opens(partition, TWO, 11, (0, 0))
    append(partition, 7)
    role.forgive(10_000)
    assert role.laggards(1, 10_100, 3_000) == frozenset()
    assert role.laggards(1, 13_100, 3_000) == {2, 3}
