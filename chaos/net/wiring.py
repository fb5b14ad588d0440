"""Puts the network between the nodes: every node's ``config.toml`` gets its own ways to others.

Done between `quorumlog up --format-only` and the first start, with the documented tables only
(interfaces §2). The inner addresses nodes tell each other become the tripwire's, so the proxies are
the only way there is.
"""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING

from chaos.net.links import Link, Plane, all_links, node_name

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_SECTION = r"(?m)^\[{name}\]\n(?:(?!\[).*\n)*"


def listening_ports(data_dir: Path) -> set[int]:
    """Every port a node of a formatted cluster will listen on."""
    tables = [tomllib.loads(one.read_text()) for one in data_dir.glob("*/config.toml")]
    return {
        int(address.rpartition(":")[2])
        for table in tables
        for address in table["listeners"].values()
    }


def real_targets(data_dir: Path) -> dict[Link, str]:
    """Every link of a formatted cluster, and where its target really listens."""
    listeners: dict[int, dict[str, str]] = {}
    for config in data_dir.glob("*/config.toml"):
        table = tomllib.loads(config.read_text())
        listeners[table["node"]["id"]] = table["listeners"]
    controllers = [node for node in listeners if node_name(node).startswith("controller")]
    brokers = [node for node in listeners if node not in controllers]
    return {
        link: listeners[link.target][link.plane.value] for link in all_links(controllers, brokers)
    }


def wire(data_dir: Path, ways: Mapping[Link, str], tripwire: str) -> None:
    """Write every node's tables.

    Args:
        data_dir: a formatted cluster that is not running.
        ways: the address each link's source has to dial.
        tripwire: what the nodes are told instead of each other's inner addresses.
    """
    for config in data_dir.glob("*/config.toml"):
        text = config.read_text()
        config.write_text(rewired(text, ways, tripwire))


def rewired(text: str, ways: Mapping[Link, str], tripwire: str) -> str:
    """One ``config.toml`` with its tables replaced; everything else stays as it is."""
    table = tomllib.loads(text)
    node: int = table["node"]["id"]
    told = dict(table["advertised"])
    inner = Plane.PEER if Plane.PEER.value in told else Plane.RAFT
    told[inner.value] = tripwire
    controllers = [
        f'{name} = {{http = "{tripwire}", raft = "{tripwire}"}}' for name in table["controllers"]
    ]
    dial = [
        f'"{link.dial_key}" = "{address}"' for link, address in ways.items() if link.source == node
    ]
    text = _replaced(text, "advertised", [f'{key} = "{told[key]}"' for key in told])
    text = _replaced(text, "controllers", controllers)
    return _replaced(text, "dial", dial)


def _replaced(text: str, name: str, lines: list[str]) -> str:
    body = "".join(f"{line}\n" for line in (f"[{name}]", *lines, ""))
    return re.sub(_SECTION.format(name=name), lambda _: body, text, count=1)
