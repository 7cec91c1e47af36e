"""A TCP proxy that cuts connections to PostgreSQL at a chosen message."""

from __future__ import annotations

import re
import socket
import threading
from dataclasses import dataclass, field


@dataclass
class Fault:
    """What to do when a statement passes: once."""

    pattern: str
    action: str
    """`request`: cut before the server sees it. `reply`: cut after the server has done it, before the
    client learns of it. `abort`: make the transaction fail right before it. `silence`: from here on nothing passes in
    either direction, and the connection stays open. `silent reply`: the same, but the server gets and does it.
    `late`: the client is cut, and the server gets it when `go_on` is set."""
    skip: int = 0
    """How many such statements pass before."""
    error: tuple[str, str] | None = None
    """Severity and code of an error that the client gets instead of a reply, before it is cut."""
    go_on: threading.Event = field(default_factory=threading.Event)


class Proxy:
    """Passes everything on, but for the faults it is given."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.faults: list[Fault] = []
        self.struck: list[Fault] = []
        self.links = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        # Wakes the thread that accepts.
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def take(self, text: bytes) -> Fault | None:
        for fault in self.faults:
            if re.match(fault.pattern.encode(), text.strip(), re.I):
                if fault.skip:
                    fault.skip -= 1
                    return None
                self.faults.remove(fault)
                self.struck.append(fault)
                return fault
        return None

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                client.close()
                continue
            for end in (client, server):
                # Messages are passed on one by one: each would wait for the acknowledgement of the last.
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.links += 1
            _Link(self, client, server).start()


class _Link:
    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self.proxy = proxy
        self.client = client
        self.server = server
        self.swallow = 0
        self.cut_after_reply = False
        self.error: tuple[str, str] | None = None
        self.flushed = False
        self.silent = False

    def start(self) -> None:
        threading.Thread(target=self._forward, daemon=True).start()
        threading.Thread(target=self._backward, daemon=True).start()

    def _close(self) -> None:
        for end in (self.client, self.server):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            end.close()

    def _forward(self) -> None:
        try:
            # The first message has no type.
            self.server.sendall(_untyped(self.client))
            while True:
                message = _typed(self.client)
                text = _statement(message)
                fault = self.proxy.take(text) if text is not None else None
                if fault is not None and fault.action == "request":
                    return
                if fault is not None and fault.action in ("silence", "silent reply"):
                    # First: the server may reply before this thread runs again.
                    self.silent = True
                    if fault.action == "silent reply":
                        self.server.sendall(message)
                if self.silent:
                    continue
                if fault is not None and fault.action == "late":
                    self.client.shutdown(socket.SHUT_RDWR)
                    fault.go_on.wait()
                    self.cut_after_reply = True
                if fault is not None and fault.action == "reply":
                    self.error = fault.error
                    self.cut_after_reply = True
                if fault is not None and fault.action == "abort":
                    self.swallow += 1
                    self.server.sendall(_simple("select 1/0"))
                # asyncpg prepares with Flush instead of Sync: then no "ready" will come.
                self.flushed = self.flushed or self.cut_after_reply and message[:1] == b"H"
                self.server.sendall(message)
        except OSError:
            pass
        finally:
            if not self.cut_after_reply:
                self._close()

    def _backward(self) -> None:
        try:
            while True:
                message = _typed(self.server)
                ready = message[:1] == b"Z"
                if self.silent:
                    continue
                if self.swallow:
                    self.swallow -= 1 if ready else 0
                elif self.cut_after_reply:
                    if ready or self.flushed:
                        if self.error is not None:
                            self.client.sendall(_error(*self.error))
                        return
                else:
                    self.client.sendall(message)
        except OSError:
            pass
        finally:
            self._close()


def _exactly(end: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = end.recv(count - len(data))
        if not part:
            raise OSError("closed")
        data += part
    return data


def _untyped(end: socket.socket) -> bytes:
    head = _exactly(end, 4)
    return head + _exactly(end, int.from_bytes(head, "big") - 4)


def _typed(end: socket.socket) -> bytes:
    return _exactly(end, 1) + _untyped(end)


def _statement(message: bytes) -> bytes | None:
    kind, body = message[:1], message[5:]
    if kind == b"Q":
        return body.rstrip(b"\0")
    if kind == b"P":
        return body.split(b"\0")[1]
    return None


def _error(severity: str, code: str) -> bytes:
    fields = f"S{severity}\0V{severity}\0C{code}\0Mit broke\0\0".encode()
    return b"E" + (len(fields) + 4).to_bytes(4, "big") + fields


def _simple(text: str) -> bytes:
    body = text.encode() + b"\0"
    return b"Q" + (len(body) + 4).to_bytes(4, "big") + body
