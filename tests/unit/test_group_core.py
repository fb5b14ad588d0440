"""The pure core of groups, as transcripts: who owns what, and what a commit may do."""

from __future__ import annotations

from dataclasses import replace

import orjson
import pytest

from broker.coordinator import commits, instances
from broker.coordinator.group_messages import (
    CommitGroup,
    ConsumerSettings,
    GroupOffset,
    OffsetReset,
)
from broker.coordinator.group_state import EVERY_GROUP
from broker.coordinator.positions import OffsetAndEpoch
from broker.coordinator.rebalance import (
    PATTERN_CHARS_MAX,
    compiled_pattern,
    drop_deleted_topics,
    retarget,
)
from broker.coordinator.records import (
    GroupValue,
    SeekKey,
    ShardRecord,
    decode_entry,
    encode_key,
    encode_value,
)
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import InstanceId, PartitionId, TopicName
from tests.support.group_world import BY_HAND, EARLIEST, G, GroupWorld, T, facts, place


def refused(code: ErrorCode) -> pytest.RaisesExc[KafkaError]:
    return pytest.RaisesExc(KafkaError, check=lambda error: error.code is code)


# ---------------------------------------------------------------- assignment


def test_subscribe_joins_at_once() -> None:
    world = GroupWorld()
    world.join("a")
    assert world.owned("a") == {0, 1, 2, 3}
    assert world.group.epoch == world.instance("a").member_epoch == 1


def test_an_unchanged_group_records_nothing() -> None:
    world = GroupWorld()
    world.join("a")
    retarget(world.state, world.group, world.topics)
    assert world.write() == []


def test_an_instance_without_a_subscription_is_at_member_epoch_minus_1() -> None:
    world = GroupWorld()
    world.create("a")
    assert world.instance("a").member_epoch == -1


def test_an_idle_member_moves_partitions_at_once() -> None:
    world = GroupWorld()
    world.join("a")
    world.join("b")
    assert (world.owned("a"), world.owned("b")) == ({0, 1}, {2, 3})


def test_revoke_comes_before_assign() -> None:
    world = GroupWorld()
    world.join("a", BY_HAND)
    world.read("a")
    world.join("b", BY_HAND)
    assert (world.owned("a"), world.owned("b")) == ({0, 1, 2, 3}, set())
    assert world.instance("b").target == {place(2), place(3)}
    world.call("a")  # its next call says that it is done
    assert (world.owned("a"), world.owned("b")) == ({0, 1}, {2, 3})
    assert world.committed(2) is None, "auto-commit is off"


def test_auto_commit_commits_a_partition_before_it_is_given_up() -> None:
    world = GroupWorld()
    world.join("a")
    world.read("a")
    world.join("b")
    world.call("a")
    assert world.committed(2) == 10
    assert world.position("b", 2) == 10


def test_a_silent_member_loses_what_it_is_to_give_up_at_the_deadline() -> None:
    world = GroupWorld()
    world.join("a")
    world.read("a")
    world.join("b")
    world.pass_time(30_000)
    assert world.owned("b") == set()
    world.pass_time(1)
    assert world.owned("b") == {2, 3}
    assert world.committed(2) is None, "nobody said that it was processed"
    assert world.position("b", 2) == 0


def test_members_beyond_the_partitions_are_there_for_failover() -> None:
    world = GroupWorld(partitions=1)
    world.join("a")
    world.join("b")
    assert (world.owned("a"), world.owned("b")) == ({0}, set())
    world.delete("a")
    assert world.owned("b") == {0}


def test_a_session_that_is_over_is_a_record_and_others_go_on() -> None:
    world = GroupWorld()
    world.join("a", replace(BY_HAND, session_timeout_ms=1_000))
    world.join("b")
    world.read("a")
    world.pass_time(1_000)
    world.call("b")
    assert world.pass_time(1) == [world.key("a")]
    assert world.owned("b") == {0, 1, 2, 3}
    world.fail_over()
    assert list(world.group.instances) == ["b"]
    with refused(ErrorCode.UNKNOWN_MEMBER_ID):
        world.call("a")


def test_a_waiting_read_keeps_the_session() -> None:
    world = GroupWorld()
    world.join("a", replace(EARLIEST, session_timeout_ms=1_000))
    world.state.sessions[world.key("a")].calls += 1
    assert world.pass_time(10_000) == []


def test_new_partitions_and_topics_are_taken_over() -> None:
    world = GroupWorld(partitions=2, start=100)
    world.create("a", ConsumerSettings(auto_offset_reset=OffsetReset.LATEST))
    world.subscribe("a", pattern="t.*")
    world.topics = {T: facts(3), TopicName("tx"): facts(1), TopicName("__t"): facts(1)}
    retarget(world.state, world.group, world.topics)
    world.write()
    assert world.instance("a").owned == {place(0), place(1), place(2), place(0, "tx")}
    assert world.position("a", 0) == 100


def test_offsets_of_a_deleted_topic_mean_nothing_to_its_next_life() -> None:
    world = GroupWorld(partitions=1)
    world.join("a")
    world.read("a")
    world.commit_all("a")
    world.topics = {T: facts(1, "B")}
    assert world.committed(0) is None
    drop_deleted_topics(world.state, world.group, world.topics)
    retarget(world.state, world.group, world.topics)
    world.write()
    assert world.group.offsets == {}
    assert world.group.starts[place(0)].offset == 0


def test_starts_of_a_deleted_topic_are_dropped() -> None:
    world = GroupWorld(partitions=1)
    world.join("a")
    world.topics = {}
    drop_deleted_topics(world.state, world.group, world.topics)
    world.write()
    assert world.group.starts == {}
    world.fail_over()
    assert world.group.starts == {}


# ---------------------------------------------------------------- rules


def test_rule_g2_a_start_is_resolved_once() -> None:
    world = GroupWorld(partitions=1, start=50)
    world.join("a", ConsumerSettings(auto_offset_reset=OffsetReset.LATEST))
    world.start = 80  # written to meanwhile
    world.fail_over()
    world.subscribe("a")
    assert world.position("a", 0) == 50


def test_rule_g2_partitions_that_appear_under_a_subscription_start_at_zero() -> None:
    world = GroupWorld(partitions=1, start=50)
    world.join("a", ConsumerSettings(auto_offset_reset=OffsetReset.LATEST))
    world.topics = {T: facts(2)}
    retarget(world.state, world.group, world.topics)
    assert world.position("a", 1) == 0


def test_rule_g2_seek_and_manual_assignment_outlive_the_coordinator() -> None:
    world = GroupWorld(start=50)
    world.create("a", BY_HAND)
    world.assign("a", 1, 2)
    world.seek("a", 2, 7)
    world.fail_over()
    assert world.owned("a") == {1, 2}
    assert (world.position("a", 1), world.position("a", 2)) == (50, 7)
    world.read("a")
    world.commit_all("a")
    world.fail_over()
    assert world.position("a", 2) == 17, "a commit behind the seek is the newer word"


def test_rule_g2_a_commit_ends_the_seek_before_it_even_without_the_record_of_its_end() -> None:
    """Compaction may have removed the record that drops the seek, and the seek's not yet."""
    world = GroupWorld()
    world.create("a", BY_HAND)
    world.assign("a", 2)
    world.seek("a", 2, 7)
    world.read("a")
    world.commit_all("a")
    dropped = world.log.pop()
    assert (type(dropped.key), dropped.value) == (SeekKey, None)
    world.fail_over()
    assert world.position("a", 2) == 17


def test_starts_are_dropped_with_the_last_reader_that_closes() -> None:
    world = GroupWorld(start=50)
    world.join("a", BY_HAND)
    world.delete("a")
    assert world.group.starts == {}
    assert not world.group.exists


def test_rule_g4_only_owned_partitions_are_committed() -> None:
    world = GroupWorld()
    world.join("a", BY_HAND)
    world.read("a")
    world.join("b", BY_HAND)
    world.call("a")
    with refused(ErrorCode.ILLEGAL_STATE):
        world.commit("a", 2, 10)  # a late commit of what it gave up
    world.read("b")
    world.commit("b", 2, 10)
    with refused(ErrorCode.ILLEGAL_STATE):
        world.commit("a", 2, 10)  # nobody's business any more, even if nothing would change
    world.commit("a", 1, 10)
    assert (world.committed(1), world.committed(2)) == (10, 10)


def test_rule_g4_not_past_what_was_delivered() -> None:
    world = GroupWorld()
    world.join("a", BY_HAND)
    world.read("a")
    with refused(ErrorCode.ILLEGAL_STATE):
        world.commit("a", 0, 11)
    world.commit("a", 0, 10)
    world.read("a")
    world.fail_over()  # what was delivered since the commit is not known here
    with refused(ErrorCode.ILLEGAL_STATE):
        world.commit("a", 0, 20)
    assert world.read("a")[0] == (10, 20)


def test_rule_g4_what_another_coordinator_delivered_is_taken_up_to_the_high_watermark() -> None:
    world = GroupWorld()
    world.join("a", BY_HAND)
    world.read("a")
    world.fail_over()
    rows = (GroupOffset(T, PartitionId(0), 9), GroupOffset(T, PartitionId(1), 30))
    undelivered = commits.undelivered_here(world.state, G, InstanceId("a"), rows, world.topics)
    assert undelivered == [place(0), place(1)]
    high_watermarks = {place(0): 10, place(1): 10}
    with refused(ErrorCode.ILLEGAL_STATE):
        commits.commit_offsets(world.state, world.key("a"), rows[1:], world.topics, high_watermarks)
    commits.commit_offsets(world.state, world.key("a"), rows[:1], world.topics, high_watermarks)
    assert world.committed(0) == 10
    world.read("a", 5)
    assert commits.undelivered_here(world.state, G, InstanceId("a"), rows, world.topics) == []


def test_rule_g4_a_late_older_commit_changes_nothing() -> None:
    world = GroupWorld()
    world.join("a", BY_HAND)
    world.read("a")
    world.commit("a", 0, 8)
    world.commit("a", 0, 5)
    assert world.committed(0) == 8
    world.seek("a", 0, 2)  # going back is meant
    world.commit("a", 0, 2)
    assert world.committed(0) == 2


def test_rule_g4_commits_without_an_instance_are_fenced_by_live_members() -> None:
    world = GroupWorld()
    world.commit_group(0, 77)
    assert world.committed(0) == 77
    world.join("a", BY_HAND)
    for member, epoch in ((None, None), ("a", None), ("a", 0)):
        with refused(ErrorCode.FENCED_MEMBER_EPOCH):
            world.commit_group(0, 77, member, epoch)
    world.read("a")
    world.commit_group(0, 80, "a", 1)
    assert world.committed(0) == 80, "a member may commit what was delivered to it"
    with pytest.raises(KafkaError, match="t-0 was delivered up to 87, not up to 88"):
        world.commit_group(0, 88, "a", 1)
    world.join("b", BY_HAND)
    world.call("a")
    with pytest.raises(KafkaError, match="No current assignment for partition t-3"):
        world.commit_group(3, 1, "a", world.instance("a").member_epoch)
    assert (world.committed(0), world.committed(3)) == (80, None)
    for name in ("a", "b"):
        world.delete(name)
    world.commit_group(0, 3)
    assert world.committed(0) == 3


def test_a_commit_holds_as_many_offsets_as_the_limit_says() -> None:
    world = GroupWorld()
    most = (GroupOffset(T, PartitionId(0), 1),) * commits.OFFSETS_PER_COMMIT_MAX
    commits.commit_without_instance(world.state, CommitGroup(group=G, offsets=most), world.topics)
    assert world.committed(0) == 1
    over = CommitGroup(group=G, offsets=(*most, most[0]))
    with pytest.raises(KafkaError, match=f"more than {commits.OFFSETS_PER_COMMIT_MAX} offsets"):
        commits.commit_without_instance(world.state, over, world.topics)


def test_a_start_that_no_instance_reads_is_dropped_with_the_subscription() -> None:
    world = GroupWorld()
    world.join("a")
    assert world.group.starts.keys() == {place(number) for number in range(4)}
    instances.unsubscribe(world.state, world.key("a"), world.topics)
    assert world.group.starts == {}, "a later reader resolves its own"


def test_a_new_subscription_reads_from_the_last_commit() -> None:
    world = GroupWorld()
    world.join("a", BY_HAND)
    world.read("a")
    assert world.position("a", 0) == 10
    instances.unsubscribe(world.state, world.key("a"), world.topics)
    world.subscribe("a")
    assert world.position("a", 0) == 0


def test_an_overdue_revocation_is_counted_from_when_it_began() -> None:
    world = GroupWorld()
    world.state.judge_ms = 100_000
    world.join("a", BY_HAND)
    world.read("a")
    world.join("b", BY_HAND)
    for name, freed in (("first", set()), ("last", {2, 3})):
        world.pass_time(30_000 if name == "first" else 1)
        assert world.owned("b") == freed, name


def test_an_assignment_and_a_pattern_may_be_as_long_as_the_limit_says() -> None:
    world = GroupWorld(partitions=instances.NAMES_PER_SUBSCRIPTION_MAX + 1)
    world.create("a")
    key, most = world.key("a"), [place(at) for at in range(world.topics[T].partitions_count)]
    instances.check_assignment(world.state, key, tuple(most[:-1]), world.topics)
    with pytest.raises(KafkaError, match="partitions in one assignment"):
        instances.check_assignment(world.state, key, tuple(most), world.topics)
    assert compiled_pattern("x" * PATTERN_CHARS_MAX)
    with refused(ErrorCode.INVALID_REQUEST):
        compiled_pattern("x" * (PATTERN_CHARS_MAX + 1))


def test_the_topics_of_an_instance_are_those_named_or_those_that_match_now() -> None:
    world = GroupWorld()
    world.create("named")
    world.subscribe("named", "t", "not made yet")
    world.create("matching")
    world.subscribe("matching", pattern="t.*")
    named, matching = (
        instances.topic_names(world.instance(name), world.topics) for name in ("named", "matching")
    )
    assert (named, matching) == (("not made yet", "t"), ("t",))


def test_a_group_older_than_the_forgotten_ones_begins_at_their_epoch() -> None:
    """The record of all forgotten groups may stand behind the first ones of this group."""
    world = GroupWorld()
    world.create("a")
    assert world.group.epoch == 0
    world.state.fold(ShardRecord(EVERY_GROUP, GroupValue(7)))
    assert world.group.epoch == 7


def test_a_commit_without_an_instance_is_not_negative() -> None:
    world = GroupWorld()
    with refused(ErrorCode.INVALID_REQUEST):
        world.commit_group(0, -1)
    world.commit_group(0, 0)
    assert world.committed(0) == 0


def test_an_instance_without_members_beside_it_commits_any_offset() -> None:
    world = GroupWorld()
    world.create("a", BY_HAND)
    world.assign("a", 0)
    world.commit("a", 0, 21)
    assert world.committed(0) == 21
    world.join("b")
    with refused(ErrorCode.ILLEGAL_STATE):
        world.commit("a", 0, 22)


# ---------------------------------------------------------------- automatic commits


def test_auto_commit_covers_only_what_an_earlier_read_returned() -> None:
    world = GroupWorld(partitions=1)
    world.join("a")
    world.read("a")
    world.pass_time(6_000)
    assert world.committed(0) is None
    world.read("a")
    world.pass_time(6_000)
    assert world.committed(0) == 10


def test_a_read_commits_when_it_is_time_and_a_close_always() -> None:
    world = GroupWorld(partitions=1)
    world.join("a")
    world.read("a")
    world.state.judge_ms += 5_000
    world.read("a")
    assert world.committed(0) == 10
    world.delete("a")
    assert world.committed(0) == 20


def test_an_expired_session_commits_nothing_it_did_not_confirm() -> None:
    world = GroupWorld(partitions=1)
    world.join("a", replace(EARLIEST, session_timeout_ms=1_000))
    world.read("a")
    world.pass_time(1_001)
    assert world.committed(0) is None
    assert world.group.starts, "whoever comes next skips nothing"


def test_auto_commit_never_takes_back_what_was_committed_by_hand() -> None:
    world = GroupWorld(partitions=1)
    world.join("a")
    world.read("a")
    world.read("a")
    world.commit("a", 0, 20)
    world.pass_time(6_000)
    assert world.committed(0) == 20


def test_auto_commit_keeps_the_metadata_of_a_commit_of_the_same_offset() -> None:
    world = GroupWorld(partitions=1)
    world.join("a")
    world.read("a")
    offset = GroupOffset(T, PartitionId(0), 9, "by hand")
    commits.commit_offsets(world.state, world.key("a"), (offset,), world.topics)
    world.commit_all("a")
    assert (world.committed(0), world.group.offsets[place(0)].metadata) == (10, "by hand")


@pytest.mark.parametrize(("settings", "committed"), [(EARLIEST, 10), (BY_HAND, None)])
def test_a_member_that_unsubscribes_leaves_and_auto_commit_commits_first(
    settings: ConsumerSettings, committed: int | None
) -> None:
    world = GroupWorld(partitions=1)
    world.join("a", settings)
    world.read("a")
    instances.unsubscribe(world.state, world.key("a"), world.topics)
    world.write()
    assert world.committed(0) == committed
    assert (world.owned("a"), world.instance("a").member) == (set(), None)


@pytest.mark.parametrize(("settings", "committed"), [(EARLIEST, 10), (BY_HAND, None)])
def test_a_new_assignment_by_hand_commits_the_last_one_first_with_auto_commit(
    settings: ConsumerSettings, committed: int | None
) -> None:
    world = GroupWorld()
    world.create("a", settings)
    world.assign("a", 0)
    world.read("a")
    instances.assign(
        world.state, world.key("a"), (place(1),), {place(1): OffsetAndEpoch(0)}, world.topics
    )
    world.write()
    assert (world.committed(0), world.owned("a")) == (committed, {1})


# ---------------------------------------------------------------- refusals


def test_one_way_to_configure_a_consumer() -> None:
    world = GroupWorld()
    world.join("a")
    with refused(ErrorCode.ILLEGAL_STATE):
        world.assign("a", 0)
    with refused(ErrorCode.ILLEGAL_STATE):
        world.subscribe("a", pattern="t")
    world.create("b")
    world.assign("b", 0)
    with refused(ErrorCode.ILLEGAL_STATE):
        world.subscribe("b")


def test_names_and_partitions_that_are_not_there() -> None:
    world = GroupWorld()
    world.join("a")
    with refused(ErrorCode.INSTANCE_ALREADY_EXISTS):
        world.create("a")
    with refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
        world.commit("a", 9, 1)
    world.create("b")
    with refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
        world.assign("b", 9)
    with refused(ErrorCode.ILLEGAL_STATE):
        world.seek("b", 0, 1)


@pytest.mark.parametrize(
    ("field", "lowest", "highest"),
    [
        ("session_timeout_ms", 1_000, 3_600_000),
        ("request_timeout_ms", 0, 60_000),
        ("fetch_min_bytes", -1, 10_000_000),
        ("auto_commit_interval_ms", 1, 86_400_000),
        ("max_poll_records", 1, 100_000),
    ],
)
def test_settings_have_limits(field: str, lowest: int, highest: int) -> None:
    for allowed in (lowest, highest):
        instances.check_settings(replace(EARLIEST, **{field: allowed}))  # type: ignore[arg-type]
    for wrong in (lowest - 1, highest + 1):
        with refused(ErrorCode.INVALID_CONSUMER_CONFIG):
            instances.check_settings(replace(EARLIEST, **{field: wrong}))  # type: ignore[arg-type]


@pytest.mark.parametrize("pattern", ["(a+)+", "(a|b)*c", r"(.)\1", "a*a*a*a*b", "[", "x" * 257])
def test_patterns_that_could_hold_the_loop_are_refused(pattern: str) -> None:
    with refused(ErrorCode.INVALID_REQUEST):
        compiled_pattern(pattern)


def test_every_record_comes_back_as_it_was() -> None:
    world = GroupWorld()
    world.create("a", ConsumerSettings(format="avro", strimzi=True))
    world.subscribe("a", pattern="t.*")
    world.read("a")
    world.seek("a", 1, 5)
    world.commit_all("a")
    world.join("b")
    world.delete("a")
    assert {type(entry.key).__name__ for entry in world.log} == {
        "GroupKey", "InstanceKey", "MemberKey", "OffsetKey", "StartKey", "SeekKey",
    }  # fmt: skip
    for entry in world.log:
        key = orjson.loads(encode_key(entry.key))
        assert decode_entry(key, orjson.loads(encode_value(entry.value))) == entry
    assert world.group.name == G
