"""The settings of a node's config.toml: those rows of the table of configs that have a section.

Every key of ``[defaults]``, ``[limits]`` and ``[timeouts]`` is a row of
``raft_metadata.common.configs.table`` and a field of a configuration dataclass (a test compares the
two). Times are milliseconds, sizes bytes.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from http_api.node.exits import ConfigError
from raft_metadata.common.configs.rows import (
    ConfigRow,
    ConfigValue,
    FlagConfig,
    NumberConfig,
    RatioConfig,
    Section,
)
from raft_metadata.common.configs.table import CONFIGS, default_number

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

    @property
    def name(self) -> str:
        """The key, such as ``min_insync_replicas``."""
        return self.row.key

    @property
    def meaning(self) -> str:
        """Short description of the setting's effect."""
        return self.row.meaning

    @property
    def default(self) -> SettingValue:
        """The value where no source sets one."""
        return self.row.default

    @property
    def expected(self) -> str:
        """Description of valid values, for messages and comments."""
        return self.row.expected

    def check(self, value: object, origin: str) -> SettingValue:
        """Return the value if type and range fit this setting; else raise `ConfigError`."""
        if self.row.allows(value):
            assert isinstance(value, bool | int | float | str)
            return value
        msg = f"{origin}: {self.section}.{self.name} = {value!r}, expected {self.expected}"
        raise ConfigError(msg)

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

BY_NAME = {setting.name: setting for setting in SETTINGS}
SETTING_SECTIONS = tuple(section.value for section in Section)


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name most like ``name``, as a hint in a refusal."""
    names = sorted(known)
    match = difflib.get_close_matches(name, names, n=1, cutoff=0.0)
    return match[0] if match else names[0]


def find_setting(key: str, origin: str) -> Setting:
    """Return the setting ``key`` or ``section.key``; else raise `ConfigError` with the nearest."""
    section, dot, name = key.rpartition(".")
    setting = BY_NAME.get(name)
    if setting is not None and (not dot or setting.section == section):
        return setting
    msg = f"{origin}: unknown key {key!r}, the nearest is {nearest(name, BY_NAME)!r}"
    raise ConfigError(msg)


def split_assignment(text: str) -> tuple[str, str]:
    """Return key and value of ``key=value``, the text of a ``--set``."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        msg = f"--set {text!r}: expected key=value"
        raise ConfigError(msg)
    return key.strip(), value.strip()
