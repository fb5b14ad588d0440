"""Checks that tell rotten headers, indexes and small files from sound ones, each switched off."""

from __future__ import annotations

import struct
from typing import Any

import orjson

from broker.log import checkpoints, index, log_manager, log_reader, recovery, swap
from raft_metadata.common.errors import CorruptionError
from tests.support.planted.registry import LOST, Patch, replication_fault


@replication_fault(
    "L22: a length that reaches past the end of a file is not handled",
    "L22",
    rots=True,
    first=16,
)
def _past_the_end(patch: Patch) -> None:
    real = log_reader._fetch

    def fetch(*where: Any) -> Any:
        try:
            return real(*where)
        except CorruptionError as error:
            if "no batch holds" in str(error):
                raise struct.error(str(error)) from error
            raise

    patch.setattr(log_reader, "_fetch", fetch)


@replication_fault(
    "rule R10: a rotted log start is rebuilt from the log",
    "L24",
    rots=True,
    trims=True,
    first=80,
)
def _start_is_rebuilt(patch: Patch) -> None:
    patch.setattr(recovery, "TornError", CorruptionError)


@replication_fault(
    "rule R7: a rotted note of dropped tombstones counts as none",
    "rule R7",
    rots=True,
    compacts=True,
    first=97,
)
def _nothing_was_dropped(patch: Patch) -> None:
    real = swap.read_checkpoint

    def read(disk: Any, path: str) -> Any:
        try:
            return real(disk, path)
        except CorruptionError:
            return None

    patch.setattr(swap, "read_checkpoint", read)


@replication_fault(
    "rule Q5: a log whose identity rotted is set aside as never synced", "L23", rots=True, first=4
)
def _identity_is_torn(patch: Patch) -> None:
    real = log_manager.decode_checkpoint

    def decode(data: bytes, path: str) -> Any:
        try:
            return real(data, path)
        except CorruptionError:
            return {"topic": "t", "topic_id": "B" * 22, "partition": 0}

    patch.setattr(log_manager, "decode_checkpoint", decode)


@replication_fault(
    "L11: rotted epochs count as none, and sealed segments are not scanned",
    "L11",
    rots=True,
    first=36,
)
def _epochs_count_as_none(patch: Patch) -> None:
    real = recovery.read_checkpoint

    def read(disk: Any, path: str) -> Any:
        try:
            return real(disk, path)
        except CorruptionError:
            if path.endswith(recovery.LEADER_EPOCH_FILE):
                return [[0, 0]]
            raise

    patch.setattr(recovery, "read_checkpoint", read)


@replication_fault(
    "Q5: small files are used without their checksum",
    "rule Q5",
    "L24",
    "L8",
    *LOST,
    rots=True,
    first=7,
)
def _unchecked_files(patch: Patch) -> None:
    def decode(data: bytes, path: str) -> Any:
        body = data.removesuffix(b"\n").rpartition(b"\n")[0]
        try:
            return orjson.loads(body)
        except ValueError:
            msg = f"checkpoint {path} is damaged"
            raise CorruptionError(msg) from None

    for module in (checkpoints, log_manager):
        patch.setattr(module, "decode_checkpoint", decode)


@replication_fault(
    "L23: the head of an index is used without its checksum", "L22", "L23", rots=True, first=24
)
def _unchecked_index(patch: Patch) -> None:
    size = index._HEAD.size

    def head(data: bytes, path: str) -> Any:
        if len(data) < size:
            msg = f"index {path} is damaged"
            raise CorruptionError(msg)
        return index.IndexFileHead(*index._HEAD.unpack_from(data)[2:8])

    patch.setattr(index, "_head", head)
