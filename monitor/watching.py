"""The exporter's part of watching the agent: passes frames from the evaluator to viewers, and wishes back.

One world is played for all viewers, so they share its controls. The evaluator plays as long as it is told
again and again that somebody watches: when this process is killed it stops by itself, and when the evaluator
is killed the next one learns within a second what is wanted. docs/watching.md has the messages.
"""

from __future__ import annotations

import base64
import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import msgpack

from monitor.pages import TEXT

VIEWERS = 32
RENEW_SECONDS = 1.0
QUIET_SECONDS = 4.0  # the slowest speed sends a frame every second
PACKET_BYTES = 1 << 21  # as many as the kernel can grant for the buffer that was asked for
SPEEDS = (1.0, 60.0)  # steps a second, least and most
MOST_STEPS = 1000  # at one request
RETRY_MS = 1000  # a viewer whose exporter has died comes back so soon
PING = b": still here\n\n"


class Refused(Exception):
    """What was asked for is not possible; the message says why."""


class Watching:
    """What viewers see and want. Every viewer is a thread of its own, in `_follow`."""

    def __init__(self, channel: socket.socket, worlds: int, state: Callable[[], str]):
        """`channel`: to the evaluator; `worlds`: to choose from; `state`: the evaluator's, for when nothing
        is heard of it."""
        self._channel, self._worlds, self._state = channel, worlds, state
        self._changed = threading.Condition()
        self._wish: dict[str, Any] = {
            "world": 0, "agent": 0, "speed": 15.0, "paused": False, "greedy": False, "steps": 0,
        }  # fmt: skip
        self._new = True  # it may have had a predecessor, whose viewers come back
        self._told = self._heard = float("-inf")  # when, on the monotonic clock
        self.viewers = 0
        """How many there are."""
        self._event = b""  # the newest; empty: nothing that is worth showing to a newcomer
        self._number = 0  # of that event
        self.reader = threading.Thread(target=self._read, name="watching", daemon=True)
        """Ends with the other end of the channel."""
        self.reader.start()

    @property
    def routes(self) -> dict[tuple[str, str], Callable[[Any], None]]:
        """What the HTTP server leaves to us: (method, path) to a function of its handler."""
        return {("GET", "/watch"): self._show, ("POST", "/watch"): self._obey}

    def _show(self, handler: Any) -> None:
        """Server-sent events."""
        if not self._enter():
            handler.answer(503, TEXT, b"too many watch already\n")
            return
        try:
            handler.stream_headers()
            self._follow(handler.wfile.write)
        finally:
            self._leave()

    def _obey(self, handler: Any) -> None:
        try:
            self.command(handler.body)
        except Refused as error:
            handler.answer(400, TEXT, f"{error}\n".encode(errors="replace"))
        else:
            handler.answer(200, TEXT, b"ok\n")

    def _enter(self) -> bool:
        """Whether there is room for one more viewer, who leaves by `_leave`."""
        with self._changed:
            if self.viewers == VIEWERS:
                return False
            self.viewers += 1
            if self.viewers == 1:
                self._heard = time.monotonic()
            return True

    def _leave(self) -> None:
        with self._changed:
            self.viewers -= 1
            if self.viewers == 0:
                self._event = b""
                self._tell()

    def _follow(self, write: Callable[[bytes], object]) -> None:
        """Writes events as they come, the newest at once, until `write` raises since the viewer has left."""
        write(f"retry: {RETRY_MS}\n\n".encode())
        seen = self._number - 1 if self._event else self._number
        while True:
            with self._changed:
                self._renew()
                if self._number == seen:
                    self._changed.wait(RENEW_SECONDS)
                self._notice_silence()
                event = self._event if self._number != seen else PING
                seen = self._number
            write(event)

    def command(self, body: bytes) -> None:
        """Takes a viewer's wishes, a JSON object of some of `world`, `agent`, `speed`, `paused`, `greedy`
        and `step`, a number of single steps, which also pauses. Raises Refused."""
        try:
            asked = json.loads(body)
        except (ValueError, RecursionError):
            raise Refused("needs JSON") from None
        if not isinstance(asked, dict):
            raise Refused("needs an object")
        for key, value in asked.items():
            self._check(key, value)
        steps = asked.pop("step", 0)
        with self._changed:
            self._new = False
            self._wish |= asked
            if steps:
                self._wish |= {"paused": True, "steps": self._wish["steps"] + steps}
            self._tell()

    def _check(self, key: str, value: Any) -> None:
        whole = isinstance(value, int) and not isinstance(value, bool)
        number = whole or isinstance(value, float)
        rules = {
            "world": (whole and 0 <= value < self._worlds, f"a whole number below {self._worlds}"),
            "agent": (whole and 0 <= value < 1 << 31, "a whole number"),
            "speed": (number and SPEEDS[0] <= value <= SPEEDS[1], "a number from 1 to 60"),
            "paused": (isinstance(value, bool), "true or false"),
            "greedy": (isinstance(value, bool), "true or false"),
            "step": (whole and 1 <= value <= MOST_STEPS, f"a whole number from 1 to {MOST_STEPS}"),
        }
        good, needed = rules.get(key, (False, f"one of {', '.join(rules)}"))
        if not good:
            raise Refused(f"{key}: needs {needed}")

    def _renew(self) -> None:
        if time.monotonic() - self._told >= RENEW_SECONDS:
            self._tell()

    def _tell(self) -> None:
        """The evaluator, unless it does not read: then it learns of it by the next one."""
        self._told = time.monotonic()
        wish = msgpack.packb(self._wish | {"watch": self.viewers > 0})
        try:
            self._channel.send(wish, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return

    def _notice_silence(self) -> None:
        if time.monotonic() - self._heard > QUIET_SECONDS:
            text = f"nothing is heard of the evaluator, which is {self._state()}"
            self._publish({"kind": "absent", "text": text})

    def _read(self) -> None:
        buffer = bytearray(PACKET_BYTES)
        while length := self._channel.recv_into(buffer):
            message = msgpack.unpackb(memoryview(buffer)[:length])
            if message.get("png") is not None:
                message["png"] = base64.b64encode(message["png"]).decode()
            with self._changed:
                self._heard = time.monotonic()
                if self._new and "wish" in message:
                    self._wish = {name: message["wish"][name] for name in self._wish}
                    self._new = False
                if self.viewers:
                    self._publish(message)

    def _publish(self, message: dict[str, Any]) -> None:
        """Formats it once for all viewers. One that says nothing new is no event."""
        whole = message | {"worlds": self._worlds, "wish": self._wish}
        event = b"data: " + json.dumps(whole, allow_nan=False).encode() + b"\n\n"
        if event != self._event:
            self._event = event
            self._number += 1
            self._changed.notify_all()
