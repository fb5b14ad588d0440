"""Remedies for a controller with a damaged folder: the exact commands, for the error message."""

from __future__ import annotations

import shlex
from pathlib import Path

from http_api.node.config import NodeConfig
from http_api.node.exits import NodeExit
from http_api.node.formatting import RAFT_FOLDER


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
