"""Chromium without a window, for tests of what browsers show; they are skipped where it is not installed."""

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")


class Page:
    """A page of the browser, steered by Chromium's DevTools protocol; ``events`` are those that came so far."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket, self.sent, self.events = socket, 0, list[dict[str, Any]]()

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and wait for its result."""
        self.sent += 1
        await self.socket.send_json({"id": self.sent, "method": method, "params": params})
        while True:
            answer = await self.socket.receive_json(timeout=60)
            if answer.get("id") == self.sent:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    async def evaluate(self, expression: str) -> Any:
        """The value of an expression of JavaScript, once it is true."""
        for _ in range(600):
            answer = await self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
            if value := answer["result"].get("value"):
                return value
            await asyncio.sleep(0.1)
        raise AssertionError(f"{expression} is not true after a minute")

    async def press(self, key: str) -> None:
        """Press and release a key that is not a character, such as Tab."""
        for kind in ("rawKeyDown", "keyUp"):
            await self.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=9)

    def of(self, method: str) -> list[dict[str, Any]]:
        """The parameters of the events of one kind."""
        return [event["params"] for event in self.events if event["method"] == method]


@asynccontextmanager
async def opened(url: str, folder: Path) -> AsyncIterator[Page]:
    """A page at an address, in a browser whose profile is in a folder."""
    assert CHROMIUM is not None
    line = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0",
            "--window-size=1200,900", f"--user-data-dir={folder}", "about:blank"]  # fmt: skip
    with subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as browser:
        try:
            port = folder / "DevToolsActivePort"
            for _ in range(600):
                if port.exists() and port.read_text():
                    break
                await asyncio.sleep(0.1)
            at = f"http://127.0.0.1:{port.read_text().splitlines()[0]}/json"
            async with aiohttp.ClientSession() as client:
                pages = await (await client.get(at)).json()
                socket = next(page["webSocketDebuggerUrl"] for page in pages if page["type"] == "page")
                async with client.ws_connect(socket, max_msg_size=0) as connection:
                    page = Page(connection)
                    for domain in ("Page", "Runtime", "Network", "Log"):
                        await page.ask(f"{domain}.enable")
                    await page.ask("Page.navigate", url=url)
                    yield page
        finally:
            browser.terminate()
