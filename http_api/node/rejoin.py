"""``quorumlog controller rejoin``: brings back a voter that lost its disk (rule Q4).

Never done without an operator's command: a voter that lost its vote may vote twice in a term, and
acknowledgements of the lost disk must not complete a majority. So first every other voter accepts
the new directory, each durably; then the folder is formatted with a fence: the voter neither votes
nor counts until it holds what a leader of the newest term has committed. `rejoin_commands` and
`with_remedy` put the exact commands into the errors of a controller with a damaged folder.
"""

from __future__ import annotations

import http.client
import json
import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from http_api.node.exits import EXIT_LOCKED, EXIT_NOT_READY, EXIT_STORAGE, NodeConfigError, NodeExit
from http_api.node.formatting import RAFT_FOLDER, random_id
from http_api.node.node_config import Address, NodeConfig, load_node_config
from http_api.node.node_folder import PID_FILE, FolderLock, NodeMeta, make_directory, write_meta
from http_api.peer import controller_paths as paths
from raft_metadata.common.errors import StorageError
from raft_metadata.common.ids import DirectoryId, NodeId
from raft_metadata.quorum.data_dir import Identity, format_rejoining_raft_dir


def rejoin_commands(raft_dir: Path, path: Path) -> str:
    """Return the commands that bring back a controller whose raft folder is damaged or lost.

    The damaged folder is kept for inspection, under a new name each time.
    """
    rejoin = f"quorumlog controller rejoin --config {shlex.quote(str(path.absolute()))}"
    if not raft_dir.exists():
        return rejoin
    quoted = shlex.quote(str(raft_dir))
    return f"mv {quoted} {quoted}.damaged-$(date +%s) && {rejoin}"


def with_remedy(ending: NodeExit, config: NodeConfig, path: Path) -> NodeExit:
    """Return an exit for damage (`NodeExit.is_damage`) with the remedy added to its message."""
    if len(config.controllers) == 1:
        text = "it is the only controller: nobody else holds what is damaged, restore its folder"
    else:
        text = (
            f"{config.name} is not started from nothing (rule Q4), the other controllers run on. "
            f"While all of them run, say: {rejoin_commands(config.data_dir / RAFT_FOLDER, path)}"
        )
    return NodeExit(ending.code, f"{ending.message}; {text}", is_damage=True)


CALL_TIMEOUT_S = 5.0
START_WITHIN_S = 5.0
"""Longest wait for the folder's lock: a controller without its raft folder has ended by then."""
LOCK_POLL_S = 0.1


def rejoin_controller(path: Path, environment: Mapping[str, str]) -> NodeMeta:
    """Register the new directory with the other voters, format the folder, return its identity."""
    config = load_node_config(path, environment)
    if config.role != "controller":
        msg = f"{path}: node.role = {config.role!r}, only a controller rejoins"
        raise NodeConfigError(msg)
    make_directory(config.data_dir)
    lock = _locked(config)
    try:
        return _rejoin(config, path)
    finally:
        lock.release()


def _locked(config: NodeConfig) -> FolderLock:
    """Return the folder's lock; retry while a supervisor's start of the node holds it briefly."""
    lock, deadline = FolderLock(config.data_dir / PID_FILE), time.monotonic() + START_WITHIN_S
    while True:
        try:
            lock.acquire(config.name)
        except NodeExit as error:
            if error.code != EXIT_LOCKED or _holds_data(config) or time.monotonic() > deadline:
                raise
            time.sleep(LOCK_POLL_S)
        else:
            return lock


def _holds_data(config: NodeConfig) -> bool:
    raft_dir = config.data_dir / RAFT_FOLDER
    return raft_dir.is_dir() and any(raft_dir.iterdir())


def _rejoin(config: NodeConfig, path: Path) -> NodeMeta:
    raft_dir = config.data_dir / RAFT_FOLDER
    if _holds_data(config):
        msg = f"{raft_dir} still holds data: start the controller; or, if that data is damaged,"
        raise NodeExit(EXIT_STORAGE, f"{msg} say: {rejoin_commands(raft_dir, path)}")
    others = {NodeId(i): each.http for i, each in config.controllers.items() if i != config.node_id}
    if not others:
        msg = f"{config.name} is the only controller: no other voter holds what its disk held"
        raise NodeExit(EXIT_STORAGE, msg)
    directory_id = DirectoryId(random_id())
    directories = _present_directories(config, others)
    for voter in others:
        body = {"node_id": config.node_id, "directory_id": directory_id}
        _call(config, voter, "POST", paths.ACCEPT_VOTER, body)
    meta = NodeMeta(cluster_id=config.cluster_id, node_id=config.node_id, directory_id=directory_id)
    identity = Identity(
        cluster_id=config.cluster_id, node_id=config.node_id, directory_id=directory_id
    )
    try:
        format_rejoining_raft_dir(raft_dir, identity, directories)
    except StorageError as error:
        raise NodeExit(EXIT_STORAGE, str(error)) from error
    write_meta(config.data_dir, meta)
    return meta


def _present_directories(
    config: NodeConfig, others: Mapping[NodeId, Address]
) -> dict[NodeId, DirectoryId]:
    """Return the directory id of every other voter; each is requested from the voter itself."""
    return {
        voter: DirectoryId(_call(config, voter, "GET", paths.VOTERS)[str(voter)])
        for voter in others
    }


def _call(
    config: NodeConfig, voter: NodeId, method: str, path: str, body: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    address = config.dial_address(f"controller-{voter}", "http", config.controllers[voter].http)
    connection = http.client.HTTPConnection(address.host, address.port, timeout=CALL_TIMEOUT_S)
    headers = {paths.CLUSTER_HEADER: config.cluster_id, paths.ADDRESSEE_HEADER: str(voter)}
    try:
        connection.request(method, path, json.dumps(body) if body else None, headers)
        answer = connection.getresponse()
        content = answer.read()
    except (OSError, http.client.HTTPException) as error:
        msg = f"controller {voter} does not answer at {address}: every other voter must run"
        raise NodeExit(EXIT_NOT_READY, f"{msg} ({error})") from error
    finally:
        connection.close()
    if answer.status != 200:
        msg = f"controller {voter} refused: {content.decode(errors='replace')}"
        raise NodeExit(EXIT_NOT_READY, msg)
    found: dict[str, Any] = json.loads(content)
    return found
