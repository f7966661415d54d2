"""The explorer in a browser: a server on this machine, with a process of its own for every page that is open.

Other users of this machine reach the server too, so every address begins with a random token that only the printed one
has. It is on no command line and in no environment, which others may read, and in no log.
"""

import hmac
import logging
import secrets
import shlex
import sys
from collections.abc import Iterable, Iterator
from urllib.parse import urlsplit

import click
from aiohttp import web
from click.core import ParameterSource
from textual_serve.server import Server

LOOPBACK = ("localhost", "127.0.0.1", "::1")
_NOTHING_FOREIGN = "default-src 'self' 'unsafe-inline' data:; connect-src 'self' ws:; frame-ancestors 'none'"
MOST_SESSIONS = 8
"""Pages that may be open at a time: each holds a model in memory."""


class ExplorerServer(Server):
    """Serves the explorer below an address with a ``token``, to pages of its own address, and to no page of another."""

    def __init__(self, command: str, host: str, port: int) -> None:
        super().__init__(command, host=host, port=port, title="tinytf explore")
        names = {host, *(LOOPBACK if host in LOOPBACK else ())}
        self.token = secrets.token_urlsafe()
        self.sessions, self.authorities = 0, {f"[{name}]:{port}" if ":" in name else f"{name}:{port}" for name in names}

    async def on_startup(self, app: web.Application) -> None:
        """Say where the explorer is."""
        click.echo(f"tinytf: the explorer is at {self.public_url}/{self.token}/ and Ctrl-C ends it", err=True)

    def initialize_logging(self) -> None:
        """Leave logging as it is, without a log of requests: their addresses have the token."""
        logging.getLogger("aiohttp.access").disabled = True

    async def _make_app(self) -> web.Application:
        app = web.Application(middlewares=[self._own_pages_only])
        app.on_response_prepare.append(_keep_to_itself)
        app.add_subapp(f"/{self.token}/", await super()._make_app())
        return app

    @web.middleware
    async def _own_pages_only(self, request: web.Request, handler: "web.Handler") -> web.StreamResponse:  # type: ignore[name-defined]
        """Refuse a request without the token, under another name than the server's own (a rebound one), or from
        another's page.
        """
        given = request.path.split("/")[1].encode("utf-8", "replace")
        if not hmac.compare_digest(given, self.token.encode("ascii")):
            raise web.HTTPForbidden
        origin = request.headers.get("Origin")
        if request.host not in self.authorities or (origin and urlsplit(origin).netloc not in self.authorities):
            raise web.HTTPForbidden(text=f"tinytf serves pages of {', '.join(sorted(self.authorities))} only\n")
        response: web.StreamResponse = await handler(request)
        return response

    async def handle_websocket(self, request: web.Request) -> web.WebSocketResponse:
        """Run a session for one page. Refuses a page without an origin, and more than MOST_SESSIONS."""
        if "Origin" not in request.headers:
            raise web.HTTPForbidden(text="a session is for a page of this server\n")
        if self.sessions >= MOST_SESSIONS:
            raise web.HTTPServiceUnavailable(text=f"{MOST_SESSIONS} pages are open; close one\n")
        self.sessions += 1
        try:
            return await super().handle_websocket(request)
        finally:
            self.sessions -= 1


async def _keep_to_itself(request: web.Request, response: web.StreamResponse) -> None:
    """Let a page fetch nothing from elsewhere, and tell no other site its address."""
    response.headers["Content-Security-Policy"] = _NOTHING_FOREIGN
    response.headers["Referrer-Policy"] = "no-referrer"


def command_line(context: click.Context, without: Iterable[str]) -> str:
    """The command line of the running command, without some of its options."""

    def words() -> Iterator[str]:
        for parameter in context.command.params:
            name, value = parameter.name or "", context.params.get(parameter.name or "")
            if context.get_parameter_source(name) is not ParameterSource.COMMANDLINE or name in without:
                continue
            values = value if isinstance(value, tuple) else (value,)
            if isinstance(parameter, click.Option):
                option = max(parameter.opts, key=len)
                yield from [option] if parameter.is_flag else [f"{option}={each}" for each in values]
        yield "--"
        yield from context.params.get("words", ())

    # -P: a module in the current folder is no part of tinytf.
    return shlex.join([sys.executable, "-P", "-m", "tinytf", *(context.info_name or "").split(), *words()])


def serve(command: str, host: str, port: int) -> None:
    """Serve until Ctrl-C."""
    ExplorerServer(command, host, port).serve()
