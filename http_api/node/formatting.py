"""Formatting of a local cluster's folders: all of a new cluster, an added broker, a lost broker.

Called by `quorumlog up`. Everything written here is on disk before a node starts (rule Q4).
Replication factor and min ISR are written for the size with which the cluster is created, and never
change with the number of live brokers (rule M8).
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from http_api.node.cluster_file import (
    ClusterDescription,
    ClusterState,
    NodeAddresses,
    NodeEntry,
    make_entry,
)
from http_api.node.exits import EXIT_STORAGE, NodeExit
from http_api.node.node_config import (
    SETTING_SECTIONS,
    Address,
    SettingValue,
    complete_settings,
    find_setting,
    parse_address,
    read_config_file,
    render_config,
    split_assignment,
)
from http_api.node.node_folder import (
    CONFIG_FILE,
    META_FILE,
    NodeMeta,
    format_folder,
    make_directory,
)
from raft_metadata.common.disk import Disk, replace_file
from raft_metadata.common.ids import ClusterId, DirectoryId, NodeId, id_from_bytes
from raft_metadata.quorum.data_dir import Identity, format_raft_dir, read_raft_meta

RAFT_FOLDER = "raft"
LOG_FOLDER = "log"
REPLICATED_FROM_BROKERS = 3

_log = logging.getLogger("node.up")

Settings = Mapping[str, SettingValue]


def random_id() -> str:
    """Return 22 characters that encode 16 random bytes."""
    return id_from_bytes(os.urandom(16))


def defaults_for_size(brokers: int) -> dict[str, SettingValue]:
    """Return the settings that `up` writes for a new cluster of this many brokers (rule M8)."""
    return {
        "num_partitions": 1,
        "default_replication_factor": min(REPLICATED_FROM_BROKERS, brokers),
        "min_insync_replicas": 2 if brokers >= REPLICATED_FROM_BROKERS else 1,
        "auto_create_topics_enable": True,
        "flush": "ack",
    }


def parse_overrides(overrides: Sequence[str]) -> dict[str, SettingValue]:
    """Return the ``--set`` of `up`: settings only, by key or ``section.key``."""
    result: dict[str, SettingValue] = {}
    for text in overrides:
        key, value = split_assignment(text)
        setting = find_setting(key, "--set")
        result[setting.row.key] = setting.parse(value, "--set")
    return result


def _new_settings(brokers: int, overrides: Settings) -> dict[str, SettingValue]:
    """Return defaults and ``--set``; a min ISR that is not given fits the replication factor."""
    settings = defaults_for_size(brokers) | dict(overrides)
    replicas, min_isr = settings["default_replication_factor"], settings["min_insync_replicas"]
    if "min_insync_replicas" not in overrides:
        settings["min_insync_replicas"] = min(int(min_isr), max(1, int(replicas) - 1))
    return settings


def check_new_cluster_folders(data_dir: Path, nodes: Sequence[NodeAddresses]) -> None:
    """Refuse to format a cluster over the data of another whose ``cluster.json`` is lost (rule Q4).

    Folders that an interrupted formatting left have never been used by a node: they are removed.
    """
    for node in nodes:
        folder = data_dir / node.name
        if holds_data(folder):
            msg = f"{data_dir} has no cluster.json, but {folder} holds the data of a node:"
            msg += " move it away, or bring cluster.json back"
            raise NodeExit(EXIT_STORAGE, msg)
    for node in nodes:
        shutil.rmtree(data_dir / node.name, ignore_errors=True)


def holds_data(folder: Path) -> bool:
    """Return True if a node has ever run in this folder; what formatting writes is not data."""
    log = folder / LOG_FOLDER
    if log.is_dir() and any(log.iterdir()):
        return True
    raft = folder / RAFT_FOLDER
    if not raft.is_dir():
        return False
    meta = read_raft_meta(raft)
    return meta.used if meta is not None else any(raft.iterdir())


def is_lost(folder: Path) -> bool:
    """Return True if a folder has neither identity nor data: removed, emptied or half formatted."""
    return not (folder / META_FILE).exists() and not holds_data(folder)


def is_formatted_controller(folder: Path) -> bool:
    """Return True if the two files exist without which a controller refuses to start."""
    return (folder / META_FILE).exists() and (folder / RAFT_FOLDER / META_FILE).exists()


def format_new_cluster(
    data_dir: Path,
    controllers: Sequence[NodeAddresses],
    brokers: Sequence[NodeAddresses],
    overrides: Settings,
) -> ClusterDescription:
    """Format every folder of a new cluster, and return its description."""
    cluster_id = ClusterId(random_id())
    settings = _new_settings(len(brokers), overrides)
    complete_settings(settings, "--set")
    check_new_cluster_folders(data_dir, [*controllers, *brokers])
    table = {str(node.node_id): _controller_row(node) for node in controllers}
    directories = {NodeId(node.node_id): DirectoryId(random_id()) for node in controllers}
    for node in controllers:
        directory_id = directories[NodeId(node.node_id)]
        _format_node(data_dir, cluster_id, node, table, settings, directory_id)
        identity = Identity(
            cluster_id=cluster_id, node_id=NodeId(node.node_id), directory_id=directory_id
        )
        format_raft_dir(data_dir / node.name / RAFT_FOLDER, identity, directories)
    for node in brokers:
        _format_node(data_dir, cluster_id, node, table, settings, DirectoryId(random_id()))
    return ClusterDescription(
        cluster_id=cluster_id,
        state=ClusterState.STARTING,
        supervisor_pid=os.getpid(),
        controllers=tuple(_entry(data_dir, node) for node in controllers),
        brokers=tuple(_entry(data_dir, node) for node in brokers),
    )


def add_brokers(
    data_dir: Path,
    description: ClusterDescription,
    brokers: Sequence[NodeAddresses],
    overrides: Settings,
) -> ClusterDescription:
    """Format the folders of added brokers; their defaults are the cluster's, whatever its new size.

    Raising min ISR with the size would stop writes to every older topic (rule M8): that stays the
    operator's decision, by ``--set`` or in the files.
    """
    settings = _settings_of(description) | dict(overrides)
    complete_settings(settings, "--set")
    for node in brokers:
        folder = data_dir / node.name
        if holds_data(folder):
            msg = f"{folder} holds data, but cluster.json does not know {node.name}: move it away"
            raise NodeExit(EXIT_STORAGE, msg)
        shutil.rmtree(folder, ignore_errors=True)
        table = _controllers_table(description)
        directory_id = DirectoryId(random_id())
        _format_node(data_dir, description.cluster_id, node, table, settings, directory_id)
    entries = tuple(_entry(data_dir, node) for node in brokers)
    return replace(description, brokers=description.brokers + entries)


def restore_folder(data_dir: Path, description: ClusterDescription, entry: NodeEntry) -> None:
    """Restore the folder of a node before it starts, as far as that is safe.

    A broker whose folder is lost gets a new, empty one with a new directory id: it fills from its
    peers, and does not count as the old replica (rule R6). A controller gets back its configuration
    and nothing else: without ``meta.json`` it refuses to start (exit 74) until an operator runs
    ``quorumlog controller rejoin`` (rule Q4).
    """
    folder = entry.config.parent
    if not is_lost(folder):
        if not entry.config.exists():
            _write_config(data_dir, description, entry)
        return
    if entry.role == "broker":
        directory_id = DirectoryId(random_id())
        _log.warning(
            "folder of %s is gone, formatting it anew folder=%s directory_id=%s: it is another"
            " replica now and fills from its peers",
            *(entry.name, folder, directory_id),
        )
        _format_node(
            data_dir,
            description.cluster_id,
            entry.addresses,
            _controllers_table(description),
            _settings_of(description),
            directory_id,
        )
    else:
        make_directory(folder)
        if not entry.config.exists():
            _write_config(data_dir, description, entry)
        _log.error(
            "folder of %s is gone folder=%s: it stays down until"
            " `quorumlog controller rejoin --config %s` is said; the others run on",
            *(entry.name, folder, entry.config),
        )


def _write_config(data_dir: Path, description: ClusterDescription, entry: NodeEntry) -> None:
    text = _config_text(
        description.cluster_id,
        entry.addresses,
        _controllers_table(description),
        _settings_of(description),
    )
    replace_file(Disk(), str(data_dir / entry.name / CONFIG_FILE), [text.encode()])


def _format_node(
    data_dir: Path,
    cluster_id: ClusterId,
    node: NodeAddresses,
    controllers: Mapping[str, Any],
    settings: Settings,
    directory_id: DirectoryId,
) -> None:
    meta = NodeMeta(cluster_id=cluster_id, node_id=NodeId(node.node_id), directory_id=directory_id)
    text = _config_text(cluster_id, node, controllers, settings)
    format_folder(data_dir / node.name, meta, text)


def _config_text(
    cluster_id: ClusterId, node: NodeAddresses, controllers: Mapping[str, Any], settings: Settings
) -> str:
    inner = "peer" if node.role == "broker" else "raft"
    addresses = {"http": str(node.http), inner: str(node.inner)}
    table: dict[str, Mapping[str, Any]] = {
        "node": {
            "id": node.node_id,
            "role": node.role,
            "cluster_id": cluster_id,
            "data_dir": ".",
        },
        "listeners": addresses,
        "advertised": addresses,
        "controllers": controllers,
        "dial": {},
    }
    for section in SETTING_SECTIONS:
        table[section] = {
            name: value
            for name, value in settings.items()
            if find_setting(name, "settings").section == section
        }
    return render_config(table)


def _controller_row(node: NodeAddresses) -> dict[str, str]:
    return {"http": str(node.http), "raft": str(node.inner)}


def _controllers_table(description: ClusterDescription) -> dict[str, dict[str, str]]:
    """Return ``[controllers]`` of a node's existing configuration, else of the cluster file."""
    for entry in description.nodes:
        if entry.config.exists():
            return read_config_file(entry.config)["controllers"]
    return {str(e.node_id): _controller_row(e.addresses) for e in description.controllers}


def _settings_of(description: ClusterDescription) -> dict[str, SettingValue]:
    """Return the settings of the first node that still has its configuration, brokers first."""
    for entry in (*description.brokers, *description.controllers):
        if entry.config.exists():
            table = read_config_file(entry.config)
            return {k: v for section in SETTING_SECTIONS for k, v in table[section].items()}
    return defaults_for_size(len(description.brokers))


def _entry(data_dir: Path, node: NodeAddresses) -> NodeEntry:
    return make_entry(
        data_dir, node.role, node.node_id, url=f"http://{node.http}", inner=node.inner
    )


def listening_addresses(entry: NodeEntry) -> NodeAddresses:
    """Return the node's addresses by its own configuration, else by the cluster file."""
    if not entry.config.exists():
        return entry.addresses
    listeners = read_config_file(entry.config)["listeners"]
    known = entry.addresses
    inner = "peer" if entry.role == "broker" else "raft"
    return NodeAddresses(
        entry.role,
        entry.node_id,
        _listener(listeners.get("http"), known.http),
        _listener(listeners.get(inner), known.inner),
    )


def _listener(text: object, known: Address) -> Address:
    return known if text is None else parse_address(text, "listeners")
