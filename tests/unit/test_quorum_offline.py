"""The metadata log of a stopped controller, read from its directory and left as it was."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path

import pytest

from http_api.cli.main import run
from raft_metadata.common.errors import CorruptionError, StorageError
from raft_metadata.common.ids import TopicName
from raft_metadata.image.metadata_state_machine import MetadataStateMachine
from raft_metadata.quorum.metadata_quorum import MetadataQuorum
from raft_metadata.quorum.offline import InUseError, read_offline_log
from raft_metadata.records.records import TopicRecord
from raft_metadata.records.serde import encode_batch
from tests.support.metadata_world import topic_id
from tests.support.quorum_process import SilentListener, config, format_all, free_addresses
from tests.support.raising_faults import RaisingFaults
from tests.support.waiting import until


def content(directory: Path) -> dict[str, tuple[bytes, int]]:
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in directory.iterdir()}


def topic(number: int) -> TopicRecord:
    return TopicRecord(name=TopicName(f"t{number}"), topic_id=topic_id(number), partitions_count=1)


async def written(root: Path, topics: int, *, snapshot_every: int = 1_000) -> MetadataQuorum:
    """A lone voter, running, whose log has so many topics; the last batch is refused by all."""
    format_all(root, [1])
    machine, listener = MetadataStateMachine(), SilentListener()
    settings = dataclasses.replace(
        config(1, root, free_addresses([1])), snapshot_min_entries=snapshot_every
    )
    quorum = MetadataQuorum(
        settings,
        machine,
        RaisingFaults(),
    )
    await quorum.start(listener)
    await until(lambda: bool(listener.leaderships))
    await write(quorum, listener.leaderships[0].term, range(topics))
    return quorum


async def write(quorum: MetadataQuorum, term: int, numbers: Iterable[int]) -> None:
    for number in numbers:
        batch = encode_batch(number, term, [topic(number)], time_ms=1_700_000_000_000)
        await quorum.submit(batch, term)
    await quorum.submit(encode_batch(0, term, [topic(99)]), term)


async def test_the_files_of_a_stopped_controller_are_read_and_left_alone(tmp_path: Path) -> None:
    await (await written(tmp_path, 3)).stop()
    before = content(tmp_path / "raft-1")
    log = read_offline_log(tmp_path / "raft-1")
    assert log.snapshot_index == 0
    assert [batch.base_offset for batch in log.batches] == [0, 1, 2], "the refused one is no fact"
    assert sorted(log.image.topic_ids) == ["t0", "t1", "t2"]
    assert (log.node_id, log.torn_bytes) == (1, 0)
    assert content(tmp_path / "raft-1") == before


async def test_a_snapshot_comes_first_and_the_journal_goes_on_behind_it(tmp_path: Path) -> None:
    quorum = await written(tmp_path, 40, snapshot_every=30)
    raft_dir = tmp_path / "raft-1"
    await until((raft_dir / "snapshot").exists)
    await write(quorum, quorum.raft_state().term, range(40, 45))  # too few for the next snapshot
    await quorum.stop()
    log = read_offline_log(raft_dir)
    end = log.before.next_offset
    assert log.snapshot_index > 0 < end
    assert [batch.base_offset for batch in log.batches] == list(range(end, 45))
    assert len(log.image.topics) == 45
    told = list(log.facts(0))
    assert [fact["type"] for fact in told[:2]] == ["snapshot", "topic"]
    assert told[-1]["offset"] == 44
    assert [fact["offset"] for fact in log.facts(end + 1)] == list(range(end + 1, 45))


async def test_a_compacted_journal_without_its_snapshot_is_refused(tmp_path: Path) -> None:
    quorum = await written(tmp_path, 40, snapshot_every=10)
    raft_dir = tmp_path / "raft-1"
    await until((raft_dir / "snapshot").exists)
    await until(lambda: quorum.raft_state().first_index > 1)  # type: ignore[union-attr]
    await quorum.stop()
    (raft_dir / "snapshot").unlink()
    with pytest.raises(CorruptionError, match=r"journal starts at \d+, the snapshot ends at 0"):
        read_offline_log(raft_dir)


async def test_a_running_controllers_directory_is_refused_unless_forced(tmp_path: Path) -> None:
    quorum = await written(tmp_path, 2)
    try:
        with pytest.raises(InUseError, match="in use by a running controller"):
            read_offline_log(tmp_path / "raft-1")
        log = read_offline_log(tmp_path / "raft-1", even_if_locked=True)
        assert len(log.batches) == 2
    finally:
        await quorum.stop()


async def test_a_torn_tail_is_left_out_and_damage_is_refused(tmp_path: Path) -> None:
    await (await written(tmp_path, 3)).stop()
    journal = tmp_path / "raft-1" / "journal"
    whole = journal.read_bytes()
    journal.write_bytes(whole + b"torn")
    log = read_offline_log(tmp_path / "raft-1")
    assert (len(log.batches), log.torn_bytes) == (3, 4)
    journal.write_bytes(whole[:60] + b"X" + whole[61:])
    with pytest.raises(CorruptionError, match="journal"):
        read_offline_log(tmp_path / "raft-1")


def test_a_folder_that_is_no_controllers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no controller's directory"):
        read_offline_log(tmp_path)


async def test_the_command_reads_a_folder_and_has_its_exit_codes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quorum = await written(tmp_path, 2)
    arguments = ["metadata", "dump", "--dir", str(tmp_path / "raft-1")]
    assert run(arguments) == 75
    assert "--force" in capsys.readouterr().err
    assert run([*arguments, "--force"]) == 0
    await quorum.stop()
    capsys.readouterr()
    assert run([*arguments, "--from", "1"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        f"1 e{quorum_term(err)} 2023-11-14T22:13:20.000Z topic t1: created, 1 partitions"
    ]
    assert "controller 1 of cluster integration" in err
    assert run(["metadata", "dump", "--dir", str(tmp_path)]) == 74
    assert run([*arguments, "--follow"]) == 2


def quorum_term(said: str) -> str:
    return said.partition(" of term ")[2].partition(";")[0]
