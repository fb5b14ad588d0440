"""`quorumlog log dump`: what lies in a broker's files, and whether all of it is sound (rule Q5)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from broker.log.checkpoints import encode_checkpoint
from broker.log.compaction import CompactionConfig
from broker.log.index import OffsetIndex, decode_index, encode_index
from broker.log.inspection import DAMAGE, NOTE, TORN, check_folder
from broker.log.log_directory import LogConfig
from broker.record.batch import HEADER_SIZE, RecordFormat
from broker.record.numbering import HomeKind, RowNumber, claim_of_row, make_numbering
from http_api.cli.main import cli
from raft_metadata.common.disk import Disk
from raft_metadata.common.ids import SEQUENCES, LeaderEpoch, PartitionId
from tests.support.compaction_model import append_keyed, clean
from tests.support.logs import Life, append, records

SMALL = LogConfig(segment_bytes=20_000)


def written(data_dir: Path, *, clean: bool = True, config: LogConfig = SMALL) -> Path:
    """A log of 60 batches over some segments and two epochs; its folder."""
    life = Life(Disk(), config, str(data_dir))
    log = life.log()
    for number in range(60):
        append(log, [f"{number}-{n}" for n in range(20)], epoch=1 + number // 40)
        if number % 4 == 0:
            life.flush()
    if clean:
        life.close()
    else:
        for each in life.manager.logs():
            each.close()
    return data_dir / "log" / "orders-0"


def listing(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["log", *map(str, arguments)], standalone_mode=False)


def spoil(path: Path, at: int, *, cut: bool = False) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x55
    path.write_bytes(data[:at] if cut else data)


def positions(folder: Path) -> list[tuple[str, int]]:
    shown = run("dump", folder, "--format", "json").stdout.splitlines()
    return [(row["file"], row["position"]) for row in map(json.loads, shown)]


@pytest.mark.parametrize("clean", [True, False])
def test_a_sound_log_is_sound_and_is_left_as_it_was(tmp_path: Path, clean: bool) -> None:
    folder = written(tmp_path, clean=clean)
    before = listing(folder)
    result = run("dump", tmp_path, "--verify")
    assert (result.return_value, result.exit_code) == (0, 0), result.output
    assert "sound: offsets 0 to 1200" in result.output
    assert "60 batches, 1200 records" in result.output
    assert not [line for line in result.output.splitlines() if line.startswith("damage")]
    assert listing(folder) == before


def test_batches_and_records_are_shown_from_an_offset_on(tmp_path: Path) -> None:
    folder = written(tmp_path)
    result = run("dump", folder, "--from", 790, "--limit", 2, "--records", "--format", "json")
    first, second = [json.loads(line) for line in result.stdout.splitlines()]
    assert (first["base_offset"], first["last_offset"], first["count"]) == (780, 799, 20)
    assert (first["leader_epoch"], second["leader_epoch"]) == (1, 2)
    assert (first["crc_ok"], first["stamp_ok"], first["producer_id"]) == (True, True, -1)
    assert [record["offset"] for record in second["records"]] == list(range(800, 820))
    text = run("dump", folder, "--from", 790, "--limit", 1, "--records").stdout
    assert "offsets 780..799  count 20  epoch 1  1970-01-01T00:00:01.000Z" in text
    assert '{"offset":780,"key":null,"value":"39-0"}' in text
    assert run("dump", first["file"], "--limit", 1).return_value == 0


def test_rule_s4_a_batch_says_which_home_completed_it(tmp_path: Path) -> None:
    life = Life(Disk(), data_dir=str(tmp_path))
    log = life.log()
    home = make_numbering(HomeKind.TRANSACTIONS, PartitionId(3), LeaderEpoch(-1))
    log.append_as_leader(
        records(["a", "b"]),
        key_format=RecordFormat.JSON,
        value_format=RecordFormat.JSON,
        leader_epoch=1,
        now_ms=1,
        claim=claim_of_row(home, RowNumber(SEQUENCES + 7)),
    )
    life.flush()
    folder = Path(log.directory)
    life.close()
    said = "completed by __transaction_state-3 as rows 2147483655..2147483656"
    assert said in run("dump", folder).stdout
    found = json.loads(run("dump", folder, "--format", "json").stdout.splitlines()[0])
    assert (found["completed"], found["producer_id"]) == (said, home)


def test_rule_q5_a_bad_batch_below_what_was_durable_is_damage(tmp_path: Path) -> None:
    folder = written(tmp_path)
    file, at = positions(folder)[17]
    spoil(Path(file), at + HEADER_SIZE + 3)
    result = run("dump", tmp_path, "--verify")
    assert result.return_value == 1
    assert f"damage: {file} position {at} offset 340: crc is" in result.output
    assert "it was durable up to 1200" in result.output
    assert "59 batches" in result.output, "the others are looked at all the same"
    shown = run("dump", folder).stdout
    assert sum("BAD: crc is" in line for line in shown.splitlines()) == 1


def test_of_one_file_the_records_are_shown_and_all_that_it_can_tell_is_checked(
    tmp_path: Path,
) -> None:
    folder = written(tmp_path)
    file, at = positions(folder)[17]
    shown = run("dump", file).stdout
    assert '{"offset":340,"key":null,"value":"17-0"}' in shown
    assert '"offset":340' not in run("dump", file, "--no-records").stdout
    for each in sorted(folder.glob("*.log")):
        sound = run("dump", each, "--verify")
        assert (sound.return_value, sound.exit_code) == (0, 0), sound.output
        assert f"{each}: sound: offsets {int(each.stem)} to" in sound.output
    spoil(Path(file), at + HEADER_SIZE + 3)
    result = run("dump", file, "--verify")
    assert result.return_value == 1
    assert f"damage: {file} position {at} offset 340: crc is" in result.output
    others = [each for each in folder.glob("*.log") if str(each) != file]
    assert all(run("dump", each, "--verify").return_value == 0 for each in others)


def test_rule_q5_one_file_that_ends_too_early_is_damage_where_later_ones_prove_it(
    tmp_path: Path,
) -> None:
    folder = written(tmp_path, clean=False)
    first, second = sorted(folder.glob("*.log"))[:2]
    last_of_it = [at for file, at in positions(folder) if file == str(first)][-1]
    spoil(first, last_of_it, cut=True)
    result = run("dump", first, "--verify")
    assert result.return_value == 1
    assert f"expected {int(second.stem)}; it was durable up to" in result.output
    for each in folder.iterdir():
        if each != first:
            each.unlink()
    assert run("dump", first, "--verify").return_value == 0, "alone it can't be told from whole"


def test_rule_q5_a_bad_batch_above_what_is_proven_durable_is_torn(tmp_path: Path) -> None:
    folder = written(tmp_path, clean=False)
    file, at = positions(folder)[58]  # 1160..1179; the last proof is in the batch after a flush
    spoil(Path(file), at + HEADER_SIZE + 3)
    report = check_folder(folder)
    (torn,) = [finding for finding in report.findings if finding.level == TORN]
    assert (torn.position, torn.offset) == (at, 1_160)
    assert not report.is_damaged
    assert report.end == 1_160
    assert run("dump", tmp_path, "--verify").return_value == 0


def test_a_file_that_ends_inside_its_last_batch_is_torn(tmp_path: Path) -> None:
    folder = written(tmp_path, clean=False)
    file, at = positions(folder)[-1]
    spoil(Path(file), at + 100, cut=True)
    report = check_folder(folder)
    assert [finding.level for finding in report.findings if finding.level != NOTE] == [TORN]
    assert report.end == 1_180


def test_a_missing_segment_in_the_middle_is_damage(tmp_path: Path) -> None:
    folder = written(tmp_path)
    second = sorted(folder.glob("*.log"))[1]
    second.unlink()
    result = run("dump", folder, "--verify", "--format", "json")
    report = json.loads(result.stdout)
    assert (result.return_value, report["is_damaged"]) == (1, True)
    assert report["findings"][0]["text"].startswith("the segment begins at")
    assert report["findings"][0]["offset"] == int(second.stem)


def test_a_log_that_is_shorter_than_its_clean_shutdown_said_is_damaged(tmp_path: Path) -> None:
    folder = written(tmp_path)
    file, at = positions(folder)[-3]
    spoil(Path(file), at, cut=True)
    result = run("dump", tmp_path, "--verify")
    assert result.return_value == 1
    assert "the log ends too early: it was durable up to 1200" in result.output


def test_an_index_that_leads_astray_is_damage_and_a_spoilt_one_a_note(tmp_path: Path) -> None:
    folder = written(tmp_path)
    path = min(folder.glob("*.index"))
    head, index = decode_index(path.read_bytes(), str(path))
    spoil(path, 60)
    assert [finding.level for finding in check_folder(folder).findings] == [NOTE]
    astray = OffsetIndex()
    for number, (offset, position) in enumerate(index.entries):
        astray.add(offset + (number == 2), position, -1)
    path.write_bytes(encode_index(head, astray))
    (found,) = check_folder(folder).findings
    offset, position = index.entries[2]
    assert (found.level, found.file) == (DAMAGE, str(path))
    assert (found.offset, found.position) == (offset + 1, position)
    too_many = OffsetIndex()
    for offset, position in index.entries:
        too_many.add(offset, position + (position > 0), -1)
    path.write_bytes(encode_index(head, too_many))
    assert {finding.level for finding in check_folder(folder).findings} == {DAMAGE}


def test_a_wrong_epoch_file_is_damage(tmp_path: Path) -> None:
    folder = written(tmp_path)
    (folder / "leader-epoch").write_bytes(encode_checkpoint([[1, 0], [2, 760]]))
    result = run("dump", folder, "--verify")
    assert result.return_value == 1
    assert "epoch 2 begins at 800 in the log, the file says 760" in result.output


def test_another_partitions_file_is_damage(tmp_path: Path) -> None:
    folder = written(tmp_path)
    moved = folder.rename(folder.with_name("orders-1"))
    result = run("dump", moved, "--verify")
    assert result.return_value == 1
    assert "it says orders-0" in result.output


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["dump", "{root}/log/lock", "--verify"], "expected a segment file like"),
        (["dump", "{folder}", "--verify", "--records"], "it can't be combined"),
        (["dump", "{root}/empty"], "no partition's files here"),
        (["chain", "{root}"], "expected a partition's folder"),
        (["chain", "{folder}", "--to", "1201"], "the log ends at 1200"),
        (["dump", "{root}/log/lock"], "expected a segment file like"),
    ],
)
def test_an_unreadable_file_is_reported(tmp_path: Path, arguments: list[str], text: str) -> None:
    folder = written(tmp_path)
    (tmp_path / "empty").mkdir()
    names = {"root": tmp_path, "folder": folder, "file": min(folder.glob("*.log"))}
    result = run(*[argument.format(**names) for argument in arguments])
    assert text in str(result.exception), result.output


def test_chains_of_two_disks_are_equal_where_the_logs_are(tmp_path: Path) -> None:
    one, other = written(tmp_path / "a"), written(tmp_path / "b", config=LogConfig())
    chains = [
        json.loads(run("chain", each, "--from", 0, "--format", "json").stdout)
        for each in (one, other)
    ]
    assert chains[0] == chains[1]
    assert chains[0]["to"] == 1_200
    assert run("chain", one, "--from", 300, "--to", 900).stdout.endswith(
        "from 300 to 900, first 0\n"
    )
    beyond = run("chain", one, "--from", 1_300)
    assert "--from 1300: expected at most 1200" in str(beyond.exception)


def test_a_compacted_log_is_sound_and_its_chain_starts_behind_its_holes(tmp_path: Path) -> None:
    config = LogConfig(
        segment_bytes=2_000, compaction=CompactionConfig(delete_retention_ms=0, segment_bytes=2_000)
    )
    chains = []
    for name in ("compacted", "whole"):
        life = Life(Disk(), config, str(tmp_path / name))
        log = life.log()
        for number in range(200):
            append_keyed(log, [(number % 7, number), (100 + number % 3, None)])
            life.flush()
        log.high_watermark = log.log_end_offset
        if name == "compacted":
            assert clean(log).cleaned_to > 0
        life.close()
        folder = tmp_path / name / "log" / "orders-0"
        result = run("dump", folder, "--verify")
        assert (result.return_value, result.exit_code) == (0, 0), result.output
        chains.append(json.loads(run("chain", folder, "--format", "json").stdout))
    cleaned, whole = chains
    assert 0 < cleaned["first"] < cleaned["to"] == whole["to"] == 400
    same = run("chain", tmp_path / "whole" / "log" / "orders-0", "--from", cleaned["first"])
    assert same.stdout.split()[0] == cleaned["value"]
    assert whole["value"] != cleaned["value"]


def test_a_log_start_inside_a_segment_and_one_that_moved_over_segments_are_sound(
    tmp_path: Path,
) -> None:
    life = Life(Disk(), SMALL, str(tmp_path))
    log = life.log()
    for number in range(60):
        append(log, [f"{number}-{n}" for n in range(20)], epoch=1 + number // 10)
        life.flush()
    log.high_watermark = 1_200
    log.advance_log_start(507)
    life.flush()
    folder = tmp_path / "log" / "orders-0"
    assert not check_folder(folder).is_damaged, check_folder(folder).findings
    life.close()
    report = check_folder(folder)
    assert (report.start, report.end) == (507, 1_200)
    assert {finding.level for finding in report.findings} <= {NOTE}
    assert run("dump", tmp_path, "--verify").return_value == 0
    again = Life(Disk(), SMALL, str(tmp_path))
    again.log().start_over(2_000)
    again.flush()
    append(again.log(), ["new"], epoch=9)
    again.flush()
    report = check_folder(folder)
    assert (report.start, report.end, report.is_damaged) == (2_000, 2_001, False), report.findings
    again.close()
