"""The network's pure side: links, faults, what a config.toml becomes, which file is the server."""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING

import pytest

from chaos.net.links import (
    NO_FAULTS,
    OPEN,
    Faults,
    Flow,
    Link,
    LinkState,
    Plane,
    Traffic,
    all_links,
    answers_lost,
    both_ways,
    refused,
    swallowed_since,
)
from chaos.net.toxiproxy import BUILT, VERSION, NetworkError, find_server, version_of
from chaos.proxied_cluster import real_targets, rewired
from tests.architecture.tree import python_files, text

if TYPE_CHECKING:
    from pathlib import Path

IMPORT = re.compile(r"(?m)^\s*(?:import|from) toxiproxy\b")
LINKS = all_links([101, 102, 103], [1, 2, 3])
RAFT = Link(102, 101, Plane.RAFT)
PEER = Link(1, 2, Plane.PEER)


def test_every_directed_way_has_one_link() -> None:
    assert len(LINKS) == len(set(LINKS)) == 9 + 6 + 3
    assert {link.dial_key for link in LINKS if link.source == 2} == {
        *("controller-101.http", "controller-102.http", "controller-103.http"),
        *("broker-1.peer", "broker-3.peer"),
    }
    raft = [link for link in LINKS if link.plane is Plane.RAFT]
    assert all(link.source > link.target for link in raft), "the greater id dials"


def test_a_silent_flow_drops_requests_one_way_and_answers_the_other() -> None:
    faults = Faults(frozenset({Flow(1, 2)}))
    assert faults.state_of(Link(1, 2, Plane.PEER)) == LinkState(drops_requests=True)
    assert faults.state_of(Link(2, 1, Plane.PEER)) == LinkState(drops_answers=True)
    assert faults.state_of(Link(1, 3, Plane.PEER)) == OPEN


def test_the_one_raft_link_of_a_pair_carries_both_directions() -> None:
    assert Faults(frozenset({Flow(101, 102)})).state_of(RAFT) == LinkState(drops_answers=True)
    assert Faults(frozenset({Flow(102, 101)})).state_of(RAFT) == LinkState(drops_requests=True)
    both = Faults(both_ways([101], [102]))
    assert both.state_of(RAFT) == LinkState(drops_requests=True, drops_answers=True)


def test_cutting_a_node_off_touches_every_link_of_it_and_no_other() -> None:
    faults = Faults(both_ways([1], [2, 3, 101, 102, 103]))
    assert set(faults.touches(LINKS)) == {link for link in LINKS if 1 in link[:2]}
    assert NO_FAULTS.touches(LINKS) == ()


def test_lost_answers_and_refusals_are_said_per_link() -> None:
    assert answers_lost([PEER]).state_of(PEER) == LinkState(drops_answers=True)
    assert refused([PEER]).state_of(PEER) == LinkState(refuses=True)
    assert refused([PEER]).touches(LINKS) == (PEER,)


def test_swallowed_bytes_are_those_that_came_and_did_not_go() -> None:
    before = {PEER: Traffic(requests_read=10, requests_passed=10)}
    now = {PEER: Traffic(requests_read=30, requests_passed=20, answers_read=5, answers_passed=5)}
    assert swallowed_since(before, now) == {PEER: 10}
    assert swallowed_since(now, now) == {}
    assert swallowed_since({}, {PEER: Traffic(answers_read=1)}) == {PEER: 1}


CONFIG = """# Written by `quorumlog up`.

[node]
id = {node}
role = "{role}"

[listeners]
http = "127.0.0.1:1"
{inner} = "127.0.0.1:2"

[advertised]
http = "127.0.0.1:1"
{inner} = "127.0.0.1:2"

[controllers]
101 = {{http = "127.0.0.1:3", raft = "127.0.0.1:4"}}

[dial]

[defaults]
num_partitions = 1
# comment = 1
"""


def config(node: int) -> str:
    if node > 100:
        return CONFIG.format(node=node, role="controller", inner="raft")
    return CONFIG.format(node=node, role="broker", inner="peer")


def test_a_rewired_config_dials_proxies_and_knows_no_other_inner_address() -> None:
    ways = {link: f"127.0.0.1:{2000 + n}" for n, link in enumerate(LINKS)}
    text = rewired(config(1), ways, "127.0.0.1:9")
    table = tomllib.loads(text)
    assert table["listeners"] == {"http": "127.0.0.1:1", "peer": "127.0.0.1:2"}
    assert table["advertised"] == {"http": "127.0.0.1:1", "peer": "127.0.0.1:9"}
    assert table["controllers"] == {"101": {"http": "127.0.0.1:9", "raft": "127.0.0.1:9"}}
    assert table["dial"] == {link.dial_key: ways[link] for link in LINKS if link.source == 1}
    assert text.endswith("[defaults]\nnum_partitions = 1\n# comment = 1\n")


def test_real_targets_are_where_nodes_listen(tmp_path: Path) -> None:
    for node in (1, 2, 101):
        folder = tmp_path / str(node)
        folder.mkdir()
        (folder / "config.toml").write_text(config(node))
    targets = real_targets(tmp_path)
    assert targets[Link(1, 2, Plane.PEER)] == "127.0.0.1:2"
    assert targets[Link(1, 101, Plane.HTTP)] == "127.0.0.1:1"


# -- the server's file


def built(folder: Path, version: str) -> Path:
    """As Go leaves it: the module's version in the middle of other bytes."""
    path = folder / BUILT
    path.parent.mkdir(parents=True)
    module = f"mod\tgithub.com/Shopify/toxiproxy/v2\tv{version}\th1:abc=\n"
    path.write_bytes(b"\x7fELF\0" + module.encode() + b"\0rest")
    return path


def released(folder: Path, version: str) -> Path:
    """A script that answers as a released binary does."""
    path = folder / "toxiproxy-server"
    path.write_text(f"#!/bin/sh\necho 'toxiproxy-server version {version}'\n")
    path.chmod(0o755)
    return path


def test_the_version_is_read_out_of_the_file_or_asked_of_it(tmp_path: Path) -> None:
    assert version_of(built(tmp_path, "2.12.0")) == "2.12.0"
    assert version_of(released(tmp_path, "2.11.0")) == "2.11.0"
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\necho 'toxiproxy-server version git'\n")
    silent.chmod(0o755)
    assert version_of(silent) is None
    assert version_of(tmp_path / "absent") is None


def test_the_server_on_the_path_is_taken_only_in_the_known_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    ours = built(tmp_path, VERSION)
    released(tmp_path, "2.1.4")
    assert find_server([tmp_path]) == ours
    assert find_server([tmp_path / "nowhere", tmp_path]) == ours
    on_path = released(tmp_path, VERSION)
    assert find_server([tmp_path]) == on_path


def test_without_a_server_the_command_that_builds_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NetworkError, match=r"make setup.*toxiproxy\.sh"):
        find_server([tmp_path])


def test_one_module_only_knows_the_untyped_library() -> None:
    knowing = [
        str(path)
        for path in python_files("chaos", "tests")
        if IMPORT.search(text(path)) is not None
    ]
    assert knowing == ["chaos/net/toxiproxy.py"]
