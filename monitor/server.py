"""The exporter's HTTP server: who may ask what, how long, and how many at a time."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from monitor.pages import TEXT, Pages

REQUEST_SECONDS = 10.0  # to send a whole request; to take each part of an answer
MOST_CONNECTIONS = 128
MOST_BODY_BYTES = 4096
POLL_SECONDS = 0.25
OUR_SITE = ("same-origin", "none")  # none: no page has asked, but whoever sits there
SECURITY = {
    # Nothing from anywhere else, nothing inside a page or a form of somebody else's.
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"
    ),
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


class Handler(BaseHTTPRequestHandler):
    """One request. `pages.route` may hand it to somebody who writes the answer himself."""

    timeout = REQUEST_SECONDS
    server_version = "headrace"
    sys_version = ""
    pages: Pages
    server: Server
    body = b""
    """Of a POST."""

    def do_GET(self) -> None:
        if (route := self.pages.route("GET", self.path.partition("?")[0])) is None:
            self.answer(*self.pages.answer(self.path))
        elif self.headers.get("Sec-Fetch-Site", "none") not in OUR_SITE:  # it would have the agent play
            self.answer(403, TEXT, b"only from the page itself\n")
        elif self.command == "HEAD":
            self.stream_headers()
        else:
            route(self)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        route = self.pages.route("POST", self.path)
        length = self.headers.get("Content-Length", "")
        if route is None:
            self.answer(404, TEXT, b"no such page\n")
        elif not self._from_our_page() or self.headers.get_content_type() != "application/json":
            self.answer(403, TEXT, b"only from the page itself\n")
        elif not _is_short(length):
            self.answer(413, TEXT, b"too long\n")
        else:
            self.body = self.rfile.read(int(length))
            route(self)

    def _from_our_page(self) -> bool:
        """Whether no page of somebody else's has sent this: browsers say whose it is, and by what name they
        know us, which may be one that somebody else has made to lead here."""
        origin, host = self.headers.get("Origin"), self.headers.get("Host", "")
        try:
            ours, theirs = urlsplit(f"//{host}"), urlsplit(origin or "")
        except ValueError:
            return False
        if not _is_ours(ours.hostname or ""):
            return False
        if origin is not None:
            return theirs.netloc == host
        return self.headers.get("Sec-Fetch-Site", "none") in OUR_SITE

    def answer(self, status: int, kind: str, body: bytes) -> None:
        """A whole answer."""
        self._begin(status, kind, {"Content-Length": str(len(body))})
        if self.command != "HEAD":
            self.wfile.write(body)

    def stream_headers(self) -> None:
        """The beginning of one that goes on for as long as somebody reads; `wfile.write` does the rest."""
        self._begin(200, "text/event-stream", {})

    def _begin(self, status: int, kind: str, more: dict[str, str]) -> None:
        self.server.asked(self.connection)
        self.send_response(status)
        for name, value in ({"Content-Type": kind} | more | SECURITY).items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """A scrape every few seconds for weeks is not worth a line each."""


class Server(ThreadingHTTPServer):
    """Serves an inherited socket that listens already."""

    daemon_threads = True

    def __init__(self, listening: socket.socket, pages: Pages):
        self._pages = pages
        self._control = pages.collector.control
        self._turns = 0
        self._room = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._asking: dict[socket.socket, float] = {}  # since when, on the monotonic clock
        address = listening.getsockname()
        handler = type("Handler", (Handler,), {"pages": pages})
        super().__init__(address[:2], handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening

    def service_actions(self) -> None:
        """At every poll, and after a request: the heartbeat of the loop that accepts them, and the look that
        the live page is made of."""
        self._turns += 1
        self._control.pulse("step", self._turns)
        self._pages.tick()
        self._hurry()

    def asked(self, request: socket.socket) -> None:
        """That what it wants is read."""
        self._asking.pop(request, None)

    def _hurry(self) -> None:
        """Hangs up on those who send a request byte by byte, which no time-out of a read ends: enough of them
        would leave no room for anybody."""
        now = time.monotonic()
        for request, since in list(self._asking.items()):
            if now - since > REQUEST_SECONDS:
                with contextlib.suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    def process_request(self, request: Any, client_address: Any) -> None:
        """In a thread of its own; more than there is room for are turned away at once."""
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        self._asking[request] = time.monotonic()
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._leave(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._leave(request)

    def _leave(self, request: Any) -> None:
        self.asked(request)
        self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A viewer that hangs up is no news; anything else is for the log."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


def _is_short(length: str) -> bool:
    """Whether a body's length is a number, and one that is read."""
    return length.isascii() and length.isdecimal() and len(length) < 10 and int(length) <= MOST_BODY_BYTES


def _is_ours(name: str) -> bool:
    """Whether a host's name is an address, or one that only this machine has."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name in ("", "localhost", socket.gethostname().lower())
    return True
