"""`AIOKafkaClient`: the connection check and the metadata of aiokafka, over our `AsyncAdmin`.

Producers and consumers have one. It offers what programs read of it: `bootstrap`, `close`, `hosts`,
`fetch_all_metadata` and ``cluster``. Requests of Kafka's protocol can't be sent with it.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from typing_extensions import override

from http_api.client.client_errors import ConfigError, QuorumlogError, UnreachableError
from http_api.client.compat.aiokafka_errors import (
    KafkaConfigurationError,
    KafkaConnectionError,
    UnsupportedVersionError,
    kafka_error,
)
from http_api.client.compat.aiokafka_settings import (
    LIBRARY_VERSION,
    common_settings,
    running_loop,
)
from http_api.client.compat.aiokafka_types import BrokerMetadata
from http_api.client.sdk.async_admin_client import AsyncAdmin
from http_api.client.sdk.record_types import TopicPartition as SdkPartition

if TYPE_CHECKING:
    import ssl

    from http_api.client.compat.aiokafka_types import AbstractTokenProvider

_BOOTSTRAP_S = 3.0
"""Time for which the first broker that answers is looked for."""


class ClusterMetadata:
    """Brokers and topics of the cluster, as of the last look."""

    def __init__(self) -> None:
        self._brokers: dict[int, BrokerMetadata] = {}
        self._partitions: dict[str, int] = {}

    def learn(self, brokers: Iterable[BrokerMetadata], partitions: Mapping[str, int]) -> None:
        """Take the brokers, and the number of partitions by topic."""
        self._brokers = {int(one.nodeId): one for one in brokers}
        self._partitions = dict(partitions)

    def brokers(self) -> set[BrokerMetadata]:
        """Return all brokers."""
        return set(self._brokers.values())

    def broker_metadata(self, broker_id: int) -> BrokerMetadata | None:
        """Return a broker by its id."""
        return self._brokers.get(broker_id)

    def topics(self, exclude_internal_topics: bool = True) -> set[str]:
        """Return the names of the topics; internal ones are never among them."""
        return set(self._partitions)

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        """Return the partitions of a topic; None for one that is not known."""
        count = self._partitions.get(topic)
        return None if count is None else set(range(count))


class AIOKafkaClient:
    """Metadata of a cluster. Its settings are those that producers and consumers share."""

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop | None = None,
        bootstrap_servers: str | Sequence[str] = "localhost",
        client_id: str = f"aiokafka-{LIBRARY_VERSION}",
        metadata_max_age_ms: int = 300_000,
        request_timeout_ms: int = 40_000,
        retry_backoff_ms: int = 100,
        ssl_context: ssl.SSLContext | None = None,
        security_protocol: str = "PLAINTEXT",
        api_version: str | None = None,
        connections_max_idle_ms: int = 540_000,
        sasl_mechanism: str = "PLAIN",
        sasl_plain_username: str | None = None,
        sasl_plain_password: str | None = None,
        sasl_kerberos_service_name: str = "kafka",
        sasl_kerberos_domain_name: str | None = None,
        sasl_oauth_token_provider: AbstractTokenProvider | None = None,
    ) -> None:
        given = {name: value for name, value in locals().items() if name != "self"}
        running_loop(loop)
        self._learn_settings(common_settings(given))

    @classmethod
    def of_settings(cls, settings: Mapping[str, Any]) -> AIOKafkaClient:
        """Return a client with settings that `common_settings` returned."""
        client = cls.__new__(cls)
        client._learn_settings(settings)  # noqa: SLF001 its own class
        return client

    def _learn_settings(self, settings: Mapping[str, Any]) -> None:
        self._client_id = settings["client_id"]
        self._admin = made_of(AsyncAdmin, settings)
        self._servers: Sequence[str] = settings.get("bootstrap_servers", ())
        self.cluster = ClusterMetadata()
        self.cluster_id = ""
        """Id of the cluster; empty before `bootstrap`."""

    @override
    def __repr__(self) -> str:
        return f"<AIOKafkaClient client_id={self._client_id}>"

    @property
    def hosts(self) -> list[tuple[str, int, int]]:
        """Host and port of each given broker, and 0; none if the environment names them."""
        parts = [urlsplit(url) for url in self._servers]
        return [(str(one.hostname), one.port or 0, 0) for one in parts]

    async def bootstrap(self) -> None:
        """Look for a broker, and learn the metadata.

        Raises:
            KafkaConnectionError: No broker answers.
            KafkaError: A broker refuses the credentials.
        """
        try:
            await self._look_up(_BOOTSTRAP_S)
        except UnreachableError as error:
            msg = f"unable to bootstrap from {list(self._servers)}: {error}"
            raise KafkaConnectionError(msg) from error
        except QuorumlogError as error:
            raise kafka_error(error) from error

    async def fetch_all_metadata(self) -> ClusterMetadata:
        """Return the metadata of now, of all topics."""
        try:
            await self._look_up(None)
        except QuorumlogError as error:
            raise kafka_error(error) from error
        return self.cluster

    async def force_metadata_update(self) -> bool:
        """Learn the metadata of now; return True."""
        await self.fetch_all_metadata()
        return True

    async def committed(
        self, group_id: str, partitions: Iterable[tuple[str, int]]
    ) -> dict[tuple[str, int], int]:
        """Return the committed offsets of partitions of a group, -1 where there is none.

        Raises:
            QuorumlogError: They could not be looked up.
        """
        wanted = [SdkPartition(*place) for place in partitions]
        found = await self._admin.list_consumer_group_offsets(group_id, wanted)
        return {
            (one.topic, one.partition): -1 if row is None or row.offset is None else row.offset
            for one, row in found.items()
        }

    def set_topics(self, topics: Iterable[str]) -> asyncio.Future[bool]:
        """Do nothing, as the metadata are those of all topics; return a future that is done."""
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        done.set_result(True)
        return done

    def add_topic(self, topic: str) -> asyncio.Future[bool]:
        """Do nothing, as the metadata are those of all topics; return a future that is done."""
        return self.set_topics((topic,))

    async def send(self, node_id: int, request: object, **_: object) -> object:
        """Refuse: there is no connection with Kafka's protocol."""
        msg = "AIOKafkaClient.send: requests of Kafka's protocol can't be sent over HTTP"
        raise UnsupportedVersionError(msg)

    async def _look_up(self, timeout_s: float | None) -> None:
        cluster = await self._admin.describe_cluster(timeout=timeout_s)
        self.cluster_id = cluster.cluster_id
        topics = await self._admin.list_topics()
        brokers = []
        for one in cluster.brokers:
            parts = urlsplit(one.url or "")
            brokers.append(
                BrokerMetadata(one.broker_id, parts.hostname or "", parts.port or 0, one.rack)
            )
        self.cluster.learn(brokers, {name: one.partitions_count for name, one in topics.items()})

    async def close(self) -> None:
        """Close the connections."""
        await self._admin.close()


def made_of(kind: Callable[..., Any], settings: Mapping[str, Any]) -> Any:
    """Return an object of ours with settings; a wrong one raises the library's error."""
    try:
        return kind(**settings)
    except ConfigError as error:
        raise KafkaConfigurationError(str(error)) from error


class StartedBlock(ABC):
    """A producer or consumer that an ``async with`` starts, and stops if that fails."""

    @abstractmethod
    async def start(self) -> None:
        """Look for a broker, and begin."""

    @abstractmethod
    async def stop(self) -> None:
        """End what was begun."""

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self
