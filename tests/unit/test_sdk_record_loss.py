"""A `Consumer` that gets its pages by hand: no record is lost, and no commit passes one.

No thread runs and no broker is asked: a test says which pages have come, and sees what is fetched
next, what is returned, and what would be committed.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from http_api.client.client_errors import ConfigError, ProtocolError, UnreadableRecordError
from http_api.client.sdk.consumer_work import ConsumerWork
from http_api.client.sdk.part_joining import UNFINISHED_MAX
from http_api.client.sdk.record_types import Record, TopicPartition
from http_api.client.sdk.steps import Steps
from tests.support.fed_consumer import AT, Commits, FedConsumer, Tracer, record_commits

OTHER = TopicPartition("t", 1)
AnyRecord = Record[Any, Any]


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> Commits:
    return record_commits(monkeypatch)


@pytest.fixture
def consumer(commits: Commits) -> Iterator[FedConsumer]:
    """A member of no group that commits by itself at its end."""
    with opened() as started:
        yield started


def opened(**settings: Any) -> FedConsumer:
    found = FedConsumer(group_id="g", **settings)
    found.begin()
    return found


# unreadable records

UNREADABLE = b"1e400"


@pytest.mark.parametrize("most", [1, 2, 100])
def test_reading_stays_at_an_unreadable_record_until_a_seek(
    consumer: FedConsumer, commits: Commits, most: int
) -> None:
    """Each poll raises; neither later pages nor a commit pass the record."""
    consumer.write("a", UNREADABLE, "b", "c")
    consumer.fetch(most)
    consumer.fetch(most)
    consumer.fetch(most)
    first = consumer.poll(0.0)
    assert first is not None
    with pytest.raises(UnreadableRecordError) as caught:
        consumer.poll(0.0)
    for _ in range(3):
        with pytest.raises(UnreadableRecordError):
            consumer.poll(0.0)
        consumer.commit()
    assert commits == [1]
    consumer.hold()
    with pytest.raises(UnreadableRecordError):
        consumer.values()
    consumer.seek(caught.value.next)
    assert consumer.values() == ["b", "c"]


def test_consume_and_store_offsets_stay_at_an_unreadable_record(commits: Commits) -> None:
    """`consume` returns what is before it, other partitions' records too, then raises."""
    with opened(enable_auto_offset_store=False) as consumer:
        consumer.write("a", UNREADABLE, "b")
        consumer.write("x", partition=1)
        for _ in range(3):
            consumer.fetch(1)
        consumer.fetch(partition=1)
        found = consumer.consume(10, 0.0)
        assert sorted(record.value for record in found) == ["a", "x"]
        with pytest.raises(UnreadableRecordError):
            consumer.consume(10, 0.0)
        consumer.store_offsets()
        consumer.commit()
    assert commits == [1]


# answers of before


def test_an_answer_of_an_earlier_assignment_is_dropped(commits: Commits) -> None:
    """The same partition at the same offset: its refusal of before would jump to the end."""
    with opened(auto_offset_reset="latest") as consumer:
        plan = consumer.plan()
        consumer.begin()
        consumer.refuse(plan, 40_951, 0)
        assert consumer.offset() == 0


# interrupts


class Interrupter:
    """A deserializer that is interrupted once, at a value."""

    def __init__(self, value: bytes) -> None:
        self._value: bytes | None = value

    def __call__(self, data: bytes) -> bytes:
        if data == self._value:
            self._value = None
            raise KeyboardInterrupt
        return data


@pytest.mark.parametrize("at", [b"1", b"2", b"3", b"4"])
@pytest.mark.parametrize("most", [1, 100])
def test_an_interrupt_in_a_deserializer_loses_no_record(
    commits: Commits, at: bytes, most: int
) -> None:
    """Records that were collected, or not decoded yet, come from the next calls."""
    with opened(value_deserializer=Interrupter(at)) as consumer:
        consumer.write(1, 2, 3, 4)
        consumer.fetch(2)
        consumer.fetch(2)
        found: list[Any] = []
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012 until it comes
            while True:
                found += [record.value for record in consumer.consume(most, 0.0)]
        assert consumer.offset() == len(found)
        assert found + consumer.values() == [b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("most", [0, 1, 3, 100])
def test_an_interrupt_anywhere_in_a_read_loses_no_record(commits: Commits, most: int) -> None:
    """The lines that a reading call runs are interrupted one after the other."""
    for line in range(2_000):
        with opened() as consumer:
            consumer.write("a", "b", "c", "d", "e")
            consumer.write("x", "y", partition=1)
            for partition in (0, 1, 0):
                consumer.fetch(2, partition)
            found = Reads(consumer, most)
            with Tracer(line) as tracer:
                for _ in range(4):
                    found.read()
            found.values += consumer.values()
            assert sorted(found.values) == ["a", "b", "c", "d", "e", "x", "y"], (most, line)
            assert [one for one in found.values if one < "x"] == ["a", "b", "c", "d", "e"]
            assert consumer.offset() == 5
        if not tracer.has_raised:
            break
    assert 50 < line < 1_900


class Reads:
    """Values that calls of poll (``most`` is 0) or consume return."""

    def __init__(self, consumer: FedConsumer, most: int) -> None:
        self._consumer, self._most = consumer, most
        self.values: list[Any] = []

    def read(self) -> None:
        try:
            if self._most:
                records = self._consumer.consume(self._most, 0.0)
            else:
                one = self._consumer.poll(0.0)
                records = [] if one is None else [one]
        except KeyboardInterrupt:
            return
        self.values += [record.value for record in records]


def test_consume_returns_what_it_has_before_a_page_that_is_none(consumer: FedConsumer) -> None:
    """The next calls raise; when the page is fetched again whole, reading goes on."""
    consumer.write("a", "b")
    consumer.fetch(1)
    consumer.fetch(1, is_garbled=True)
    assert [record.value for record in consumer.consume(9, 0.0)] == ["a"]
    consumer.fetch(1, is_garbled=True)
    with pytest.raises(ProtocolError):
        consumer.consume(9, 0.0)
    consumer.fetch(1, is_garbled=True)
    with pytest.raises(ProtocolError):
        consumer.poll(0.0)
    assert consumer.values() == ["b"]


# moves


def test_a_refusal_behind_a_page_moves_on_though_the_page_is_the_last_returned(
    consumer: FedConsumer,
) -> None:
    """A commit per record, then the log is cut: reading goes on where it was cut."""
    consumer.write("a", "b", "c")
    assert consumer.values() == ["a", "b", "c"]
    consumer.write("d")
    consumer.fetch()
    assert consumer.poll(0.0) is not None
    consumer.commit()
    plan = consumer.plan()
    consumer.refuse(plan, 40_950, 4, "the log was truncated", diverging_offset=1)
    assert consumer.offset() == 1
    assert consumer.values() == ["b", "c", "d"]


def test_a_refused_seek_changes_nothing(consumer: FedConsumer) -> None:
    """Records of the present page still come."""
    consumer.write("a", "b", "c")
    consumer.fetch()
    consumer.poll(0.0)
    with pytest.raises(ConfigError):
        consumer.seek(AT, -7)
    assert consumer.values() == ["b", "c"]


def test_seeks_and_pauses_between_records_lose_none(consumer: FedConsumer) -> None:
    """With a page that is decoded, and one that waits."""
    consumer.write("a", "b", "c", "d")
    consumer.fetch(2)
    consumer.fetch(2)
    consumer.poll(0.0)
    consumer.pause([AT])
    assert consumer.values() == []
    consumer.resume([AT])
    assert consumer.values() == ["b", "c", "d"]
    consumer.seek(AT, 1)
    consumer.fetch()
    assert next(consumer).value == "b"
    consumer.seek(AT, 1)
    assert consumer.values() == ["b", "c", "d"]
    consumer.seek(AT, 2)
    assert consumer.assignment() == [AT, OTHER]
    consumer.assign([TopicPartition("t", 0, 3)])
    consumer.begin()
    assert consumer.values() == ["a", "b", "c", "d"]


@pytest.mark.parametrize("most", [0, 1, 3])
def test_pauses_as_often_as_one_likes_fetch_nothing_again(
    consumer: FedConsumer, commits: Commits, most: int
) -> None:
    """The fetch under way, queued pages and the rest of the present one hold, in order."""
    consumer.write(*"abcdef")
    consumer.write("x", "y", partition=1)
    consumer.fetch(3)
    plan = consumer.plan()
    found = Reads(consumer, most)
    for turn in range(40):
        consumer.hold()
        if turn == 5:
            consumer.fetch(3)
            consumer.fetch(partition=1)
        found.read()
        consumer.pause([AT, OTHER])
        assert consumer.poll(0.0) is None
        consumer.resume([AT, OTHER])
    assert [one for one in found.values if one < "x"] == [*"abcdef"]
    assert sorted(found.values) == [*"abcdefxy"]
    assert consumer.plan().versions == plan.versions, "a request under way is not interrupted"
    consumer.commit()
    assert commits == [6]


def test_a_seek_and_a_new_assignment_drop_what_a_pause_holds(consumer: FedConsumer) -> None:
    consumer.write("a", "b", "c")
    consumer.fetch()
    assert next(consumer).value == "a"
    consumer.pause([AT])
    consumer.seek(AT, 2)
    consumer.resume([AT])
    assert consumer.values() == ["c"]
    consumer.seek(AT, 0)
    consumer.fetch()
    assert next(consumer).value == "a"
    consumer.pause([AT])
    consumer.begin()
    assert consumer.values() == ["a", "b", "c"]


def test_an_exception_commits_before_the_record_of_a_paused_partition(commits: Commits) -> None:
    """The partition was paused while its last record was being worked on."""
    with pytest.raises(ValueError, match="program"), opened() as consumer:  # noqa: PT012
        consumer.write("a", "b", "c")
        consumer.fetch()
        consumer.poll(0.0)
        consumer.poll(0.0)
        consumer.pause([AT])
        msg = "the program's"
        raise ValueError(msg)
    assert commits == [1]


def test_pages_that_a_pause_holds_are_bounded_and_make_room_for_others(commits: Commits) -> None:
    """Dropped pages are fetched again, and come once."""
    with opened(queued_max_bytes=8_192, max_partition_fetch_bytes=1_024) as consumer:
        values = [f"{number:03}" * 50 for number in range(30)]
        for partition in (0, 1):
            consumer.write(*values, partition=partition)
        consumer.fetch(15)
        first = consumer.poll(0.0)
        assert first is not None
        version = consumer.state().version
        consumer.pause([AT])
        assert consumer.state().version != version, "it is larger than what is held decoded"
        consumer.resume([AT])
        consumer.fetch(10)
        consumer.pause([AT])
        consumer.make_room()
        assert len(consumer.state().pages) == 1, "there is room"
        consumer.fetch(partition=1)
        consumer.make_room()
        assert not consumer.state().pages
        consumer.resume([AT])
        assert sorted([first.value, *consumer.values()]) == sorted([*values, *values])


# parts of a split value


def write_parts(consumer: FedConsumer, *between: Any) -> None:
    """Write a value of two parts, with records between them, and one behind."""
    inner = [(0, value) for value in between or ("between",)]
    for number, value in ((1, "one"), *inner, (2, "two"), (0, "behind")):
        if number:
            write_part(consumer, value, number)
        else:
            consumer.write(value)


def write_part(consumer: FedConsumer, value: str, number: int, name: str = "id") -> None:
    """Write one of two parts."""
    headers = {"ql-part-id": name, "ql-part": f"{number}/2", "ql-part-format": "string"}
    rows = [
        {"key": key, "value": base64.b64encode(text.encode()).decode()}
        for key, text in headers.items()
    ]
    consumer.write(value, headers=rows)


WHOLE = ["between", "onetwo", "behind"]


HOLDS = [FedConsumer.hold, FedConsumer.read_again]


@pytest.mark.parametrize("hold", HOLDS)
def test_a_pause_between_the_parts_of_a_value_does_not_lose_it(
    consumer: FedConsumer, hold: Callable[[FedConsumer], None]
) -> None:
    """Its first part lies before the position, and is read again with the rest if need be."""
    write_parts(consumer)
    consumer.fetch()
    first = consumer.poll(0.0)
    assert first is not None
    hold(consumer)
    assert [first.value, *consumer.values()] == WHOLE


@pytest.mark.parametrize("hold", HOLDS)
def test_reading_parts_again_returns_nothing_twice(
    consumer: FedConsumer, hold: Callable[[FedConsumer], None]
) -> None:
    """The first part lies several pages before the position."""
    write_parts(consumer, *"abcde")
    found: list[Any] = []
    while len(found) < 7:
        for _ in range(4):
            if consumer.has_more():
                consumer.fetch(2)
        record = consumer.poll(0.0)
        assert record is not None
        found.append(record.value)
        hold(consumer)
    assert found == [*"abcde", "onetwo", "behind"]
    assert consumer.offset() == 8


def test_a_seek_behind_an_unreadable_record_keeps_the_parts_around_it(
    consumer: FedConsumer,
) -> None:
    write_parts(consumer, UNREADABLE)
    consumer.fetch()
    with pytest.raises(UnreadableRecordError) as caught:
        consumer.poll(0.0)
    consumer.seek(caught.value.next)
    assert consumer.values() == ['"one""two"', "behind"]  # a JSON text has quotes in the bytes view


def test_a_commit_of_a_record_between_parts_does_not_pass_the_first(commits: Commits) -> None:
    with opened() as consumer:
        write_parts(consumer)
        consumer.fetch(2)
        record = consumer.poll(0.0)
        assert record is not None
        consumer.commit(record)
        assert commits == [0]
        assert consumer.values() == WHOLE[1:]
    assert commits == [0, 4]


def test_a_first_part_that_retention_removed_stops_no_reading(consumer: FedConsumer) -> None:
    """The position is still in the log, only the fetch for the parts is not."""
    write_parts(consumer)
    consumer.fetch()
    consumer.poll(0.0)
    consumer.read_again()
    consumer.refuse(consumer.plan(), 40_002, 0, "out of range")
    assert [one for one in consumer.values() if one != "two"] == ["behind"]
    assert consumer.offset() == 4


# the end by an exception


@pytest.mark.parametrize(("commit", "expected"), [(None, [1]), ("all", [2]), ("record", [2])])
def test_an_exception_commits_what_earlier_calls_returned_and_no_less_than_the_program(
    commits: Commits, commit: str | None, expected: list[int]
) -> None:
    """The record that was being worked on is committed only if the program did so itself."""
    with pytest.raises(ValueError, match="program"), opened() as consumer:  # noqa: PT012
        consumer.write("a", "b", "c")
        consumer.fetch()
        consumer.poll(0.0)
        record = consumer.poll(0.0)
        if commit is not None:
            consumer.commit(record if commit == "record" else None)
        msg = "the program's"
        raise ValueError(msg)
    assert commits == expected


@pytest.mark.parametrize(("to", "expected"), [(1, [1]), (4, [2])])
def test_an_exception_after_a_seek_commits_no_more_than_the_position(
    commits: Commits, to: int, expected: list[int]
) -> None:
    with pytest.raises(ValueError, match="program"), opened() as consumer:  # noqa: PT012
        consumer.write(*"abcdef")
        consumer.fetch()
        for _ in range(3):
            consumer.poll(0.0)
        consumer.seek(AT, to)
        msg = "the program's"
        raise ValueError(msg)
    assert commits == expected


def test_an_exception_commits_nothing_of_a_list_that_the_program_emptied(commits: Commits) -> None:
    """`consume` gave its list away: what the program does with it is its own matter."""
    with pytest.raises(ValueError, match="program"), opened() as consumer:  # noqa: PT012
        consumer.write("a", "b", "c", "d")
        consumer.fetch()
        assert len(consumer.consume(1, 0.0)) == 1
        records = consumer.consume(9, 0.0)
        while records:
            records.pop()
        msg = "the program's"
        raise ValueError(msg)
    assert commits == [1]


def test_a_stored_offset_does_not_undo_a_later_commit(commits: Commits) -> None:
    with opened(enable_auto_offset_store=False) as consumer:
        consumer.write("a", "b", "c")
        consumer.fetch()
        consumer.store_offsets(consumer.poll(0.0))
        consumer.commit(consumer.poll(0.0))
    assert commits == [2]


def test_a_value_that_was_returned_is_returned_again_by_a_seek_to_it(consumer: FedConsumer) -> None:
    """A program that could not process it seeks back to its offset, that of the last part."""
    write_parts(consumer)
    assert consumer.values() == WHOLE
    for offset in (2, 1, 0, 2):
        consumer.seek(AT, offset)
        assert consumer.values() == WHOLE[max(offset - 1, 0) :]
    consumer.seek(AT, 2)
    consumer.commit()
    consumer.read_again()
    assert consumer.values() == WHOLE[1:]


def test_an_exception_at_a_split_value_commits_before_its_first_part(commits: Commits) -> None:
    """The parts came in several pages, and the value in one call with later records."""
    with pytest.raises(ValueError, match="program"), opened() as consumer:  # noqa: PT012
        write_parts(consumer)
        for _ in range(4):
            consumer.fetch(1)
        consumer.poll(0.0)
        assert len(consumer.consume(5, 0.0)) == 2
        msg = "the program's"
        raise ValueError(msg)
    assert commits == [0]


def test_late_commits_between_parts_and_early_ones_behind_them(commits: Commits) -> None:
    """A record between the parts is committed when all is read, one behind while a page lasts."""
    for most in (1, 100):
        commits.clear()
        with opened(enable_auto_commit=False) as consumer:
            write_parts(consumer)
            consumer.write("more")
            for _ in range(5 if most == 1 else 1):
                consumer.fetch(most)
            between, whole, behind = (consumer.poll(0.0) for _ in range(3))
            consumer.commit(between)
            consumer.commit(offsets=[TopicPartition("t", 0, 2)])
            consumer.commit(whole)
            consumer.commit(behind)
        assert commits == [0, 0, 3, 4]


def test_parts_without_their_first_one_hold_up_no_commit(commits: Commits) -> None:
    """The value began before the offset that the program chose, and is left out."""
    with opened() as consumer:
        write_parts(consumer)
        consumer.assign([TopicPartition("t", 0, 2), TopicPartition("t", 1, 0)])
        assert consumer.values() == ["behind"]
    assert commits[-1] == 4


@pytest.mark.parametrize("hold", HOLDS)
def test_a_value_that_was_given_up_is_told_again_after_a_pause(
    consumer: FedConsumer, hold: Callable[[FedConsumer], None]
) -> None:
    """Until a seek goes on behind the record at which it was given up."""
    for number in range(UNFINISHED_MAX + 1):
        write_part(consumer, f"part of {number}", 1, f"id{number}")
    consumer.write("behind")
    consumer.fetch()
    for _ in range(2):
        with pytest.raises(UnreadableRecordError, match=f"at {UNFINISHED_MAX} "):
            consumer.values()
        hold(consumer)
        consumer.seek(AT, UNFINISHED_MAX)
    consumer.seek(AT, UNFINISHED_MAX + 1)
    assert consumer.values() == ["behind"]
    consumer.commit()
    assert consumer.offset() == UNFINISHED_MAX + 2


def test_an_own_commit_under_way_is_not_undone_by_an_exception(
    commits: Commits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An asynchronous one has no answer yet."""

    def drain(*_: object) -> Steps[None]:
        yield from ()

    monkeypatch.setattr(ConsumerWork, "drain_commits", drain)
    with pytest.raises(ValueError, match="program"), opened() as consumer:  # noqa: PT012
        consumer.write("a", "b", "c")
        consumer.fetch()
        consumer.poll(0.0)
        consumer.commit(consumer.poll(0.0), asynchronous=True)
        msg = "the program's"
        raise ValueError(msg)
    assert commits == [2]


@pytest.mark.parametrize("deserializer", [None, bytes, "bytes"])
def test_a_value_deeper_than_the_decoders_stack_is_unreadable(
    commits: Commits, deserializer: Any
) -> None:
    """The value fails by itself, and not the page."""
    with opened(value_deserializer=deserializer) as consumer:
        consumer.write(b'"a"', b"[" * 1_500 + b"]" * 1_500, b'"b"')
        with pytest.raises(UnreadableRecordError) as caught:
            consumer.values()
        consumer.seek(caught.value.next)
        assert consumer.values() == ["b" if deserializer is None else b'"b"']
