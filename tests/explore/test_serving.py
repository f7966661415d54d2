"""The explorer in a browser: a session a page, for pages of its own address only, and no code from there."""

import asyncio
import base64
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import psutil
import pytest
from browser import needs_chromium, opened
from multidict import CIMultiDictProxy

from tinytf.outputs import Fence
from tinytf_cli.explore.engine import Engine
from tinytf_cli.explore.scene import first_cursor
from tinytf_cli.explore.serving import ExplorerServer
from tinytf_cli.main import run
from tinytf_cli.repl.session import Session
from tinytf_cli.repl.session_verbs import VERBS
from tinytf_cli.repl.settings import Settings
from tinytf_cli.repl.state import Spec


@dataclass(frozen=True)
class Served:
    """A server in a process of its own, and the address that it said."""

    process: "subprocess.Popen[str]"
    url: str

    @property
    def origin(self) -> str:
        return "{0.scheme}://{0.netloc}".format(urlsplit(self.url))

    @property
    def token(self) -> str:
        return urlsplit(self.url).path.strip("/")


@contextmanager
def serving(*words: str, folder: Path | None = None) -> Iterator[Served]:
    """A server of the explorer, until the end of the block."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    line = [sys.executable, "-m", "tinytf", "explore", "--serve", "--port", str(port), "--theme", "dark", *words]
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True, cwd=folder) as server:
        try:
            assert server.stderr is not None
            address = re.search(rf"http://localhost:{port}/\S+", server.stderr.readline())
            assert address is not None
            for _ in range(600):  # it says so just before it listens
                with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                    break
                time.sleep(0.1)
            yield Served(server, address[0])
        finally:
            server.terminate()


@pytest.fixture(scope="module")
def secret(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of the user who serves, which others may not read."""
    secret = tmp_path_factory.mktemp("home") / "secret.txt"
    secret.write_text("swordfish\n" * 3, "utf-8")
    secret.chmod(0o600)
    return secret


@pytest.fixture(scope="module")
def served(secret: Path) -> Iterator[Served]:
    with serving("The dog ran", folder=secret.parent) as server:
        yield server


@asynccontextmanager
async def page_of(served: Served) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    """The websocket of a page, once it shows a forward pass."""
    url = f"{served.url}ws?width=160&height=40"
    async with aiohttp.ClientSession() as client, client.ws_connect(url, origin=served.origin) as page:
        yield page


async def answer_to(page: aiohttp.ClientWebSocketResponse, line: str, pattern: str) -> str:
    """What the page shows after a line of the session, until it matches."""
    await page.send_json(["stdin", ":"])
    await page.send_json(["stdin", f"{line}\r"])
    return await shown(page, pattern)


def test_a_page_has_a_session_of_its_own_that_runs_no_code(served: Served) -> None:
    async def screens() -> list[str]:
        async with page_of(served) as page:
            first = await shown(page, "logits")
            return [first, await answer_to(page, "!print(6 * 7000)", "lines of a page may not run Python")]

    first, refused = asyncio.run(screens())
    assert "dog" in first
    assert "42000" not in refused


def test_a_page_reads_no_file_that_was_not_named(served: Served) -> None:
    async def screens() -> list[str]:
        async with page_of(served) as page:
            await shown(page, "logits")
            lines = ("similar cat --file secret.txt", "blame --texts secret.txt --versus tiny", "source secret.txt")
            return [await answer_to(page, line, "secret.txt: it was not named") for line in lines]

    assert not [screen for screen in asyncio.run(screens()) if "swordfish" in screen]


def test_a_line_that_a_pane_asks_again_may_do_no_more_than_when_it_was_typed() -> None:
    session = Session(VERBS, Spec("tiny"), Settings())
    assert session.begin("The cat").status == 0
    session.streams.fence = Fence(None)
    engine = Engine(session)
    outcome = engine.ask("!print(6 * 7)", engine.scene(), engine.text_number)
    engine.close(first_cursor(engine.scene()))
    assert outcome.failure is not None
    assert "may run Python only with" in outcome.failure.message


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGHUP, marks=pytest.mark.exhaustive)])
@pytest.mark.slow
def test_a_page_ends_with_its_server_however_that_ends(number: signal.Signals) -> None:
    async def end() -> None:
        with serving() as server:
            async with page_of(server) as page:
                await shown(page, "logits")
                pages = psutil.Process(server.process.pid).children(recursive=True)
                assert pages
                server.process.send_signal(number)
                assert psutil.wait_procs(pages, timeout=60)[1] == []

    asyncio.run(end())


def test_the_token_is_in_nothing_that_other_users_may_read(served: Served) -> None:
    async def words() -> list[str]:
        async with page_of(served) as page:
            await shown(page, "logits")
            processes = [parent := psutil.Process(served.process.pid), *parent.children(recursive=True)]
            return [str(member) for process in processes for member in (process.cmdline(), process.environ())]

    found = asyncio.run(words())
    assert len(found) >= 4
    assert not [text for text in found if served.token in text]


@needs_chromium
def test_chromium_shows_the_explorer_and_fetches_nothing_from_elsewhere(served: Served, tmp_path: Path) -> None:
    async def seen() -> None:
        async with opened(served.url, tmp_path) as page:
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
            own = served.url[: served.url.index("/", len("http://"))]
            foreign = [key for key, url in asked.items() if not url.startswith((own, "data:"))]
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


def test_a_job_that_is_interrupted_before_its_thread_has_begun_does_not_run() -> None:
    """Ctrl-C on a busy machine was lost between the line on the screen and its thread, and the line ran for good."""
    session = Session(VERBS, Spec("tiny"), Settings())
    assert session.begin("The cat").status == 0
    engine, queued, ran, ended = Engine(session), list[Callable[[], None]](), list[int](), list[str]()
    thread = engine._thread
    engine._thread = SimpleNamespace(submit=queued.append)  # type: ignore[assignment]
    for number in range(2):
        job = engine.submit(
            lambda number=number: ran.append(number), lambda _, error: ended.append(str(error or "ran"))
        )
        engine.interrupt(job) if number == 0 else None
        queued[number]()
    engine._thread = thread
    engine.close(first_cursor(engine.scene()))
    assert (ran, ended) == ([1], ["interrupted", "ran"])


def test_what_runs_before_a_line_is_left_alone_and_a_line_does_not_run_where_its_way_there_is_stopped() -> None:
    """Ctrl-C stopped what ran before the line, a pane or the way to the cursor, and the line itself ran for good."""
    session = Session(VERBS, Spec("tiny"), Settings())
    assert session.begin("The cat").status == 0
    engine, at_work, go_on = Engine(session), threading.Event(), threading.Event()
    scene, ended = engine.scene(), list[str]()

    def pane() -> None:
        at_work.set()
        assert go_on.wait(60)

    def ends(_: object, error: Exception | None) -> None:
        ended.append(str(error or "ran"))

    engine.submit(pane, ends)
    assert at_work.wait(60)
    line = engine.submit(lambda: ended.append("the line"), ends)
    engine.interrupt(line)
    go_on.set()
    engine.submit(lambda: None, ends)
    engine._thread.shutdown(wait=True)
    assert ended == ["ran", "interrupted", "ran"]

    def stopped(line: str) -> Any:
        return SimpleNamespace(status=130 if line.startswith("goto") else pytest.fail(line))

    session.execute = stopped  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        engine.run_line("! while True: pass", replace(first_cursor(scene), row=session.row + 1), 80)


async def asked(url: str, headers: dict[str, str]) -> tuple[int, str, "CIMultiDictProxy[str]"]:
    """The status, text and headers that a server answers."""
    async with aiohttp.ClientSession() as client, client.get(url, headers=headers, allow_redirects=False) as answer:
        return answer.status, await answer.text(), answer.headers


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("", {}, 200),
        ("static/js/textual.js", {}, 200),
        ("", {"Host": "evil.example"}, 403),
        ("", {"Origin": "http://evil.example"}, 403),
        ("ws", {"Origin": "http://evil.example"}, 403),
        ("ws", {"Origin": "http://localhost:1"}, 403),
        ("ws", {}, 403),
    ],
)
def test_pages_of_other_addresses_are_refused(served: Served, path: str, headers: dict[str, str], status: int) -> None:
    found, _, sent = asyncio.run(asked(served.url + path, headers))
    assert found == status
    assert "default-src 'self'" in sent["Content-Security-Policy"]
    assert sent["Referrer-Policy"] == "no-referrer"


@pytest.mark.parametrize(
    "path", ["", "/", "/ws", "/static/", "/static/js/textual.js", "/download/key", "/favicon.ico", "//", "/é/ws"]
)
def test_no_address_answers_without_the_token_or_with_another(served: Served, path: str) -> None:
    other = served.token[:-1] + ("A" if served.token[-1] != "A" else "B")
    for start in ("", f"/{other}", f"/{served.token[:-1]}", f"/{served.token.swapcase()}", "/é"):
        found, text, _ = asyncio.run(asked(served.origin + start + path, {"Origin": served.origin}))
        assert (found, text) == (403, "403: Forbidden"), start + path


def test_every_server_has_a_token_of_its_own_that_cannot_be_guessed() -> None:
    tokens = {ExplorerServer("true", "localhost", 8000).token for _ in range(20)}
    assert len(tokens) == 20
    assert min(map(len, tokens)) >= 43  # 256 bits


@pytest.mark.slow
def test_an_address_without_the_server_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explore", "--port", "9000"]) == 2
    assert "--host and --port go with --serve" in capsys.readouterr().err
    assert run(["repl", "-c", "explore --serve"]) != 0
    assert "a session has its own screen" in capsys.readouterr().err
