"""What follows from a fence is found again until an image shows it done."""

from __future__ import annotations

from raft_metadata.common.ids import BrokerEpoch, BrokerId, ClusterId
from raft_metadata.controller.controller import Controller, ControllerConfig
from raft_metadata.records.records import (
    BrokerRegistrationChangeRecord,
    BrokerState,
    FeatureLevelRecord,
)
from tests.support.hosted_replicas import FIRST_ID, ME, OTHER, created, images, registered

THREE = BrokerId(3)


def changed(broker: BrokerId, state: BrokerState) -> tuple[BrokerRegistrationChangeRecord, ...]:
    epoch = BrokerEpoch((ME, OTHER, THREE).index(broker) + 1)
    record = BrokerRegistrationChangeRecord(
        broker_id=broker, broker_epoch=epoch, state=state, settled=True
    )
    return (record,)


def test_rule_m4_consequences_of_a_refused_batch_are_found_again() -> None:
    brokers = (ME, OTHER, THREE)
    *_, image = images(
        (FeatureLevelRecord(level=1),),
        *((registered(b, at + 1, f"life-{b}"),) for at, b in enumerate(brokers)),
        *(changed(b, BrokerState.UNFENCED) for b in brokers),
        created(FIRST_ID, brokers, count=3),
        changed(ME, BrokerState.FENCED),
    )
    core = Controller(ControllerConfig(cluster_id=ClusterId("c")), lambda n: b"\0" * n, 0)
    core.activate(image)
    for _ in range(2):  # the second time: the append was refused, the reign goes on
        wish = core.next_proposed_batch(image, bulk_allowed=True)
        assert wish is not None
        assert len(wish.records) == 3


def test_rule_g3_a_new_controller_fences_nobody_whose_proof_may_be_younger_than_its_reign() -> None:
    """Leadership was handed over and a link is cut: the last controller still heard that broker."""
    *_, image = images(
        (FeatureLevelRecord(level=1),),
        *((registered(b, at + 1, f"life-{b}"),) for at, b in enumerate((ME, OTHER))),
        *(changed(b, BrokerState.UNFENCED) for b in (ME, OTHER)),
    )
    config = ControllerConfig(cluster_id=ClusterId("c"))
    core = Controller(config, lambda n: b"\0" * n, 0)
    sessions, now_ms = core.sessions, 0
    for _ in range(40):
        now_ms += 50
        sessions.record_heartbeat(ME, BrokerEpoch(1), image.next_offset, now_ms)
        sessions.expect_brokers([(OTHER, BrokerEpoch(2))], now_ms)
        sessions.judge(now_ms)
    assert sessions.has_expired(OTHER, BrokerEpoch(2))
    core.activate(image)
    for _ in range(0, config.broker_disconnect_grace_ms, 50):
        assert core.next_proposed_batch(image, bulk_allowed=True) is None
        now_ms += 50
        sessions.record_heartbeat(ME, BrokerEpoch(1), image.next_offset, now_ms)
        sessions.judge(now_ms)
    wish = core.next_proposed_batch(image, bulk_allowed=True)
    assert wish is not None
    assert [record.broker_id for record in wish.records] == [OTHER]  # type: ignore[union-attr]
