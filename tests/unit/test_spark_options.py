"""Options of the Spark source and sink: defaults, and errors that say what was meant."""

from __future__ import annotations

import pytest

from spark_source.errors import OptionError
from spark_source.options import EARLIEST, LATEST, TextFormat, sink_options, source_options

URL = {"url": "http://a:1"}
READ = {**URL, "subscribe": "t"}


def test_defaults_are_those_of_sparks_kafka_source() -> None:
    batch = source_options(READ, {}, streaming=False)
    stream = source_options(READ, {}, streaming=True)
    assert (batch.starting_default, stream.starting_default) == (EARLIEST, LATEST)
    assert batch.fail_on_data_loss
    assert stream.max_offsets_per_trigger is None


def test_brokers_are_a_list_and_may_come_from_the_environment() -> None:
    given = {"servers": "a:1, http://b:2/", "subscribe": "t"}
    assert source_options(given, {}, streaming=True).connection.urls == ("http://a:1", "http://b:2")
    found = source_options({"subscribe": "t"}, {"QUORUMLOG_URL": "http://c:3"}, streaming=True)
    assert found.connection.urls == ("http://c:3",)


def test_offsets_may_name_some_partitions_only() -> None:
    given = {**READ, "startingoffsets": '{"t":{"0":23,"2":-2}}'}
    found = source_options(given, {}, streaming=True)
    assert found.starting == {"t": {0: 23, 2: EARLIEST}}
    assert found.starting_default == LATEST


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({**READ, "startingofset": "latest"}, "did you mean startingOffsets"),
        ({**READ, "maxoffsetpertrigger": "1"}, "did you mean maxOffsetsPerTrigger"),
        ({**READ, "xyzzy": "1"}, "known: url, servers"),
        ({**READ, "kafka.bootstrap.servers": "a:1"}, "say url=http"),
        ({**READ, "subscribepattern": "t.*"}, "subscribePattern comes in a later version"),
        ({"subscribe": "t"}, "QUORUMLOG_URL"),
        (URL, "subscribe=topic"),
        ({**READ, "startingoffsets": "{oops"}, "expected earliest, latest, or JSON"),
        ({**READ, "startingoffsets": '{"t":{"0":-3}}'}, "expected earliest, latest, or JSON"),
        ({**READ, "startingoffsets": '{"t":[1]}'}, "expected earliest, latest, or JSON"),
        ({**READ, "startingoffsets": '{"u":{"0":1}}'}, "names 'u', which subscribe=t does not"),
        ({**READ, "endingoffsets": "earliest"}, "can't be earliest"),
        ({**READ, "maxoffsetspertrigger": "0"}, "expected an integer of at least 1"),
        ({**READ, "fetchbytes": "7"}, "at least 1024 and at most"),
        ({**READ, "failondataloss": "perhaps"}, "expected true or false"),
    ],
)
def test_a_wrong_option_is_told_with_what_is_right(given: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        source_options(given, {}, streaming=False)


def test_a_stream_has_no_ending_offsets() -> None:
    with pytest.raises(OptionError, match="for batch queries"):
        source_options({**READ, "endingoffsets": "latest"}, {}, streaming=True)


def test_options_that_spark_adds_are_let_through() -> None:
    given = {**URL, "topic": "t", "checkpointlocation": "x", "path": "y"}
    assert sink_options(given, {}).topic == "t"


@pytest.mark.parametrize(
    ("given", "formats"),
    [
        ({}, (TextFormat.BINARY, TextFormat.BINARY)),
        ({"valueformat": "json"}, (TextFormat.JSON, TextFormat.JSON)),
        ({"valueformat": "json", "keyformat": "string"}, (TextFormat.STRING, TextFormat.JSON)),
    ],
)
def test_keys_go_the_way_of_the_values_unless_told(
    given: dict[str, str], formats: tuple[TextFormat, TextFormat]
) -> None:
    options = sink_options({**URL, **given}, {})
    assert (options.key_format, options.value_format) == formats


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"deliveryguarantee": "exactly-once"}, "at-least-once; exactly-once comes in a later"),
        ({"keyformat": "string"}, "goes only with valueFormat=json"),
        ({"valueformat": "avro"}, "expected binary or json"),
        ({"topics": "t"}, "did you mean topic"),
    ],
)
def test_a_wrong_option_of_the_sink_is_told(given: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        sink_options({**URL, **given}, {})
