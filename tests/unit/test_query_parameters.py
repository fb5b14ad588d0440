"""Names in a query: declared ones pass, any other is refused with the nearest and all known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from http_api.contract.errors import RestError
from http_api.contract.grammar import OFFSET_MAX, AtOffset, FromTime, LastRecords, parse_position
from http_api.server.query_parameters import (
    IGNORED_NAMED_MAX,
    check_parameters,
    ignored_header,
    read_start,
)

KNOWN = frozenset({"offset", "timestamp", "timeout", "max_bytes"})
NAMES = st.text(max_size=20)
UNDERSCORED = NAMES.map(lambda name: f"_{name}")


def refusal(*names: str, known: frozenset[str] = KNOWN) -> str:
    with pytest.raises(RestError) as caught:
        check_parameters(names, known)
    assert (caught.value.status, caught.value.code) == (400, 40002)
    return caught.value.message


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("timeot", "Parameter 'timeot' is not known here: did you mean 'timeout'? Known: max_by"),
        ("Offset", "Parameter 'Offset' is not known here: did you mean 'offset'? Known: max_by"),
        ("", "Parameter '' is not known here. Known: max_bytes, offset, timeout, timestamp"),
        ("\udc80", "Parameter '?' is not known here. Known: "),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(name: str, text: str) -> None:
    assert refusal("offset", name).startswith(text)


def test_a_route_without_parameters_has_none_to_suggest() -> None:
    text = "Parameter 'x' is not known here: this path takes none"
    assert refusal("x", known=frozenset()) == text


def test_a_name_given_twice_is_refused() -> None:
    assert refusal("offset", "offset") == "Parameter 'offset' is given twice: expected once"


@given(st.lists(st.sampled_from(sorted(KNOWN)), unique=True), st.lists(UNDERSCORED))
def test_declared_names_pass_and_underscored_ones_are_ignored(
    declared: list[str], ignored: list[str]
) -> None:
    assert check_parameters([*ignored, *declared], KNOWN) == tuple(dict.fromkeys(ignored))


@given(st.lists(st.sampled_from(sorted(KNOWN)), unique=True), NAMES)
def test_any_other_name_is_refused_in_a_text_that_utf8_can_encode(
    declared: list[str], name: str
) -> None:
    if name in KNOWN or name.startswith("_"):
        return
    text = refusal(*declared, name)
    text.encode()
    for known in KNOWN:
        assert known in text


@given(st.lists(UNDERSCORED | st.just("_\r\nSet-Cookie: x") | st.just("_\udc80"), unique=True))
def test_no_name_breaks_the_header_that_lists_it(ignored: list[str]) -> None:
    value = ignored_header(ignored)
    assert value.isascii()
    assert value.isprintable()
    assert value.count(", ") <= IGNORED_NAMED_MAX


@given(st.integers(0, OFFSET_MAX))
def test_numbers_times_and_counts_mean_what_the_command_line_means(number: int) -> None:
    assert read_start({"offset": str(number)}) == AtOffset(number)
    assert read_start({"offset": f"@{number}"}) == FromTime(number)
    if number:
        assert read_start({"offset": f"-{number}"}) == LastRecords(number)
    if number < 10**18:
        assert read_start({"timestamp": str(number)}) == FromTime(number)


TEXTS = st.text() | st.from_regex(r"[-@]?[0-9]{0,20}|20[0-9]{2}-[0-9]{2}-[0-9]{2}[T 0-9:+Z]*")


@given(TEXTS)
def test_a_text_is_a_position_or_a_refusal_that_names_it(text: str) -> None:
    try:
        expected = parse_position(text)
    except ValueError:
        with pytest.raises(RestError) as caught:
            read_start({"offset": text})
        error = caught.value
        assert (error.status, error.code) == (400, 40002)
        assert error.message.startswith("Parameter 'offset' is ")
        assert ": expected " in error.message
        error.message.encode()
    else:
        assert read_start({"offset": text}) == expected


def test_offset_and_timestamp_exclude_each_other() -> None:
    with pytest.raises(RestError, match="are both given: expected one of them"):
        read_start({"offset": "latest", "timestamp": "0"})
