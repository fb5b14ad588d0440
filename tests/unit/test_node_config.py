"""config.toml, environment and --set (interfaces.md §2)."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from broker.config import AccessLogConfig, BrokerDefaults, BrokerLimits, BrokerTimeouts
from http_api.node.exits import EXIT_USAGE, NodeConfigError
from http_api.node.formatting import defaults_for_size
from http_api.node.node_config import (
    BY_NAME,
    SETTINGS,
    Address,
    NodeConfig,
    RaftTimeouts,
    load_node_config,
    parse_address,
    read_config_file,
    render_config,
    trusted_hosts,
)
from raft_metadata.common.ids import DirectoryId
from raft_metadata.common.tls import TlsFiles

BROKER = """
[node]
id = 1
role = "broker"
cluster_id = "AAAAAAAAAAAAAAAAAAAAAA"
data_dir = "."
[listeners]
http = "127.0.0.1:8082"
peer = "127.0.0.1:9082"
[advertised]
http = "broker-1.example:80"
peer = "127.0.0.1:9999"
[controllers]
101 = {http = "127.0.0.1:10082", raft = "127.0.0.1:11082"}
102 = {http = "127.0.0.1:10083", raft = "127.0.0.1:11083"}
"""


def write(tmp_path: Path, text: str = BROKER) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(text)
    return path


def load(
    path: Path, environment: dict[str, str] | None = None, *overrides: str, **more: Any
) -> NodeConfig:
    return load_node_config(path, environment or {}, overrides, **more)


def refused(path: Path, environment: dict[str, str] | None = None, *overrides: str) -> str:
    with pytest.raises(NodeConfigError) as caught:
        load(path, environment, *overrides)
    assert caught.value.code == EXIT_USAGE
    return caught.value.message


def test_a_file_becomes_a_broker_configuration(tmp_path: Path) -> None:
    config = load(write(tmp_path))

    assert (config.node_id, config.role, config.name) == (1, "broker", "broker-1")
    assert config.data_dir == tmp_path
    assert config.listen_http == Address("127.0.0.1", 8082)
    assert sorted(config.controllers) == [101, 102]
    broker = config.broker_config(DirectoryId("d"))
    assert broker.advertised_http == "broker-1.example:80"
    assert broker.advertised_peer == "127.0.0.1:9999"
    assert broker.timeouts == BrokerTimeouts()


def test_advertised_is_where_it_listens_unless_said(tmp_path: Path) -> None:
    text = BROKER.replace('http = "broker-1.example:80"\n', "")
    assert load(write(tmp_path, text)).advertised_http == Address("127.0.0.1", 8082)


def test_hosts_are_a_list_in_the_file_and_a_text_with_commas_elsewhere(tmp_path: Path) -> None:
    text = BROKER.replace("[listeners]", '[listeners]\nhosts = ["log.example", "log.example:8443"]')
    assert load(write(tmp_path, text)).hosts == ("log.example", "log.example:8443")
    found = load(write(tmp_path), {"QUORUMLOG_LISTENERS__HOSTS": "a.example, b.example:1"})
    assert found.hosts == ("a.example", "b.example:1")
    assert trusted_hosts(found).named == {("a.example", None), ("b.example", 1)}
    for wrong in ("https://log.example", "a b", "*", ","):
        assert "expected a list of at most 100 host names" in refused(
            write(tmp_path), {}, f"listeners.hosts={wrong}"
        )


def test_trusted_proxies_are_networks_and_none_by_default(tmp_path: Path) -> None:
    assert load(write(tmp_path)).proxies.networks == ()
    text = BROKER.replace("[listeners]", '[listeners]\nforwarded_from = ["10.0.0.0/8", "::1"]')
    proxies = load(write(tmp_path, text)).proxies
    assert [proxies.includes(one) for one in ("10.1.2.3", "::1", "11.0.0.1", "")] == [
        True, True, False, False,
    ]  # fmt: skip
    found = load(write(tmp_path), {"QUORUMLOG_LISTENERS__FORWARDED_FROM": "127.0.0.1, fd00::/8"})
    assert found.proxies.includes("::ffff:127.0.0.1")
    for wrong in ("localhost", "10.0.0.1/8", "*", ",", "10.0.0.0/33"):
        assert "expected a list of at most 100 networks or IP addresses" in refused(
            write(tmp_path), {}, f"listeners.forwarded_from={wrong}"
        )


def test_file_then_environment_then_set(tmp_path: Path) -> None:
    path = write(tmp_path, BROKER + "[timeouts]\nbroker_session_timeout_ms = 2000\n")
    name = "QUORUMLOG_TIMEOUTS__BROKER_SESSION_TIMEOUT_MS"

    assert load(path).timeouts.broker_session_timeout_ms == 2000
    assert load(path, {name: "3000"}).timeouts.broker_session_timeout_ms == 3000
    override = "broker_session_timeout_ms=4000"
    assert load(path, {name: "3000"}, override).timeouts.broker_session_timeout_ms == 4000


def test_environment_reaches_every_section(tmp_path: Path) -> None:
    config = load(
        write(tmp_path),
        {
            "QUORUMLOG_URL": "http://ignored",
            "QUORUMLOG_SUPERVISOR_PID": "1",
            "QUORUMLOG_NODE__RACK": "r1",
            "QUORUMLOG_LISTENERS__HTTP": "127.0.0.1:1",
            "QUORUMLOG_DIAL__BROKER_2_PEER": "127.0.0.1:2",
            "QUORUMLOG_CONTROLLERS__103": '{http = "127.0.0.1:3", raft = "127.0.0.1:4"}',
            "QUORUMLOG_DEFAULTS__AUTO_CREATE_TOPICS_ENABLE": "false",
        },
    )
    assert config.rack == "r1"
    assert config.listen_http.port == 1
    assert config.dial_address("broker-2", "peer", Address("x", 9)) == Address("127.0.0.1", 2)
    assert config.dial_address("broker-3", "peer", Address("x", 9)) == Address("x", 9)
    assert config.controllers[103].raft.port == 4
    assert config.defaults.auto_create_topics_enable is False


def test_dial_keys_may_stand_without_quotes(tmp_path: Path) -> None:
    path = write(tmp_path, BROKER + '[dial]\nbroker-2.http = "127.0.0.1:7"\n')
    assert load(path).dial == {"broker-2.http": Address("127.0.0.1", 7)}


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("[timeouts]\nbroker_sesion_timeout_ms = 1", "broker_session_timeout_ms"),
        ("[timeout]\nx = 1", "timeouts"),
        ("[limits]\nmax_body_byte = 1", "max_body_bytes"),
        ("[dial]\n'broker-2.htp' = 'x:1'", "broker-2.http"),
    ],
)
def test_an_unknown_key_names_the_nearest(tmp_path: Path, text: str, nearest: str) -> None:
    assert nearest in refused(write(tmp_path, BROKER + text))


def test_an_unknown_key_from_outside_names_the_nearest(tmp_path: Path) -> None:
    path = write(tmp_path)
    assert "'flush'" in refused(path, {"QUORUMLOG_DEFAULTS__FLUSHH": "os"})
    assert "'defaults'" in refused(path, {"QUORUMLOG_DEFAULT__FLUSH": "os"})
    assert "'flush'" in refused(path, None, "flusch=os")
    assert "expected key=value" in refused(path, None, "flush")


@pytest.mark.parametrize(
    "override",
    [
        "num_partitions=0",
        "num_partitions=many",
        "flush=never",
        "auto_create_topics_enable=maybe",
        "listeners.http=nowhere",
        "listeners.http=host:70000",
        "node.role=king",
        "node.id=0",
        "node.log_level=loud",
    ],
)
def test_a_bad_value_is_named_with_what_was_expected(tmp_path: Path, override: str) -> None:
    message = refused(write(tmp_path), None, override)
    assert "expected" in message
    assert override.partition("=")[2] in message


CONTROLLER = """
[node]
id = 101
role = "controller"
cluster_id = "AAAAAAAAAAAAAAAAAAAAAA"
data_dir = "."
[listeners]
http = "127.0.0.1:10082"
raft = "0.0.0.0:11082"
[controllers]
101 = {http = "127.0.0.1:10082", raft = "10.0.0.1:11082"}
"""
TLS = """
[tls]
ca = "ca.pem"
certificate = "/etc/quorumlog/node.pem"
key = "secret/node.key"
"""


def test_a_public_raft_bind_needs_tls_or_insecure(tmp_path: Path) -> None:
    told = refused(write(tmp_path, CONTROLLER))
    for part in (
        "listeners.raft",
        "0.0.0.0:11082",
        "[tls]",
        "ca, certificate and key",
        "--insecure",
    ):
        assert part in told
    assert load(write(tmp_path, CONTROLLER), insecure=True).tls is None
    config = load(write(tmp_path, CONTROLLER + TLS))
    assert config.tls == TlsFiles(
        ca=tmp_path / "ca.pem",
        certificate=Path("/etc/quorumlog/node.pem"),
        key=tmp_path / "secret/node.key",
    )
    # No other listener is behind it.
    public = "listeners.http=0.0.0.0:8082"
    assert "listeners.http" in refused(write(tmp_path, CONTROLLER + TLS), None, public)


def test_tls_wants_all_of_its_files(tmp_path: Path) -> None:
    for key in ("ca", "certificate", "key"):
        lines = [line for line in TLS.splitlines() if not line.startswith(f"{key} ")]
        assert f"tls.{key} = None" in refused(write(tmp_path, CONTROLLER + "\n".join(lines)))
    assert "tls.kez" in refused(write(tmp_path, CONTROLLER + TLS + "kez = 'x'"))
    environment = {f"QUORUMLOG_TLS__{key}": f"{key}.pem" for key in ("CA", "CERTIFICATE", "KEY")}
    config = load(write(tmp_path, CONTROLLER), environment)
    assert config.tls is not None
    assert config.tls.key == tmp_path / "KEY.pem"


def test_a_public_bind_needs_insecure(tmp_path: Path) -> None:
    path = write(tmp_path)
    assert "--insecure" in refused(path, None, "listeners.http=0.0.0.0:8082")
    assert "listeners.peer" in refused(path, None, "listeners.peer=10.1.2.3:8082")
    config = load(path, {}, "listeners.http=0.0.0.0:8082", insecure=True)
    assert config.listen_http.host == "0.0.0.0"
    assert load(path, {}, "listeners.http=[::1]:8082").listen_http == Address("::1", 8082)


def test_times_that_hang_on_the_session_follow_it(tmp_path: Path) -> None:
    path = write(tmp_path)
    short = load(path, {}, "broker_session_timeout_ms=800").timeouts
    assert (short.replica_lag_time_max_ms, short.broker_heartbeat_interval_ms) == (2000, 200)
    longer = load(path, {}, "broker_session_timeout_ms=3000").timeouts
    assert (longer.replica_lag_time_max_ms, longer.broker_heartbeat_interval_ms) == (3000, 250)


def test_rule_r9_lag_beyond_two_and_a_half_sessions_is_refused(tmp_path: Path) -> None:
    message = refused(write(tmp_path), None, "replica_lag_time_max_ms=3001")
    assert "at most 3000" in message


def test_rule_g3_a_lag_shorter_than_a_deposed_leaders_proof_is_refused(tmp_path: Path) -> None:
    message = refused(write(tmp_path), None, "replica_lag_time_max_ms=299")
    assert "at least 300" in message
    short = load(write(tmp_path), {}, "broker_session_timeout_ms=100").timeouts
    assert short.replica_lag_time_max_ms == 250, "its own default is no contradiction"


def test_rule_m8_min_isr_above_the_replication_factor_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path)
    assert "min_insync_replicas = 2" in refused(path, None, "min_insync_replicas=2")
    both = load(path, {}, "min_insync_replicas=2", "default_replication_factor=2")
    assert both.defaults.min_insync_replicas == 2


@pytest.mark.parametrize(
    ("brokers", "replicas", "min_isr"), [(1, 1, 1), (2, 2, 1), (3, 3, 2), (5, 3, 2)]
)
def test_rule_m8_defaults_follow_the_size_the_cluster_is_made_with(
    brokers: int, replicas: int, min_isr: int
) -> None:
    settings = defaults_for_size(brokers)
    assert settings["default_replication_factor"] == replicas
    assert settings["min_insync_replicas"] == min_isr
    assert settings["auto_create_topics_enable"] is True


def test_missing_sections_and_roles_are_named(tmp_path: Path) -> None:
    assert "controllers" in refused(write(tmp_path, BROKER.partition("[controllers]")[0]))
    without_peer = BROKER.replace('peer = "127.0.0.1:9082"\n', "")
    assert "listeners.peer" in refused(write(tmp_path, without_peer))
    as_controller = BROKER.replace('"broker"', '"controller"').replace("peer =", "raft =")
    assert "one of [controllers]" in refused(write(tmp_path, as_controller))
    assert "no configuration file" in refused(tmp_path / "none.toml")


def test_every_setting_is_a_field_and_every_field_a_setting() -> None:
    homes = {
        "defaults": {field.name for field in fields(BrokerDefaults)},
        "limits": {field.name for field in fields(BrokerLimits)},
        "timeouts": {
            field.name for kind in (BrokerTimeouts, RaftTimeouts) for field in fields(kind)
        },
    }
    for section, names in homes.items():
        assert {one.row.key for one in SETTINGS if one.section == section} == names
    for setting in SETTINGS:
        row = setting.row
        assert setting.check(row.default, "default") == row.default
        assert row.meaning
    assert len(BY_NAME) == len(SETTINGS), "--set finds the section by key: keys are unique"


def test_a_rendered_file_is_read_back(tmp_path: Path) -> None:
    table = read_config_file(write(tmp_path, BROKER + '[dial]\n"broker-2.peer" = "a:1"\n'))
    table["node"]["rack"] = 'r"1\\'
    again = read_config_file(write(tmp_path, render_config(table)))
    assert again == table


def test_each_setting_that_is_given_or_uncommented_is_read_back_as_it_is_written(
    tmp_path: Path,
) -> None:
    """``--set min_cleanable_dirty_ratio=0.25`` wrote a word that no node then took."""
    table = read_config_file(write(tmp_path))
    ends_of_comment = "  # "
    lines = [
        line.removeprefix("# ").partition(ends_of_comment)[0]
        if line.startswith("# ") and line[2:].partition(" = ")[0] in BY_NAME
        else line
        for line in render_config(table).splitlines()
    ]
    config = load(write(tmp_path, "\n".join(lines)))
    assert config.defaults.min_cleanable_dirty_ratio == 0.5
    ratio = BY_NAME["min_cleanable_dirty_ratio"].parse("0.25", "--set")
    given = {**table, "defaults": {"min_cleanable_dirty_ratio": ratio}}
    assert load(write(tmp_path, render_config(given))).defaults.min_cleanable_dirty_ratio == 0.25


def test_addresses() -> None:
    assert str(parse_address("[::1]:80", "x")) == "[::1]:80"
    for text in ("", "host", "host:", ":80", "host:0", "host:65536", "host:8O"):
        with pytest.raises(NodeConfigError):
            parse_address(text, "x")


def test_the_access_log_is_in_the_nodes_folder_unless_said(tmp_path: Path) -> None:
    access = load(write(tmp_path)).access
    assert access == AccessLogConfig(
        file=tmp_path / "access.ndjson", mode="errors", slow_ms=1_000, max_bytes=67_108_864, keep=5
    )
    text = BROKER + '[log]\naccess = "all"\naccess_file = "/var/log/q.ndjson"\nkeep = 1\n'
    found = load(
        write(tmp_path, text), {"QUORUMLOG_LOG__ACCESS_SLOW_MS": "0"}, "log.max_bytes=4096"
    )
    assert found.access == AccessLogConfig(
        file=Path("/var/log/q.ndjson"), mode="all", slow_ms=0, max_bytes=4_096, keep=1
    )
    for key, wrong, expected in (
        ("access", "some", "expected off or errors or all"),
        ("access_slow_ms", "-1", "expected a whole number from 0 to 3600000"),
        ("max_bytes", "1", "expected a whole number from 4096 to"),
        ("keep", "0", "expected a whole number from 1 to 1000"),
        ("keep", "many", "expected a whole number from 1 to 1000"),
        ("access_file", "", "expected the path of a file"),
        ("acces", "all", "the nearest is 'access'"),
    ):
        assert expected in refused(write(tmp_path), {}, f"log.{key}={wrong}")
