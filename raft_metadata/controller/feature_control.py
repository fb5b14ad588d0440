"""``metadata.version``: raised once every node can follow, never lowered. Pure (KIP-584)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import BrokerId, NodeId
from raft_metadata.image.metadata_image import MetadataImage
from raft_metadata.records.commands import MetadataUpgraded, UpgradeMetadata
from raft_metadata.records.feature_levels import SUPPORTED_FEATURE_LEVEL
from raft_metadata.records.records import BrokerState, FeatureLevelRecord

VoterLevels = Mapping[NodeId, int | None]
"""The highest level that each voter can follow; None: it did not answer."""
NO_VOTER_LEVELS: VoterLevels = MappingProxyType({})
"""The levels of the voters are not known."""


def check_follows(image: MetadataImage, broker_id: BrokerId, feature_level_max: int) -> None:
    """Raise UNSUPPORTED_VERSION for a broker process that can't read this cluster's records."""
    if feature_level_max < image.feature_level:
        message = (
            f"broker {broker_id} follows metadata.version {feature_level_max} at most, "
            f"the cluster is at {image.feature_level}: start a newer version of it"
        )
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, message)


def decide_upgrade_metadata(
    image: MetadataImage, command: UpgradeMetadata, voter_levels: VoterLevels
) -> tuple[tuple[FeatureLevelRecord, ...], MetadataUpgraded]:
    """Raise the level to the requested one, or to the highest that every node can follow.

    Fenced brokers count, because they may return. Raises POLICY_VIOLATION, which names every node
    that can't follow, and for a lower level: nodes of that level would lose what newer records
    state.
    """
    present = image.feature_level
    wanted = command.level
    if wanted is None:
        wanted = _highest(image, voter_levels)
    if wanted < present:
        message = f"metadata.version is {present} and is never lowered, {wanted} was asked for"
        raise KafkaError(ErrorCode.POLICY_VIOLATION, message)
    if wanted > SUPPORTED_FEATURE_LEVEL:
        message = (
            f"metadata.version {wanted} is not known to this controller, "
            f"{SUPPORTED_FEATURE_LEVEL} is the highest it knows"
        )
        raise KafkaError(ErrorCode.POLICY_VIOLATION, message)
    records: tuple[FeatureLevelRecord, ...] = ()
    if wanted > present:
        _check_all_follow(image, voter_levels, wanted)
        records = (FeatureLevelRecord(level=wanted),)
    return records, MetadataUpgraded(
        level_before=present,
        level=wanted,
        next_offset=image.offset_after(len(records)),
    )


def _highest(image: MetadataImage, voter_levels: VoterLevels) -> int:
    """Return the highest level all nodes can follow, at least the level after the present one.

    If not all nodes can follow that one, the check that comes next refuses it and names them.
    """
    levels = [broker.feature_level_max for broker in image.brokers.values()]
    levels += [level for level in voter_levels.values() if level is not None]
    common = min([SUPPORTED_FEATURE_LEVEL, *levels])
    return max(common, min(image.feature_level + 1, SUPPORTED_FEATURE_LEVEL))


def _check_all_follow(image: MetadataImage, voter_levels: VoterLevels, wanted: int) -> None:
    """Raise POLICY_VIOLATION with the nodes that can't follow this level."""
    if not voter_levels:
        message = "it is not known which metadata.version the controllers can follow"
        raise KafkaError(ErrorCode.POLICY_VIOLATION, message)
    problems = [*_brokers_behind(image, wanted), *_voters_behind(voter_levels, wanted)]
    if problems:
        message = f"metadata.version can't be raised to {wanted}: {'; '.join(problems)}"
        raise KafkaError(ErrorCode.POLICY_VIOLATION, message)


def _brokers_behind(image: MetadataImage, wanted: int) -> Iterator[str]:
    for broker_id, broker in sorted(image.brokers.items()):
        if broker.feature_level_max >= wanted:
            continue
        fenced = broker.state is BrokerState.FENCED
        remedy = "it is fenced: upgrade or unregister it" if fenced else "upgrade and restart it"
        yield f"broker {broker_id} follows {broker.feature_level_max} at most ({remedy})"


def _voters_behind(voter_levels: VoterLevels, wanted: int) -> Iterator[str]:
    for voter, level in sorted(voter_levels.items()):
        if level is None:
            yield f"controller {voter} has not said what it can follow (is it running?)"
        elif level < wanted:
            yield f"controller {voter} follows {level} at most (upgrade and restart it)"
