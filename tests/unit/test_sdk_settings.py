"""Settings of the SDK: each kind, their names in any spelling, and what is refused."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from http_api.client.client_errors import ConfigError
from http_api.client.network import ClientSecurity
from http_api.client.sdk.producer_settings import ProducerConfig, ProducerKeywords
from http_api.client.sdk.settings import (
    ALIASES,
    DAY_MS,
    DEFAULT_SERVERS,
    REFUSED,
    URL_VARIABLE,
    WITHOUT_EFFECT,
    CommonConfig,
    CommonKeywords,
    given_settings,
    read_servers,
    read_settings,
    word,
)


def read(first: str | list[str] | Mapping[str, object] | None = None, **keywords: object) -> object:
    return read_settings(CommonConfig, given_settings(first, keywords))


def config(**keywords: object) -> CommonConfig:
    return read_settings(CommonConfig, given_settings(None, keywords))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Worded(CommonConfig):
    assignor: str = word("uniform", ("uniform", "range"))
    retry_backoff_ms: int = 50


@pytest.mark.parametrize(
    ("keywords", "config"),
    [(CommonKeywords, CommonConfig), (ProducerKeywords, ProducerConfig)],
    ids=["common", "producer"],
)
def test_the_keywords_for_type_checkers_are_the_settings(
    keywords: type, config: type[CommonConfig]
) -> None:
    assert set(keywords.__annotations__) == {one.name for one in dataclasses.fields(config)}


def test_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(URL_VARIABLE, raising=False)
    found = config()
    assert found.bootstrap_servers == (DEFAULT_SERVERS,)
    assert (found.request_timeout_ms, found.api_timeout_ms) == (30_000, 60_000)
    assert found.follow_leaders


def test_the_environment_names_brokers_if_the_program_names_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(URL_VARIABLE, "a:1,https://b:2/prefix/")
    assert config().bootstrap_servers == ("http://a:1", "https://b:2/prefix")
    assert config(bootstrap_servers="c:3").bootstrap_servers == ("http://c:3",)
    monkeypatch.setenv(URL_VARIABLE, "ftp://a:1")
    with pytest.raises(ConfigError, match=URL_VARIABLE):
        config()


@pytest.mark.parametrize(
    ("written", "urls"),
    [
        ("a:1", ("http://a:1",)),
        ("a:1, b:2,a:1,", ("http://a:1", "http://b:2")),
        (["http://a:1", "b:2"], ("http://a:1", "http://b:2")),
        ("http://a", ("http://a",)),
        ("https://[::1]:9/x/y/", ("https://[::1]:9/x/y",)),
    ],
)
def test_spellings_of_brokers(written: object, urls: tuple[str, ...]) -> None:
    assert read_servers("bootstrap_servers", written) == urls


@pytest.mark.parametrize(
    "written",
    ["", "a", "a:b", "a:99999", "http://", "http://u:p@a:1", "http://a:1?x=1", "tcp://a:1", 1, [1]],
)
def test_brokers_that_are_refused(written: object) -> None:
    with pytest.raises(ConfigError, match=r"bootstrap_servers.*expected"):
        read_servers("bootstrap_servers", written)


@given(st.integers())
def test_integers_within_bounds(value: int) -> None:
    if 1 <= value <= DAY_MS:
        assert config(api_timeout_ms=value).api_timeout_ms == value
        assert config(api_timeout_ms=str(value)).api_timeout_ms == value
    else:
        with pytest.raises(ConfigError, match="api_timeout_ms"):
            config(api_timeout_ms=value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("api_timeout_ms", True),
        ("api_timeout_ms", 1.5),
        ("api_timeout_ms", "soon"),
        ("api_timeout_ms", None),
        ("follow_leaders", "maybe"),
        ("follow_leaders", 1),
        ("client_id", ""),
        ("client_id", 1),
        ("on_error", "print"),
        ("headers", {"a": 1}),
        ("headers", "a: b"),
        ("security", {"user": "a"}),
    ],
)
def test_wrong_values_are_named(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"setting {name}=.*expected"):
        config(**{name: value})


def test_right_values_of_each_kind() -> None:
    security = ClientSecurity(token="t")
    found = config(
        api_timeout_ms=2.0,
        follow_leaders="No",
        client_id="me",
        on_error=print,
        headers={"a": "b"},
        security=security,
    )
    assert (found.api_timeout_ms, found.follow_leaders, found.client_id) == (2, False, "me")
    assert (found.on_error, found.headers, found.security) == (print, {"a": "b"}, security)
    assert config(headers=dict).headers is dict


def test_words() -> None:
    assert read_settings(_Worded, {"assignor": "range"}).assignor == "range"
    with pytest.raises(ConfigError, match="one of uniform, range"):
        read_settings(_Worded, {"assignor": "sticky"})


def test_dotted_names_and_aliases() -> None:
    dotted = read({"bootstrap.servers": "a:1", "default.api.timeout.ms": "7", "client.id": "me"})
    assert dotted == config(bootstrap_servers="a:1", api_timeout_ms=7, client_id="me")
    assert read("a:1") == read(["a:1"]) == read(bootstrap_servers="a:1")


def test_a_setting_is_given_once() -> None:
    with pytest.raises(ConfigError, match="bootstrap_servers is given twice"):
        read("a:1", bootstrap_servers="b:1")
    with pytest.raises(ConfigError, match="the same one, given twice"):
        config(api_timeout_ms=1, default_api_timeout_ms=2)


def test_an_unknown_setting_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"'api_timeuot_ms', did you mean 'api_timeout_ms'"):
        config(api_timeuot_ms=1)
    with pytest.raises(ConfigError, match=r"^unknown setting 'zzzzzzzzz'$"):
        config(zzzzzzzzz=1)


@pytest.mark.parametrize("name", REFUSED)
def test_refused_settings_name_the_replacement(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read({name.replace("_", "."): "x"})
    assert str(caught.value) == f"setting {name} is not supported: {REFUSED[name]}"


@pytest.mark.parametrize("name", WITHOUT_EFFECT)
def test_settings_without_effect_warn(name: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "quorumlog.net"):
        assert config(**{name: 1}) == config()
    assert WITHOUT_EFFECT[name] in caplog.text


def test_security_protocol() -> None:
    assert config(security_protocol="plaintext") == config()
    with pytest.raises(ConfigError, match="https://"):
        config(security_protocol="SSL")


def test_no_name_is_in_two_tables() -> None:
    tables = [set(ALIASES), set(WITHOUT_EFFECT), set(REFUSED), set(CommonKeywords.__annotations__)]
    assert sum(map(len, tables)) == len(set.union(*tables))
