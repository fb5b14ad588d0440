"""Unclean replicas, which can't prove what they acknowledged; reported at registration (rule R6).

The `BrokerServer` collects them before it registers. A log is unclean if its bytes are damaged or
lost, or if its topic had ``flush=os`` and this start is of another boot than the last run, so that
the page cache may have been lost (ADR 0005). Two small files keep the facts: `PageCacheTopics` the
topics of ``flush=os``, `note_boot` the boot.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Set
from pathlib import Path
from typing import TYPE_CHECKING

from broker.log.checkpoints import (
    encode_checkpoint,
    read_checkpoint,
)
from raft_metadata.common.configs.table import FLUSH
from raft_metadata.common.disk import Disk, place_file, replace_file
from raft_metadata.common.errors import CorruptionError, StorageError
from raft_metadata.common.ids import PartitionId, TopicId
from raft_metadata.image.metadata_image import MetadataImage, broker_layers, topic_layers
from raft_metadata.records.partition_set import PartitionRange, PartitionSet
from raft_metadata.records.records import ResourceType

if TYPE_CHECKING:
    from broker.config import BrokerConfig
    from broker.log.log_manager import LogManager
    from broker.log.partition_log import PartitionLog


BOOT_ID_FILE = "boot-id"
BOOT_ID_PATH = Path("/proc/sys/kernel/random/boot_id")
FILE = "page-cache-topics"
SYNC_CHECK_MS = 200
"""Interval of checks whether the logs of a topic that became ``ack`` are durable."""
_PAGE_CACHE = "os"

_log = logging.getLogger("broker.server")


class PageCacheTopics:
    """The topics that are acknowledged from the page cache, in a file.

    Owned by the `BrokerServer`, on its loop. Invariant: the file names every topic of which an
    unsynced record may have been acknowledged by the page-cache rule; it may name more.
    """

    def __init__(self, config: BrokerConfig, logs: LogManager, disk: Disk | None = None) -> None:
        self._broker_id = config.broker_id
        self._static = config.static()
        self._directory = str(config.data_dir)
        self._disk = disk or Disk()
        self._logs = logs
        self._image = MetadataImage()
        self._named: Set[TopicId] = frozenset()
        self.at_start: Set[TopicId] | None = None
        """Topics in the file when this run began; None: there was no file yet."""
        self._present: Set[TopicId] = frozenset()
        """Topics that are ``os`` in the newest image."""
        self._left = asyncio.Event()
        self._is_written = self._is_default = False

    @property
    def named(self) -> Set[TopicId]:
        """Topics that the file names."""
        return self._named

    def read(self) -> None:
        """Read the file of earlier runs. A damaged file is refused: it may hide a lost record.

        Raises:
            CorruptionError: names the file, and what its operator can do.
        """
        path = f"{self._directory}/{FILE}"
        try:
            content = read_checkpoint(self._disk, path)
        except CorruptionError as error:
            raise _damaged(path, "its checksum is wrong") from error
        if content is not None and not isinstance(content, list):
            raise _damaged(path, "expected a list of topic ids")
        self._named = frozenset(TopicId(str(each)) for each in content or [])
        self.at_start = None if content is None else self._named
        self._is_written = content is not None

    def note(self, image: MetadataImage) -> None:
        """Add the image's topics to the file; durable before a replica takes its role from it."""
        before, self._image = self._image, image
        same = before.configs is image.configs
        if same and (before.topics is image.topics or not self._is_default):
            return
        self._present = self._page_cached(image)
        self._write(self._named | self._present)

    def followed(self) -> None:
        """Have topics removed that became ``ack``: all replicas follow the noted image now.

        Nothing is acknowledged by older configs from here on.
        """
        if self._named - self._present:
            self._left.set()

    def _page_cached(self, image: MetadataImage) -> Set[TopicId]:
        default = broker_layers(image, self._broker_id, self._static).word(FLUSH)
        self._is_default = default == _PAGE_CACHE
        configured = {
            TopicId(name): configs[FLUSH]
            for (kind, name), configs in image.configs.items()
            if kind is ResourceType.TOPIC and FLUSH in configs
        }
        found = {topic_id for topic_id, flush in configured.items() if flush == _PAGE_CACHE}
        if self._is_default:
            found |= image.topics.keys() - configured.keys()
        return found

    async def run(self) -> None:
        """Remove topics that are ``os`` no more, once all they have here is durable; never returns.

        To be started when this run's registration is settled: by then the losses of an earlier run
        are recorded.
        """
        while True:
            await self._left.wait()
            self._left.clear()
            removed = self._named - self._present
            waiting = [
                (log, log.log_end_offset) for log in self._logs.logs() if log.topic_id in removed
            ]
            while not all(map(_is_durable, waiting)):
                for log, _ in waiting:
                    log.request_flush()
                await asyncio.sleep(SYNC_CHECK_MS / 1000)
            self._write(self._named - (removed - self._present))

    def _write(self, topics: Set[TopicId]) -> None:
        if topics != self._named or not self._is_written:
            content = encode_checkpoint(sorted(topics))
            replace_file(self._disk, f"{self._directory}/{FILE}", [content])
            if topics or self._named:
                _log.info("topics acknowledged from the page cache count=%d", len(topics))
            self._named, self._is_written = topics, True


def _damaged(path: str, what: str) -> CorruptionError:
    """Return the error for a damaged file of topics.

    Every log is synced before the file is read: only a power cut since can have cost records.
    Without the file the topics count that are ``flush=os`` by now.
    """
    return CorruptionError(
        f"{path} is damaged: {what}. It says which topics may have lost records with the power of "
        "this machine. If its power has not failed since this broker last ran, or no topic was "
        "changed from flush=os to ack, remove the file; else move the whole folder of this broker "
        "away, and it is filled again from its peers"
    )


def _is_durable(waiting: tuple[PartitionLog, int]) -> bool:
    """Return whether a log has synced up to that offset, or has nothing more to sync."""
    log, end = waiting
    return log.failed is not None or log.durable_end >= min(end, log.log_end_offset)


def check_log_directory(data_dir: Path) -> None:
    """Refuse to start if a broker has run here but its logs are missing (rule R6).

    Starting empty under the same directory id would keep the places of the lost replicas.
    """
    if (data_dir / BOOT_ID_FILE).exists() and not (data_dir / "log" / "lock").exists():
        text = (
            f"{data_dir / 'log'} is gone, and {data_dir} is not new; mount it again, or remove the "
            f"whole folder {data_dir} so that the broker starts anew and fills from its peers"
        )
        raise StorageError(text)


def page_cache_is_kept(data_dir: Path, boot_id: str, disk: Disk | None = None) -> bool:
    """Return whether `note_boot` was last called under this boot; False for an unknown id, ""."""
    try:
        known = read_checkpoint(disk or Disk(), str(data_dir / BOOT_ID_FILE))
    except CorruptionError as error:
        _log.warning("boot id ignored reason=%s", error)
        known = None
    return bool(boot_id) and known == boot_id


def note_boot(data_dir: Path, boot_id: str, disk: Disk | None = None) -> None:
    """Note that the logs belong to this boot from now on; durable on return.

    To be called only once the registration is settled: else a crash in between would forget what
    was found.
    """
    replace_file(disk or Disk(), f"{data_dir}/{BOOT_ID_FILE}", [encode_checkpoint(boot_id)])


def forget_boot(data_dir: Path, disk: Disk | None = None) -> None:
    """Make the next start of this boot distrust the page cache: a sync or write has failed.

    After a failed sync the kernel may drop pages that were never written, while it keeps running:
    then the boot id proves nothing (rules Q2, R6). Not synced, as the next boot has another id. On
    a full disk the file is emptied, which needs no room. Never raises; may be called on any thread.
    """
    disk = disk or Disk()
    try:
        try:
            place_file(disk, f"{data_dir}/{BOOT_ID_FILE}", [encode_checkpoint("")], sync=False)
        except OSError:
            fd = disk.open(str(data_dir / BOOT_ID_FILE), create=True)
            try:
                disk.truncate(fd, 0)
            finally:
                disk.close(fd)
    except OSError as error:
        _log.error("boot id not removed error=%s", error)


def present_boot_id() -> str:
    """Return the kernel's id of this boot, or "" if it has none."""
    return BOOT_ID_PATH.read_text().strip() if BOOT_ID_PATH.exists() else ""


def unclean_partitions(
    config: BrokerConfig,
    logs: LogManager,
    image: MetadataImage,
    *,
    cache_is_kept: bool,
    page_cached: Set[TopicId] | None = None,
) -> PartitionSet:
    """Return everything that this broker has to report unclean at registration.

    One range spans all of a topic whose page cache is lost: between two of
    its replicas here are only partitions without a replica, or with one that this image does not
    know yet and that is just as unproven. So the number of ranges does not depend on placement.

    ``page_cached``: the topics of which unsynced records may have been acknowledged when the last
    run ended (`PageCacheTopics`); None: not known, then those that are ``flush=os`` in the image.
    """
    cache_proves = cache_is_kept or logs.clean_broker_epoch is not None
    found = []
    static = config.static()
    for topic_id, topic in image.topics.items():
        if page_cached is None:
            flush = topic_layers(image, topic_id, static, config.broker_id).word(FLUSH)
            is_page_cached = flush == "os"
        else:
            is_page_cached = topic_id in page_cached
        held = [
            PartitionId(number)
            for number, partition in enumerate(topic.partitions)
            if config.broker_id in partition.replicas
        ]
        for number in held:
            logs.identify(topic.name, number, topic_id)
        if held and is_page_cached and not cache_proves:
            found.append(PartitionRange(topic_id, held[0], held[-1]))
    return PartitionSet.of(logs.unclean, found)
