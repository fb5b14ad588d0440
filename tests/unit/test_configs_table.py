"""The one table of configs: kinds, ranges, places; and which of several values is in force."""

from __future__ import annotations

import pytest

from raft_metadata.common.configs.layers import ConfigLayers, ConfigSource
from raft_metadata.common.configs.rows import (
    FlagConfig,
    ListConfig,
    NumberConfig,
    RatioConfig,
    Scope,
    Section,
    Update,
    text_of,
)
from raft_metadata.common.configs.table import (
    AUTO_CREATE_TOPICS_ENABLE,
    CONFIGS,
    FLUSH,
    MIN_INSYNC_REPLICAS,
    SEGMENT_BYTES,
    TOPIC_CONFIGS,
    default_flag,
    default_number,
    default_word,
    find_config,
)
from raft_metadata.common.errors import ErrorCode, KafkaError


@pytest.mark.parametrize("name", CONFIGS)
def test_every_config_has_a_range_and_a_default_within(name: str) -> None:
    row = CONFIGS[name]
    assert row.allows(row.default)
    assert row.parse(text_of(row.default)) == row.default
    assert row.meaning
    wrong = ["", "x", "1.5", "1_0", " 1", "٣", "9" * 30, "-" + "1" * 22]
    if isinstance(row, NumberConfig):
        assert row.parse(str(row.minimum)) == row.minimum
        assert row.parse(str(row.maximum)) == row.maximum
        wrong += [str(row.minimum - 1), str(row.maximum + 1), "true"]
        assert not row.allows(True)
    if isinstance(row, RatioConfig):
        assert [row.parse(text) for text in ("0", "1", "1.0", "0.25")] == [0, 1, 1, 0.25]
        assert text_of(row.parse("0.00001")) == "0.00001"
        assert not row.allows(True)
        wrong += ["-0.1", "1.01", "1e-3", ".5", "nan", "inf", "true"]
    if isinstance(row, ListConfig):
        wrong = ["a b", ",", "x,,y", "\x00", "é", '"', "x" * 300, "https://" + "a" * 1_000]
        wrong.append(",".join(["*" if "origins" in name else "x"] * (row.items_max + 1)))
        assert not row.allows(1)
    for value in wrong:
        with pytest.raises(KafkaError) as refused:
            row.parse(value)
        assert refused.value.code is ErrorCode.INVALID_CONFIG
        assert name in refused.value.message
        assert row.expected in refused.value.message


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("segment.ms", "1h", "a whole number from 1 to 9223372036854775807, in milliseconds"),
        ("segment.bytes", "64MiB", "a whole number from 1024 to 2147483647, in bytes"),
        ("leader.replication.throttled.rate", "0", "9223372036854775807, in bytes per second"),
        ("log.cleaner.io.max.bytes.per.second", "1", "1099511627776, in bytes per second"),
        ("log.cleaner.dedupe.buffer.size", "1", "68719476736, in bytes"),
        ("num.partitions", "many", "expected a whole number from 1 to 10000"),
    ],
)
def test_a_wrong_number_is_refused_with_its_unit(name: str, value: str, expected: str) -> None:
    with pytest.raises(KafkaError) as refused:
        CONFIGS[name].parse(value)
    assert refused.value.message.endswith(expected)


def test_flags_are_read_in_any_case_and_written_in_one() -> None:
    row = CONFIGS[AUTO_CREATE_TOPICS_ENABLE]
    assert isinstance(row, FlagConfig)
    assert [text_of(row.parse(text)) for text in ("TRUE", "False")] == ["true", "false"]
    assert not row.allows(1)


def test_a_config_is_live_where_it_can_be_set_and_else_read_at_start() -> None:
    for row in CONFIGS.values():
        assert (row.update is Update.LIVE) == bool(row.scopes)
        assert row.scopes or row.section is not None, f"nobody can ever set {row.name}"
    assert set(TOPIC_CONFIGS) == {n for n, row in CONFIGS.items() if Scope.TOPIC in row.scopes}
    assert all(Scope.CLUSTER in row.scopes for row in TOPIC_CONFIGS.values()), "Kafka's defaults"
    on_one_broker = {name for name, row in CONFIGS.items() if Scope.BROKER in row.scopes}
    assert on_one_broker == {
        "segment.bytes",
        "segment.ms",
        "leader.replication.throttled.rate",
        "follower.replication.throttled.rate",
        "replica.selector",
        "cors.allowed.origins",
        "http.gzip",
        "http.ignored.parameters",
    }


def test_a_list_is_stored_without_the_spaces_around_its_items() -> None:
    row = CONFIGS["cors.allowed.origins"]
    assert (
        row.parse(" https://a.example ,http://[::1]:8082") == "https://a.example,http://[::1]:8082"
    )
    assert row.parse("  ") == ""
    layers = ConfigLayers(cluster={"cors.allowed.origins": "*,http://b"})
    assert layers.items("cors.allowed.origins") == ("*", "http://b")
    assert ConfigLayers().items("http.ignored.parameters") == ()
    for wrong in (
        "app.example",
        "ftp://a",
        "https://a/",
        "https://u@a",
        "https://a:123456",
        "null",
    ):
        with pytest.raises(KafkaError, match=r"origins such as https://app\.example\.com:8443, or"):
            row.parse(wrong)


def test_the_key_in_a_file_is_the_name_with_underscores() -> None:
    assert CONFIGS["replica.lag.time.max.ms"].key == "replica_lag_time_max_ms"
    assert CONFIGS["replica.lag.time.max.ms"].section is Section.TIMEOUTS


@pytest.mark.parametrize(
    ("name", "scope", "said"),
    [
        ("segment.byte", Scope.TOPIC, "unknown topic config 'segment.byte'; did you mean seg"),
        ("num.partition", Scope.CLUSTER, "did you mean num.partitions?"),
        ("num.partitions", Scope.TOPIC, "can be set for a cluster, not for a topic"),
        (MIN_INSYNC_REPLICAS, Scope.BROKER, "for a topic or cluster, not for a broker"),
        (
            "max.body.bytes",
            Scope.BROKER,
            "is read-only: set max_body_bytes of [limits] in the node's config.toml and restart",
        ),
        ("x" * 100_000, Scope.TOPIC, "unknown topic config"),
    ],
)
def test_a_config_that_cannot_be_set_there_says_what_can(
    name: str, scope: Scope, said: str
) -> None:
    with pytest.raises(KafkaError) as refused:
        find_config(name, scope)
    assert refused.value.code is ErrorCode.INVALID_CONFIG
    assert said in refused.value.message
    assert len(refused.value.message) < 300


def test_the_strongest_place_that_says_something_is_in_force() -> None:
    places = {
        "topic": ConfigSource.DYNAMIC_TOPIC_CONFIG,
        "broker": ConfigSource.DYNAMIC_BROKER_CONFIG,
        "cluster": ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG,
        "static": ConfigSource.STATIC_BROKER_CONFIG,
    }
    said = {place: {SEGMENT_BYTES: str(2_000 + at)} for at, place in enumerate(places)}
    row = CONFIGS[SEGMENT_BYTES]
    while said:
        strongest = next(iter(said))
        layers = ConfigLayers(**said)  # type: ignore[arg-type]
        shown = layers.describe(row)
        assert str(layers.number(SEGMENT_BYTES)) == shown.value == said[strongest][SEGMENT_BYTES]
        assert shown.source is places[strongest]
        assert not shown.is_default
        assert [one.source for one in shown.synonyms] == [
            *(places[place] for place in said),
            ConfigSource.DEFAULT_CONFIG,
        ]
        del said[strongest]
    shown = ConfigLayers().describe(row)
    assert (shown.value, shown.is_default) == (str(row.default), True)


def test_a_description_says_what_is_read_only() -> None:
    layers = ConfigLayers(static={"max.body.bytes": "2048"})
    assert layers.describe(CONFIGS["max.body.bytes"]).is_read_only
    assert not layers.describe(CONFIGS[FLUSH]).is_read_only


@pytest.mark.parametrize(
    ("topic", "cluster", "static", "replicas", "expected"),
    [
        (None, None, "2", 3, 2),
        (None, None, "2", 1, 1),
        (None, "3", "2", 3, 3),
        (None, "3", "2", 2, 2),
        (None, "1", "2", 3, 1),
        ("3", "1", "1", 3, 3),
        ("1", "2", "2", 3, 1),
        (None, None, None, 3, 1),
    ],
)
def test_rule_m8_a_default_min_isr_is_capped_and_a_topics_own_never_bent(
    topic: str | None, cluster: str | None, static: str | None, replicas: int, expected: int
) -> None:
    said = {"topic": topic, "cluster": cluster, "static": static}
    layers = ConfigLayers(
        **{at: {} if value is None else {MIN_INSYNC_REPLICAS: value} for at, value in said.items()}
    )
    assert layers.min_isr(replicas) == expected
    shown = layers.describe(CONFIGS[MIN_INSYNC_REPLICAS], replication_factor=replicas)
    assert shown.value == str(expected)


def test_defaults_of_dataclasses_come_from_the_table() -> None:
    assert default_number(SEGMENT_BYTES) == CONFIGS[SEGMENT_BYTES].default
    assert default_word(FLUSH) == "ack"
    assert default_flag(AUTO_CREATE_TOPICS_ENABLE) is True
