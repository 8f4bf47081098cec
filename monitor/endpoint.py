"""The HTTP endpoint's socket, which outlives the exporters that answer on it."""

from __future__ import annotations

import errno
import socket


class Refused(Exception):
    """The address or the port cannot be had; the message names the key."""


def listen(host: str, port: int) -> socket.socket:
    """`port` 0: any free one. Raises Refused."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        why = (error.strerror or str(error)).partition(" (")[0].lower()
        # Codes of getaddrinfo are negative; socket.create_server passes them on as OSError.
        if error.errno is not None and (error.errno < 0 or error.errno == errno.EADDRNOTAVAIL):
            raise Refused(f"monitor.host: {host}: {why}; needs an address of this machine") from None
        advice = "stop what holds it, or give another monitor.port (0: any free one)"
        raise Refused(f"monitor.port: {host} port {port}: {why}; {advice}") from None


def address(listening: socket.socket) -> str:
    """As a URL."""
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
