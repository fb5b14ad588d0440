"""The OpenAPI document of the public listener, made from the declarations of its routes.

The app makes it once, with the limits of its broker, and serves it as ``/openapi.json``; only
``servers`` depends on the request. What all operations share (headers, bodies of errors, examples
of codes) stands once in ``components``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from http_api.contract.errors import MEANINGS, RestCode, status_of
from http_api.contract.media_types import V2
from http_api.contract.operations.declaration import Header, Operation, Reply
from http_api.contract.operations.parameters import (
    ClampedParameter,
    IntegerParameter,
    Parameter,
    TextParameter,
)
from http_api.contract.operations.schemas import Either, plain, schema_of
from http_api.contract.operations.shared import RETRY_AFTER, SEGMENTS

JsonObject = dict[str, Any]

OPENAPI_VERSION: Final = "3.1.0"
REQUEST_ID: Final = TextParameter(
    "X-Request-Id",
    description="Id of the request, up to 128 visible characters; it comes back in the answer.",
    example="7f3a-1",
)
"""Request header that every operation takes."""
ANSWER_HEADERS: Final = (
    Header("X-Request-Id", "Id of the request: the client's, or a new one.", "7f3a-1"),
    Header("Quorumlog-Ignored-Parameters", "Query parameters that begin with `_`.", "_"),
)
"""Headers that every answer may have."""
_ABOUT: Final = """\
A replicated commit log with Kafka's semantics over HTTP. Any broker serves any path.

- GET serves HEAD, too. A path with another method is 405, an unknown path 404.
- A query parameter that an operation does not declare is refused with 400/40002, unless its name
  begins with `_`.
- The body of an error is `{"error_code","message"}`; a 5xx adds `retriable` and `outcome`.
- A header over `max_header_bytes` is 431, an `Expect` other than `100-continue` 417."""
_CODE: Final = {"type": "integer", "description": "The status, or a number that begins with it."}
_ERROR: Final = {
    "type": "object",
    "properties": {
        "error_code": _CODE,
        "message": {"type": "string"},
        "retriable": {"type": "boolean", "description": "The same request may succeed later."},
        "outcome": {
            "enum": ["not_written", "unknown"],
            "description": "Whether the request may have had an effect.",
        },
    },
    "required": ["error_code", "message"],
}
_FAILURE: Final = _ERROR | {"required": ["error_code", "message", "retriable", "outcome"]}


def document(
    operations: Iterable[Operation], limits: object, version: str, cluster_id: str
) -> JsonObject:
    """Return the document of a cluster, without ``servers``.

    Bounds that declarations name are the values of ``limits``. Paths take this cluster's id only.
    """
    declared = tuple(operations)
    responses = SharedResponses()
    paths: dict[str, JsonObject] = {}
    for operation in declared:
        of_path = paths.setdefault(operation.path, {})
        of_path[operation.method.lower()] = _operation(operation, limits, responses)
    return {
        "openapi": OPENAPI_VERSION,
        "info": {
            "title": "quorumlog",
            "version": version,
            "summary": "A replicated commit log over HTTP",
            "description": _ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "tags": [{"name": name} for name in dict.fromkeys(one.tag for one in declared)],
        "paths": paths,
        "components": {
            "schemas": {"Error": _ERROR, "Failure": _FAILURE},
            "parameters": {
                "cluster_id": _segment("cluster_id")
                | {"schema": {"type": "string", "enum": [cluster_id]}, "example": cluster_id},
                REQUEST_ID.name: _parameter(REQUEST_ID, "header", limits),
            },
            "headers": {one.name: _header(one) for one in (*ANSWER_HEADERS, RETRY_AFTER)},
            "responses": responses.named,
            "examples": {str(int(code)): _error_example(code) for code in MEANINGS},
        },
    }


class SharedResponses:
    """Answers that hold errors only: each stands once in ``components``, and many operations refer.

    Owner: `document`, while it makes one.
    """

    def __init__(self) -> None:
        self.named: dict[str, JsonObject] = {}

    def refer(self, status: int, response: JsonObject) -> JsonObject:
        """Return a reference to this response, which is added where it is new."""
        for name, present in self.named.items():
            if present == response:
                return {"$ref": f"#/components/responses/{name}"}
        count = sum(name.startswith(f"{status}.") for name in self.named)
        name = f"{status}.{count + 1}"
        self.named[name] = response
        return {"$ref": f"#/components/responses/{name}"}


def _operation(operation: Operation, limits: object, responses: SharedResponses) -> JsonObject:
    segments = [
        {"$ref": "#/components/parameters/cluster_id"} if name == "cluster_id" else _segment(name)
        for name in operation.segments
    ]
    query = [_parameter(one, "query", limits) for one in operation.parameters]
    headers = [_parameter(one, "header", limits) for one in operation.headers]
    shared = {"$ref": f"#/components/parameters/{REQUEST_ID.name}"}
    found: JsonObject = {
        "operationId": operation_id(operation),
        "tags": [operation.tag],
        "summary": operation.summary,
        "parameters": [*segments, *query, *headers, shared],
        "responses": _responses(operation, responses),
    }
    if operation.description:
        found["description"] = operation.description
    body = operation.body
    if body is not None:
        content = {"schema": body.schema, "example": body.example}
        found["requestBody"] = {
            "content": dict.fromkeys(body.media_types, content),
            "required": not body.is_optional,
        }
        if body.description:
            found["requestBody"]["description"] = body.description
    return found


def operation_id(operation: Operation) -> str:
    """Return the name of an operation, made of its method and path: ``get_topics_topic_name``."""
    words = operation.path.replace("{", "").replace("}", "").replace(":", "/").replace("-", "_")
    return "_".join([operation.method.lower(), *filter(None, words.replace(".", "_").split("/"))])


def _segment(name: str) -> JsonObject:
    segment = SEGMENTS[name]
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": segment.description,
        "schema": dict(segment.schema),
        "example": segment.example,
    }


def _parameter(parameter: Parameter, place: str, limits: object) -> JsonObject:
    return {
        "name": parameter.name,
        "in": place,
        "required": parameter.is_needed,
        "description": " ".join([parameter.description, *_named_bounds(parameter)]),
        "schema": parameter.schema(limits),
        "example": parameter.example,
    }


def _named_bounds(parameter: Parameter) -> list[str]:
    match parameter:
        case IntegerParameter(maximum=str() as limit) | ClampedParameter(maximum=str() as limit):
            return [f"At most `{limit}`."]
        case _:
            return []


def _header(header: Header) -> JsonObject:
    return {
        "description": header.description,
        "required": header.is_constant,
        "schema": schema_of(header.example),
        "example": header.example,
    }


def _responses(operation: Operation, shared: SharedResponses) -> JsonObject:
    """Return the answers by status; codes with one status share its answer."""
    codes: dict[int, list[RestCode]] = {}
    for code in sorted(operation.codes):
        codes.setdefault(status_of(code), []).append(code)
    replies: dict[int, list[Reply]] = {}
    for reply in operation.replies:
        replies.setdefault(reply.status, []).append(reply)
    found: JsonObject = {}
    for status in sorted(codes.keys() | replies.keys()):
        own = replies.get(status, [])
        response = _response(operation, status, own, codes.get(status, []))
        found[str(status)] = response if own else shared.refer(status, response)
    found["431"] = shared.refer(431, _header_too_large())
    return found


def _header_too_large() -> JsonObject:
    """Return the refusal of a head over its limit, which the parser gives before any route."""
    code = RestCode.HEADER_TOO_LARGE
    content: dict[str, JsonObject] = {}
    _add_errors(content, V2, 431, [code])
    return {"description": f"`{int(code)}`: {MEANINGS[code]}.", "content": content}


def _response(
    operation: Operation, status: int, replies: list[Reply], codes: list[RestCode]
) -> JsonObject:
    texts = [reply.description for reply in replies]
    texts += [f"`{int(code)}`: {MEANINGS[code]}." for code in codes]
    content: dict[str, JsonObject] = {}
    headers = {one.name: {"$ref": f"#/components/headers/{one.name}"} for one in ANSWER_HEADERS}
    if status == 503:
        headers[RETRY_AFTER.name] = {"$ref": f"#/components/headers/{RETRY_AFTER.name}"}
    if status >= 400:
        headers |= {header.name: _header(header) for header in operation.error_headers}
    for reply in replies:
        headers |= {header.name: _header(header) for header in reply.headers}
        for name, example in reply.content.items():
            if example is not None:
                content[name] = _content(example)
    if codes:
        for name in _error_types(operation):
            _add_errors(content, name, status, codes)
    found: JsonObject = {"description": "  \n".join(texts), "headers": headers}
    return found | {"content": content} if content else found


def _content(example: Any) -> JsonObject:
    if isinstance(example, Either):
        named = {str(count): {"value": plain(one)} for count, one in enumerate(example.examples, 1)}
        return {"schema": schema_of(example), "examples": named}
    return {"schema": schema_of(example), "examples": {"1": {"value": plain(example)}}}


def _error_types(operation: Operation) -> list[str]:
    """Return the Content-Types of an operation's errors: those of its answers, once negotiated."""
    if operation.error_type:
        return [operation.error_type]
    return list(operation.replies[0].content)


def _add_errors(
    content: dict[str, JsonObject], name: str, status: int, codes: list[RestCode]
) -> None:
    """Add the errors with a status to the bodies of a Content-Type, beside an answer's own."""
    schema: Mapping[str, Any]
    if name.endswith("json") and not name.endswith("ndjson"):
        schema = {"$ref": f"#/components/schemas/{'Failure' if status >= 500 else 'Error'}"}
        examples: JsonObject = {
            str(int(code)): {"$ref": f"#/components/examples/{int(code)}"} for code in codes
        }
    else:  # the same JSON, under the Content-Type of the answer that was asked for
        schema = {"type": "string"}
        examples = {
            str(int(code)): {"value": json.dumps(_error_example(code)["value"])} for code in codes
        }
    present = content.get(name)
    if present is None:
        content[name] = {"schema": schema, "examples": examples}
    else:
        present["schema"] = {"anyOf": [present["schema"], schema]}
        present["examples"] |= examples


def _error_example(code: RestCode) -> JsonObject:
    body: JsonObject = {"error_code": int(code), "message": MEANINGS[code]}
    if status_of(code) >= 500:
        is_retriable = code is not RestCode.KAFKA_ERROR
        body |= {"retriable": is_retriable, "outcome": "not_written"}
    return {"summary": MEANINGS[code], "value": body}
