"""`AsyncAdmin`: administers a cluster from an asyncio event loop; the twin of `Admin`.

A method makes the steps of `admin_topic_steps`, `admin_group_steps` or `admin_cluster_steps` and
runs them in the calling task with an `AsyncShell`. Plural calls return results by name, or raise
`AdminError` with ``done`` and ``failed``.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from http_api.client.sdk import (
    admin_cluster_steps,
    admin_group_steps,
    admin_topic_steps,
    admin_transaction_steps,
)
from http_api.client.sdk.admin_resources import (
    ClusterDescription,
    ClusterHealth,
    CommittedOffset,
    ConfigDescription,
    ConfigResource,
    ConfigValue,
    ConsumerGroupDescription,
    ConsumerGroupListing,
    NewTopic,
    QuorumDescription,
    Reassignment,
    TopicDescription,
    TopicListing,
)
from http_api.client.sdk.admin_steps import AdminCall, AdminCounts, timeout_seconds
from http_api.client.sdk.client_context import MS, ClientContext
from http_api.client.sdk.record_types import TopicPartition
from http_api.client.sdk.settings import (
    CommonConfig,
    CommonKeywords,
    given_settings,
    read_settings,
)
from http_api.client.sdk.steps import AsyncShell, Steps

if TYPE_CHECKING:
    from http_api.client.transaction_calls import ProducerLife, TransactionInfo

T = TypeVar("T")


class AsyncAdmin:
    """Client that administers a cluster: topics, configs, groups, leaders and replicas.

    Belongs to the event loop of its first call, whose tasks may all use it. To be closed, or used
    as an asynchronous context. Each call is tried again within its ``timeout`` where it surely had
    no effect, or may be repeated. After `close`, and in a forked child, every call raises
    `ClosedError`. A cancelled call may have taken effect.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | Mapping[str, object] | None = None,
        /,
        **settings: Unpack[CommonKeywords],
    ) -> None:
        """Make an admin; no request is sent until its first call.

        The first argument is the brokers, or a mapping with Kafka's dotted names
        (``{"bootstrap.servers": "127.0.0.1:8082"}``); without brokers ``$QUORUMLOG_URL`` counts.

        Raises:
            ConfigError: A setting is unknown or wrong; the text names it.
        """
        self._config = read_settings(CommonConfig, given_settings(bootstrap_servers, settings))
        self._context = ClientContext("admin", self._config)
        self._shell = AsyncShell(self._context)
        self._counts = AdminCounts()
        self._stats: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._context.check_open()
        self._start_stats()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Refuse further calls; those under way in other tasks go on for their own time.

        The connections are closed behind the last one. A second close does nothing, and neither
        does one in a forked child.
        """
        if not self._context.is_forked and self._context.close():
            if self._stats is not None:
                self._stats.cancel()
            await self._shell.stop()

    def metrics(self) -> dict[str, Any]:
        """Return counts of calls and requests since the admin was made; `ClosedError` if closed."""
        self._context.check_open()
        return self._counts.snapshot()

    def _start_stats(self) -> None:
        on_stats = self._config.on_stats
        if self._stats is None and on_stats is not None and self._config.stats_interval_ms:
            self._stats = asyncio.get_running_loop().create_task(self._report_stats(on_stats))

    async def _report_stats(self, on_stats: Callable[[dict[str, Any]], Any]) -> None:
        while True:
            await asyncio.sleep(self._config.stats_interval_ms / MS)
            try:
                result = on_stats(self._counts.snapshot())
                if inspect.isawaitable(result):
                    await result
            except Exception:
                self._context.log.exception("callback failed callback=%r", on_stats)

    async def _run(self, timeout: float | None, steps: Callable[[AdminCall], Steps[T]]) -> T:
        self._context.check_open()
        timeout_s = timeout_seconds(timeout, self._config.api_timeout_ms)
        self._start_stats()
        call = AdminCall(self._context, self._counts, self._shell.now_s, timeout_s)
        try:
            return await self._shell.run(call.counted(steps(call)))
        except RuntimeError:  # of a connection that `close` closed between two attempts
            self._context.check_open()
            raise

    # topics, configs and records

    async def create_topics(
        self,
        topics: Sequence[NewTopic],
        *,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> dict[str, TopicListing]:
        """Create topics; each answer comes once every partition of its topic has a ready leader.

        Args:
            topics: Topics to create, each name once.
            validate_only: Check that they can be created, and create none.
            timeout: Seconds for all of them; None: ``api_timeout_ms``.

        Returns:
            The created topics by name.

        Raises:
            AdminError: Some could not be created; ``done`` has the others.

        Costs one request a topic. A request whose answer is lost is not repeated: its error has the
        outcome ``unknown``.
        """
        return await self._run(
            timeout,
            lambda call: admin_topic_steps.create_topics(call, topics, validate_only=validate_only),
        )

    async def create_partitions(
        self,
        totals: Mapping[str, int],
        *,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> dict[str, TopicListing]:
        """Grow topics to these total numbers of partitions; the number never shrinks.

        Keyed records may go to other partitions from then on. Returns the topics by name; raises
        `AdminError` if some could not grow. With ``validate_only`` nothing changes. ``timeout`` is
        in seconds; None: ``api_timeout_ms``. Costs one request a topic.
        """
        return await self._run(
            timeout,
            lambda call: admin_topic_steps.create_partitions(
                call, totals, validate_only=validate_only
            ),
        )

    async def delete_topics(
        self,
        topics: Sequence[str],
        *,
        timeout: float | None = None,
    ) -> dict[str, None]:
        """Delete topics with all their records.

        Raises `AdminError` if some could not be deleted, such as one that does not exist.
        ``timeout`` is in seconds; None: ``api_timeout_ms``. Costs one request a topic, which is not
        repeated if its answer is lost.
        """
        return await self._run(timeout, lambda call: admin_topic_steps.delete_topics(call, topics))

    async def list_topics(
        self,
        *,
        internal: bool = False,
        timeout: float | None = None,
    ) -> dict[str, TopicListing]:
        """List the topics by name; internal ones only with ``internal=True``.

        Raises `QuorumlogError` if no broker answers. ``timeout`` is in seconds; None:
        ``api_timeout_ms``. Costs one request.
        """
        return await self._run(
            timeout, lambda call: admin_topic_steps.list_topics(call, internal=internal)
        )

    async def describe_topics(
        self,
        topics: Sequence[str],
        *,
        timeout: float | None = None,
    ) -> dict[str, TopicDescription]:
        """Describe topics with leaders, replicas and ISR of their partitions.

        Raises `AdminError` if some do not exist; ``done`` has the others. ``timeout`` is in
        seconds; None: ``api_timeout_ms``. Costs two requests a topic.
        """
        return await self._run(
            timeout, lambda call: admin_topic_steps.describe_topics(call, topics)
        )

    async def describe_configs(
        self,
        resources: Sequence[ConfigResource],
        *,
        names: Sequence[str] | None = None,
        timeout: float | None = None,
    ) -> dict[ConfigResource, dict[str, ConfigDescription]]:
        """Describe the configs in force of topics, brokers or the cluster, by resource and name.

        ``names`` are the configs to describe, each of them in every resource; None: all. Raises
        `AdminError` for a resource that does not exist or that has no config of a name. ``timeout``
        is in seconds; None: ``api_timeout_ms``. Costs one request a resource, or one for each name
        of each.
        """
        return await self._run(
            timeout, lambda call: admin_topic_steps.describe_configs(call, resources, names)
        )

    async def alter_configs(
        self,
        changes: Mapping[ConfigResource, Mapping[str, ConfigValue | None]],
        *,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> dict[ConfigResource, None]:
        """Set configs of resources; a value of None resets a config to its default.

        The changes of one resource are made together or not at all; configs that are not named keep
        their values. Raises `AdminError` if some resources' changes were refused. With
        ``validate_only`` nothing changes. ``timeout`` is in seconds; None: ``api_timeout_ms``.
        Costs one request a resource.
        """
        return await self._run(
            timeout,
            lambda call: admin_topic_steps.alter_configs(
                call, changes, validate_only=validate_only
            ),
        )

    async def list_offsets(
        self,
        positions: Mapping[TopicPartition, str | int],
        *,
        timeout: float | None = None,
    ) -> dict[TopicPartition, int]:
        """Find an offset in each partition.

        ``"earliest"`` is the first offset, ``"latest"`` the next one that a reader will get, and a
        number stands for the first record at or after this time in milliseconds (the end, if there
        is none). Raises `AdminError` for partitions that do not exist or have no leader.
        ``timeout`` is in seconds; None: ``api_timeout_ms``. Costs one request a partition.
        """
        return await self._run(
            timeout, lambda call: admin_topic_steps.list_offsets(call, positions)
        )

    async def delete_records(
        self,
        before: Mapping[TopicPartition, int],
        *,
        timeout: float | None = None,
    ) -> dict[TopicPartition, int]:
        """Delete the records of partitions below an offset, and return their new first offsets.

        -1 stands for the high watermark: all committed records. Raises `AdminError` for partitions
        that failed, such as for an offset beyond the high watermark. After the outcome ``unknown``
        the same call may be repeated. ``timeout`` is in seconds; None: ``api_timeout_ms``. Costs
        one request a partition.
        """
        return await self._run(timeout, lambda call: admin_topic_steps.delete_records(call, before))

    # consumer groups

    async def list_consumer_groups(
        self,
        *,
        states: Sequence[str] | None = None,
        timeout: float | None = None,
    ) -> dict[str, ConsumerGroupListing]:
        """List the consumer groups by name.

        ``states`` are those wanted of ``EMPTY``, ``RECONCILING``, ``STABLE`` and ``HELD``; None:
        all. Raises `QuorumlogError` if no broker answers. ``timeout`` is in seconds; None:
        ``api_timeout_ms``. Costs one request.
        """
        return await self._run(
            timeout, lambda call: admin_group_steps.list_consumer_groups(call, states)
        )

    async def describe_consumer_groups(
        self,
        groups: Sequence[str],
        *,
        timeout: float | None = None,
    ) -> dict[str, ConsumerGroupDescription]:
        """Describe consumer groups with their members, assignments and lags.

        Raises `AdminError` if some do not exist. ``timeout`` is in seconds; None:
        ``api_timeout_ms``. Costs three requests a group, between which a group may change.
        """
        return await self._run(
            timeout, lambda call: admin_group_steps.describe_consumer_groups(call, groups)
        )

    async def list_transactions(
        self,
        states: Sequence[str] | None = None,
        *,
        group: str | None = None,
        timeout: float | None = None,
    ) -> list[TransactionInfo]:
        """List transactional ids and keys, of one group or of all groups and of none.

        ``states``: ``"empty"``, ``"staging"``, ``"committing"``, ``"complete"``, ``"aborted"``.
        ``timeout`` is in seconds; None: ``api_timeout_ms``.
        """
        return await self._run(
            timeout,
            lambda call: admin_transaction_steps.list_transactions(call, states, group),
        )

    async def describe_transactions(
        self,
        ids: Sequence[str],
        *,
        group: str | None = None,
        timeout: float | None = None,
    ) -> dict[str, TransactionInfo]:
        """Describe transactional ids (``key:K`` for a key): position, state, targets and stages.

        Raises `AdminError` for ids that are not known. ``timeout`` is in seconds; None:
        ``api_timeout_ms``. Costs one request an id.
        """
        return await self._run(
            timeout,
            lambda call: admin_transaction_steps.describe_transactions(call, ids, group),
        )

    async def fence_producers(
        self,
        ids: Sequence[str],
        *,
        group: str | None = None,
        timeout: float | None = None,
    ) -> dict[str, ProducerLife]:
        """Fence the present producers of transactional ids; return the fate of their last life.

        Transactions that are decided stay so; open ones are never decided. ``timeout`` is in
        seconds; None: ``api_timeout_ms``. Costs one request an id.
        """
        return await self._run(
            timeout,
            lambda call: admin_transaction_steps.fence_producers(call, ids, group),
        )

    async def delete_consumer_groups(
        self,
        groups: Sequence[str],
        *,
        timeout: float | None = None,
    ) -> dict[str, None]:
        """Delete consumer groups without live members, with their offsets.

        Raises `AdminError` for groups that do not exist or have live members. ``timeout`` is in
        seconds; None: ``api_timeout_ms``. Costs one request a group.
        """
        return await self._run(
            timeout, lambda call: admin_group_steps.delete_consumer_groups(call, groups)
        )

    async def list_consumer_group_offsets(
        self,
        group: str,
        partitions: Sequence[TopicPartition] | None = None,
        *,
        timeout: float | None = None,
    ) -> dict[TopicPartition, CommittedOffset | None]:
        """List the committed offsets of a group, with their lag.

        With ``partitions`` the result has exactly these, with None where nothing is committed. A
        group that does not exist has committed nothing. Raises `QuorumlogError`. ``timeout`` is in
        seconds; None: ``api_timeout_ms``. Costs one request.
        """
        return await self._run(
            timeout,
            lambda call: admin_group_steps.list_consumer_group_offsets(call, group, partitions),
        )

    async def alter_consumer_group_offsets(
        self,
        group: str,
        offsets: Sequence[TopicPartition],
        *,
        timeout: float | None = None,
    ) -> dict[TopicPartition, None]:
        """Commit offsets for a group without live members; an offset is the next one to read.

        ``leader_epoch`` and ``metadata`` of each `TopicPartition` are stored, too. A group that
        does not exist is made. All are committed or none: then `AdminError` has the error for each.
        ``timeout`` is in seconds; None: ``api_timeout_ms``. Costs one request, which is not
        repeated if its answer is lost.
        """
        return await self._run(
            timeout,
            lambda call: admin_group_steps.alter_consumer_group_offsets(call, group, offsets),
        )

    async def delete_consumer_group_offsets(
        self,
        group: str,
        partitions: Sequence[TopicPartition],
        *,
        timeout: float | None = None,
    ) -> dict[TopicPartition, None]:
        """Delete the committed offsets of a group in partitions.

        Raises `AdminError` for partitions of topics that a live member reads, or if the group does
        not exist. ``timeout`` is in seconds; None: ``api_timeout_ms``. Costs one request a
        partition.
        """
        return await self._run(
            timeout,
            lambda call: admin_group_steps.delete_consumer_group_offsets(call, group, partitions),
        )

    async def remove_members(
        self,
        group: str,
        members: Sequence[str] | None = None,
        static_ids: Sequence[str] | None = None,
        *,
        timeout: float | None = None,
    ) -> dict[str, None]:
        """Remove members from a group without a commit; their partitions go to the others at once.

        Args:
            group: Name of the group.
            members: Ids of members.
            static_ids: Static ids (``group.instance.id``) of members, which lose their seats.
            timeout: Seconds for all of them; None: ``api_timeout_ms``.

        With neither list, all live members are removed. A removed member that still runs joins
        again.

        Raises:
            AdminError: Some named members do not exist, or could not be removed.
            ApiError: All are to be removed, and the group does not exist.

        Costs one request a member, and one more to list all.
        """
        return await self._run(
            timeout, lambda call: admin_group_steps.remove_members(call, group, members, static_ids)
        )

    # cluster

    async def describe_cluster(
        self,
        *,
        timeout: float | None = None,
    ) -> ClusterDescription:
        """Describe the cluster: its id, its active controller and all registered brokers.

        Raises `QuorumlogError` if no broker answers. ``timeout`` is in seconds; None:
        ``api_timeout_ms``. Costs two requests.
        """
        return await self._run(timeout, admin_cluster_steps.describe_cluster)

    async def describe_quorum(
        self,
        *,
        timeout: float | None = None,
    ) -> QuorumDescription:
        """Describe the controllers' quorum, and how far its voters and the brokers follow.

        Raises `QuorumlogError` if no controller answers. ``timeout`` is in seconds; None:
        ``api_timeout_ms``. Costs one request, for which the broker asks every controller.
        """
        return await self._run(timeout, admin_cluster_steps.describe_quorum)

    async def cluster_health(
        self,
        *,
        timeout: float | None = None,
    ) -> ClusterHealth:
        """Return the cluster's status with its reasons, by the answering broker's metadata.

        Raises `QuorumlogError` if no broker answers. ``timeout`` is in seconds; None:
        ``api_timeout_ms``. Costs one request.
        """
        return await self._run(timeout, admin_cluster_steps.cluster_health)

    async def elect_leaders(
        self,
        partitions: Sequence[TopicPartition] | None = None,
        *,
        unclean: bool = False,
        timeout: float | None = None,
    ) -> dict[TopicPartition, int | None]:
        """Elect the preferred leaders of partitions, and return the leaders' broker ids.

        ``partitions=None`` elects in every partition that needs it; the result has those
        partitions. ``unclean=True`` elects a replica of a partition without a leader even if it
        lacks acknowledged records, which are lost then. Raises `AdminError` for partitions whose
        election failed. ``timeout`` is in seconds; None: ``api_timeout_ms``. Costs one request a
        partition, or one for all.
        """
        return await self._run(
            timeout,
            lambda call: admin_cluster_steps.elect_leaders(call, partitions, unclean=unclean),
        )

    async def alter_reassignments(
        self,
        replicas: Mapping[TopicPartition, Sequence[int] | None],
        *,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> dict[TopicPartition, Reassignment | None]:
        """Start to move replicas to brokers; None cancels a reassignment.

        The first of a partition's brokers is the preferred leader. The moves continue after the
        answer; `list_reassignments` reports their progress. All are started or none: then
        `AdminError` has the error for each. The result has None for a partition without a
        reassignment to report, and everywhere with ``validate_only``, which starts none. At most
        1,000 partitions. ``timeout`` is in seconds; None: ``api_timeout_ms``. Costs one request.
        """
        return await self._run(
            timeout,
            lambda call: admin_cluster_steps.alter_reassignments(
                call, replicas, validate_only=validate_only
            ),
        )

    async def list_reassignments(
        self,
        partitions: Sequence[TopicPartition] | None = None,
        *,
        timeout: float | None = None,
    ) -> dict[TopicPartition, Reassignment]:
        """List the reassignments under way with their progress, of all or of these partitions.

        Partitions that are not being reassigned are left out. Raises `QuorumlogError` if no broker
        answers. ``timeout`` is in seconds; None: ``api_timeout_ms``. Costs one request.
        """
        return await self._run(
            timeout, lambda call: admin_cluster_steps.list_reassignments(call, partitions)
        )
