"""The assignors: balance, few moves, racks, and the same result for the same input."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.coordinator.assignors import (
    ASSIGNORS,
    AssignmentMember,
    AssignmentTopic,
    assign_range,
    assign_uniform,
    choose_assignor,
    find_assignor,
    moved_partitions,
)
from raft_metadata.common.ids import InstanceId, PartitionId, TopicName, TopicPartition

RACKS = ("a", "b", "c")
NAMES = tuple(InstanceId(f"m{number}") for number in range(7))
TOPICS = tuple(TopicName(f"t{number}") for number in range(4))


@st.composite
def topic_facts(draw: st.DrawFn) -> AssignmentTopic:
    count = draw(st.integers(1, 12))
    racks = st.frozensets(st.sampled_from(RACKS), max_size=2)
    known = draw(st.one_of(st.just(()), st.tuples(*[racks] * count)))
    return AssignmentTopic(count, known)


topics_strategy = st.dictionaries(st.sampled_from(TOPICS), topic_facts(), min_size=1)
members_strategy = st.dictionaries(
    st.sampled_from(NAMES),
    st.builds(
        AssignmentMember,
        topics=st.frozensets(st.sampled_from(TOPICS)),
        rack=st.one_of(st.none(), st.sampled_from(RACKS)),
    ),
    min_size=1,
)
Members = dict[InstanceId, AssignmentMember]
Topics = dict[TopicName, AssignmentTopic]


def with_targets(members: Members, targets: dict[InstanceId, frozenset[TopicPartition]]) -> Members:
    return {
        name: AssignmentMember(one.topics, one.rack, targets.get(name, frozenset()))
        for name, one in members.items()
    }


def partitions(topics: Topics, names: frozenset[TopicName]) -> set[TopicPartition]:
    return {
        TopicPartition(name, PartitionId(number))
        for name in names & topics.keys()
        for number in range(topics[name].partitions_count)
    }


@given(members=members_strategy, topics=topics_strategy, later=members_strategy)
@settings(max_examples=300)
def test_every_partition_has_one_subscribed_owner(
    members: Members, topics: Topics, later: Members
) -> None:
    for assign in ASSIGNORS.values():
        before = assign(members, topics)
        for group, found in (
            (members, before),
            (later, assign(with_targets(later, before), topics)),
        ):
            owned = [partition for target in found.values() for partition in target]
            wanted = frozenset[TopicName]().union(*(one.topics for one in group.values()))
            assert len(owned) == len(set(owned))
            assert set(owned) == partitions(topics, wanted)
            for name, target in found.items():
                assert {partition.topic for partition in target} <= group[name].topics


@given(members=members_strategy, topics=topics_strategy, later=members_strategy)
@settings(max_examples=300)
def test_uniform_balances_equal_subscriptions(
    members: Members, topics: Topics, later: Members
) -> None:
    found = assign_uniform(with_targets(later, assign_uniform(members, topics)), topics)
    for one, other in combinations(later, 2):
        if later[one].topics == later[other].topics:
            assert abs(len(found[one]) - len(found[other])) <= 1


@given(members=members_strategy, topics=topics_strategy)
def test_uniform_moves_nothing_without_need(members: Members, topics: Topics) -> None:
    found = assign_uniform(members, topics)
    assert assign_uniform(with_targets(members, found), topics) == found
    elsewhere = {name: AssignmentTopic(one.partitions_count) for name, one in topics.items()}
    assert assign_uniform(with_targets(members, found), elsewhere) == found


@given(members=st.integers(1, 6), count=st.integers(1, 30), racks=st.booleans())
def test_a_member_that_joins_takes_its_share_and_the_others_keep_the_rest(
    members: int, count: int, racks: bool
) -> None:
    topic = AssignmentTopic(count, [frozenset({RACKS[n % 3]}) for n in range(count)] * racks)
    subscription = frozenset({TOPICS[0]})
    group = {
        name: AssignmentMember(subscription, RACKS[place % 3])
        for place, name in enumerate(NAMES[:members])
    }
    group = with_targets(group, assign_uniform(group, {TOPICS[0]: topic}))
    joined = {**group, NAMES[6]: AssignmentMember(subscription, "a")}
    found = assign_uniform(joined, {TOPICS[0]: topic})
    assert moved_partitions(group, found) == len(found[NAMES[6]]) == count // (members + 1)


@given(members=members_strategy, topics=topics_strategy)
def test_the_order_of_the_input_does_not_matter(members: Members, topics: Topics) -> None:
    for assign in ASSIGNORS.values():
        turned = assign(dict(reversed(members.items())), dict(reversed(topics.items())))
        assert turned == assign(members, topics)


def test_ranges_are_kafkas() -> None:
    topics = {name: AssignmentTopic(3) for name in TOPICS[:2]}
    members = {name: AssignmentMember(frozenset(topics)) for name in NAMES[:2]}
    found = assign_range(members, topics)
    for topic in topics:
        assert [
            sorted(one.partition for one in found[name] if one.topic == topic) for name in NAMES[:2]
        ] == [[0, 1], [2]]


def test_uniform_gives_many_small_topics_to_many_members() -> None:
    topics = {TopicName(f"t{number}"): AssignmentTopic(1) for number in range(90)}
    members = {name: AssignmentMember(frozenset(topics)) for name in NAMES[:3]}
    assert {len(target) for target in assign_uniform(members, topics).values()} == {30}
    assert [len(assign_range(members, topics)[name]) for name in NAMES[:3]] == [90, 0, 0]


def test_owners_are_in_the_racks_of_their_replicas() -> None:
    racks = [frozenset({RACKS[number % 3]}) for number in range(9)]
    topics = {TOPICS[0]: AssignmentTopic(9, racks)}
    members = {
        name: AssignmentMember(frozenset(topics), rack)
        for name, rack in zip(NAMES, RACKS, strict=False)
    }
    for assign in ASSIGNORS.values():
        for name, target in assign(members, topics).items():
            assert {racks[one.partition] for one in target} == {frozenset({members[name].rack})}


def test_range_is_consecutive_where_racks_make_no_difference() -> None:
    everywhere = [frozenset(RACKS)] * 7
    topics = {TOPICS[0]: AssignmentTopic(7, everywhere)}
    members = {
        name: AssignmentMember(frozenset(topics), rack)
        for name, rack in zip(NAMES, RACKS, strict=False)
    }
    found = assign_range(members, topics)
    assert [sorted(one.partition for one in found[name]) for name in NAMES[:3]] == [
        [0, 1, 2],
        [3, 4],
        [5, 6],
    ]


def test_kafkas_names_are_understood() -> None:
    assert find_assignor("org.apache.kafka.clients.consumer.RangeAssignor") == "range"
    assert find_assignor("cooperative-sticky") == "uniform"
    assert find_assignor("uniform") == "uniform"
    assert find_assignor("mine") is None


def test_the_assignor_that_most_members_name_is_taken() -> None:
    assert choose_assignor([("range",), ("range", "uniform"), ("uniform",)], "uniform") == "range"
    assert choose_assignor([("uniform",), ("range",)], "uniform") == "range"
    assert choose_assignor([(), ()], "uniform") == "uniform"
