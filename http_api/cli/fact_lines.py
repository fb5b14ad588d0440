"""Formatting of a fact of the metadata log as a line for people.

Pure; called by `quorumlog metadata dump`. `raft_metadata.image.facts` defines the facts; `WORDS`
has a function for each type of fact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Fact = Mapping[str, Any]

NOBODY = -1
"""Broker id in a fact that stands for no leader."""


def line_of(fact: Fact) -> str:
    """Return a fact as a line: offset, controller epoch, time, and the change.

    ``1042 e3 2026-11-21T12:01:07.123Z partition orders-2: leader 1 -> 3 epoch 4 isr [3,2]``.
    """
    say = WORDS.get(str(fact.get("type")), _anything)
    return f"{_place(fact)} {say(fact)}".rstrip()


def _place(fact: Fact) -> str:
    if fact.get("snapshot"):
        return "snapshot"
    return f"{fact['offset']} e{fact['epoch']} {fact.get('time') or '-'}"


def _snapshot(fact: Fact) -> str:
    return f"of everything below offset {fact['next_offset']}, epoch {fact['controller_epoch']}"


def _partition(fact: Fact) -> str:
    before: Fact = fact.get("before") or {}
    words = [f"partition {_topic(fact)}-{fact['partition']}:"]
    words.append(_changed("leader", _leader(before.get("leader")), _leader(fact["leader"])))
    words.append(f"epoch {fact['leader_epoch']}")
    words += [_changed(name, _ids(before.get(name)), _ids(fact[name])) for name in ("isr", "elr")]
    replicas = _ids(fact.get("replicas"))
    if replicas is not None and (not before or _ids(before.get("replicas")) != replicas):
        words.append(_changed("replicas", _ids(before.get("replicas")), replicas))
    words += [f"{name} {_ids(fact[name])}" for name in ("adding", "removing") if fact.get(name)]
    if fact.get("last_known_elr"):
        words.append(f"last_known_elr {_ids(fact['last_known_elr'])}")
    if fact.get("unclean"):
        words.append("UNCLEAN election: acknowledged records may be gone")
    return " ".join(words)


def _changed(name: str, before: str | None, now: str | None) -> str:
    if before is None or before == now:
        return f"{name} {now}"
    return f"{name} {before} -> {now}"


def _leader(broker_id: int | None) -> str | None:
    if broker_id is None:
        return None
    return "none" if broker_id == NOBODY else str(broker_id)


def _ids(brokers: Sequence[int] | None) -> str | None:
    return None if brokers is None else "[" + ",".join(map(str, brokers)) + "]"


def _topic(fact: Fact) -> str:
    """Return the topic's name, or its id if the name is not known any more."""
    return str(fact.get("topic") or fact.get("topic_id"))


def _topic_created(fact: Fact) -> str:
    return f"topic {fact['name']}: created, {fact['partitions_count']} partitions"


def _topic_grown(fact: Fact) -> str:
    return f"topic {_topic(fact)}: grows to {fact['partitions_count']} partitions"


def _topic_deleted(fact: Fact) -> str:
    return f"topic {_topic(fact)}: deleted"


def _registered(fact: Fact) -> str:
    words = f"broker {fact['broker_id']}: registered at {fact['http']} epoch {fact['broker_epoch']}"
    if fact.get("rack"):
        words += f" rack {fact['rack']}"
    unclean = len(fact.get("unclean_partitions") or ())
    if unclean:
        words += f", {unclean} unclean partitions"
    ranges = fact.get("unclean_ranges") or ()
    if ranges:
        among = sum(last - first + 1 for _, first, last in ranges)
        words += f", all replicas among {among} partitions unclean"
    return words


def _broker_changed(fact: Fact) -> str:
    before: Fact = fact.get("before") or {}
    state = _changed("state", before.get("state"), fact["state"])
    return f"broker {fact['broker_id']}: {state}" + ("" if fact["settled"] else ", not settled")


def _drained(fact: Fact) -> str:
    return f"broker {fact['broker_id']}: drain {fact['scope']}"


def _unregistered(fact: Fact) -> str:
    return f"broker {fact['broker_id']}: unregistered"


def _config(fact: Fact) -> str:
    owner = fact["resource_type"]
    name = fact.get("topic") or fact["resource_name"]
    before: Fact = fact.get("before") or {}
    where = f"{owner} {name}".rstrip()
    if fact["value"] is None:
        return f"config of {where}: {fact['name']} reset to its default"
    if before.get("value") is None:
        return f"config of {where}: {fact['name']} = {fact['value']}"
    return f"config of {where}: {fact['name']} = {before['value']} -> {fact['value']}"


def _producer_ids(fact: Fact) -> str:
    return f"producer ids below {fact['next_producer_id']}: handed to broker {fact['broker_id']}"


def _feature_level(fact: Fact) -> str:
    return f"metadata.version {fact['level']}"


def _quota(fact: Fact) -> str:
    who = ",".join(f"{part[0]}={part[1] or '<default>'}" for part in fact["entity"])
    value = "removed" if fact["value"] is None else f"= {fact['value']:g}"
    return f"quota of {who}: {fact['key']} {value}"


def _acl(fact: Fact) -> str:
    return (
        f"acl {fact['acl_id']}: {fact['permission']} {fact['principal']} {fact['operation']} on "
        f"{fact['resource_type']} {fact['resource_name']} ({fact['pattern_type']}) "
        f"from {fact['host']}"
    )


def _acl_removed(fact: Fact) -> str:
    return f"acl {fact['acl_id']}: removed"


def _user(fact: Fact) -> str:
    return f"user {fact['name']}: {fact['mechanism']} password set"


def _user_removed(fact: Fact) -> str:
    return f"user {fact['name']}: {fact['mechanism']} password removed"


def _anything(fact: Fact) -> str:
    """Return all fields of a fact whose type this version does not know."""
    shown = {"offset", "epoch", "time", "type", "snapshot"}
    rest = " ".join(f"{key}={value}" for key, value in fact.items() if key not in shown)
    return f"{fact.get('type')}: {rest}"


WORDS: Mapping[str, Callable[[Fact], str]] = {
    "snapshot": _snapshot,
    "partition": _partition,
    "partition_change": _partition,
    "topic": _topic_created,
    "partitions_count": _topic_grown,
    "remove_topic": _topic_deleted,
    "register_broker": _registered,
    "broker_registration_change": _broker_changed,
    "broker_drain": _drained,
    "unregister_broker": _unregistered,
    "config": _config,
    "producer_ids": _producer_ids,
    "feature_level": _feature_level,
    "client_quota": _quota,
    "acl": _acl,
    "remove_acl": _acl_removed,
    "user_scram": _user,
    "remove_user_scram": _user_removed,
}
