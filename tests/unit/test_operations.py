"""The declarations of routes: whole, unambiguous, and the one source of names, bounds, defaults."""

from __future__ import annotations

import json
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module

import pytest
from aiohttp import web
from openapi_spec_validator import validate

import http_api.contract.operations as package
from broker.config import BrokerLimits
from http_api.contract.errors import MEANINGS, REST_STATUS, RestCode, RestError, status_of
from http_api.contract.media_types import JSON
from http_api.contract.operations import cluster_operations as cluster
from http_api.contract.operations import fetch_operations as fetches
from http_api.contract.operations import instance_operations as instances
from http_api.contract.operations import produce_operations as produces
from http_api.contract.operations import state_operations as documents
from http_api.contract.operations import topic_operations as topics
from http_api.contract.operations.config_operations import ConfigOperations
from http_api.contract.operations.declaration import Operation
from http_api.contract.operations.document import document, operation_id
from http_api.contract.operations.schemas import (
    NULLABLE,
    OPTIONAL,
    AnyValue,
    ByName,
    Either,
    schema_of,
)
from http_api.contract.operations.shared import SEGMENTS
from http_api.server.request_parsing import flag
from tests.support.declared_answers import undeclared_in
from tests.support.fake_broker_apis import CLUSTER_ID
from tests.support.http_door import open_door

LIMITS = replace(BrokerLimits(), max_fetch_bytes=5_000)
ALWAYS_NULL = {"controller", "key_schema_id", "max_lag_instance_id", "value_schema_id"}
"""Fields of Confluent's that have no value here."""


def operations_in(value: object) -> Iterator[Operation]:
    match value:
        case Operation():
            yield value
        case ConfigOperations():
            for name in ("list", "describe", "set", "reset", "alter"):
                yield getattr(value, name)
        case tuple():
            for each in value:
                yield from operations_in(each)
        case _:
            pass


def all_operations() -> list[Operation]:
    found: dict[int, Operation] = {}
    for module in pkgutil.iter_modules(package.__path__):
        for value in vars(import_module(f"{package.__name__}.{module.name}")).values():
            found |= {id(each): each for each in operations_in(value)}
    return list(found.values())


OPERATIONS = all_operations()
BY_ID = pytest.mark.parametrize("operation", OPERATIONS, ids=map(operation_id, OPERATIONS))


def test_each_operation_has_a_name_of_its_own() -> None:
    names = [operation_id(one) for one in OPERATIONS]
    assert len(set(names)) == len(names) > 100


@BY_ID
def test_an_operation_declares_each_of_its_parts_once(operation: Operation) -> None:
    parts = [one.name for one in (*operation.parameters, *operation.headers)]
    assert len(set(parts)) == len(parts)
    assert set(operation.segments) <= SEGMENTS.keys()
    assert re.match(r"[A-Z].*[a-z)0-9]$", operation.summary), "a phrase without a full stop"
    described = [*operation.parameters, *operation.headers]
    assert all(re.match(r"[A-Z`].*\.$", one.description) for one in described)
    assert operation.replies or operation.error_type


@BY_ID
def test_an_example_shows_each_field_or_the_tables_say_why_not(operation: Operation) -> None:
    for reply in operation.replies:
        for name, example in reply.content.items():
            assert example is not None or reply.status == 204, name
            assert nulls(example) - ALWAYS_NULL <= NULLABLE | OPTIONAL


def nulls(example: object, name: str = "") -> set[str]:
    """The names of fields whose example is null."""
    match example:
        case None:
            return {name} - {""}
        case dict():
            return {found for key, value in example.items() for found in nulls(value, key)}
        case list():
            return {found for value in example for found in nulls(value, name)}
        case Either(examples=examples):
            return {found for value in examples for found in nulls(value)}
        case _:
            return set()


@BY_ID
def test_the_example_of_a_body_has_its_fields(operation: Operation) -> None:
    body = operation.body
    if body is not None and isinstance(body.example, dict):
        assert set(body.needed) <= body.example.keys() <= body.fields.keys()


def test_each_code_has_a_status_and_a_meaning() -> None:
    assert set(MEANINGS) == set(RestCode)
    for status, code in REST_STATUS.values():
        assert status in {status_of(code), 500, 503}


async def test_what_is_declared_is_served_and_described() -> None:
    async with open_door() as door:
        found = (await door.get("/openapi.json")).json
    validate(found)
    described = {
        (method.upper(), path) for path, methods in found["paths"].items() for method in methods
    }
    state = {("GET", "/broker/v1/state"), ("GET", "/broker/v1/events")}  # not of a fake broker
    assert described == {(one.method, one.path) for one in OPERATIONS} - state
    assert found["servers"] == [{"url": "http://broker-1.test:8082"}]


def test_the_document_names_every_part_of_a_declaration() -> None:
    found = document(OPERATIONS, LIMITS, "0.0", CLUSTER_ID)
    read = found["paths"][fetches.RECORDS.path]["get"]
    names = [one.get("name") for one in read["parameters"]]
    assert names[:3] == ["topic_name", "partition_id", "offset"]
    assert "Quorumlog-Rack" in names
    assert read["responses"]["200"]["headers"].keys() >= {"Quorumlog-Next-Offset"}
    for operation in OPERATIONS:
        written = found["paths"][operation.path][operation.method.lower()]
        assert {int(status) for status in written["responses"]} - {431} == operation.statuses
        for code in operation.codes:
            response = written["responses"][str(status_of(code))]
            if "$ref" in response:
                name = response["$ref"].rpartition("/")[2]
                response = found["components"]["responses"][name]
            assert f"`{int(code)}`" in response["description"]
            assert all(str(int(code)) in one["examples"] for one in response["content"].values())


def test_a_limit_of_the_broker_stands_in_the_document_by_name_and_value() -> None:
    found = document([fetches.RECORDS], LIMITS, "0.0", CLUSTER_ID)
    parameters = found["paths"][fetches.RECORDS.path]["get"]["parameters"]
    max_bytes = next(one for one in parameters if one.get("name") == "max_bytes")
    assert (
        max_bytes["schema"] | {"minimum": 1, "maximum": 5_000, "default": 5_000}
        == (max_bytes["schema"])
    )
    assert max_bytes["description"].endswith("At most `max_fetch_bytes`.")
    assert json.dumps(found).count("max_fetch_bytes") == 1


def test_a_cluster_is_the_only_one_of_its_document() -> None:
    found = document([cluster.DESCRIBE], LIMITS, "0.0", "abc")
    assert found["components"]["parameters"]["cluster_id"]["schema"]["enum"] == ["abc"]


# reading


def test_an_integer_is_read_within_its_bounds() -> None:
    assert fetches.MAX_BYTES.read({}, LIMITS) == 5_000
    assert fetches.MAX_BYTES.read({"max_bytes": "7"}, LIMITS) == 7
    for wrong in ("0", "5001", "x", "", "1" * 19):
        with pytest.raises(RestError, match=r"'max_bytes' is .*an integer from 1 to 5000"):
            fetches.MAX_BYTES.read({"max_bytes": wrong}, LIMITS)
    assert fetches.TIMESTAMP.read_optional({}) is None
    with pytest.raises(RestError, match="'timestamp' is missing"):
        fetches.TIMESTAMP.read({})


def test_a_clamped_integer_is_moved_into_its_bounds() -> None:
    read = instances.MAX_BYTES.read_optional
    assert [read({"max_bytes": raw}, LIMITS) for raw in ("0", "9", "9999", "-1")] == [
        1,
        9,
        5_000,
        None,
    ]
    with pytest.raises(RestError, match="expected an integer"):
        read({"max_bytes": "many"}, LIMITS)


def test_a_word_is_one_of_those_declared() -> None:
    assert produces.ACKS.read({}) == "all"
    with pytest.raises(RestError, match="'acks' is '2': expected all, -1, 1 or 0"):
        produces.ACKS.read({"acks": "2"})
    with pytest.raises(RestError, match="'frames' is '': expected many"):
        fetches.FRAMES.read_optional({"frames": ""})


def test_a_flag_is_true_or_false() -> None:
    assert [instances.LEAVE.read({"leave": raw}) for raw in ("true", "FALSE")] == [True, False]
    with pytest.raises(RestError, match="expected true or false"):
        instances.LEAVE.read({"leave": "1"})


def test_a_text_has_its_length() -> None:
    assert fetches.RACK.read({"rack": "a"}) == "a"
    for wrong in ("", "a" * 256):
        with pytest.raises(RestError, match="expected 1 to 255 characters"):
            fetches.RACK.read({"rack": wrong})


@pytest.mark.parametrize("wrong", [{}, [], 0, "", "true"])
def test_a_flag_of_a_body_is_nothing_else(wrong: object) -> None:
    with pytest.raises(RestError, match="expected true or false"):
        flag({"validate_only": wrong}, "validate_only")
    assert flag({"validate_only": None}, "validate_only") is False


# schemas of examples


def test_a_schema_is_read_off_its_example() -> None:
    example = {"n": 1, "rack": "a", "names": ["x"], "key": AnyValue([1]), "by": ByName({"a": True})}
    assert schema_of(example) == {
        "type": "object",
        "properties": {
            "n": {"type": "integer"},
            "rack": {"type": ["string", "null"]},
            "names": {"type": "array", "items": {"type": "string"}},
            "key": {},
            "by": {"type": "object", "additionalProperties": {"type": "boolean"}},
        },
        "required": ["n", "rack", "names", "by"],
    }


# the recorder of the contract tests


def answer(status: int, body: object, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(
        status=status, body=json.dumps(body).encode(), content_type=JSON, headers=headers
    )


@pytest.mark.parametrize(
    ("operation", "response", "says"),
    [
        (topics.LIST, answer(200, {}), ""),
        (topics.LIST, answer(400, {"error_code": 40002}), ""),
        (topics.LIST, answer(404, {"error_code": 40401}), "404 with error_code 40401"),
        (topics.LIST, answer(202, {}), "202 without an error_code"),
        (topics.LIST, answer(200, {}, {"Quorumlog-Leader": "1"}), "header Quorumlog-Leader"),
        (documents.DOCS, web.Response(text="", content_type="text/html"), "without header"),
        (documents.OPENAPI, web.Response(text="", content_type="text/html"), "as text/html"),
    ],
)
def test_an_answer_that_is_not_declared_is_noticed(
    operation: Operation, response: web.Response, says: str
) -> None:
    found = list(undeclared_in(operation, response))
    assert bool(found) == bool(says)
    assert says in "".join(found)
