"""Making, finding and repairing the folders of a local cluster; lock and identity (rule Q4)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from http_api.node.cluster_file import (
    ClusterDescription,
    ClusterState,
    read_cluster_file,
    write_cluster_file,
)
from http_api.node.cluster_plan import UpOptions, prepare_cluster
from http_api.node.exits import EXIT_LOCKED, EXIT_STORAGE, EXIT_USAGE, NodeExit
from http_api.node.formatting import holds_data, is_formatted_controller, restore_folder
from http_api.node.node_config import load_node_config, read_config_file
from http_api.node.node_folder import FolderLock, read_meta
from raft_metadata.common.ids import ClusterId, NodeId
from raft_metadata.quorum.data_dir import read_raft_meta


async def prepare(data_dir: Path, **options: object) -> ClusterDescription:
    """What `up` does before it starts anything; the lock is given back, the state written."""
    lock = FolderLock(data_dir / "lock")
    arguments = {"port": 0, "controllers": None, "brokers": None} | options
    made = await prepare_cluster(UpOptions(data_dir=data_dir, **arguments), {}, lock)  # type: ignore[arg-type]
    write_cluster_file(data_dir, made.all_down(ClusterState.STOPPED, None))
    lock.release()
    return made


async def test_a_new_cluster_is_whole(tmp_path: Path) -> None:
    made = await prepare(tmp_path)

    assert [entry.name for entry in made.brokers] == ["broker-1", "broker-2", "broker-3"]
    assert [entry.node_id for entry in made.controllers] == [101, 102, 103]
    assert len(made.cluster_id) == 22
    directories = set()
    for entry in made.nodes:
        config = load_node_config(entry.config, {})
        meta = read_meta(entry.config.parent, made.cluster_id, NodeId(entry.node_id))
        directories.add(meta.directory_id)
        assert config.defaults.min_insync_replicas == 2
        assert sorted(config.controllers) == [101, 102, 103]
    assert len(directories) == 6
    voters = [read_raft_meta(entry.config.parent / "raft") for entry in made.controllers]
    told = [voter.voters for voter in voters if voter is not None]
    assert told == [told[0]] * 3


async def test_the_same_directory_finds_the_same_cluster(tmp_path: Path) -> None:
    made = await prepare(tmp_path, controllers=1, brokers=2)
    again = await prepare(tmp_path)
    assert again.cluster_id == made.cluster_id
    assert [entry.addresses for entry in again.nodes] == [entry.addresses for entry in made.nodes]


async def test_a_directory_that_was_moved_is_found_again(tmp_path: Path) -> None:
    made = await prepare(tmp_path / "a", controllers=1, brokers=1)
    shutil.move(tmp_path / "a", tmp_path / "b")
    again = await prepare(tmp_path / "b")
    assert again.cluster_id == made.cluster_id
    assert load_node_config(again.brokers[0].config, {}).data_dir == tmp_path / "b" / "broker-1"


@pytest.mark.parametrize(
    ("options", "both"),
    [
        ({"brokers": 1}, ("--brokers 1", "2 brokers")),
        ({"controllers": 3}, ("--controllers 3", "1 controllers")),
        ({"port": 9}, ("--port 9", "on port")),
        ({"controllers": 2}, ("--controllers 2", "1, 3, 5, 7")),
        ({"brokers": 0}, ("--brokers 0", "1 to 100")),
        ({"overrides": ("flusch=os",)}, ("flusch", "'flush'")),
    ],
)
async def test_other_numbers_name_both_values(
    tmp_path: Path, options: dict[str, object], both: tuple[str, str]
) -> None:
    await prepare(tmp_path, controllers=1, brokers=2)
    with pytest.raises(NodeExit) as caught:
        await prepare(tmp_path, **options)
    assert caught.value.code == EXIT_USAGE
    assert all(part in caught.value.message for part in both)


async def test_more_brokers_are_added_with_the_defaults_of_the_cluster(tmp_path: Path) -> None:
    await prepare(tmp_path, controllers=1, brokers=1)
    grown = await prepare(tmp_path, brokers=3, overrides=("broker_session_timeout_ms=2000",))

    assert [entry.name for entry in grown.brokers] == ["broker-1", "broker-2", "broker-3"]
    added = load_node_config(grown.brokers[2].config, {})
    # rule M8: topics made before would stop if min ISR grew with the number of brokers
    assert added.defaults.min_insync_replicas == 1
    assert added.defaults.default_replication_factor == 1
    assert added.timeouts.broker_session_timeout_ms == 2000
    assert load_node_config(grown.brokers[0].config, {}).timeouts.broker_session_timeout_ms == 1200


async def test_set_is_written_for_every_node(tmp_path: Path) -> None:
    made = await prepare(tmp_path, overrides=("auto_create_topics_enable=false",))
    for entry in made.nodes:
        defaults = read_config_file(entry.config)["defaults"]
        assert defaults["auto_create_topics_enable"] is False
        assert (defaults["default_replication_factor"], defaults["min_insync_replicas"]) == (3, 2)


async def test_a_brokers_folder_that_is_gone_is_another_directory(tmp_path: Path) -> None:
    made = await prepare(tmp_path, controllers=1, brokers=2)
    entry = made.brokers[0]
    folder, node_id = entry.config.parent, NodeId(entry.node_id)
    before = read_meta(folder, made.cluster_id, node_id)
    shutil.rmtree(folder)

    restore_folder(tmp_path, made, entry)

    after = read_meta(folder, made.cluster_id, node_id)
    assert after.directory_id != before.directory_id
    config = load_node_config(entry.config, {})
    assert config.listen_http == entry.addresses.http
    assert config.listen_inner == entry.inner


async def test_a_brokers_folder_that_is_there_is_left_alone(tmp_path: Path) -> None:
    made = await prepare(tmp_path, controllers=1, brokers=1)
    entry = made.brokers[0]
    before = {p.name: p.read_bytes() for p in entry.config.parent.iterdir()}
    restore_folder(tmp_path, made, entry)
    assert {p.name: p.read_bytes() for p in entry.config.parent.iterdir()} == before


async def test_rule_q4_a_controllers_folder_that_is_gone_is_never_made_anew(tmp_path: Path) -> None:
    made = await prepare(tmp_path)
    entry = made.controllers[1]
    shutil.rmtree(entry.config.parent)

    restore_folder(tmp_path, made, entry)

    assert not is_formatted_controller(entry.config.parent)
    config = load_node_config(entry.config, {})
    assert config.listen_inner == entry.inner
    with pytest.raises(NodeExit) as caught:
        read_meta(entry.config.parent, made.cluster_id, NodeId(102))
    assert caught.value.code == EXIT_STORAGE


async def test_rule_q4_a_cluster_is_not_made_over_data_without_cluster_json(tmp_path: Path) -> None:
    made = await prepare(tmp_path, controllers=1, brokers=1)
    log = made.brokers[0].config.parent / "log" / "flights-0"
    log.mkdir(parents=True)
    (tmp_path / "cluster.json").unlink()
    with pytest.raises(NodeExit, match="broker-1 holds the data") as caught:
        await prepare(tmp_path, controllers=1, brokers=1)
    assert caught.value.code == EXIT_STORAGE


async def test_a_formatting_that_was_cut_short_is_done_again(tmp_path: Path) -> None:
    made = await prepare(tmp_path, controllers=1, brokers=1)
    (tmp_path / "cluster.json").unlink()
    assert not any(holds_data(entry.config.parent) for entry in made.nodes)
    again = await prepare(tmp_path, controllers=1, brokers=1)
    assert again.cluster_id != made.cluster_id


def test_rule_q4_a_folder_of_another_node_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "meta.json"
    path.write_text(json.dumps({"cluster_id": "c", "node_id": 1, "directory_id": "d"}))
    assert read_meta(tmp_path, ClusterId("c"), NodeId(1)).directory_id == "d"
    for cluster, node in ((ClusterId("x"), NodeId(1)), (ClusterId("c"), NodeId(2))):
        with pytest.raises(NodeExit) as caught:
            read_meta(tmp_path, cluster, node)
        assert caught.value.code == EXIT_STORAGE
    path.write_text("{}")
    with pytest.raises(NodeExit, match="damaged"):
        read_meta(tmp_path, ClusterId("c"), NodeId(1))


def test_rule_q4_the_lock_is_exclusive_names_its_holder_and_dies_with_it(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; "
        "from http_api.node.node_folder import FolderLock; "
        "FolderLock(Path(sys.argv[1])).acquire('x'); print('held', flush=True); time.sleep(60)"
    )
    path = tmp_path / "lock"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, cwd=Path.cwd()
    ) as holder:
        assert holder.stdout is not None
        # the object above is dropped at once: the lock must outlive it, or it is none
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(NodeExit, match=f"pid {holder.pid}") as caught:
            FolderLock(path).acquire("the directory")
        assert caught.value.code == EXIT_LOCKED
        holder.kill()
        holder.wait()
    mine = FolderLock(path)
    mine.acquire("the directory")
    assert path.read_text() == f"{os.getpid()}\n"
    mine.release()


async def test_cluster_json_has_the_promised_shape(tmp_path: Path) -> None:
    made = await prepare(tmp_path, controllers=1, brokers=1)
    up = made.with_pid("broker-1", 7).with_pid("controller-101", 8)
    write_cluster_file(tmp_path, up)
    content = json.loads((tmp_path / "cluster.json").read_bytes())

    assert list(content) == ["cluster_id", "state", "supervisor", "controllers", "brokers"]
    assert content["state"] == "starting"
    assert content["supervisor"] == {"pid": os.getpid()}
    assert list(content["brokers"][0]) == ["id", "pid", "url", "peer", "config", "log"]
    assert list(content["controllers"][0]) == ["id", "pid", "url", "raft", "config", "log"]
    assert (content["brokers"][0]["id"], content["brokers"][0]["pid"]) == (1, 7)
    assert content["brokers"][0]["log"] == str(tmp_path / "logs" / "broker-1.log")
    assert read_cluster_file(tmp_path) == up

    write_cluster_file(tmp_path, up.all_down(ClusterState.STOPPED, None))
    content = json.loads((tmp_path / "cluster.json").read_bytes())
    assert content["state"] == "stopped"
    assert content["supervisor"] == {"pid": None}
    assert content["brokers"][0]["pid"] is None
    assert content["brokers"][0]["url"] == up.brokers[0].url


def test_a_damaged_cluster_json_is_not_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text('{"cluster_id": "x"')
    with pytest.raises(NodeExit) as caught:
        read_cluster_file(tmp_path)
    assert caught.value.code == EXIT_STORAGE


@pytest.mark.parametrize(("replicas", "min_isr"), [(1, 1), (2, 1), (3, 2), (5, 2)])
async def test_rule_m8_a_min_isr_that_was_not_said_fits_the_replication_factor(
    tmp_path: Path, replicas: int, min_isr: int
) -> None:
    made = await prepare(tmp_path, overrides=(f"default_replication_factor={replicas}",))
    assert load_node_config(made.brokers[0].config, {}).defaults.min_insync_replicas == min_isr
