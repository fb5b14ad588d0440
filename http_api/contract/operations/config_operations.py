"""Operations on configs of topics, of brokers and of the cluster: the same five for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from http_api.contract import v3
from http_api.contract.errors import RestCode
from http_api.contract.operations.declaration import CLUSTER, Body, Operation, no_content
from http_api.contract.operations.shared import (
    CONFIG_VALUE,
    FROM_CONTROLLER,
    FROM_LEADER,
    LINKS,
    NAME_SCHEMA,
    TOPIC,
    VALIDATE_ONLY,
    listing,
    resource,
)
from http_api.contract.resources import ConfigInfo

_TAG: Final = "Configs"
CHANGES_MAX: Final = 1_000
"""Most changes of one request: they are one batch of the metadata log, all or none."""
_INFO: Final = ConfigInfo(
    name="retention.ms",
    value="3600000",
    source="DYNAMIC_TOPIC_CONFIG",
    is_default=False,
    is_read_only=False,
    synonyms=(("3600000", "DYNAMIC_TOPIC_CONFIG"), ("604800000", "DEFAULT_CONFIG")),
    meaning="how long records are kept",
    expected="an integer from -1 on",
    update="live",
)
_ENTRY: Final = {
    "name": {"type": "string"},
    "value": CONFIG_VALUE,
    "operation": {"enum": ["SET", "DELETE"], "default": "SET"},
}
ENTRY_FIELDS: Final = tuple(_ENTRY)
_ENTRIES: Final = {
    "type": "array",
    "minItems": 1,
    "maxItems": CHANGES_MAX,
    "items": {
        "type": "object",
        "properties": _ENTRY,
        "required": ["name"],
        "additionalProperties": False,
    },
}
_TOPIC_ENTRIES: Final = {
    "type": "object",
    "properties": {"topic_name": NAME_SCHEMA, "configs": _ENTRIES},
    "required": ["topic_name", "configs"],
    "additionalProperties": False,
}


_VALUE_BODY: Final = Body(
    fields={"value": {"type": ["string", "number", "boolean"]}},
    needed=("value",),
    example={"value": "3600000"},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigOperations:
    """The operations on the configs of one kind of target."""

    list: Operation
    describe: Operation
    set: Operation
    reset: Operation
    alter: Operation


def _operations(
    path: str,
    target: str,
    owner: v3.ConfigOwner,
    errors: tuple[RestCode, ...] = (),
    *,
    about_all: str = "",
    rows: dict[str, Any] = _ENTRIES,
) -> ConfigOperations:
    example = v3.config(LINKS, owner, _INFO)
    one = path + "/{config_name}"
    return ConfigOperations(
        list=listing(
            path,
            _TAG,
            f"List the configs of {target}",
            example,
            errors=(*errors, *FROM_LEADER),
            description=about_all,
        ),
        describe=resource(
            one,
            _TAG,
            f"Describe a config of {target}",
            example,
            errors=(*errors, *FROM_LEADER),
        ),
        set=Operation(
            "PUT",
            CLUSTER + one,
            tag=_TAG,
            summary=f"Set a config of {target}",
            body=_VALUE_BODY,
            replies=(no_content("The value is in force."),),
            errors=(*errors, *FROM_CONTROLLER),
        ),
        reset=Operation(
            "DELETE",
            CLUSTER + one,
            tag=_TAG,
            summary=f"Reset a config of {target}",
            replies=(no_content("The value set elsewhere, or the default, is in force again."),),
            errors=(*errors, *FROM_CONTROLLER),
        ),
        alter=Operation(
            "POST",
            CLUSTER + path + ":alter",
            tag=_TAG,
            summary=f"Set and reset many configs of {target}",
            description=f"All of them, or none where one is refused. {about_all}".strip(),
            body=Body(
                fields={"data": rows, "validate_only": VALIDATE_ONLY},
                needed=("data",),
                example={"data": [{"name": "retention.ms", "value": "3600000"}]},
            ),
            replies=(no_content("All changes are in force."),),
            errors=(*errors, *FROM_CONTROLLER),
        ),
    )


TOPIC_CONFIG_OPERATIONS: Final = _operations(
    "/topics/{topic_name}/configs",
    "a topic",
    v3.topic_owner(TOPIC),
    (RestCode.UNKNOWN_TOPIC_OR_PARTITION,),
    about_all="`-` for the topic means all of them; changes then name the topic in each row.",
    rows=_ENTRIES | {"items": {"anyOf": [_ENTRIES["items"], _TOPIC_ENTRIES]}},
)
BROKER_CONFIG_OPERATIONS: Final = _operations(
    "/brokers/{broker_id}/configs",
    "a broker",
    v3.broker_owner(1),
    about_all="`-` for the broker lists those of all live brokers.",
)
CLUSTER_CONFIG_OPERATIONS: Final = _operations("/broker-configs", "the cluster", v3.CLUSTER_OWNER)
