"""`AdminClient` with confluent-kafka's interface, over the SDK's `Admin`.

Its calls return futures at once. One thread, started with the first call, makes them in order; the
interface demands it, and it ends with the client. A future that failed raises `KafkaException`.
Differences from confluent-kafka:

- The changes of one call are made one after the other, each by itself.
- ``operation_timeout`` and ``broker`` have no effect: an answer comes once a change is in force.
- ``include_authorized_operations`` has no effect. Calls about access rules and SCRAM credentials
  raise ``_NOT_IMPLEMENTED``.
"""

from __future__ import annotations

import logging
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from http_api.client import admin as calls
from http_api.client.calls import Call
from http_api.client.client_errors import AdminError, QuorumlogError, UnreachableError
from http_api.client.compat.confluent_admin_types import (
    CLUSTER_DEFAULT,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ConsumerGroupDescription,
    ConsumerGroupListing,
    DeletedRecords,
    DescribeClusterResult,
    ListConsumerGroupsResult,
    ListOffsetsResultInfo,
    MemberAssignment,
    MemberDescription,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
    TopicDescription,
)
from http_api.client.compat.confluent_errors import (
    KafkaError,
    KafkaException,
    argument_error,
    kafka_error,
    kafka_exceptions,
    not_implemented,
)
from http_api.client.compat.confluent_messages import (
    OFFSET_END,
    OFFSET_INVALID,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    ElectionType,
    Node,
    TopicCollection,
    TopicPartition,
    TopicPartitionInfo,
    sdk_partition,
    uuid_of,
)
from http_api.client.compat.confluent_metadata import (
    ClusterMetadata,
    GroupMember,
    GroupMetadata,
    broker_metadata,
    read_cluster,
)
from http_api.client.compat.confluent_producer import question_s
from http_api.client.compat.confluent_settings import client_settings, given_config
from http_api.client.compat.kafka_codes import LocalCode
from http_api.client.consumer import last_record, record_at
from http_api.client.sdk import admin_client as sdk
from http_api.client.sdk import admin_resources, record_types
from http_api.client.sdk.admin_steps import AdminCall
from http_api.client.sdk.steps import Steps

K = TypeVar("K")
T = TypeVar("T")
_log = logging.getLogger("quorumlog.compat")

NO_EPOCH: Final = -1
NO_TIMESTAMP: Final = -1
MAX_TIMESTAMP: Final = -3
TIME_MAX_MS: Final = (1 << 63) - 1
_STATES: Final = {
    "EMPTY": ConsumerGroupState.EMPTY,
    "RECONCILING": ConsumerGroupState.PREPARING_REBALANCING,
    "STABLE": ConsumerGroupState.STABLE,
}
"""States of groups; a held one, which needs a repair, is unknown to Kafka."""
_OPTIONS: Final = frozenset(
    {"operation_timeout", "broker", "include_authorized_operations", "require_stable"}
)
"""Keywords without an effect here."""


class AdminDoor(sdk.Admin):
    """An admin of the SDK that makes further calls of the client, within a time."""

    def ask(self, call: Call[T], timeout_s: float | None) -> T:
        """Make a call to the cluster and return its result."""
        return self._run(timeout_s, lambda one: one.request(call))

    def newest_record(
        self, partition: record_types.TopicPartition, timeout_s: float | None
    ) -> tuple[int, int] | None:
        """Return offset and time of the first record with the largest time; None: no record."""
        place = (partition.topic, partition.partition)
        return self._run(timeout_s, lambda one: _newest_record(one, *place))

    def use_logger(self, logger: Any) -> None:
        """Log to another logger than ``quorumlog.admin`` from now on."""
        self._context.log = logger


class AdminClient:
    """Administers a cluster; its calls return futures. Any thread may use it."""

    def __init__(self, conf: Mapping[str, Any] | None = None, /, **keywords: Any) -> None:
        """Read the settings; nothing is sent before the first call.

        Raises:
            KafkaException: A setting is unknown or can't be honoured (``_INVALID_ARG``).
        """
        settings = client_settings(given_config(conf, keywords, "AdminClient"), {})
        self._credentials = settings.credentials
        with kafka_exceptions("AdminClient"):
            self._sdk = AdminDoor(None, **settings.sdk)
        if settings.logger is not None:
            self._sdk.use_logger(settings.logger)
        for name in settings.callbacks:
            _log.warning("setting without effect name=%s: an admin client has no callbacks", name)
        self._is_closed = False
        self._executor = ThreadPoolExecutor(1, "quorumlog-confluent-admin")
        weakref.finalize(self, self._sdk.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Make the calls that wait, and end the thread and the connections."""
        self._is_closed = True
        self._executor.shutdown()
        self._sdk.close()

    # futures

    def _submit(
        self,
        keys: Iterable[K],
        call: Callable[[], Mapping[K, T]],
    ) -> dict[K, Future[T]]:
        """Return a future for each key; the thread makes the call and settles them."""
        self._check_open()
        futures: dict[K, Future[T]] = {key: Future() for key in keys}
        for future in futures.values():
            future.set_running_or_notify_cancel()
        self._executor.submit(_settle, futures, call)
        return futures

    def _check_open(self) -> None:
        if self._is_closed:
            msg = "AdminClient has been closed"
            raise RuntimeError(msg)

    def __len__(self) -> int:
        """Return 0: an admin client has no messages."""
        return 0

    def __bool__(self) -> bool:
        return True

    def _submit_one(self, call: Callable[[], T]) -> Future[T]:
        return self._submit([None], lambda: {None: call()})[None]

    # topics

    def create_topics(self, new_topics: list[NewTopic], **kwargs: Any) -> dict[str, Future[None]]:
        """Create topics; a future ends, with None, once each partition has a ready leader.

        Keywords: ``validate_only``, ``request_timeout`` in seconds.
        """
        timeout_s, options = _options(kwargs, validate_only=False)
        by_name = {one.topic: one for one in _checked(new_topics, NewTopic)}

        def create() -> Mapping[str, None]:
            return _each(
                by_name,
                lambda name: self._sdk.create_topics(
                    [_new_topic(by_name[name])],
                    validate_only=options["validate_only"],
                    timeout=timeout_s,
                ),
            )

        return self._submit(by_name, create)

    def delete_topics(self, topics: list[str], **kwargs: Any) -> dict[str, Future[None]]:
        """Delete topics with all their records; keyword: ``request_timeout``."""
        timeout_s, _ = _options(kwargs)
        names = _names(topics)
        return self._submit(
            names,
            lambda: dict.fromkeys(self._sdk.delete_topics(names, timeout=timeout_s)),
        )

    def create_partitions(
        self, new_partitions: list[NewPartitions], **kwargs: Any
    ) -> dict[str, Future[None]]:
        """Grow topics to new total numbers of partitions.

        Keywords: ``validate_only``, ``request_timeout`` in seconds.
        """
        timeout_s, options = _options(kwargs, validate_only=False)
        by_name = {one.topic: one for one in _checked(new_partitions, NewPartitions)}

        def grow(name: str) -> object:
            new = by_name[name]
            cluster_id = self._sdk.ask(calls.cluster(), timeout_s).cluster_id
            rows = new.replica_assignment or []
            first = new.new_total_count - len(rows)
            call = calls.add_partitions(
                cluster_id,
                name,
                new.new_total_count,
                assignments=dict(enumerate(rows, first)),
                validate_only=options["validate_only"],
            )
            return self._sdk.ask(call, timeout_s)

        return self._submit(by_name, lambda: _each(by_name, grow))

    def describe_topics(
        self, topics: TopicCollection, **kwargs: Any
    ) -> dict[str, Future[TopicDescription]]:
        """Describe topics with their partitions; keyword: ``request_timeout``."""
        timeout_s, _ = _options(kwargs)
        given: object = topics
        if not isinstance(given, TopicCollection):
            msg = "Expected input to be instance of TopicCollection"
            raise TypeError(msg)
        names = _names(topics.topic_names) if topics.topic_names else []

        def describe() -> Mapping[str, TopicDescription]:
            nodes = self._nodes(timeout_s)
            return _converted(
                lambda: self._sdk.describe_topics(names, timeout=timeout_s),
                lambda one: _topic_description(one, nodes),
            )

        return self._submit(names, describe)

    def list_topics(self, topic: str | None = None, timeout: float | None = -1) -> ClusterMetadata:
        """Return the cluster's brokers and topics, or one topic; costs a request for each topic.

        Raises:
            KafkaException: No broker answers within ``timeout`` seconds.
        """
        with kafka_exceptions("AdminClient"):
            return read_cluster(lambda call: self._sdk.ask(call, question_s(timeout)), topic)

    def cluster_id(self, timeout: float | None = -1) -> str:
        """Return the cluster's id; raises `KafkaException` if no broker answers in time."""
        with kafka_exceptions("AdminClient"):
            return self._sdk.ask(calls.cluster(), question_s(timeout)).cluster_id

    # configs

    def describe_configs(
        self, resources: list[ConfigResource], **kwargs: Any
    ) -> dict[ConfigResource, Future[dict[str, ConfigEntry]]]:
        """Describe the configs in force of topics and brokers; keyword: ``request_timeout``."""
        timeout_s, _ = _options(kwargs)
        keys = _checked(resources, ConfigResource)

        def describe(key: ConfigResource) -> dict[str, ConfigEntry]:
            rows = self._configs(_resource(key), timeout_s)
            return {name: _config_entry(one) for name, one in rows.items()}

        return self._submit(keys, lambda: _each_result(keys, describe))

    def _configs(
        self, resource: admin_resources.ConfigResource, timeout_s: float | None
    ) -> Mapping[str, admin_resources.ConfigDescription]:
        return self._sdk.describe_configs([resource], timeout=timeout_s)[resource]

    def alter_configs(
        self, resources: list[ConfigResource], **kwargs: Any
    ) -> dict[ConfigResource, Future[None]]:
        """Set the configs of resources, and reset all others of theirs to their defaults.

        Keywords: ``validate_only``, ``request_timeout`` in seconds. Those to reset are looked up
        before, in a request of its own.
        """
        warnings.warn(
            "alter_configs is deprecated: use incremental_alter_configs",
            category=DeprecationWarning,
            stacklevel=2,
        )

        def changes(
            key: ConfigResource, present: Mapping[str, admin_resources.ConfigDescription]
        ) -> dict[str, str | None]:
            own = _own_source(_resource(key))
            resets = {name: None for name, one in present.items() if one.source == own}
            return {**resets, **key.set_config_dict}

        return self._alter(resources, changes, kwargs)

    def incremental_alter_configs(
        self, resources: list[ConfigResource], **kwargs: Any
    ) -> dict[ConfigResource, Future[None]]:
        """Set, reset or extend configs of resources; those that are not named keep their values.

        Keywords: ``validate_only``, ``request_timeout`` in seconds. A list to extend is read
        before, in a request of its own.
        """
        return self._alter(resources, _incremental_changes, kwargs)

    def _alter(
        self,
        resources: list[ConfigResource],
        changes: Callable[
            [ConfigResource, Mapping[str, admin_resources.ConfigDescription]],
            dict[str, str | None],
        ],
        kwargs: dict[str, Any],
    ) -> dict[ConfigResource, Future[None]]:
        timeout_s, options = _options(kwargs, validate_only=False)
        keys = _checked(resources, ConfigResource)

        def alter(key: ConfigResource) -> object:
            resource = _resource(key)
            return self._sdk.alter_configs(
                {resource: changes(key, self._configs(resource, timeout_s))},
                validate_only=options["validate_only"],
                timeout=timeout_s,
            )

        return self._submit(keys, lambda: _each(keys, alter))

    # offsets and records

    def list_offsets(
        self, topic_partition_offsets: dict[TopicPartition, OffsetSpec], **kwargs: Any
    ) -> dict[TopicPartition, Future[ListOffsetsResultInfo]]:
        """Find an offset in each partition; -1 if no record is at or after a time.

        ``OffsetSpec.max_timestamp()`` looks up times until none is later: three requests where
        times grow, at most some hundred.

        Keywords: ``isolation_level``, without an effect, and ``request_timeout`` in seconds.
        """
        timeout_s, _ = _options(kwargs, isolation_level=None)
        given: object = topic_partition_offsets
        if not isinstance(given, dict) or not all(
            isinstance(key, TopicPartition) and isinstance(one, OffsetSpec)
            for key, one in given.items()
        ):
            msg = "Expected topic_partition_offsets to be dict of [TopicPartitions,OffsetSpec]"
            raise TypeError(msg)

        def find(key: TopicPartition) -> ListOffsetsResultInfo:
            place, number = _place(key), topic_partition_offsets[key].number
            if number == MAX_TIMESTAMP:
                newest = self._sdk.newest_record(place, timeout_s)
                return ListOffsetsResultInfo(*(newest or (OFFSET_END, NO_TIMESTAMP)), None)
            word: str | int = {-1: "latest", -2: "earliest"}.get(number, number)
            offset = self._sdk.list_offsets({place: word}, timeout=timeout_s)[place]
            if not isinstance(word, str):
                ends = self._sdk.list_offsets({place: "latest"}, timeout=timeout_s)
                offset = OFFSET_END if offset >= ends[place] else offset
            return ListOffsetsResultInfo(offset, NO_TIMESTAMP, None)

        return self._submit(
            topic_partition_offsets, lambda: _each_result(topic_partition_offsets, find)
        )

    def delete_records(
        self, topic_partition_offsets: list[TopicPartition], **kwargs: Any
    ) -> dict[TopicPartition, Future[DeletedRecords]]:
        """Delete the records of partitions below their offsets; `OFFSET_END`: all records.

        Keyword: ``request_timeout`` in seconds.
        """
        timeout_s, _ = _options(kwargs)
        rows = _checked(topic_partition_offsets, TopicPartition)
        by_key = {one: (_place(one), one.offset) for one in rows}

        def delete(key: TopicPartition) -> DeletedRecords:
            place, offset = by_key[key]
            return DeletedRecords(
                self._sdk.delete_records({place: offset}, timeout=timeout_s)[place]
            )

        return self._submit(by_key, lambda: _each_result(by_key, delete))

    # groups

    def list_consumer_groups(self, **kwargs: Any) -> Future[ListConsumerGroupsResult]:
        """List the groups; keywords: ``states``, ``types``, ``request_timeout``."""
        timeout_s, options = _options(kwargs, states=None, types=None)
        states, types = options["states"], options["types"]

        def list_groups() -> ListConsumerGroupsResult:
            rows = [
                ConsumerGroupListing(
                    one.group, one.is_simple, group_state(one.state), ConsumerGroupType.CONSUMER
                )
                for one in self._sdk.list_consumer_groups(timeout=timeout_s).values()
            ]
            return ListConsumerGroupsResult(
                [
                    one
                    for one in rows
                    if (not states or one.state in states) and (not types or one.type in types)
                ],
                [],
            )

        return self._submit_one(list_groups)

    def list_groups(
        self, group: str | None = None, timeout: float | None = -1
    ) -> list[GroupMetadata]:
        """Return groups with their members, or one group; costs three requests for each.

        Raises:
            KafkaException: No broker answers within ``timeout`` seconds.
        """
        wait_s = question_s(timeout)
        with kafka_exceptions("AdminClient"):
            listed = self._sdk.list_consumer_groups(timeout=wait_s)
            names = [one for one in listed if group is None or one == group]
            try:
                found = self._sdk.describe_consumer_groups(names, timeout=wait_s)
            except AdminError as error:  # some were deleted meanwhile
                found = error.done
            nodes = {
                one.broker_id: broker_metadata(one)
                for one in self._sdk.describe_cluster(timeout=wait_s).brokers
            }
        return [_group_metadata(one, nodes.get(one.coordinator)) for one in found.values()]

    def describe_consumer_groups(
        self, group_ids: list[str], **kwargs: Any
    ) -> dict[str, Future[ConsumerGroupDescription]]:
        """Describe groups with their members; keyword: ``request_timeout``."""
        timeout_s, _ = _options(kwargs)
        names = _names(group_ids)

        def describe() -> Mapping[str, ConsumerGroupDescription]:
            nodes = self._nodes(timeout_s)
            return _converted(
                lambda: self._sdk.describe_consumer_groups(names, timeout=timeout_s),
                lambda one: _group_description(one, nodes),
            )

        return self._submit(names, describe)

    def delete_consumer_groups(
        self, group_ids: list[str], **kwargs: Any
    ) -> dict[str, Future[None]]:
        """Delete groups without live members; keyword: ``request_timeout``."""
        timeout_s, _ = _options(kwargs)
        names = _names(group_ids)
        return self._submit(
            names,
            lambda: dict.fromkeys(self._sdk.delete_consumer_groups(names, timeout=timeout_s)),
        )

    def list_consumer_group_offsets(
        self,
        list_consumer_group_offsets_request: list[ConsumerGroupTopicPartitions],
        **kwargs: Any,
    ) -> dict[str, Future[ConsumerGroupTopicPartitions]]:
        """List the committed offsets of a group: all, or those of some partitions.

        Keyword: ``request_timeout`` in seconds.
        """
        timeout_s, _ = _options(kwargs)
        request = _group_request(list_consumer_group_offsets_request)
        wanted = request.topic_partitions
        rows = None if wanted is None else [_place(one) for one in wanted]

        def list_offsets() -> Mapping[str, ConsumerGroupTopicPartitions]:
            found = self._sdk.list_consumer_group_offsets(request.group_id, rows, timeout=timeout_s)
            partitions = []
            for place, commit in found.items():
                offset = OFFSET_INVALID
                if commit is not None and commit.offset is not None:
                    offset = commit.offset
                metadata = None if commit is None else commit.metadata or None
                epoch = None if commit is None else commit.leader_epoch
                one = TopicPartition(place.topic, place.partition, offset, metadata, epoch)
                partitions.append(one)
            return {request.group_id: ConsumerGroupTopicPartitions(request.group_id, partitions)}

        return self._submit([request.group_id], list_offsets)

    def alter_consumer_group_offsets(
        self,
        alter_consumer_group_offsets_request: list[ConsumerGroupTopicPartitions],
        **kwargs: Any,
    ) -> dict[str, Future[ConsumerGroupTopicPartitions]]:
        """Commit offsets for a group without live members; keyword: ``request_timeout``."""
        timeout_s, _ = _options(kwargs)
        request = _group_request(alter_consumer_group_offsets_request)
        wanted = request.topic_partitions
        if not wanted or any(one.offset < 0 for one in wanted):
            msg = "Element of 'topic_partitions' must not have negative value for 'offset' field"
            raise ValueError(msg)
        rows = [sdk_partition(one) for one in wanted]

        def alter() -> Mapping[str, ConsumerGroupTopicPartitions]:
            try:
                self._sdk.alter_consumer_group_offsets(request.group_id, rows, timeout=timeout_s)
            except AdminError as error:
                raise next(iter(error.failed.values()), error) from error
            return {request.group_id: ConsumerGroupTopicPartitions(request.group_id, wanted)}

        return self._submit([request.group_id], alter)

    # cluster

    def describe_cluster(self, **kwargs: Any) -> Future[DescribeClusterResult]:
        """Describe the cluster; keyword: ``request_timeout``.

        The controller is a node without an address, unless a broker has the same id.
        """
        timeout_s, _ = _options(kwargs)

        def describe() -> DescribeClusterResult:
            found = self._sdk.describe_cluster(timeout=timeout_s)
            nodes = {one.broker_id: _node(one) for one in found.brokers}
            controller = found.controller_id
            node = None if controller is None else nodes.get(controller, Node(controller, "", -1))
            return DescribeClusterResult(node, list(nodes.values()), found.cluster_id)

        return self._submit_one(describe)

    def elect_leaders(
        self,
        election_type: ElectionType,
        partitions: list[TopicPartition] | None = None,
        **kwargs: Any,
    ) -> Future[dict[TopicPartition, KafkaException | None]]:
        """Elect the preferred leaders of partitions, or ``UNCLEAN`` ones; None: of all.

        The future returns None, or an exception, for each partition. Keyword: ``request_timeout``.
        """
        timeout_s, _ = _options(kwargs)
        given: object = election_type
        if not isinstance(given, ElectionType):
            msg = "Expected 'election_type' to be of type 'ElectionType'"
            raise TypeError(msg)
        rows = None
        if partitions is not None:
            rows = [_place(one) for one in _checked(partitions, TopicPartition)]

        def elect() -> dict[TopicPartition, KafkaException | None]:
            failed: Mapping[Any, QuorumlogError] = {}
            try:
                done: Mapping[Any, object] = self._sdk.elect_leaders(
                    rows, unclean=election_type is ElectionType.UNCLEAN, timeout=timeout_s
                )
            except AdminError as error:
                done, failed = error.done, error.failed
            found: dict[TopicPartition, KafkaException | None] = {
                TopicPartition(one.topic, one.partition): None for one in done
            }
            for one, failure in failed.items():
                exception = KafkaException(kafka_error(failure))
                found[TopicPartition(one.topic, one.partition)] = exception
            return found

        return self._submit_one(elect)

    def _nodes(self, timeout_s: float | None) -> dict[int, Node]:
        found = self._sdk.describe_cluster(timeout=timeout_s)
        return {one.broker_id: _node(one) for one in found.brokers}

    def poll(self, timeout: float | None = -1) -> int:
        """Return 0 at once: an admin client has no callbacks."""
        self._check_open()
        return 0

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Replace user and password for new connections; used with ``sasl.mechanisms=PLAIN``."""
        self._credentials.replace(username, password)

    # access rules and credentials

    def create_acls(self, acls: Sequence[Any], **kwargs: Any) -> dict[Any, Future[None]]:
        """Raise ``_NOT_IMPLEMENTED``."""
        raise not_implemented("create_acls")

    def describe_acls(self, acl_binding_filter: Any, **kwargs: Any) -> Future[list[Any]]:
        """Raise ``_NOT_IMPLEMENTED``."""
        raise not_implemented("describe_acls")

    def delete_acls(
        self, acl_binding_filters: Sequence[Any], **kwargs: Any
    ) -> dict[Any, Future[list[Any]]]:
        """Raise ``_NOT_IMPLEMENTED``."""
        raise not_implemented("delete_acls")

    def describe_user_scram_credentials(
        self, users: list[str] | None = None, **kwargs: Any
    ) -> dict[str, Future[Any]]:
        """Raise ``_NOT_IMPLEMENTED``."""
        raise not_implemented("describe_user_scram_credentials")

    def alter_user_scram_credentials(
        self, alterations: Sequence[Any], **kwargs: Any
    ) -> dict[str, Future[None]]:
        """Raise ``_NOT_IMPLEMENTED``."""
        raise not_implemented("alter_user_scram_credentials")


# results


def _settle(futures: Mapping[K, Future[T]], call: Callable[[], Mapping[K, T]]) -> None:
    """Make a call in the client's thread, and settle its futures."""
    done: Mapping[Any, T] = {}
    failed: Mapping[Any, Exception] = {}
    try:
        done = call()
    except AdminError as error:
        done, failed = error.done, error.failed
    except Exception as error:  # noqa: BLE001 the futures raise it
        failed = dict.fromkeys(futures, error)
    for key, future in futures.items():
        if key in done:
            future.set_result(done[key])
        else:
            future.set_exception(_exception(failed.get(key)))


def _exception(error: Exception | None) -> Exception:
    if error is None or isinstance(error, KafkaException):
        return error or KafkaException(KafkaError(KafkaError.UNKNOWN))
    late = LocalCode.TIMED_OUT if isinstance(error, UnreachableError) else None
    return KafkaException(kafka_error(error, number=late))


def _each_result(keys: Iterable[K], call: Callable[[K], T]) -> dict[K, T]:
    """Make a call for each key; raise `AdminError` with results and errors if one failed."""
    done: dict[K, T] = {}
    failed: dict[K, Any] = {}
    for key in keys:
        try:
            done[key] = call(key)
        except AdminError as error:
            failed[key] = next(iter(error.failed.values()), error)
        except Exception as error:  # noqa: BLE001 the key's future raises it
            failed[key] = error
    if failed:
        raise _PartialError(done, failed)
    return done


class _PartialError(AdminError):
    """Results and errors by key, errors of any kind."""

    def __init__(self, done: Mapping[Any, Any], failed: Mapping[Any, Any]) -> None:
        super().__init__(done, {})
        self.failed = dict(failed)


def _each(keys: Iterable[K], call: Callable[[K], object]) -> dict[K, None]:
    """Make a call for each key, as `_each_result`, without results."""

    def without_result(key: K) -> None:
        call(key)

    return _each_result(keys, without_result)


def _converted(call: Callable[[], Mapping[K, Any]], convert: Callable[[Any], T]) -> dict[K, T]:
    """Return the converted results of a call of the SDK; its errors stay."""
    try:
        return {key: convert(one) for key, one in call().items()}
    except AdminError as error:
        error.done = {key: convert(one) for key, one in error.done.items()}
        raise


# arguments


def _options(kwargs: dict[str, Any], **known: Any) -> tuple[float | None, dict[str, Any]]:
    """Return the time-out in seconds, and the given options over their defaults."""
    found = dict(known)
    timeout_s: float | None = None
    for name, value in kwargs.items():
        if name in {"request_timeout", "timeout"}:
            timeout_s = None if value is None or value < 0 else value
        elif name in known:
            if isinstance(known[name], bool) and not isinstance(value, bool):
                msg = f"{name}={value!r}: expected True or False"
                raise TypeError(msg)
            found[name] = value
        elif name not in _OPTIONS:
            msg = f"'{name}' is an invalid keyword argument for this function"
            raise TypeError(msg)
    return timeout_s, found


def _checked(values: Sequence[T], kind: type[T]) -> list[T]:
    given: object = values
    if not isinstance(given, list | tuple) or not all(
        isinstance(one, kind) or one is None for one in given
    ):
        msg = f"Expected non-empty list of {kind.__name__} objects"
        raise TypeError(msg)
    if not given or None in given:
        msg = f"Expected non-empty list of {kind.__name__} objects"
        raise ValueError(msg)
    return list(values)


def _names(names: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(_checked(names, str)))


def _place(one: TopicPartition) -> record_types.TopicPartition:
    if one.partition < 0:
        msg = "'partition' cannot be negative"
        raise ValueError(msg)
    return record_types.TopicPartition(one.topic, one.partition)


def _group_request(request: list[ConsumerGroupTopicPartitions]) -> ConsumerGroupTopicPartitions:
    found = _checked(request, ConsumerGroupTopicPartitions)
    if len(found) != 1:
        msg = "Currently we support listing offsets for a single consumer group only"
        raise ValueError(msg)
    return found[0]


def _new_topic(new: NewTopic) -> admin_resources.NewTopic:
    """Return a topic in the SDK's terms; raises ValueError or TypeError for a wrong field."""
    if new.replica_assignment is not None:
        return admin_resources.NewTopic(
            new.topic, assignments=new.replica_assignment, config=new.config
        )
    count, factor = new.num_partitions, new.replication_factor
    return admin_resources.NewTopic(
        new.topic,
        None if count == CLUSTER_DEFAULT else count,
        None if factor == CLUSTER_DEFAULT else factor,
        config=new.config,
    )


def _resource(one: ConfigResource) -> admin_resources.ConfigResource:
    if one.restype is ResourceType.TOPIC:
        return admin_resources.ConfigResource("topic", one.name)
    if one.restype is ResourceType.BROKER and not one.name:
        return admin_resources.ConfigResource("cluster")
    if one.restype is ResourceType.BROKER:
        return admin_resources.ConfigResource("broker", str(one.name))
    raise argument_error(f"{one!r}: expected a topic or a broker")


def _own_source(resource: admin_resources.ConfigResource) -> str:
    return {
        "topic": ConfigSource.DYNAMIC_TOPIC_CONFIG,
        "broker": ConfigSource.DYNAMIC_BROKER_CONFIG,
        "cluster": ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG,
    }[resource.type].name


def _incremental_changes(
    key: ConfigResource, present: Mapping[str, admin_resources.ConfigDescription]
) -> dict[str, str | None]:
    """Return new values of the configs that a resource's entries change; None: the default."""
    found: dict[str, str | None] = {}
    for entry in key.incremental_configs:
        now = present[entry.name].value if entry.name in present else ""
        items = [one.strip() for one in now.split(",") if one.strip()]
        named = [one.strip() for one in (entry.value or "").split(",") if one.strip()]
        match entry.incremental_operation:
            case AlterConfigOpType.DELETE:
                found[entry.name] = None
            case AlterConfigOpType.APPEND:
                found[entry.name] = ",".join(dict.fromkeys([*items, *named]))
            case AlterConfigOpType.SUBTRACT:
                found[entry.name] = ",".join(one for one in items if one not in named)
            case _:
                found[entry.name] = entry.value
    return found


# descriptions


def _config_entry(one: admin_resources.ConfigDescription) -> ConfigEntry:
    sources = ConfigSource.__members__
    synonyms = {
        source: ConfigEntry(
            one.name,
            value,
            sources.get(source, ConfigSource.UNKNOWN_CONFIG),
            is_read_only=one.is_read_only,
            is_default=source == ConfigSource.DEFAULT_CONFIG.name,
            is_synonym=True,
        )
        for value, source in one.synonyms
    }
    return ConfigEntry(
        one.name,
        one.value,
        sources.get(one.source, ConfigSource.UNKNOWN_CONFIG),
        is_read_only=one.is_read_only,
        is_default=one.is_default,
        synonyms=synonyms,
    )


def _node(info: calls.BrokerInfo) -> Node:
    address = broker_metadata(info)
    return Node(info.broker_id, address.host, address.port, info.rack)


def _topic_description(
    one: admin_resources.TopicDescription, nodes: Mapping[int, Node]
) -> TopicDescription:
    def node(number: int) -> Node:
        return nodes.get(number) or Node(number, "", -1)

    partitions = [
        TopicPartitionInfo(
            row.partition,
            None if row.leader is None else node(row.leader),
            [node(number) for number in row.replicas],
            [node(number) for number in row.isr],
        )
        for row in one.partitions
    ]
    return TopicDescription(one.name, uuid_of(one.topic_id), one.is_internal, partitions)


def group_state(word: str) -> ConsumerGroupState:
    """Return the state of a group in this interface's terms."""
    return _STATES.get(word, ConsumerGroupState.UNKNOWN)


def _group_description(
    one: admin_resources.ConsumerGroupDescription, nodes: Mapping[int, Node]
) -> ConsumerGroupDescription:
    members = [
        MemberDescription(
            member.member_id,
            member.client_id,
            "",
            MemberAssignment([TopicPartition(at.topic, at.partition) for at in member.assignment]),
            member.static_id,
        )
        for member in one.members
    ]
    return ConsumerGroupDescription(
        one.group,
        one.is_simple,
        members,
        one.assignor,
        group_state(one.state),
        nodes.get(one.coordinator) or Node(one.coordinator, "", -1),
        type=ConsumerGroupType.CONSUMER,
    )


def _group_metadata(one: admin_resources.ConsumerGroupDescription, broker: Any) -> GroupMetadata:
    made = GroupMetadata()
    made.broker, made.id = broker, one.group
    made.state, made.protocol_type, made.protocol = one.state.title(), "consumer", one.assignor
    for member in one.members:
        row = GroupMember()
        row.id, row.client_id = member.member_id, member.client_id
        made.members.append(row)
    return made


def _newest_record(call: AdminCall, topic: str, partition: int) -> Steps[tuple[int, int] | None]:
    """Find the largest time by look-ups, in growing steps from that of the last record."""
    found = yield from call.request(last_record(topic, partition))
    if found is None:  # compaction removed it, or there is none
        found = yield from call.request(record_at(topic, partition, 0))
    if found is None:
        return None
    low_ms, high_ms, step_ms = found[1], TIME_MAX_MS, 1
    while low_ms < high_ms:
        probe_ms = min(low_ms + step_ms, (low_ms + high_ms + 1) // 2)
        found = yield from call.request(record_at(topic, partition, probe_ms))
        if found is None:
            high_ms = probe_ms - 1
        else:
            low_ms, step_ms = found[1], 2 * step_ms
    return (yield from call.request(record_at(topic, partition, low_ms)))
