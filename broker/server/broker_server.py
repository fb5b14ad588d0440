"""A broker, assembled: logs, replication, metadata, membership, group coordinator and requests.

A node makes one `BrokerServer`, awaits ``start``, runs ``run`` until it is cancelled, and awaits
``stop``. Start locks and opens the logs, follows the metadata log and registers; stop is the
reverse. Everything runs on one asyncio loop, in the TaskGroup that ``run`` owns. The log flusher is
its only thread of long life; the heartbeat thread belongs to `http_api.peer`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from broker.coordinator.group_coordinator import GroupConfigs, GroupCoordinator
from broker.coordinator.home import HomePorts
from broker.coordinator.shard import OffsetsRetention
from broker.coordinator.transaction_coordinator import HomeFactory, TransactionCoordinator
from broker.log.log_manager import LogManager
from broker.log.producer_snapshot import ProducerLimits
from broker.replication.cleaning import make_cleaner
from broker.replication.events import note_start
from broker.replication.log_start_manager import LogTrimming
from broker.replication.replica_manager import ReplicaManager
from broker.server.broker_apis import RoutedBrokerApis
from broker.server.coordinator_ports import BrokerDataReader, ReplicaShardLog
from broker.server.debug_state import BrokerDebugState
from broker.server.fetch import FollowerReads
from broker.server.home_words import HomeWords
from broker.server.lifecycle import (
    PROGRESS_MS,
    DiskStallWatch,
    Lifecycle,
    WatchedDisk,
    waits_for_sync,
)
from broker.server.local_partitions import LocalPartitions
from broker.server.local_polls import LocalPolls
from broker.server.metadata_loader import MetadataLoader
from broker.server.peer_requests import PeerRequests
from broker.server.stage_leader import StagePorts
from broker.server.stages import StageRequests, Stages, home_of_chunk, stage_settings
from broker.server.topics import LiveLimits
from broker.server.transaction_ports import Targets
from broker.server.transactions import Coordinators
from broker.server.unclean import (
    PageCacheTopics,
    check_log_directory,
    forget_boot,
    note_boot,
    page_cache_is_kept,
    present_boot_id,
    unclean_partitions,
)
from broker.server.unit_appends import UnitAppends
from broker.transactions.home_state import HomeLimits
from raft_metadata.common.configs.table import (
    GROUP_CONSUMER_ASSIGNORS,
    IDEMPOTENCY_KEY_RETENTION_MS,
    IDEMPOTENCY_KEYS_MAX,
    OFFSETS_RETENTION_CHECK_INTERVAL_MS,
    OFFSETS_RETENTION_MINUTES,
    TRANSACTION_COMMITTING_MAX,
    TRANSACTION_MAX_BYTES,
    TRANSACTION_MAX_CHUNKS,
    TRANSACTION_MAX_PARTITIONS,
    TRANSACTIONAL_ID_EXPIRATION_MS,
    TRANSACTIONAL_IDS_MAX,
)
from raft_metadata.common.ids import (
    IncarnationId,
    LeaderEpoch,
    TopicIdPartition,
    id_from_bytes,
)
from raft_metadata.image.metadata_image import cluster_layers

if TYPE_CHECKING:
    from broker.config import BrokerConfig
    from broker.ports import ControllerChannel, PeerChannel
    from broker.transactions.stage_messages import StatusQuestion, Word
    from raft_metadata.common.clock import Clock
    from raft_metadata.common.configs.layers import ConfigLayers
    from raft_metadata.common.faults import FaultHandler
    from raft_metadata.image.metadata_image import MetadataImage
    from raft_metadata.records.partition_set import PartitionSet

_log = logging.getLogger("broker.server")


class BrokerServer:
    """A broker with all its parts. ``start`` once, ``run`` until cancelled, then ``stop`` once."""

    def __init__(
        self,
        config: BrokerConfig,
        controllers: ControllerChannel,
        peers: PeerChannel,
        clock: Clock,
        faults: FaultHandler,
        random_bytes: Callable[[int], bytes],
    ) -> None:
        self._config, self._faults = config, faults
        self._settled = asyncio.Event()
        """Set once all that this run reported at registration is recorded (rule M4)."""
        self._cache_is_kept = False
        """The page cache holds all that the last run left there; found by `start`."""
        incarnation_id = IncarnationId(id_from_bytes(random_bytes(16)))
        self.logs = self._make_logs(disk := WatchedDisk())
        self.manager = ReplicaManager(
            config, incarnation_id, self.logs, controllers, peers, clock, faults
        )
        trusted = self._is_clock_trusted
        self.trimming = LogTrimming(
            config, self.manager, self.logs, clock, trusted, self._is_clock_known
        )
        self.cleaner = make_cleaner(config, self.logs, self.manager, clock, trusted)
        self._page_cached = PageCacheTopics(config, self.logs)
        self._loader = MetadataLoader(config, controllers, clock, self._follow, self._publish)
        self._lifecycle = Lifecycle(
            config,
            incarnation_id,
            controllers,
            self._loader,
            self._unclean_partitions,
            clock,
            self._make_disk_watch(disk, clock).check_silence,
            self.manager.repairs.report,
        )
        stamps = self._lifecycle.controller_clock  # for append times (rule R10)
        local = LocalPartitions(config, self.manager, stamps, self._lifecycle.check_proof)
        follower_reads = FollowerReads(
            config, self.manager, peers, clock, self._lifecycle.check_proof
        )
        polls = LocalPolls(config, local, follower_reads, self.manager, clock)
        self.apis = RoutedBrokerApis(
            config,
            local,
            self._loader,
            self._lifecycle,
            controllers,
            peers,
            partial(self._make_coordinators, local, clock),
            follower_reads,
            polls,
            self.trimming,
            clock,
            random_bytes,
        )
        self._coordinators = self.apis.coordinators
        self.debug_state = BrokerDebugState(
            config, self.manager, self.logs, self._lifecycle, self._loader, clock
        )
        self.peer_services = PeerRequests(
            local,
            self.manager,
            self._loader,
            self._coordinators,
            self._stages,
            self._home_words,
            self.apis.local_facts,
            follower_reads,
            polls,
            self.trimming,
        )

    def _make_logs(self, disk: WatchedDisk) -> LogManager:
        config, faults = self._config, self._faults
        return LogManager(
            config.data_dir,
            disk=disk,
            on_failed=lambda error: faults.fatal("log directory failed", error),
            on_cache_lost=partial(forget_boot, config.data_dir),
            max_open_segments=config.limits.max_open_segments,
            flush_interval_ms=config.timeouts.log_flush_interval_ms,
            remove_delay_ms=config.timeouts.log_segment_delete_delay_ms,
            producers=ProducerLimits(
                config.timeouts.producer_id_expiration_ms,
                config.limits.max_producers_per_partition,
            ),
        )

    def _make_disk_watch(self, disk: WatchedDisk, clock: Clock) -> DiskStallWatch:
        return DiskStallWatch(
            disk.oldest_sync,
            self._config.timeouts.replica_lag_time_max_ms // 2,
            look_max_ms=2 * PROGRESS_MS,
            clock=clock,
            matters=lambda: waits_for_sync(self.manager.replicas()),
        )

    def _make_coordinators(
        self, local: LocalPartitions, clock: Clock, apis: RoutedBrokerApis
    ) -> Coordinators:
        config, static = self._config, self._config.static()

        def make_log(where: TopicIdPartition, epoch: LeaderEpoch) -> ReplicaShardLog:
            return ReplicaShardLog(local, where, epoch)

        stamps = self._lifecycle.controller_clock
        self._stages = Stages(self._stage_ports(local), self.manager.led_epoch)
        stages = StageRequests(
            config, apis.router, self._stages, self._loader, apis.internal_topics,
            apis.row_targets, self.manager, clock,
        )  # fmt: skip
        appends = UnitAppends(config, local, self.manager, stamps, self._lifecycle.check_proof)
        targets = Targets(config, self._loader, apis.router, local, appends, stages, clock)
        homes = HomeFactory(
            HomePorts(
                broker_id=config.broker_id,
                clock=clock,
                targets=targets,
                stages=stages,
                image=apis.home_image,
                limits=LiveLimits(lambda: self._loader.image, static, _home_limits).now,
            )
        )
        groups = GroupCoordinator(
            config.broker_id,
            clock,
            self._lifecycle,
            self.manager.led_epoch,
            make_log,
            BrokerDataReader(apis),
            poll_wait_ms_max=config.limits.max_fetch_wait_ms,
            rebalance_timeout_ms=config.timeouts.group_rebalance_timeout_ms,
            homes=homes,
            configs=lambda image: _group_configs(cluster_layers(image, static)),
            is_clock_trusted=self._is_clock_trusted,
        )
        transactions = TransactionCoordinator(
            homes,
            self._lifecycle,
            self.manager.led_epoch,
            make_log,
            clock,
            is_clock_trusted=self._is_clock_trusted,
        )
        coordinators = Coordinators(
            groups, transactions, homes, targets, stages, lambda: self._loader.image
        )
        self._home_words = HomeWords(config, self._loader, apis.router, coordinators, clock)
        return coordinators

    async def _ask_home(self, question: StatusQuestion) -> Word:
        return await self._home_words.ask(question)

    def _stage_ports(self, local: LocalPartitions) -> StagePorts:
        config, static = self._config, self._config.static()
        return StagePorts(
            local=local,
            trimming=self.trimming,
            clock=self._lifecycle.controller_clock,
            proof=self._lifecycle,
            ask_home=self._ask_home,
            home_of=lambda id_: home_of_chunk(id_, self._loader.image),
            settings=LiveLimits(lambda: self._loader.image, static, stage_settings).now,
            is_clock_trusted=self._is_clock_trusted,
            clock_error_max_ms=config.timeouts.clock_difference_max_ms,
        )

    def _is_clock_trusted(self) -> bool:
        return self._lifecycle.controller_clock.is_trusted()

    def _is_clock_known(self) -> bool:
        return self._lifecycle.controller_clock.ahead_ms() is not None

    def _unclean_partitions(self) -> PartitionSet:
        return unclean_partitions(
            self._config,
            self.logs,
            self._loader.image,
            cache_is_kept=self._cache_is_kept,
            page_cached=self._page_cached.at_start,
        )

    def _follow(self, image: MetadataImage) -> Iterator[None]:
        """Give the replicas their roles by a new image, in steps. Called for each one, in order."""
        self._page_cached.note(image)
        yield from self.manager.follow(image)

    def _publish(self, before: MetadataImage, image: MetadataImage) -> None:
        """Report a new image to the coordinator and the forwards, after the replicas' roles.

        Called for each image, in order, once all replicas have their roles by it. Forwards that
        wait for a leader then go on.
        """
        self._page_cached.followed()
        self._coordinators.groups.on_metadata_update(image)
        self._coordinators.transactions.on_metadata_update(image)
        self._stages.on_metadata_update(image)
        if not self._settled.is_set() and self._lifecycle.is_settled:
            note_boot(self._config.data_dir, present_boot_id())
            self._cache_is_kept = True  # earlier losses are recorded, and there are no later ones
            self._settled.set()
        self.apis.forwarded.image_changed()
        self.apis.router.image_changed(before, image)
        self.apis.polls.image_changed()
        self.apis.observe_drains(image)

    async def start(self) -> None:
        """Open and sync every log (rule Q1).

        Raises StorageError or OSError if the directory can't be trusted, BlockingIOError if another
        process uses it.
        """
        check_log_directory(self._config.data_dir)
        await asyncio.to_thread(self.logs.open)
        await asyncio.to_thread(self.manager.events.open)
        note_start(self.manager.events, self._config.broker_id, self.logs)
        self._page_cached.read()
        self._cache_is_kept = page_cache_is_kept(self._config.data_dir, present_boot_id())
        self.logs.start(asyncio.get_running_loop())

    async def run(self) -> None:
        """Follow the metadata log, register and replicate, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.logs.run(), name="log-manager")
            tasks.create_task(self.manager.run(), name="replica-manager")
            tasks.create_task(self.trimming.run(), name="log-trimming")
            tasks.create_task(self.cleaner.run(), name="log-cleaner")
            tasks.create_task(self._loader.run(), name="metadata-loader")
            tasks.create_task(self._lifecycle.run(), name="lifecycle")
            tasks.create_task(self._coordinators.homes.run(), name="transaction-targets")
            tasks.create_task(self._coordinators.groups.run(), name="group-coordinator")
            tasks.create_task(self._coordinators.transactions.run(), name="transactions")
            tasks.create_task(self._stages.run(), name="stages")
            tasks.create_task(self.apis.forwarded.run(), name="forwarded-produces")
            await self._settled.wait()
            tasks.create_task(self._page_cached.run(), name="page-cache-topics")

    async def controlled_shutdown(self) -> None:
        """Hand over leaderships and ISR places, for at most ``controlled_shutdown_ms``."""
        self._lifecycle.want_shutdown()
        try:
            async with asyncio.timeout(self._config.timeouts.controlled_shutdown_ms / 1000):
                await self._lifecycle.may_stop.wait()
            _log.info("controlled shutdown granted")
        except TimeoutError:
            _log.warning(
                "controlled shutdown not granted in time reason=%s",
                self._lifecycle.shutdown_blocked_by or "no active controller answered",
            )

    async def stop(self) -> None:
        """Answer all delayed produces and waiting fetches, then sync and close the logs.

        Called after ``run`` has ended.
        """
        for replica in list(self.manager.replicas()):
            replica.partition.delayed_produces.give_up()
            replica.wake_fetches()
        self.manager.events.close()
        self.logs.close(self._lifecycle.broker_epoch)


def _group_configs(layers: ConfigLayers) -> GroupConfigs:
    minutes = layers.number(OFFSETS_RETENTION_MINUTES)
    interval_ms = layers.number(OFFSETS_RETENTION_CHECK_INTERVAL_MS)
    return GroupConfigs(
        default_assignor=layers.word(GROUP_CONSUMER_ASSIGNORS),
        retention=None if minutes < 0 else OffsetsRetention(minutes * 60_000, interval_ms),
    )


def _home_limits(layers: ConfigLayers) -> HomeLimits:
    return HomeLimits(
        committing_max=layers.number(TRANSACTION_COMMITTING_MAX),
        keys_max=layers.number(IDEMPOTENCY_KEYS_MAX),
        ids_max=layers.number(TRANSACTIONAL_IDS_MAX),
        key_retention_ms=layers.number(IDEMPOTENCY_KEY_RETENTION_MS),
        id_expiration_ms=layers.number(TRANSACTIONAL_ID_EXPIRATION_MS),
        partitions_max=layers.number(TRANSACTION_MAX_PARTITIONS),
        chunks_max=layers.number(TRANSACTION_MAX_CHUNKS),
        bytes_max=layers.number(TRANSACTION_MAX_BYTES),
    )
