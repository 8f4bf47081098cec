"""Sockets that outlive the processes that use them: the HTTP endpoint's, and the line on which the agent is
watched."""

from __future__ import annotations

import errno
import socket

LINE_BYTES = 1 << 20  # of the largest packet; the kernel may grant less


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


def watch_line() -> tuple[socket.socket, socket.socket]:
    """(the evaluator's end, the exporter's), of packets: whoever is killed leaves no half of a message. Both
    ends stay here, so that neither hears of the other's death."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LINE_BYTES)
    return ends


def address(listening: socket.socket) -> str:
    """As a URL."""
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
