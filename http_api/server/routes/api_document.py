"""``/openapi.json`` and ``/docs``: the declarations of all routes, for programs and for people.

The document is made once, for the first request, of all routes that the router serves. The page is
Swagger UI where the package `swagger-ui-bundle-v2` is installed (the extra ``docs``): its files are
served from there, and no script is inline, so the page works without a network and under a strict
Content-Security-Policy. Without the package the page is a plain list made from the document.
"""

from __future__ import annotations

import asyncio
from html import escape
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from http_api.contract.errors import RestCode, RestError, excerpt
from http_api.contract.media_types import JSON
from http_api.contract.operations import state_operations as declared
from http_api.contract.operations.document import document
from http_api.server.answers import reply
from http_api.server.request_site import base_url

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aiohttp import web

    from http_api.contract.operations.declaration import Operation
    from http_api.server.answers import ApiContext
    from http_api.server.routing import PathRouter

START_SCRIPT: Final = "start.js"
_FILES: Final = {
    "swagger-ui.css": "text/css",
    "swagger-ui-bundle.js": "text/javascript",
    "favicon-32x32.png": "image/png",
}
"""Files of the package that the page loads, and their Content-Types."""
_START: Final = b"""\
const script = document.currentScript;
const root = new URL("..", script.src);  // the script is docs/start.js
fetch(new URL("openapi.json", root))
  .then((answer) => answer.json())
  .then((spec) => {
    spec.servers = [{ url: root.href.replace(/\\/$/, "") }];  // where the page came from
    SwaggerUIBundle({
      spec: spec,
      dom_id: "#page",
      deepLinking: true,
      docExpansion: "list",
      validatorUrl: null,
    });
  });
"""
"""Script of the page. Requests go to the listener that served it, whatever its advertised name is:
the policy allows no other."""
_SWAGGER_PAGE: Final = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>quorumlog</title>
<link rel="stylesheet" href="{root}docs/swagger-ui.css">
<link rel="icon" href="{root}docs/favicon-32x32.png">
</head>
<body>
<div id="page"></div>
<script src="{root}docs/swagger-ui-bundle.js"></script>
<script src="{root}docs/start.js"></script>
</body>
</html>
"""
_LIST_PAGE: Final = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>quorumlog</title>
<style>body{{font-family:sans-serif;max-width:60em;margin:2em auto}}dd{{margin-bottom:.5em}}</style>
</head>
<body>
<h1>quorumlog</h1>
<p>Every path of this broker, from <a href="{root}openapi.json">openapi.json</a>. A page that sends
requests, too, needs Swagger UI on the broker's machine:
<code>pip install 'quorumlog[docs]'</code>, then a restart.</p>
{sections}
</body>
</html>
"""


class DocumentRoutes:
    """The OpenAPI document and its page. Owner: the app, for its whole life."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._operations: Sequence[Operation] = ()
        self._document: dict[str, Any] | None = None
        """The document without its servers; None until the first request."""
        self._text = b""
        """The document as JSON, without the brace at its end."""
        self._folder = swagger_folder()

    def add_to(self, router: PathRouter) -> None:
        """Add the paths; the document describes all that the router serves, later ones too."""
        router.serve(declared.OPENAPI, self.openapi)
        router.serve(declared.DOCS, self.page)
        router.serve(declared.DOCS_FILE, self.file)
        self._operations = router.operations

    async def openapi(self, request: web.Request) -> web.Response:
        """Answer the document."""
        await self._made()
        servers = orjson.dumps([{"url": base_url(self._context)}])
        return reply(b'%b,"servers":%b}' % (self._text, servers), JSON)

    async def _made(self) -> dict[str, Any]:
        """Return the document; made beside the loop, which it would hold for 25 ms."""
        if self._document is None:
            context = self._context
            made = await asyncio.to_thread(
                document,
                self._operations,
                context.limits,
                version("quorumlog"),
                context.apis.cluster_id,
            )
            self._document, self._text = made, orjson.dumps(made)[:-1]
        return self._document

    async def page(self, request: web.Request) -> web.Response:
        """Answer the page: Swagger UI, or a plain list where it is not installed."""
        root = "../" if request.rel_url.raw_path.endswith("/") else ""
        if self._folder is not None:
            text = _SWAGGER_PAGE.format(root=root)
        else:
            sections = "\n".join(_sections(await self._made()))
            text = _LIST_PAGE.format(root=root, sections=sections)
        headers = {declared.CSP.name: str(declared.CSP.example)}
        return reply(text.encode(), declared.HTML, headers=headers)

    async def file(self, request: web.Request, name: str) -> web.Response:
        """Answer a file that the page loads."""
        if self._folder is not None and name == START_SCRIPT:
            return reply(_START, "text/javascript")
        content_type = _FILES.get(name)
        if self._folder is None or content_type is None:
            text = f"HTTP 404 Not Found: the page has no file '{excerpt(name)}'"
            raise RestError(404, RestCode.NOT_FOUND, text)
        body = await asyncio.to_thread((self._folder / name).read_bytes)
        return reply(body, content_type)


def swagger_folder() -> Path | None:
    """Return the folder with the files of Swagger UI, or None where its package is missing."""
    spec = find_spec("swagger_ui_bundle")
    if spec is None or not spec.submodule_search_locations:
        return None
    package = Path(spec.submodule_search_locations[0])
    folders = sorted(package.glob("vendor/swagger-ui-*"))
    whole = [one for one in folders if all((one / name).is_file() for name in _FILES)]
    return whole[-1] if whole else None


def _sections(found: dict[str, Any]) -> Iterator[str]:
    """Yield a section of HTML for each tag of the document."""
    for tag in found["tags"]:
        yield f"<h2>{escape(tag['name'])}</h2>\n<dl>"
        for path, methods in found["paths"].items():
            for method, operation in methods.items():
                if tag["name"] in operation["tags"]:
                    yield from _entry(method, path, operation)
        yield "</dl>"


def _entry(method: str, path: str, operation: dict[str, Any]) -> Iterator[str]:
    yield f"<dt><code>{method.upper()} {escape(path)}</code></dt>"
    about = " ".join([f"{operation['summary']}.", operation.get("description", "")])
    yield f"<dd>{escape(about)}"
    query = [one for one in operation["parameters"] if one.get("in") == "query"]
    if query:
        yield "<ul>"
        for one in query:
            yield f"<li><code>{escape(one['name'])}</code>: {escape(one['description'])}</li>"
        yield "</ul>"
    yield "</dd>"
