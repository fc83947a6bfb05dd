"""The page's HTTP side: five files, a stream of changes, the history of a node. Everything is GET; nothing is ever written.

On loopback the Host header must name this machine, so that no web page can reach the run through a name that it controls (DNS rebinding).
On any other address a visitor needs the token, once in the address and from then on in a cookie.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fltrust.watch.feed import Feed

LOOK_EVERY = 0.25  # seconds between two looks at the run directory
ALIVE_EVERY = 15.0  # seconds without news after which a visitor hears that the server is still there
MOST_NODES = 12  # whose history one request may ask for

HERE = Path(__file__).parent
FILES = {  # read once: no request ever reaches the file system
    "/": (HERE / "page.html", "text/html"),
    "/look.css": (HERE.parent / "report" / "page.css", "text/css"),
    "/page.css": (HERE / "page.css", "text/css"),
    "/page.js": (HERE / "page.js", "text/javascript"),
    "/nodes.js": (HERE / "nodes.js", "text/javascript"),
    "/curves.js": (HERE / "curves.js", "text/javascript"),
}
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


def watch_app(
    feed: Feed, *, hosts: frozenset[str], token: str | None, ready: Callable[[], None], stopping: Callable[[], bool]
) -> Starlette:
    """The app for visitors that ask for one of `hosts` (none given: any), with the token if there is one.

    It calls `ready` when it starts. Streams end once `stopping` says so.
    """

    @asynccontextmanager
    async def following(app: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(_follow(feed))
        ready()
        yield
        task.cancel()

    async def events(request: Request) -> Response:
        return StreamingResponse(_events(feed, request.headers.get("last-event-id"), stopping), media_type="text/event-stream")

    def history(request: Request) -> Response:
        nodes = request.query_params.getlist("node")[:MOST_NODES]
        after = request.query_params.get("after", "0")
        return JSONResponse(feed.history(nodes, int(after) if after.isascii() and after.isdigit() and len(after) < 10 else 0))

    files = [Route(path, _file(path)) for path in FILES]
    middleware = [Middleware(_Headers), Middleware(_Hosts, hosts=hosts), Middleware(_Token, token=token)]
    return Starlette(routes=[*files, Route("/events", events), Route("/history", history)], middleware=middleware, lifespan=following)


def _file(path: str) -> Callable[[Request], Response]:
    file, media_type = FILES[path]
    content = file.read_bytes()
    return lambda request: Response(content, media_type=media_type)


async def _follow(feed: Feed) -> None:
    while True:
        await run_in_threadpool(feed.look)
        await asyncio.sleep(LOOK_EVERY)


async def _events(feed: Feed, seen: str | None, stopping: Callable[[], bool]) -> AsyncIterator[str]:
    """Server-sent events: first all that is known, or what a visitor missed; then every change."""
    quiet = 0.0
    while not stopping():
        if news := feed.since(seen):
            seen, content = news
            yield f"id: {seen}\ndata: {content}\n\n"
            quiet = 0.0
        elif quiet >= ALIVE_EVERY:
            yield ": still here\n\n"
            quiet = 0.0
        await asyncio.sleep(LOOK_EVERY)
        quiet += LOOK_EVERY


class _Headers:
    """What every answer says to the browser, also an error."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *((name.encode(), value.encode()) for name, value in HEADERS.items())]
            await send(message)

        await self.app(scope, receive, send_with_headers)


class _Hosts:
    """Starlette's own check of the Host header knows neither IPv6 nor the port."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str]) -> None:
        self.app, self.hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self.hosts and HTTPConnection(scope).headers.get("host", "").lower() not in self.hosts:
            await PlainTextResponse("This page answers only under its own address.\n", 421)(scope, receive, send)
        else:
            await self.app(scope, receive, send)


class _Token:
    """The token in the address becomes a cookie, so that it does not stay in the address bar."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self.app, self.token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self.token is not None:
            visit = HTTPConnection(scope)
            cookie = f"fltrust-watch-{scope['server'][1]}"  # browsers share cookies among the ports of a host
            if self._is_right(visit.query_params.get("token")):
                welcome = RedirectResponse("/", 303)
                welcome.set_cookie(cookie, self.token, httponly=True, samesite="lax")
                return await welcome(scope, receive, send)
            if not self._is_right(visit.cookies.get(cookie)):
                refusal = PlainTextResponse("This page needs its token: open the address that 'fltrust watch' printed.\n", 401)
                return await refusal(scope, receive, send)
        return await self.app(scope, receive, send)

    def _is_right(self, given: str | None) -> bool:
        return secrets.compare_digest((given or "").encode(), (self.token or "").encode())
