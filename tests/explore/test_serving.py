"""The explorer in a browser: a session a page, for pages of its own address only, and no code from there."""

import asyncio
import base64
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from browser import needs_chromium, opened

from tinytf_cli.main import run


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The port of a server in a process of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number = free.getsockname()[1]
    line = [
        sys.executable,
        "-m",
        "tinytf",
        "explore",
        "--serve",
        "--port",
        str(number),
        "--theme",
        "dark",
        "The dog ran",
    ]
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True, env={**os.environ}) as server:
        assert server.stderr is not None
        assert f"http://localhost:{number}" in server.stderr.readline()
        for _ in range(600):  # it says so just before it listens
            with suppress(OSError), socket.create_connection(("127.0.0.1", number)):
                break
            time.sleep(0.1)
        yield number
        server.terminate()


def test_a_page_has_a_session_of_its_own_that_runs_no_code(port: int) -> None:
    async def screens() -> list[str]:
        async with aiohttp.ClientSession() as client:
            url, origin = f"http://localhost:{port}/ws?width=120&height=40", f"http://localhost:{port}"
            async with client.ws_connect(url, origin=origin) as page:
                first = await shown(page, "logits")
                await page.send_json(["stdin", ":"])
                await page.send_json(["stdin", "!print(6 * 7000)\r"])
                return [first, await shown(page, "may run Python only with --allow-code")]

    first, refused = asyncio.run(screens())
    assert "dog" in first
    assert "42000" not in refused


@needs_chromium
def test_chromium_shows_the_explorer_and_fetches_nothing_from_elsewhere(port: int, tmp_path: Path) -> None:
    async def seen() -> None:
        async with opened(f"http://localhost:{port}/", tmp_path) as page:
            await page.evaluate("document.querySelector('.xterm-screen canvas, .xterm-rows')?.clientHeight > 100")
            await page.evaluate("document.body.classList.contains('-loaded')")
            for _ in range(600):
                screen = "".join(decoded(frame) for frame in page.of("Network.webSocketFrameReceived"))
                if "logits" in screen:
                    break
                await page.evaluate("true")
                await asyncio.sleep(0.1)
            assert "dog" in screen
            asked = {sent["requestId"]: sent["request"]["url"] for sent in page.of("Network.requestWillBeSent")}
            stopped = {failed["requestId"]: failed.get("blockedReason") for failed in page.of("Network.loadingFailed")}
            foreign = [key for key, url in asked.items() if urlsplit(url).netloc not in ("", f"localhost:{port}")]
            assert len(asked) > len(foreign)
            assert {stopped.get(key) for key in foreign} <= {"csp"}  # textual-serve asks for a font
            assert page.of("Runtime.exceptionThrown") == []

    asyncio.run(seen())


def decoded(frame: dict[str, Any]) -> str:
    """What a frame of a websocket holds, as text."""
    data: str = frame["response"]["payloadData"]
    return base64.b64decode(data).decode("utf-8", "replace") if frame["response"]["opcode"] == 2 else data


async def shown(page: aiohttp.ClientWebSocketResponse, pattern: str) -> str:
    """What the page gets until it matches."""
    text = ""
    while not re.search(pattern, text):
        message = await page.receive(timeout=60)
        assert message.type in (aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT), message
        text += message.data.decode("utf-8", "replace") if isinstance(message.data, bytes) else message.data
    return text


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/", {}, 200),
        ("/", {"Host": "evil.example"}, 403),
        ("/", {"Origin": "http://evil.example"}, 403),
        ("/ws", {"Origin": "http://evil.example"}, 403),
        ("/ws", {"Origin": "http://localhost:1"}, 403),
        ("/ws", {}, 403),
    ],
)
def test_pages_of_other_addresses_are_refused(port: int, path: str, headers: dict[str, str], status: int) -> None:
    async def asked() -> tuple[int, str]:
        url = f"http://localhost:{port}{path}"
        async with aiohttp.ClientSession() as client, client.get(url, headers=headers) as answer:
            return answer.status, answer.headers.get("Content-Security-Policy", "")

    found, policy = asyncio.run(asked())
    assert found == status
    assert ("default-src 'self'" in policy) == (status == 200)


def test_an_address_without_the_server_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explore", "--port", "9000"]) == 2
    assert "--host and --port go with --serve" in capsys.readouterr().err
    assert run(["repl", "-c", "explore --serve"]) != 0
    assert "a session has its own screen" in capsys.readouterr().err
