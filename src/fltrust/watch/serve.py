"""Serves the page until Ctrl-C: which address and port, who may come, what is printed."""

import contextlib
import errno
import ipaddress
import secrets
import socket
import webbrowser
from pathlib import Path
from threading import Thread

import uvicorn
from starlette.applications import Starlette

from fltrust.errors import InputError
from fltrust.watch.feed import Feed
from fltrust.watch.server import watch_app

PORT = 8642
TRIES = 100  # ports after the usual one, if others are watching too


def serve(path: Path, *, host: str, port: int | None, open_browser: bool) -> None:
    with contextlib.suppress(KeyboardInterrupt), _listening(host, port) as listening:
        address, port = listening.getsockname()[:2]
        loopback = ipaddress.ip_address(address).is_loopback
        token = None if loopback else secrets.token_urlsafe(32)
        names = ("127.0.0.1", "localhost", "[::1]", _in_url(address)) if loopback else ()
        hosts = frozenset(f"{name}:{port}" for name in names)
        url = f"http://{_shown(address)}:{port}/" + (f"?token={token}" if token else "")

        def ready() -> None:  # from here on Ctrl-C is uvicorn's
            print(f"{path} is shown at {url} (Ctrl-C ends it)", flush=True)
            if open_browser:
                Thread(target=webbrowser.open, args=(url,), daemon=True).start()  # one for a terminal would hold the server up

        app = watch_app(Feed(path), hosts=hosts, token=token, ready=ready, stopping=lambda: server.should_exit)
        server = uvicorn.Server(_config(app))
        server.run(sockets=[listening])


def _config(app: Starlette) -> uvicorn.Config:
    """No access log: it would hold the token. The streams end when the server shall end, so it does not wait for visitors to leave."""
    return uvicorn.Config(
        app,
        access_log=False,
        log_level="critical",
        server_header=False,
        proxy_headers=False,
        ws="none",
        limit_concurrency=200,
        timeout_graceful_shutdown=3,
    )


def _listening(host: str, port: int | None) -> socket.socket:
    """A socket on the port that was asked for; if none was, on the usual one or the next that is free."""
    ports = [port] if port is not None else range(PORT, PORT + TRIES)
    for candidate in ports:
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(host, candidate, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
            listening = socket.socket(family, kind, protocol)
            try:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listening.bind(address)
                listening.listen()
            except BaseException:
                listening.close()
                raise
            return listening
        except socket.gaierror as problem:
            raise InputError(f"--host {host!r} is not an address of this machine") from problem
        except OSError as problem:
            if problem.errno == errno.EADDRINUSE:
                continue
            raise InputError(f"cannot listen on {host}, port {candidate}: {problem.strerror}") from problem
    taken = f"port {port} is" if port is not None else f"ports {PORT} to {PORT + TRIES - 1} are"
    raise InputError(f"{taken} taken: give another --port, or 0 for any that is free")


def _shown(address: str) -> str:
    """Where others find this machine, if it listens on all its addresses."""
    return socket.gethostname() if ipaddress.ip_address(address).is_unspecified else _in_url(address)


def _in_url(address: str) -> str:
    return f"[{address}]" if ":" in address else address
