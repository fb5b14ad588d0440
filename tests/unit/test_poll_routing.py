"""Polls over several brokers: each leader is asked once, one that finds something ends the rest."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.log.read_positions import Divergence, DivergenceCause, PositionTruncatedError
from broker.record.batch import BatchSlice
from broker.server.peer_codec import PeerRequestKind, split_body
from broker.server.poll_messages import (
    LegPages,
    PlacedRow,
    PollId,
    PollLeg,
    decode_leg_pages,
    encode_end_poll,
    encode_leg,
    encode_leg_pages,
    epochs_between,
    leg_in,
    pages_in_room,
)
from broker.server.requests import EPOCHS_MAX, FetchResult, PollPage
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import BrokerId, LeaderEpoch, PartitionId, TopicId, TopicIdPartition
from raft_metadata.image.metadata_image import MetadataImage
from raft_metadata.records.records import ResourceType
from tests.support.polled_brokers import (
    NO_LEADER,
    TOPIC,
    PolledBroker,
    image,
    poll_of,
    polled_brokers,
)
from tests.support.registered import disk

POLL, END = PeerRequestKind.POLL, PeerRequestKind.END_POLL
LEADERS = [1, 2, 3, 2, 3, 1]


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[list[PolledBroker]]:
    async with polled_brokers(tmp_path, 3) as brokers:
        follow(brokers, LEADERS)
        yield brokers


def follow(brokers: list[PolledBroker], leaders: list[int], version: int = 1) -> None:
    for one in brokers:
        one.follow(image(leaders, version=version, epoch=version))


def everything(**options: object) -> object:
    return poll_of(dict.fromkeys(range(len(LEADERS)), 0), **options)


def rows(pages: list[PollPage]) -> list[int]:
    return [page.row for page in pages]


def codes(pages: list[PollPage]) -> dict[int, ErrorCode]:
    return {page.row: page.found.code for page in pages if isinstance(page.found, KafkaError)}


async def settled(brokers: list[PolledBroker]) -> None:
    """Let what was posted arrive, and check that no poll is left at any broker."""
    await asyncio.sleep(0.05)
    assert [one.waiters() for one in brokers] == [0] * len(brokers)


async def test_each_leader_is_asked_once_and_all_pages_come(three: list[PolledBroker]) -> None:
    one = three[0]
    for number, leader in enumerate(LEADERS):
        await three[leader - 1].append(number, number)
    pages = await one.routing.poll(everything(max_wait_ms=9_000))
    assert rows(pages) == [0, 1, 2, 3, 4, 5]
    asked = [broker for broker, kind in one.peers.asked if kind is POLL]
    assert sorted(asked) == [2, 3], "one request a leader, not one a partition"
    leaders = [page.found.leader_id for page in pages if isinstance(page.found, FetchResult)]
    assert leaders == LEADERS
    await settled(three)


async def test_a_record_at_another_broker_ends_the_waits_of_all(
    three: list[PolledBroker],
) -> None:
    one = three[0]
    waiting = asyncio.ensure_future(one.routing.poll(everything(max_wait_ms=9_000)))
    await asyncio.sleep(0.05)
    assert [broker.waiters() for broker in three] == [2, 2, 2]
    await three[2].append(4, 1)
    assert rows(await asyncio.wait_for(waiting, 1)) == [4]
    assert (2, END) in one.peers.asked, "broker 2 would wait on for nothing"
    await settled(three)


async def test_rows_led_elsewhere_come_beside_those_found_here_at_once(
    three: list[PolledBroker],
) -> None:
    """Else a busy partition here would keep the others from ever being read."""
    await three[0].append(0, 1)
    await three[1].append(1, 1)
    assert rows(await three[0].routing.poll(everything(max_wait_ms=9_000))) == [0, 1]
    await settled(three)


async def test_a_client_that_hangs_up_ends_the_waits(three: list[PolledBroker]) -> None:
    waiting = asyncio.ensure_future(three[0].routing.poll(everything(max_wait_ms=9_000)))
    await asyncio.sleep(0.05)
    waiting.cancel()
    await asyncio.wait([waiting])
    await settled(three)


async def test_an_end_right_behind_its_poll_is_not_missed(three: list[PolledBroker]) -> None:
    one, two = three[0], three[1]
    leg = PollLeg(
        rows=[PlacedRow(1, TopicIdPartition(TOPIC, PartitionId(1)), 0, -1)],
        max_wait_ms=9_000, min_bytes=1, max_bytes=1, max_partition_bytes=1, news_only=False,
        packed=False,
    )  # fmt: skip
    body = encode_leg(leg, PollId(1, 7))
    polling = asyncio.ensure_future(one.peers.call(BrokerId(2), "", POLL, body, 9_000))
    await asyncio.sleep(0)  # the call has created the peer's task, which has not begun
    ending = asyncio.ensure_future(two.services.answer(END, encode_end_poll(PollId(1, 7)), 1_000))
    answer = decode_leg_pages(await asyncio.wait_for(polling, 1), {1: leg.rows[0]})
    assert (answer.pages, dict(answer.unserved)) == ([], {})
    await ending


async def test_a_leader_that_hangs_delays_the_others_little(three: list[PolledBroker]) -> None:
    one = three[0]
    one.peers.hung.add(2)
    await one.append(0, 1)
    began = time.monotonic()
    pages = await one.routing.poll(everything(max_wait_ms=9_000))
    assert time.monotonic() - began < 1
    assert codes(pages) == dict.fromkeys([1, 3], ErrorCode.LEADER_NOT_AVAILABLE)
    assert rows(pages) == [0, 1, 3]


async def test_a_leader_that_hangs_is_waited_for_with_a_grace(three: list[PolledBroker]) -> None:
    one = three[0]
    one.peers.hung.add(2)
    began = time.monotonic()
    pages = await one.routing.poll(everything(max_wait_ms=100))
    assert 0.09 <= time.monotonic() - began < 2
    assert codes(pages).keys() == {1, 3}


async def test_a_leader_that_died_is_followed_to_the_next(three: list[PolledBroker]) -> None:
    one = three[0]
    one.peers.dead.add(2)
    waiting = asyncio.ensure_future(one.routing.poll(everything(max_wait_ms=9_000)))
    await asyncio.sleep(0.05)
    moved = [3 if leader == 2 else leader for leader in LEADERS]
    follow(three, moved, version=2)
    await three[2].append(1, 1)
    assert rows(await asyncio.wait_for(waiting, 2)) == [1]
    await settled(three)


async def test_a_leader_that_hangs_and_loses_its_partition_is_left_soon(
    three: list[PolledBroker],
) -> None:
    one = three[0]
    one.peers.hung.add(2)
    waiting = asyncio.ensure_future(one.routing.poll(everything(max_wait_ms=9_000)))
    await asyncio.sleep(0.05)
    follow([one, three[2]], [3 if leader == 2 else leader for leader in LEADERS], version=2)
    await three[2].append(1, 1)
    assert rows(await asyncio.wait_for(waiting, 2)) == [1]


async def test_a_leader_that_moves_here_during_the_wait(three: list[PolledBroker]) -> None:
    one = three[0]
    waiting = asyncio.ensure_future(one.routing.poll(everything(max_wait_ms=9_000)))
    await asyncio.sleep(0.05)
    follow(three, [1] * len(LEADERS), version=2)
    await asyncio.sleep(0.05)
    await one.append(4, 1)
    assert rows(await asyncio.wait_for(waiting, 1)) == [4]
    await settled(three)


async def test_a_leader_that_is_not_reached_is_tried_again_with_growing_pauses(
    three: list[PolledBroker],
) -> None:
    one = three[0]
    one.peers.dead.add(2)
    pages = await one.routing.poll(poll_of({1: 0}, max_wait_ms=800))
    assert codes(pages) == {0: ErrorCode.NETWORK_EXCEPTION}
    assert 3 <= len(one.peers.asked) <= 5, "after 0, 100, 300 and 700 ms"


async def test_a_topic_that_is_deleted_during_the_wait_is_told(three: list[PolledBroker]) -> None:
    one = three[0]
    waiting = asyncio.ensure_future(one.routing.poll(poll_of({0: 0, 1: 0}, max_wait_ms=9_000)))
    await asyncio.sleep(0.05)
    for broker in three:
        broker.follow(image([1, 2], version=2, epoch=2, topic_id=TopicId("B" * 22)))
    pages = await asyncio.wait_for(waiting, 2)
    assert set(codes(pages).values()) == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


async def test_an_image_that_is_behind_an_epoch_is_caught_up_first(
    three: list[PolledBroker],
) -> None:
    one = three[0]
    behind = poll_of({0: 0}, max_wait_ms=0)
    ahead = replace(behind, rows=[behind.rows[0]._replace(leader_epoch=5)])
    await one.routing.poll(behind)
    assert one.caught_up == 0
    await one.routing.poll(ahead)
    assert one.caught_up == 1


async def test_nobody_leads_and_nothing_is_told_before_the_end(three: list[PolledBroker]) -> None:
    follow(three, [NO_LEADER] * len(LEADERS), version=2)
    began = time.monotonic()
    pages = await three[0].routing.poll(everything(max_wait_ms=150))
    assert time.monotonic() - began >= 0.14
    assert set(codes(pages).values()) == {ErrorCode.LEADER_NOT_AVAILABLE}


@pytest.mark.parametrize("wait_ms", [0, 9_000])
async def test_rows_that_a_follower_of_the_rack_refuses_are_read_from_their_leader(
    three: list[PolledBroker], wait_ms: int
) -> None:
    one = three[0]
    await one.append(0, 1)
    one.loader.image = followed_by_two(version=2)
    pages = await one.routing.poll(poll_of({0: 0, 5: 0}, rack="rack-2", max_wait_ms=wait_ms))
    assert one.peers.asked[0] == (2, POLL), "broker 2 is in that rack, and not in sync"
    assert rows([page for page in pages if isinstance(page.found, FetchResult)]) == [0]
    assert not codes(pages)


def followed_by_two(*, version: int, in_sync: tuple[int, ...] = (1, 2)) -> MetadataImage:
    """Broker 1 leads partitions 0 and 5, broker 2 follows, and readers choose by their rack."""
    base = image(LEADERS, version=version)
    topic = base.topics[TOPIC]
    followed = replace(
        topic.partitions[0],
        replicas=tuple(map(BrokerId, (1, 2))),
        isr=tuple(map(BrokerId, in_sync)),
        directories=(disk(1), disk(2)),
    )
    topic = replace(topic, partitions=(followed, *topic.partitions[1:5], followed))
    selected = {(ResourceType.CLUSTER, ""): {"replica.selector": "rack"}}
    return replace(base, topics={TOPIC: topic}, configs=selected)


async def test_a_follower_that_leaves_the_in_sync_set_is_not_waited_for(
    three: list[PolledBroker],
) -> None:
    """The follower may hang, or be cut off: it never gets what its leader commits from then on."""
    one = three[0]
    one.peers.hung = {2}
    one.loader.image = followed_by_two(version=2)
    poll = poll_of({0: 0}, rack="rack-2", max_wait_ms=9_000)
    waiting = asyncio.ensure_future(one.routing.poll(poll))
    await asyncio.sleep(0.05)
    assert one.peers.asked == [(2, POLL)]
    await one.append(0, 1)
    one.loader.image = followed_by_two(version=3, in_sync=(1,))
    one.routing.image_changed()
    assert rows(await asyncio.wait_for(waiting, 2)) == [0]


# ---------------------------------------------------------------- pure parts

offsets = st.integers(0, 10**15)
epochs = st.integers(-1, 2**31 - 1)
placed = st.builds(
    PlacedRow,
    st.integers(0, 9_999),
    st.builds(
        TopicIdPartition,
        st.sampled_from([TopicId("A" * 22), TopicId("B" * 22)]),
        st.builds(PartitionId, st.integers(0, 10_000)),
    ),
    offsets,
    epochs,
)
legs = st.builds(
    PollLeg,
    rows=st.lists(placed, max_size=5),
    max_wait_ms=st.integers(0, 60_000),
    min_bytes=st.integers(1, 9),
    max_bytes=st.integers(1, 9),
    max_partition_bytes=st.integers(1, 9),
    news_only=st.booleans(),
    packed=st.booleans(),
    from_follower=st.booleans(),
)


@settings(max_examples=30)
@given(legs, st.builds(PollId, st.integers(1, 9), offsets))
def test_a_leg_comes_back_from_its_bytes(leg: PollLeg, poll_id: PollId) -> None:
    head, payload = split_body(encode_leg(leg, poll_id))
    assert (leg_in(head), payload) == ((leg, poll_id), b"")


def result(slices: list[BatchSlice], next_offset: int = 9) -> FetchResult:
    return FetchResult(
        slices=slices,
        high_watermark=9,
        log_start_offset=1,
        next_offset=next_offset,
        next_leader_epoch=2,
        leader_id=BrokerId(2),
        leader_epoch=LeaderEpoch(3),
    )


def test_pages_and_errors_come_back_from_their_bytes() -> None:
    place = TopicIdPartition(TOPIC, PartitionId(0))
    asked = {number: PlacedRow(number, place, 0, -1) for number in range(5)}
    truncated = PositionTruncatedError(9, 4, Divergence(DivergenceCause.DIVERGED, 3, 2))
    answer = LegPages(
        pages=[
            PollPage(3, TOPIC, result([]), ((1, 0), (2, 5))),
            PollPage(1, TOPIC, result([])),
            PollPage(0, TOPIC, truncated),
            PollPage(2, TOPIC, KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, "ends")),
        ],
        unserved={4: KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "moved")},
    )
    found = decode_leg_pages(encode_leg_pages(answer), asked)
    assert rows(list(found.pages)) == [3, 1, 0, 2]
    assert found.pages[0] == answer.pages[0]
    told = found.pages[2].found
    assert isinstance(told, PositionTruncatedError)
    assert (told.divergence, told.position, told.epoch) == (truncated.divergence, 9, 4)
    assert codes(list(found.pages))[2] is ErrorCode.OFFSET_OUT_OF_RANGE
    assert found.unserved[4].code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert {page.topic_id for page in found.pages} == {TOPIC}


@settings(max_examples=50)
@given(st.lists(st.tuples(epochs, offsets), unique_by=lambda entry: entry[0]), offsets, offsets)
def test_epochs_between_two_offsets_are_those_of_the_offsets(
    entries: list[tuple[int, int]], one: int, other: int
) -> None:
    starts = sorted(start for _, start in entries)
    log = [(epoch, start) for (epoch, _), start in zip(sorted(entries), starts, strict=True)]
    start, end = min(one, other), max(one, other)

    def epoch_of(offset: int) -> int | None:
        held = [epoch for epoch, begins in log if begins <= offset]
        return held[-1] if held else None

    found = epochs_between(log, start, end)
    assert len(found) <= EPOCHS_MAX
    assert [first for _, first in found] == sorted({first for _, first in found})
    changes = sorted({start, *(begins for _, begins in log if start < begins < end)})
    expected = [(epoch_of(at), at) for at in changes if at < end and epoch_of(at) is not None]
    assert found == expected[:EPOCHS_MAX]


def test_a_page_that_does_not_fit_is_not_passed_by_smaller_ones() -> None:
    header = None
    sizes = {0: 500, 1: 900, 2: 10}
    pages = [
        PollPage(number, TOPIC, result([BatchSlice(header, b"x" * size, 0, 1, 1)]))  # type: ignore[arg-type]
        for number, size in sizes.items()
    ]
    pages.append(PollPage(3, TOPIC, KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)))
    assert rows(pages_in_room(pages[::-1], 1_000)) == [0, 3]
    assert rows(pages_in_room(pages, 5_000)) == [0, 1, 2, 3]
    assert rows(pages_in_room(pages, 1)) == [0, 3]
