"""Reports of proxies about a request: which part is used, and what is left unused."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from http_api.contract.forwarding import HEADERS, NO_PROXIES, Forwarded, TrustedProxies

PROXIES = TrustedProxies((ipaddress.ip_network("10.0.0.0/8"), ipaddress.ip_network("::1")))
HERE = "http://broker-1:8082"


def seen(*lines: tuple[str, str]) -> str:
    found = PROXIES.forwarded_by(lines)
    assert found is not None
    return found.base_url(HERE)


def client(*lines: tuple[str, str]) -> str | None:
    found = PROXIES.forwarded_by(lines)
    assert found is not None
    return found.client


@pytest.mark.parametrize(
    ("lines", "url"),
    [
        ([("X-Forwarded-Host", "log.example")], "http://log.example"),
        ([("x-forwarded-host", "log.example:8443, inner")], "http://log.example:8443"),
        ([("X-Forwarded-Host", "a"), ("X-Forwarded-Host", "b")], "http://a"),
        ([("X-Forwarded-Host", "[2001:db8::1]:81")], "http://[2001:db8::1]:81"),
        ([("X-Forwarded-Host", "a"), ("X-Forwarded-Proto", "https")], "https://a"),
        ([("X-Forwarded-Host", "a:443"), ("X-Forwarded-Proto", "HTTPS")], "https://a"),
        ([("X-Forwarded-Host", "a"), ("X-Forwarded-Port", "8443")], "http://a:8443"),
        ([("X-Forwarded-Host", "a:1"), ("X-Forwarded-Port", "8443")], "http://a:1"),
        ([("X-Forwarded-Host", "a"), ("X-Forwarded-Port", "80")], "http://a"),
        ([("X-Forwarded-Host", "a"), ("X-Forwarded-Port", "x")], "http://a"),
        ([("X-Forwarded-Proto", "https")], "https://broker-1:8082"),
        ([("X-Forwarded-Prefix", "/log")], "http://broker-1:8082/log"),
        ([("X-Forwarded-Path", "/team/log/")], "http://broker-1:8082/team/log"),
        ([("X-Forwarded-Prefix", "/a, /b"), ("X-Forwarded-Path", "/c")], "http://broker-1:8082/a"),
        ([("Forwarded", "host=log.example;proto=https")], "https://log.example"),
        ([("Forwarded", 'for=1.1.1.1; Host="log.example:8443" ,host=b')], "http://log.example:8443"),
        ([("Forwarded", "host=a"), ("X-Forwarded-Host", "b"), ("X-Forwarded-Proto", "https")],
         "http://a"),
        ([("Forwarded", "for=1.1.1.1"), ("X-Forwarded-Host", "b")], "http://b"),
        ([("Forwarded", "host=a;")], "http://a"),
        ([("Forwarded", "host=a"), ("X-Forwarded-Prefix", "/log")], "http://a/log"),
        ([("X-Forwarded-For", "1.1.1.1")], HERE),
    ],
)  # fmt: skip
def test_what_a_proxy_reports_is_the_address_in_every_url(
    lines: list[tuple[str, str]], url: str
) -> None:
    assert seen(*lines) == url


@pytest.mark.parametrize(
    "host",
    ["", "a b", "a/b", "evil.example/", "user@a", "a_b", "a\r\nX: y", "a\x00", "é", "a:0",
     "a:99999", "a:", ":80", "[]", "[::1", "[zz]", "[1.2.3.4.5]", "a" * 256, "a" * 1_000, "a:b:c",
     '"a"', "a#", "a?x"],
)  # fmt: skip
def test_a_bad_host_is_left_unused(host: str) -> None:
    assert seen(("X-Forwarded-Host", host)) == HERE
    assert seen(("Forwarded", f"host={host}")) in {HERE, "http://a"}  # it ends where a name may not
    assert seen(("Forwarded", f'host="{host}"')) in {HERE, "http://a"}


@pytest.mark.parametrize(
    "prefix",
    ["", "/", "log", "//evil.example", "/a//b", "/..", "/a/../b", "/a/.", "/a?b", "/a#b", "/a%2Fb",
     "/a b", "/a\r\nX: y", "/a\x00", "http://evil.example", "/" + "a" * 255, "/é", "/a;b", "\\a"],
)  # fmt: skip
def test_a_prefix_that_is_no_plain_path_is_left_unused(prefix: str) -> None:
    assert seen(("X-Forwarded-Prefix", prefix)) == HERE
    assert seen(("X-Forwarded-Path", prefix), ("X-Forwarded-Host", "a")) == "http://a"


@pytest.mark.parametrize("scheme", ["", "javascript", "https:", "ws", "h\x00ttp", "http s"])
def test_another_scheme_is_left_unused(scheme: str) -> None:
    assert seen(("X-Forwarded-Proto", scheme), ("X-Forwarded-Host", "a")) == "http://a"


def test_a_request_without_such_a_header_was_not_forwarded() -> None:
    assert PROXIES.forwarded_by([("Host", "a"), ("X-Forwarded-Server", "b"), ("Via", "c")]) is None


def test_only_connections_from_the_networks_are_believed() -> None:
    assert PROXIES.includes("10.255.0.1")
    assert PROXIES.includes("::ffff:10.0.0.1")
    assert PROXIES.includes("::1")
    for other in ("11.0.0.1", "::2", "127.0.0.1", "localhost", "", None):
        assert not PROXIES.includes(other)
        assert not NO_PROXIES.includes(other)


def test_the_client_is_the_last_address_that_is_no_trusted_proxy() -> None:
    assert client(("X-Forwarded-For", "6.6.6.6, 1.1.1.1, 10.0.0.2")) == "1.1.1.1"
    assert client(("X-Forwarded-For", "6.6.6.6"), ("X-Forwarded-For", "1.1.1.1:80")) == "1.1.1.1"
    assert client(("X-Forwarded-For", "10.0.0.3, 10.0.0.2")) == "10.0.0.3"
    assert client(("X-Forwarded-For", "unknown")) is None
    assert client(("X-Forwarded-For", "1.1.1.1, junk, 10.0.0.2")) == "10.0.0.2"
    assert (
        client(("Forwarded", 'for=6.6.6.6, for="[2001:db8::7]:4711";proto=http')) == "2001:db8::7"
    )
    assert client(("Forwarded", "for=1.1.1.1"), ("X-Forwarded-For", "2.2.2.2")) == "1.1.1.1"
    assert client(("X-Forwarded-Host", "a")) is None
    assert client(("X-Forwarded-For", ", ".join(["10.0.0.1"] * 1_000))) == "10.0.0.1"


texts = st.text(max_size=300) | st.from_regex(
    r'[a-z]{1,4}="?[a-z:.\[\]/\\]{0,9}"?[;,]?', fullmatch=True
)


@given(st.lists(st.tuples(st.sampled_from(HEADERS), texts), min_size=1, max_size=6))
def test_whatever_a_proxy_writes_the_result_is_a_url_of_plain_characters(
    lines: list[tuple[str, str]],
) -> None:
    found = PROXIES.forwarded_by(lines)
    assert isinstance(found, Forwarded)
    url = found.base_url(HERE)
    assert url.isascii()
    assert url.isprintable()
    assert not set(url) & set(" \"'<>\\?#@%")
    parts = urlsplit(url)
    assert parts.scheme in {"http", "https"}
    assert parts.hostname
    assert parts.port != 0
    assert ".." not in parts.path.split("/")
    assert found.client is None or ipaddress.ip_address(found.client)
