"""The grammar of typed values: what is taken, what is refused with its text and an example."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from http_api.contract import grammar
from http_api.contract.grammar import (
    AtOffset,
    Earliest,
    FromTime,
    GrammarError,
    LastRecords,
    Latest,
    TopicPartitions,
)

TOPICS = st.from_regex(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,20}", fullmatch=True)
PARSERS: tuple[Callable[[str], object], ...] = (
    grammar.parse_topic,
    grammar.parse_selection,
    grammar.parse_partitions,
    grammar.parse_partition,
    grammar.parse_record,
    grammar.parse_position,
    grammar.parse_time_ms,
    grammar.parse_duration_ms,
    grammar.parse_size_bytes,
    grammar.parse_broker,
    grammar.parse_brokers,
)


@given(topic=TOPICS, partitions=st.lists(st.integers(0, grammar.PARTITION_MAX), unique=True))
def test_partitions_are_read_as_they_are_printed(topic: str, partitions: list[int]) -> None:
    named = TopicPartitions(topic, tuple(partitions) or None)
    assert grammar.parse_selection(str(named)) == named


@pytest.mark.parametrize(
    "text",
    ["", ":", ":0", "T:", "T:a", "T:0,0", "T:0,", "T:,0", "T:-1", "T:1.0", "T: 1", "a:b:0", "a b:0",
     "T:99999999999999999999", "T:2147483648", "..:0", "T:\u0661", "T/0", "x" * 250],
)  # fmt: skip
def test_wrong_partitions_are_refused_with_an_example(text: str) -> None:
    for parse in (grammar.parse_selection, grammar.parse_partitions, grammar.parse_partition):
        with pytest.raises(GrammarError, match=r"expected .*as in \w+"):
            parse(text)


@pytest.mark.parametrize(
    "text", ["", "T", "T:0", "T:0:", "T:0:-1", "T:0:1.0", "T:0,1:2", "T:a:1", ":0:1", "T:0:1:2"]
)
def test_a_wrong_place_of_a_record_is_refused_with_an_example(text: str) -> None:
    assert grammar.parse_record("orders:3:17") == ("orders", 3, 17)
    with pytest.raises(GrammarError, match=r"expected TOPIC:PARTITION:OFFSET, as in orders:0:17"):
        grammar.parse_record(text)
    for large in (grammar.OFFSET_MAX + 1, 10**30):
        with pytest.raises(GrammarError, match=r"as in orders:0:17"):
            grammar.parse_record(f"T:0:{large}")


def test_a_topic_alone_is_no_partition() -> None:
    assert grammar.parse_selection("orders") == TopicPartitions("orders", None)
    with pytest.raises(GrammarError, match=r"'orders': expected TOPIC:PARTITION.*as in orders:0"):
        grammar.parse_partitions("orders")
    with pytest.raises(GrammarError, match=r"'orders:0,1': expected TOPIC:PARTITION, as in"):
        grammar.parse_partition("orders:0,1")


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("earliest", Earliest()),
        ("beginning", Earliest()),
        ("latest", Latest()),
        ("end", Latest()),
        ("0", AtOffset(0)),
        ("9223372036854775807", AtOffset(grammar.OFFSET_MAX)),
        ("-10", LastRecords(10)),
        ("@0", FromTime(0)),
        ("@1769860800000", FromTime(1_769_860_800_000)),
        ("2026-01-31T12:00:00Z", FromTime(1_769_860_800_000)),
        ("2026-01-31T13:00:00+01:00", FromTime(1_769_860_800_000)),
        ("2026-01-31T12:00:00.0001Z", FromTime(1_769_860_800_001)),
    ],
)
def test_positions(text: str, position: grammar.Position) -> None:
    assert grammar.parse_position(text) == position


@pytest.mark.parametrize(
    "text",
    ["", "-", "-0", "+5", "first", "99999999999999999999", "-99999999999999999999", "@", "@-1",
     "@1.5", "@99999999999999999999", "2026-01-31", "2026-01-31T12:00:00", "2026-13-01T00:00:00Z",
     "1969-12-31T23:59:59Z", "1h", "T:0", "\u0665"],
)  # fmt: skip
def test_wrong_positions_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(GrammarError, match=r"expected .*as in "):
        grammar.parse_position(text)


@given(milliseconds=st.integers(0, 253_000_000_000_000), hours=st.integers(-12, 14))
def test_a_time_is_the_same_in_every_zone(milliseconds: int, hours: int) -> None:
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)
    zone = f"{hours:+03d}:00"
    local = (moment + timedelta(hours=hours)).replace(tzinfo=None)
    if local.year >= 1970:
        text = f"{local.isoformat(timespec='milliseconds')}{zone}"
        assert grammar.parse_time_ms(text) == milliseconds


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("0", 0), ("10", 10_000), ("1.5", 1_500), ("500ms", 500), ("10s", 10_000), ("5m", 300_000),
     ("5min", 300_000), ("1h", 3_600_000), ("7d", 604_800_000), ("1H", 3_600_000), ("2 s", 2_000)],
)  # fmt: skip
def test_durations(text: str, milliseconds: int) -> None:
    assert grammar.parse_duration_ms(text) == milliseconds


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("512B", 512), ("1KB", 1_000), ("1KiB", 1_024), ("64mib", 64 << 20),
     ("1.5KiB", 1_536), ("10GB", 10_000_000_000), ("1TiB", 1 << 40)],
)  # fmt: skip
def test_sizes(text: str, size: int) -> None:
    assert grammar.parse_size_bytes(text) == size


@pytest.mark.parametrize(
    "text", ["", "-1", "-1h", "1w", "1 parsec", "h", "1.2.3s", "99999999999999999999", "0.1ms",
             "9223372036854775807d", "\u0661s", "1e3"],
)  # fmt: skip
def test_wrong_durations_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(GrammarError, match="10s"):
        grammar.parse_duration_ms(text)


@pytest.mark.parametrize(
    "text", ["", "-1", "-1MB", "1M", "1XB", "0.1B", "99999999999999999999", "9223372036854775807KB"]
)
def test_wrong_sizes_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(GrammarError, match="1MiB"):
        grammar.parse_size_bytes(text)


@pytest.mark.parametrize(
    ("name", "value", "expanded"),
    [
        ("retention.ms", "1h", "3600000"),
        ("retention.ms", "-1", "-1"),
        ("retention.ms", "5", "5"),
        ("segment_ms", "1d", "86400000"),
        ("segment.bytes", "64MiB", "67108864"),
        ("offsets.retention.minutes", "7d", "10080"),
        ("cleanup.policy", "compact", "compact"),
        ("partitions", "3h", "3h"),
        ("retention.ms", "soon", "soon"),
    ],
)
def test_values_of_configs(name: str, value: str, expanded: str) -> None:
    assert grammar.expand_config_value(name, value) == expanded


def test_a_config_value_with_a_wrong_unit_is_refused() -> None:
    with pytest.raises(GrammarError, match=r"'1w': expected a duration like .*; units are ms, s"):
        grammar.expand_config_value("retention.ms", "1w")
    with pytest.raises(GrammarError, match="a whole number of minutes"):
        grammar.expand_config_value("offsets.retention.minutes", "90s")


@pytest.mark.parametrize(("text", "broker"), [("1", 1), ("broker-12", 12)])
def test_brokers(text: str, broker: int) -> None:
    assert grammar.parse_broker(text) == broker


@pytest.mark.parametrize(
    "text", ["", "-1", "broker-", "broker1", "controller-1", "99999999999999999999", "2147483648"]
)
def test_wrong_brokers_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(GrammarError, match=r"as in 1 or broker-1"):
        grammar.parse_broker(text)
    with pytest.raises(GrammarError, match=r"as in 1,2,3"):
        grammar.parse_brokers(text)
    with pytest.raises(GrammarError, match=r"as in 1:2:3"):
        grammar.parse_brokers(text, ":")


def test_a_broker_is_listed_once() -> None:
    assert grammar.parse_brokers("1,broker-3") == (1, 3)
    with pytest.raises(GrammarError):
        grammar.parse_brokers("1,1")


@given(text=st.text(max_size=40))
def test_any_text_is_a_value_or_a_refusal_that_repeats_it(text: str) -> None:
    for parse in PARSERS:
        refusal = _refusal(parse, text)
        assert refusal is None or refusal.startswith(f"{text!r}: expected ")


def _refusal(parse: Callable[[str], object], text: str) -> str | None:
    try:
        parse(text)
    except GrammarError as error:
        return str(error)
    return None


def test_a_long_text_is_not_repeated_whole() -> None:
    with pytest.raises(GrammarError) as caught:
        grammar.parse_broker("9" * 10_000)
    assert len(str(caught.value)) < 200


def test_the_nearest_word() -> None:
    assert grammar.nearest("timeot", ["offset", "timeout"]) == "timeout"
    assert grammar.nearest("xyz", ["offset", "timeout"]) is None
