"""Operations that describe the API itself: the OpenAPI document, and the page that shows it."""

from __future__ import annotations

from typing import Final

from http_api.contract.errors import RestCode
from http_api.contract.media_types import JSON
from http_api.contract.operations.declaration import Header, Operation, Reply, reply

_TAG: Final = "This broker"
HTML: Final = "text/html; charset=utf-8"
CSP: Final = Header(
    "Content-Security-Policy",
    "Nothing is loaded from elsewhere.",
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:",
    is_constant=True,
)

OPENAPI: Final = Operation(
    "GET",
    "/openapi.json",
    tag=_TAG,
    summary="Read this document",
    replies=(
        reply(
            {
                "openapi": "3.1.0",
                "info": {"title": "quorumlog", "version": "0.1.0"},
                "servers": [{"url": "http://127.0.0.1:8082"}],
                "paths": {},
            }
        ),
    ),
)
DOCS: Final = Operation(
    "GET",
    "/docs",
    tag=_TAG,
    summary="Show this document as a page",
    description="Swagger UI where it is installed, else a plain list.",
    replies=(reply("<!doctype html>…", "The page.", content_type=HTML, headers=(CSP,)),),
    error_type=JSON,
)
DOCS_FILE: Final = Operation(
    "GET",
    "/docs/{file_name}",
    tag=_TAG,
    summary="Read a file of the page",
    replies=(
        Reply(
            200,
            "The file.",
            {
                "text/css": ".swagger-ui{}",
                "text/javascript": "start()",
                "image/png": "…",
            },
        ),
    ),
    errors=(RestCode.NOT_FOUND,),
    error_type=JSON,
)
