"""Headless Chromium, Debian's package, driven over its own protocol: pages as a person sees them.

`open_page` starts a browser with an empty profile, opens a URL and closes all of it at the end. A
page answers expressions of JavaScript, and has counted what it asked for and what went wrong.
Where there is no Chromium the test is skipped and says so, except in continuous integration, which
installs it (`.ci/run`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",  # it refuses to run as root with one
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--remote-debugging-port=0",
)
START_S = 60.0
WAIT_S = 60.0
POLL_S = 0.05
MISSING = "no Chromium on this machine: apt-get install chromium"


def chromium() -> str:
    """Return the browser's program; skip the test where there is none, never in CI."""
    for name in NAMES:
        found = shutil.which(name)
        if found is not None:
            return found
    assert os.environ.get("CI") != "true", MISSING
    pytest.skip(MISSING)


class Page:
    """One tab. Owned by `open_page`, on the test's loop."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._calls = 0
        self.asked: list[str] = []
        """URLs of all requests of the page, in order; those of data are left out."""
        self.troubles: list[str] = []
        """Errors of scripts and of the page's policy, and what was logged as one."""

    async def command(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command of the protocol and return its result; events before it are noted."""
        self._calls += 1
        await self._socket.send_json({"id": self._calls, "method": method, "params": parameters})
        async with asyncio.timeout(WAIT_S):
            while True:
                told = json.loads(await self._socket.receive_str())
                if told.get("id") == self._calls:
                    assert "error" not in told, told
                    return dict(told["result"])
                self._note(told)

    def _note(self, event: dict[str, Any]) -> None:
        facts = event.get("params", {})
        match event.get("method"):
            case "Network.requestWillBeSent":
                url = facts["request"]["url"]
                if not url.startswith(("data:", "blob:")):
                    self.asked.append(url)
            case "Log.entryAdded" if facts["entry"]["level"] == "error":
                self.troubles.append(f"{facts['entry']['text']} {facts['entry'].get('url', '')}")
            case "Runtime.exceptionThrown":
                details = facts["exceptionDetails"]
                self.troubles.append(details.get("exception", {}).get("description", str(details)))
            case _:
                pass

    async def value(self, expression: str) -> Any:
        """Return the value of an expression, awaited if it is a promise."""
        found = await self.command(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    async def until(self, expression: str) -> Any:
        """Return the value of an expression as soon as it is true."""
        loop = asyncio.get_running_loop()
        end = loop.time() + WAIT_S
        while not (found := await self.value(expression)):
            text = f"{expression} is never true; {self.troubles} {self.asked}"
            assert loop.time() < end, text
            await asyncio.sleep(POLL_S)
        return found

    async def click(self, selector: str) -> None:
        """Click the first element that matches, once it is there."""
        await self.until(f"document.querySelector({selector!r}) !== null")
        await self.value(f"document.querySelector({selector!r}).click()")

    @property
    def hosts(self) -> set[str]:
        """Hosts that the page asked for anything."""
        return {urlsplit(url).netloc for url in self.asked}


@asynccontextmanager
async def open_page(url: str) -> AsyncIterator[Page]:
    """Start a browser, open a page in it, and end it with all that it started."""
    program = chromium()
    with tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True) as profile:
        process = _start(program, profile)
        try:
            port = await _port(Path(profile) / "DevToolsActivePort", process)
            async with aiohttp.ClientSession() as session:
                base = f"http://127.0.0.1:{port}"
                async with session.get(f"{base}/json/list") as answer:
                    tabs = await answer.json(content_type=None)
                tab = next(one for one in tabs if one["type"] == "page")
                address = tab["webSocketDebuggerUrl"]
                async with session.ws_connect(address, max_msg_size=0) as socket:
                    page = Page(socket)
                    for domain in ("Network", "Log", "Runtime", "Page"):
                        await page.command(f"{domain}.enable")
                    opened = await page.command("Page.navigate", url=url)
                    assert "errorText" not in opened, opened
                    yield page
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _start(program: str, profile: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _words(file: Path) -> list[str]:
    return file.read_text().split() if file.exists() else []


async def _port(file: Path, process: subprocess.Popen[bytes]) -> int:
    """Return the port of the browser's protocol, which it writes into its profile."""
    async with asyncio.timeout(START_S):
        while True:
            assert process.poll() is None, f"the browser ended: {process.returncode}"
            words = _words(file)
            if words:
                return int(words[0])
            await asyncio.sleep(POLL_S)
