"""Which replicas can't prove what they acknowledged, to be said at registration (rule R6).

For ``flush=ack`` the log itself proves it: the log manager lists what recovery found wanting. A
``flush=os`` log acknowledged from the page cache, so only a clean shutdown, or a page cache that is
still the same one, proves it. The kernel's boot id tells: a killed process leaves the cache behind,
a machine that went down does not (decision 0005).
"""

from __future__ import annotations

import logging
from collections.abc import Set
from pathlib import Path
from typing import TYPE_CHECKING

from broker.log.checkpoints import encode_checkpoint, read_checkpoint, write_atomically
from broker.log.disk import Disk
from raft_metadata.common.configs.table import FLUSH
from raft_metadata.common.errors import CorruptionError, StorageError
from raft_metadata.common.ids import PartitionId, TopicId
from raft_metadata.image.metadata_image import topic_layers
from raft_metadata.records.feature_levels import OPERATIONS_LEVEL
from raft_metadata.records.partition_set import PartitionRange, PartitionSet

if TYPE_CHECKING:
    from broker.config import BrokerConfig
    from broker.log.log_manager import LogManager
    from raft_metadata.image.metadata_image import MetadataImage

_log = logging.getLogger("broker.server")

BOOT_ID_FILE = "boot-id"
BOOT_ID_PATH = Path("/proc/sys/kernel/random/boot_id")


def check_log_directory(data_dir: Path) -> None:
    """Refuse to start where a broker has lived but its logs are gone (rule R6).

    Starting empty under the same directory id would keep the places of the lost replicas.
    """
    if (data_dir / BOOT_ID_FILE).exists() and not (data_dir / "log" / "lock").exists():
        text = (
            f"{data_dir / 'log'} is gone, and {data_dir} is not new; mount it again, or remove the "
            f"whole folder {data_dir} so that the broker starts anew and fills from its peers"
        )
        raise StorageError(text)


def page_cache_is_kept(data_dir: Path, boot_id: str, disk: Disk | None = None) -> bool:
    """Whether `note_boot` was last called under this boot. An unknown id ("") proves nothing."""
    try:
        known = read_checkpoint(disk or Disk(), str(data_dir / BOOT_ID_FILE))
    except CorruptionError as error:
        _log.warning("boot id not believed reason=%s", error)
        known = None
    return bool(boot_id) and known == boot_id


def note_boot(data_dir: Path, boot_id: str, disk: Disk | None = None) -> None:
    """From now on the logs count under this boot; durable on return.

    Only once the registration is settled: else a crash in between would forget what was found.
    """
    write_atomically(disk or Disk(), str(data_dir), BOOT_ID_FILE, encode_checkpoint(boot_id))


def present_boot_id() -> str:
    """The kernel's id of this boot, or "" where it has none."""
    return BOOT_ID_PATH.read_text().strip() if BOOT_ID_PATH.exists() else ""


def unclean_partitions(
    config: BrokerConfig,
    logs: LogManager,
    image: MetadataImage,
    *,
    cache_is_kept: bool,
    page_cached: Set[TopicId] | None = None,
) -> PartitionSet:
    """Everything this broker has to report unclean at registration.

    From feature level 2 on one range spans all of a topic whose page cache is lost: between two of
    its replicas here are only partitions without one, or of which this image does not know yet
    that there is one, just as unproven. Placement thus can't make the ranges many.

    ``page_cached``: the topics of which unsynced records may have been acknowledged when the last
    life ended (`PageCacheTopics`); None: not known, those that are ``flush=os`` in the image.
    """
    cache_proves = cache_is_kept or logs.clean_broker_epoch is not None
    found = []
    in_ranges = image.feature_level >= OPERATIONS_LEVEL
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
            if in_ranges:
                found.append(PartitionRange(topic_id, held[0], held[-1]))
            else:
                found += (PartitionRange(topic_id, number, number) for number in held)
    return PartitionSet.of(logs.unclean, found)
