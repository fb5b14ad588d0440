"""Settings of `Producer` and `AsyncProducer`. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from http_api.client.client_errors import ConfigError
from http_api.client.sdk.record_types import NewRecord
from http_api.client.sdk.settings import (
    BYTES_MAX,
    DAY_MS,
    CommonConfig,
    CommonKeywords,
    custom,
    flag,
    function,
    integer,
    word,
)
from http_api.client.sdk.values import FORMATS
from http_api.contract.transaction_headers import KEY_PREFIX, TRANSACTIONAL_ID, is_key
from raft_metadata.common.ids import BATCHES_REMEMBERED
from raft_metadata.common.record_placement import Partitioner

ACKS: Final = {"all": "all", "-1": "all", "1": "1", "0": "0"}
"""Spellings of ``acks``, by what is sent."""

PartitionChooser = Callable[[NewRecord, Sequence[int]], int]
"""Chooses the partition of a record among those that have a leader, which are given in order."""


def _read_acks(name: str, value: object) -> str:
    found = ACKS.get(str(value))
    if found is None or isinstance(value, bool):
        msg = f"setting {name}={value!r}: expected 'all', 1 or 0"
        raise ConfigError(msg)
    return found


def _read_transactional_id(name: str, value: object) -> object:
    if value is None or (isinstance(value, str) and _is_transactional_id(value)):
        return value
    msg = (
        f"setting {name}={value!r}: expected 1 to 320 characters of A-Z a-z 0-9 . _ : -, not "
        f"beginning with {KEY_PREFIX!r}"
    )
    raise ConfigError(msg)


def _is_transactional_id(value: str) -> bool:
    return TRANSACTIONAL_ID.fullmatch(value) is not None and not is_key(value)


def _read_group(name: str, value: object) -> object:
    if value is None or isinstance(value, str):
        return value
    msg = f"setting {name}={value!r}: expected the name of a group, or '' for none"
    raise ConfigError(msg)


def _read_partitioner(name: str, value: object) -> object:
    words = tuple(each.value for each in Partitioner)
    if not callable(value) and value not in words:
        msg = (
            f"setting {name}={value!r}: expected one of {', '.join(words)}, or a function; keys "
            f"always go by crc32"
        )
        raise ConfigError(msg)
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig(CommonConfig):
    """Settings of a producer. Times are in milliseconds, sizes in bytes."""

    acks: str = custom("all", _read_acks)
    """Replicas that have a record before it counts as written: ``all`` in-sync ones, the leader
    (1), or none for sure (0)."""
    enable_idempotence: bool = flag(default=True)
    """Write each record once, in order, however often it is sent."""
    linger_ms: int = integer(5, 0, DAY_MS)
    """Longest time for which a record waits for others of its batch."""
    batch_size: int = integer(262_144, 1, 8 << 20)
    """Size at which a batch is sent without waiting."""
    buffer_memory: int = integer(33_554_432, 1 << 16, BYTES_MAX)
    """Size of all records not yet settled; `produce` blocks while it is reached."""
    max_block_ms: int = integer(60_000, 0, DAY_MS)
    """Longest time for which `produce` blocks."""
    delivery_timeout_ms: int = integer(120_000, 1, DAY_MS)
    """Time from `produce` to the record's outcome, retries included."""
    max_in_flight: int = integer(BATCHES_REMEMBERED, 1, BATCHES_REMEMBERED)
    """Requests of one partition under way at once."""
    retry_backoff_ms: int = integer(50, 0, DAY_MS)
    retry_backoff_max_ms: int = integer(1_000, 0, DAY_MS)
    partitioner: str | PartitionChooser = custom("sticky", _read_partitioner)
    """Rule by which records without a partition and a key are spread; a function decides for every
    record."""
    allow_auto_create_topics: bool = flag(default=True)
    large_messages: str = word("refuse", ("refuse", "split"))
    """Treatment of a value over the topic's ``max.message.bytes``: an error, or several records
    that consumers return as one."""
    key_format: str = word("auto", FORMATS)
    value_format: str = word("auto", FORMATS)
    key_serializer: Callable[[Any], bytes | str | None] | None = function()
    value_serializer: Callable[[Any], bytes | str | None] | None = function()
    transactional_id: str | None = custom(None, _read_transactional_id)
    """Name under which the producer's transactions are decided, the same in each life of it; None:
    it has no transactions."""
    transactional_group: str | None = custom(None, _read_group)
    """The group whose offsets the transactions commit; ``""``: they commit none; None: it is learnt
    from the first ``send_offsets_to_transaction``, and nothing is staged before that call."""
    transaction_timeout_ms: int = integer(60_000, 1, DAY_MS)
    """Longest time of an init, commit or abort that names no ``timeout``."""


class ProducerKeywords(CommonKeywords, total=False):
    """Keywords of a producer; see `ProducerConfig`."""

    acks: str | int
    enable_idempotence: bool
    linger_ms: int
    batch_size: int
    buffer_memory: int
    max_block_ms: int
    delivery_timeout_ms: int
    max_in_flight: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    partitioner: str | PartitionChooser
    allow_auto_create_topics: bool
    large_messages: str
    key_format: str
    value_format: str
    key_serializer: Callable[[Any], bytes | str | None] | None
    value_serializer: Callable[[Any], bytes | str | None] | None
    transactional_id: str | None
    transactional_group: str | None
    transaction_timeout_ms: int


def is_idempotent(config: ProducerConfig, *, is_given: bool) -> bool:
    """Return True if writes have sequences; ``acks`` below ``all`` switches them off.

    In transactions they have positions in place of sequences.

    Raises:
        ConfigError: ``enable_idempotence=True`` was given beside ``acks`` of 0 or 1, or a
            transactional setting contradicts another one.
    """
    if config.acks != "all" and config.enable_idempotence and is_given:
        msg = f"settings acks={config.acks} and enable_idempotence=True contradict: use acks='all'"
        raise ConfigError(msg)
    has_sequences = config.acks == "all" and config.enable_idempotence
    if config.transactional_id is None:
        if config.transactional_group is not None:
            msg = "setting transactional_group: expected transactional_id beside it"
            raise ConfigError(msg)
    elif not has_sequences:
        msg = "setting transactional_id: expected acks='all' and enable_idempotence=True"
        raise ConfigError(msg)
    return has_sequences and config.transactional_id is None
