"""Configuration of one node: its ``config.toml``, the environment, ``--set`` (interfaces.md §2).

`load_node_config` reads the file, applies ``QUORUMLOG_SECTION__KEY`` over it and ``--set`` over
both, checks every value and the relations between them, and returns a `NodeConfig`. An unknown key
ends the process with exit 2 and the nearest known name, in every source. `render_config` writes the
file of a new node.

Every key of ``[defaults]``, ``[limits]`` and ``[timeouts]`` (a `Setting`) is a row of
``raft_metadata.common.configs.table`` and a field of a configuration dataclass (a test compares the
two). Times are milliseconds, sizes bytes.
"""

from __future__ import annotations

import contextlib
import difflib
import ipaddress
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from typing_extensions import override

from broker.config import (
    ACCESS_ERRORS,
    ACCESS_MODES,
    ACCESS_SLOW_MS_DEFAULT,
    LOG_BYTES_DEFAULT,
    LOG_KEEP_DEFAULT,
    AccessLogConfig,
    BrokerConfig,
    BrokerDefaults,
    BrokerLimits,
    BrokerTimeouts,
)
from http_api.contract.foreign_pages import TrustedHosts
from http_api.contract.forwarding import NO_PROXIES, TrustedProxies
from http_api.contract.origins import parse_authority
from http_api.node.exits import NodeConfigError
from raft_metadata.common.configs.rows import (
    ConfigRow,
    ConfigValue,
    FlagConfig,
    NumberConfig,
    RatioConfig,
    Section,
)
from raft_metadata.common.configs.table import CONFIGS, default_number
from raft_metadata.common.ids import BrokerId, ClusterId, DirectoryId, NodeId
from raft_metadata.common.tls import TlsFiles

SettingValue = ConfigValue


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftTimeouts:
    """The part of ``[timeouts]`` that only controllers use."""

    election_timeout_ms: int = default_number("election.timeout.ms")
    raft_heartbeat_ms: int = default_number("raft.heartbeat.ms")
    raft_step_down_ms: int = default_number("raft.step.down.ms")


@dataclass(frozen=True, slots=True)
class Setting:
    """A key of config.toml, and its row in the table."""

    section: str
    row: ConfigRow

    def check(self, value: object, origin: str) -> SettingValue:
        """Return the value if type and range fit this setting; else raise `NodeConfigError`."""
        if self.row.allows(value):
            assert isinstance(value, bool | int | float | str)
            return value
        msg = f"{origin}: {self.section}.{self.row.key} = {value!r}, expected {self.row.expected}"
        raise NodeConfigError(msg)

    def parse(self, text: str, origin: str) -> SettingValue:
        """Return the checked value of an environment variable or a ``--set``."""
        value: object = text
        if isinstance(self.row, FlagConfig):
            value = {"true": True, "false": False}.get(text.strip().lower(), text)
        elif isinstance(self.row, NumberConfig):
            try:
                value = int(text.strip())
            except ValueError:
                value = text
        elif isinstance(self.row, RatioConfig):
            with contextlib.suppress(ValueError):
                value = float(text.strip())
        return self.check(value, origin)


SETTINGS: tuple[Setting, ...] = tuple(
    Setting(row.section.value, row) for row in CONFIGS.values() if row.section is not None
)

BY_NAME = {setting.row.key: setting for setting in SETTINGS}
SETTING_SECTIONS = tuple(section.value for section in Section)


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name most like ``name``, as a hint in a refusal."""
    names = sorted(known)
    match = difflib.get_close_matches(name, names, n=1, cutoff=0.0)
    return match[0] if match else names[0]


def find_setting(key: str, origin: str) -> Setting:
    """Return the setting ``key`` or ``section.key``, with dots or underscores in the key.

    Raises `NodeConfigError`, which names the nearest key.
    """
    section, dot, rest = key.partition(".")
    wanted = rest if dot and section in SETTING_SECTIONS else key
    setting = BY_NAME.get(wanted.replace(".", "_"))
    if setting is not None and (wanted == key or setting.section == section):
        return setting
    hint = nearest(wanted.replace(".", "_"), BY_NAME)
    msg = f"{origin}: unknown key {key!r}, the nearest is {hint!r}"
    raise NodeConfigError(msg)


def split_assignment(text: str) -> tuple[str, str]:
    """Return key and value of ``key=value``, the text of a ``--set``."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        msg = f"--set {text!r}: expected key=value"
        raise NodeConfigError(msg)
    return key.strip(), value.strip()


ENVIRONMENT_PREFIX = "QUORUMLOG_"
ROLES = ("broker", "controller")
LAG_PER_SESSION = 2.5
"""Highest ``replica_lag_time_max_ms``, in broker sessions: a replica that lags leaves the in-sync
replicas after at most this many (rule R9)."""
HEARTBEATS_PER_ELECTION = 3
"""Least number of Raft heartbeats in an election time-out, as `QuorumConfig` requires: one lost
heartbeat must not start an election."""

_NODE_KEYS = ("id", "role", "cluster_id", "data_dir", "rack", "log_level", "log_format")
_ADDRESS_KEYS = ("http", "peer", "raft")
_TLS_HINTS = {
    "ca": "ca.pem: the cluster's own authority; paths are relative to this file",
    "certificate": "node.pem: with this node's name, such as controller-101, as a DNS name",
    "key": "node.key: of the certificate, without a password",
}
_DIAL_KEY = re.compile(r"(?:broker|controller)-\d+\.(?:http|peer|raft)")
_DIAL_ENVIRONMENT = re.compile(r"(BROKER|CONTROLLER)_(\d+)_(HTTP|PEER|RAFT)")
_LOG_HINTS: Mapping[str, str] = {
    "access": "errors: failed and slow requests, all: every request of clients, off: none",
    "access_slow_ms": "a request this much longer than it asked to wait is slow",
    "access_file": "relative to the node's folder",
    "max_bytes": "a file of this size is renamed to FILE.1, that to FILE.2, and so on",
    "keep": "how many of these there are",
}
_LOG_NUMBERS = {
    "access_slow_ms": (0, 3_600_000),
    "max_bytes": (4_096, 1 << 40),
    "keep": (1, 1_000),
}
"""Keys of ``[log]`` that are numbers, with their ranges."""
ACCESS_FILE = "access.ndjson"
_LOG_DEFAULTS: Mapping[str, str | int] = {
    "access": ACCESS_ERRORS,
    "access_slow_ms": ACCESS_SLOW_MS_DEFAULT,
    "max_bytes": LOG_BYTES_DEFAULT,
    "keep": LOG_KEEP_DEFAULT,
}
HOSTS_MAX = 100
"""Most names in ``[listeners] hosts``, and networks in ``forwarded_from``."""
_LISTENER_LISTS = ("hosts", "forwarded_from")
_HOST_NAME = re.compile(r"[A-Za-z0-9._-]{1,255}(:[0-9]{1,5})?")
_LOG_LEVELS = ("debug", "info", "warning", "error")
_LOG_FORMATS = ("text", "json")
SECTIONS = (
    "node",
    "listeners",
    "advertised",
    "controllers",
    "dial",
    "tls",
    "log",
    *SETTING_SECTIONS,
)

_Section = TypeVar("_Section")


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a port, written ``host:port`` with brackets around an IPv6 host."""

    host: str
    port: int

    @override
    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """True if only this machine can reach it; a name other than localhost may be any host."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerAddresses:
    """Addresses of a controller for all other nodes, unless ``[dial]`` overrides them."""

    http: Address
    raft: Address


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """The checked configuration of a node. ``inner`` is the peer or the Raft listener, by role."""

    node_id: NodeId
    role: str
    cluster_id: ClusterId
    data_dir: Path
    listen_http: Address
    listen_inner: Address
    advertised_http: Address
    advertised_inner: Address
    controllers: Mapping[int, ControllerAddresses]
    dial: Mapping[str, Address] = field(default_factory=dict)
    hosts: tuple[str, ...] = ()
    """``[listeners] hosts``: names, with a port or without, under which web pages may reach the
    HTTP listener, besides the advertised one."""
    proxies: TrustedProxies = NO_PROXIES
    """``[listeners] forwarded_from``: networks of proxies whose reports about a request count."""
    tls: TlsFiles | None = None
    """Files for mutual TLS; only the controllers' Raft listeners use it so far."""
    access: AccessLogConfig
    """``[log]``: the access log of a broker's HTTP listener."""
    rack: str | None = None
    log_level: str = "info"
    log_format: str = "text"
    defaults: BrokerDefaults = BrokerDefaults()
    limits: BrokerLimits = BrokerLimits()
    timeouts: BrokerTimeouts = BrokerTimeouts()
    raft: RaftTimeouts = RaftTimeouts()
    stated: frozenset[str] = frozenset()
    """Names of the configs that have a value in the file, the environment or a ``--set``."""

    @property
    def name(self) -> str:
        """The node's name in logs, in ``[dial]`` and as folder, such as ``controller-101``."""
        return f"{self.role}-{self.node_id}"

    def dial_address(self, target: str, kind: str, advertised: Address) -> Address:
        """Return the address at which this node dials ``kind`` (http, peer, raft) of ``target``."""
        return self.dial.get(f"{target}.{kind}", advertised)

    def controller_dial(self, kind: str) -> dict[NodeId, str]:
        """Return this node's own addresses of controllers, for a kind of listener (http, raft)."""
        found = ((one, self.dial.get(f"controller-{one}.{kind}")) for one in self.controllers)
        return {NodeId(one): str(address) for one, address in found if address is not None}

    def broker_config(self, directory_id: DirectoryId) -> BrokerConfig:
        """Return the configuration of the broker; only where ``role`` is broker."""
        return BrokerConfig(
            broker_id=BrokerId(self.node_id),
            cluster_id=self.cluster_id,
            directory_id=directory_id,
            data_dir=self.data_dir,
            advertised_http=str(self.advertised_http),
            advertised_peer=str(self.advertised_inner),
            rack=self.rack,
            defaults=self.defaults,
            limits=self.limits,
            timeouts=self.timeouts,
            stated=self.stated,
        )


def trusted_hosts(config: NodeConfig) -> TrustedHosts:
    """Return the names under which web pages may reach the node's HTTP listener."""
    named = (parse_authority(name) for name in config.hosts)
    return TrustedHosts(
        is_loopback=config.listen_http.is_loopback,
        advertised=config.advertised_http.host,
        named=frozenset(one for one in named if one is not None),
    )


def parse_address(value: object, origin: str) -> Address:
    """Return ``host:port`` with a port from 1 to 65535 as an address, or raise NodeConfigError."""
    host, colon, port = str(value).rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if colon and host and port.isascii() and port.isdigit() and 0 < int(port) < 65_536:
        return Address(host, int(port))
    msg = f"{origin} = {value!r}, expected host:port"
    raise NodeConfigError(msg)


def load_node_config(
    path: Path,
    environment: Mapping[str, str],
    overrides: Sequence[str] = (),
    *,
    insecure: bool = False,
) -> NodeConfig:
    """Read, overlay and check the configuration of the node whose file is ``path``."""
    table = read_config_file(path)
    overlay_environment(table, environment)
    for text in overrides:
        key, value = split_assignment(text)
        _assign(table, key, value, f"--set {key}")
    config = build_node_config(table, path)
    if not insecure:
        _refuse_public_bind(config)
    return config


def read_config_file(path: Path) -> dict[str, dict[str, Any]]:
    """Return the file's tables; sections and keys are checked, values are not yet."""
    try:
        with path.open("rb") as file:
            table = tomllib.load(file)
    except FileNotFoundError:
        msg = f"no configuration file {path}"
        raise NodeConfigError(msg) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        msg = f"{path}: {error}"
        raise NodeConfigError(msg) from None
    for section, keys in table.items():
        if section not in SECTIONS:
            raise _unknown_section(section, str(path))
        if not isinstance(keys, dict):
            msg = f"{path}: {section} = {keys!r}, expected a section [{section}]"
            raise NodeConfigError(msg)
    result = {section: dict(table.get(section, {})) for section in SECTIONS}
    result["dial"] = _flat_dial(result["dial"])
    for section, keys in result.items():
        for key in keys:
            _check_key(section, key, str(path))
    return result


def overlay_environment(table: dict[str, dict[str, Any]], environment: Mapping[str, str]) -> None:
    """Apply ``QUORUMLOG_SECTION__KEY`` over the file's tables."""
    for name, value in sorted(environment.items()):
        if not name.startswith(ENVIRONMENT_PREFIX) or "__" not in name:
            continue
        section, _, key = name.removeprefix(ENVIRONMENT_PREFIX).partition("__")
        section = section.lower()
        if section not in SECTIONS:
            raise _unknown_section(section, name)
        if section == "dial" and (match := _DIAL_ENVIRONMENT.fullmatch(key.upper())):
            key = f"{match[1]}-{match[2]}.{match[3]}"
        _assign(table, f"{section}.{key.lower()}", value, name)


def _unknown_section(section: str, origin: str) -> NodeConfigError:
    hint = repr(nearest(section, SECTIONS))
    return NodeConfigError(f"{origin}: unknown section {section!r}, the nearest is {hint}")


def _assign(table: dict[str, dict[str, Any]], key: str, value: str, origin: str) -> None:
    section, dot, name = key.partition(".")
    is_setting = key.replace(".", "_") in BY_NAME or section not in SECTIONS
    if not dot or is_setting or section in SETTING_SECTIONS:
        setting = find_setting(key, origin)
        table[setting.section][setting.row.key] = setting.parse(value, origin)
        return
    _check_key(section, name, origin)
    if section == "controllers":
        table[section][name] = _inline_table(value, origin)
    elif (section, name) == ("node", "id"):
        table[section][name] = int(value) if value.isdigit() else value
    else:
        table[section][name] = value


def _inline_table(text: str, origin: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        msg = f'{origin} = {text!r}, expected {{http = "host:port", raft = "host:port"}}'
        raise NodeConfigError(msg) from None


def _flat_dial(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``[dial]`` with flat keys; TOML reads an unquoted ``broker-2.http`` as a table."""
    flat: dict[str, Any] = {}
    for target, value in table.items():
        if isinstance(value, dict):
            flat.update({f"{target}.{kind}": address for kind, address in value.items()})
        else:
            flat[target] = value
    return flat


def _check_key(section: str, key: str, origin: str) -> None:
    match section:
        case "controllers":
            if not key.isdigit():
                msg = f"{origin}: controllers.{key}, expected the id of a controller"
                raise NodeConfigError(msg)
            return
        case "dial":
            if _DIAL_KEY.fullmatch(key) is None:
                msg = f"{origin}: dial.{key}, expected a name like broker-2.peer,"
                msg += " broker-2.http, controller-101.http or controller-101.raft"
                raise NodeConfigError(msg)
            return
        case "node":
            known: Sequence[str] = _NODE_KEYS
        case "listeners":
            known = (*_ADDRESS_KEYS, *_LISTENER_LISTS)
        case "advertised":
            known = _ADDRESS_KEYS
        case "tls":
            known = tuple(_TLS_HINTS)
        case "log":
            known = tuple(_LOG_HINTS)
        case _:
            known = [name for name, row in BY_NAME.items() if row.section == section]
    if key not in known:
        msg = f"{origin}: unknown key {section}.{key}, the nearest is {nearest(key, known)!r}"
        raise NodeConfigError(msg)


def build_node_config(table: Mapping[str, Mapping[str, Any]], path: Path) -> NodeConfig:
    """Check every value and the relations between them, and return the configuration."""
    origin = str(path)
    node = table["node"]
    for key in ("id", "role", "cluster_id", "data_dir"):
        if key not in node:
            msg = f"{origin}: node.{key} is missing"
            raise NodeConfigError(msg)
    role = _one_of(node["role"], ROLES, f"{origin}: node.role")
    node_id = node["id"]
    if not isinstance(node_id, int) or isinstance(node_id, bool) or node_id < 1:
        msg = f"{origin}: node.id = {node_id!r}, expected a whole number from 1 on"
        raise NodeConfigError(msg)
    inner = "peer" if role == "broker" else "raft"
    listeners = {
        key: value for key, value in table["listeners"].items() if key not in _LISTENER_LISTS
    }
    listen = _addresses(listeners, inner, f"{origin}: listeners")
    advertised_addresses = _addresses(
        {**listeners, **table["advertised"]}, inner, f"{origin}: advertised"
    )
    controllers = _controllers(table["controllers"], origin)
    if role == "controller" and node_id not in controllers:
        msg = f"{origin}: node.id = {node_id}, expected one of [controllers]: {sorted(controllers)}"
        raise NodeConfigError(msg)
    values = _checked_settings(table, origin)
    dial = {
        key: parse_address(address, f"{origin}: dial.{key}")
        for key, address in table["dial"].items()
    }
    data_dir = (path.parent / str(node["data_dir"])).absolute()
    return NodeConfig(
        node_id=NodeId(node_id),
        role=role,
        cluster_id=ClusterId(str(node["cluster_id"])),
        data_dir=data_dir,
        rack=str(node["rack"]) if "rack" in node else None,
        log_level=_one_of(node.get("log_level", "info"), _LOG_LEVELS, f"{origin}: node.log_level"),
        log_format=_one_of(
            node.get("log_format", "text"), _LOG_FORMATS, f"{origin}: node.log_format"
        ),
        listen_http=listen[0],
        listen_inner=listen[1],
        advertised_http=advertised_addresses[0],
        advertised_inner=advertised_addresses[1],
        controllers=controllers,
        dial=dial,
        hosts=_hosts(table["listeners"].get("hosts", []), f"{origin}: listeners.hosts"),
        proxies=_proxies(
            table["listeners"].get("forwarded_from", []), f"{origin}: listeners.forwarded_from"
        ),
        tls=_tls(table["tls"], path),
        access=_access(table["log"], data_dir, f"{origin}: log"),
        defaults=_section(BrokerDefaults, values),
        limits=_section(BrokerLimits, values),
        timeouts=_section(BrokerTimeouts, values),
        raft=_section(RaftTimeouts, values),
        stated=frozenset(
            BY_NAME[key].row.name for section in SETTING_SECTIONS for key in table[section]
        ),
    )


def _one_of(value: object, choices: Sequence[str], origin: str) -> str:
    if isinstance(value, str) and value in choices:
        return value
    msg = f"{origin} = {value!r}, expected {' or '.join(choices)}"
    raise NodeConfigError(msg)


def _addresses(table: Mapping[str, Any], inner: str, origin: str) -> tuple[Address, Address]:
    for key in table:
        if key not in ("http", inner):
            msg = f"{origin}.{key}: this role has http and {inner} only"
            raise NodeConfigError(msg)
    for key in ("http", inner):
        if key not in table:
            msg = f"{origin}.{key} is missing"
            raise NodeConfigError(msg)
    return (
        parse_address(table["http"], f"{origin}.http"),
        parse_address(table[inner], f"{origin}.{inner}"),
    )


def _hosts(value: object, origin: str) -> tuple[str, ...]:
    names = _texts(value)
    if names is not None and all(map(_HOST_NAME.fullmatch, names)):
        return names
    msg = f"{origin} = {value!r}, expected a list of at most {HOSTS_MAX} host names,"
    raise NodeConfigError(msg + ' such as ["log.example.com", "log.example.com:8443"]')


def _proxies(value: object, origin: str) -> TrustedProxies:
    with contextlib.suppress(ValueError):
        names = _texts(value)
        if names is not None:
            return TrustedProxies(tuple(map(ipaddress.ip_network, names)))
    msg = f"{origin} = {value!r}, expected a list of at most {HOSTS_MAX} networks or IP addresses,"
    raise NodeConfigError(msg + ' such as ["10.0.0.0/8", "127.0.0.1", "fd00::/8"]')


def _texts(value: object) -> tuple[str, ...] | None:
    """Return the texts of a list, or of a text with commas, as the environment has them.

    None for anything else, and for more than `HOSTS_MAX`.
    """
    given = value.split(",") if isinstance(value, str) else value
    if not isinstance(given, list) or len(given) > HOSTS_MAX:
        return None
    texts = tuple(one.strip() for one in given if isinstance(one, str))
    return texts if len(texts) == len(given) else None


def _controllers(table: Mapping[str, Any], origin: str) -> dict[int, ControllerAddresses]:
    if not table:
        msg = f"{origin}: [controllers] is empty, expected the id and addresses of every controller"
        raise NodeConfigError(msg)
    result = {}
    for key, value in table.items():
        name = f"{origin}: controllers.{key}"
        if not isinstance(value, dict) or set(value) != {"http", "raft"}:
            msg = f'{name} = {value!r}, expected {{http = "host:port", raft = "host:port"}}'
            raise NodeConfigError(msg)
        result[int(key)] = ControllerAddresses(
            http=parse_address(value["http"], f"{name}.http"),
            raft=parse_address(value["raft"], f"{name}.raft"),
        )
    return result


def _tls(table: Mapping[str, Any], path: Path) -> TlsFiles | None:
    """Return all three TLS files, or None for none; their content is checked when they are used."""
    if not table:
        return None
    for key, meaning in _TLS_HINTS.items():
        if not isinstance(table.get(key), str) or not table[key]:
            msg = f"{path}: tls.{key} = {table.get(key)!r}, expected a file such as {meaning};"
            msg += f" [tls] needs {', '.join(_TLS_HINTS)}"
            raise NodeConfigError(msg)
    files = {key: (path.parent / table[key]).absolute() for key in _TLS_HINTS}
    return TlsFiles(ca=files["ca"], certificate=files["certificate"], key=files["key"])


def _access(table: Mapping[str, Any], data_dir: Path, origin: str) -> AccessLogConfig:
    """Return ``[log]``; numbers may be texts, as the environment has them."""
    numbers: dict[str, int] = {}
    for key, (least, most) in _LOG_NUMBERS.items():
        value = table.get(key)
        if isinstance(value, str) and value.isascii() and value.isdecimal():
            value = int(value)
        if value is None:
            continue
        if type(value) is not int or not least <= value <= most:
            msg = f"{origin}.{key} = {table[key]!r}, expected a whole number from {least} to {most}"
            raise NodeConfigError(msg)
        numbers[key.removeprefix("access_")] = value
    file = table.get("access_file", ACCESS_FILE)
    if not isinstance(file, str) or not file or "\0" in file:
        msg = f"{origin}.access_file = {file!r}, expected the path of a file"
        raise NodeConfigError(msg)
    mode = _one_of(table.get("access", ACCESS_ERRORS), ACCESS_MODES, f"{origin}.access")
    return AccessLogConfig(mode=mode, file=(data_dir / file).absolute(), **numbers)


def _checked_settings(table: Mapping[str, Mapping[str, Any]], origin: str) -> dict[str, Any]:
    given = {
        key: BY_NAME[key].check(value, origin)
        for section in SETTING_SECTIONS
        for key, value in table[section].items()
    }
    return complete_settings(given, origin)


def complete_settings(given: Mapping[str, Any], origin: str) -> dict[str, Any]:
    """Return all settings: the given ones, and defaults that fit them; refuse contradictions.

    If only the session is given, the times that depend on it follow: a heartbeat fits four times
    into a session, and a replica's lag is at most 2.5 sessions (rule R9).
    """
    values: dict[str, Any] = {
        name: setting.row.default for name, setting in BY_NAME.items()
    } | dict(given)
    session = values["broker_session_timeout_ms"]
    lag_limit = int(LAG_PER_SESSION * session)
    for name, limit in (
        ("broker_heartbeat_interval_ms", session // 4),
        ("replica_lag_time_max_ms", lag_limit),
    ):
        if name not in given:
            values[name] = min(values[name], limit)
    _at_most(values, "broker_heartbeat_interval_ms", session // 2, "half a session", origin)
    _at_most(values, "replica_lag_time_max_ms", lag_limit, "2.5 sessions", origin)
    # A deposed leader that still runs must stay an in-sync replica for longer than its last
    # proof of leadership counts (rule G3).
    proof_ms = min(session, values["broker_disconnect_grace_ms"])
    if values["replica_lag_time_max_ms"] < proof_ms:
        what = "the session, or broker_disconnect_grace_ms if that is less"
        lag = values["replica_lag_time_max_ms"]
        msg = f"{origin}: replica_lag_time_max_ms = {lag}, expected at least {proof_ms} ({what})"
        raise NodeConfigError(msg)
    # A cluster that can never acknowledge is refused, not started (rule M8).
    replicas = values["default_replication_factor"]
    _at_most(values, "min_insync_replicas", replicas, "default_replication_factor", origin)
    heartbeat_limit = (values["election_timeout_ms"] - 1) // HEARTBEATS_PER_ELECTION
    if "raft_heartbeat_ms" not in given:
        values["raft_heartbeat_ms"] = min(values["raft_heartbeat_ms"], heartbeat_limit)
    what = "less than a third of election_timeout_ms"
    _at_most(values, "raft_heartbeat_ms", heartbeat_limit, what, origin)
    what = "less than half of raft_step_down_ms"
    _at_most(values, "raft_heartbeat_ms", (values["raft_step_down_ms"] - 1) // 2, what, origin)
    return values


def _at_most(values: Mapping[str, Any], name: str, limit: int, what: str, origin: str) -> None:
    if values[name] > limit:
        msg = f"{origin}: {name} = {values[name]}, expected at most {limit} ({what})"
        raise NodeConfigError(msg)


def _section(kind: type[_Section], values: Mapping[str, Any]) -> _Section:
    names = [item.name for item in fields(kind)]  # type: ignore[arg-type] # dataclasses of ours
    return kind(**{name: values[name] for name in names})


def _refuse_public_bind(config: NodeConfig) -> None:
    """Refuse listeners that other machines can reach; ``--insecure`` skips this (decision D11)."""
    inner = "peer" if config.role == "broker" else "raft"
    for kind, address in (("http", config.listen_http), (inner, config.listen_inner)):
        if address.is_loopback or (kind == "raft" and config.tls is not None):
            continue
        msg = f"listeners.{kind} = {str(address)!r} can be reached from other machines and"
        if kind == "raft":
            msg += " [tls] names no ca, certificate and key: set them, bind 127.0.0.1"
        else:
            msg += " there is no TLS and no authentication for it yet: bind 127.0.0.1"
        raise NodeConfigError(msg + " or say --insecure")


def render_config(table: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the text of a ``config.toml``; settings left at their default are comments."""
    lines = [
        "# Written by `quorumlog up`. Order: this file < QUORUMLOG_SECTION__KEY < --set key=value.",
        "# A key nobody knows is refused. Lines that start with # show defaults.",
    ]
    for section in SECTIONS:
        lines += ["", f"[{section}]"]
        given = table.get(section, {})
        lines += [f"{_toml_key(key)} = {_toml(value)}" for key, value in given.items()]
        if section == "listeners" and "hosts" not in given:
            lines += ["# hosts = []  # more names that web pages may reach the HTTP listener by"]
        if section == "listeners" and "forwarded_from" not in given:
            lines += ["# forwarded_from = []  # networks of proxies whose X-Forwarded-* are used"]
        if section == "tls":
            lines += [
                "# Mutual TLS between controllers (listeners.raft); no other listener uses it yet."
            ]
            lines += [f"# {key} = ...  # {hint}" for key, hint in _TLS_HINTS.items()]
        if section == "log":
            shown = {**_LOG_DEFAULTS, "access_file": ACCESS_FILE}
            lines += [
                f"# {key} = {_toml(shown[key])}  # {hint}"
                for key, hint in _LOG_HINTS.items()
                if key not in given
            ]
        lines += [
            f"# {name} = {_toml(setting.row.default)}  # {setting.row.meaning}"
            for name, setting in BY_NAME.items()
            if setting.section == section and name not in given
        ]
    return "\n".join(lines) + "\n"


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else f'"{key}"'


def _toml(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case list():
            return "[" + ", ".join(map(_toml, value)) + "]"
        case dict():
            return "{" + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + "}"
        case _:
            escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
            return f'"{escaped}"'
