"""An HTTP proxy in front of an object store that misbehaves on demand."""

import http.client
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

UNAVAILABLE = (
    b'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>ServiceUnavailable</Code>'
    b"<Message>Please try again later</Message><RequestId>1</RequestId></Error>"
)

FOREVER = 10**9

_HOP_BY_HOP = ("connection", "transfer-encoding", "content-length", "expect")

DELETES = "?delete"
"""The path of S3's request to delete several objects, which obstore makes for one, too."""


@dataclass
class Fault:
    """What happens to the next ``times`` requests of some method for some file."""

    method: str = ""
    """Empty for every method."""
    file: str = ""
    """The end of the path, or ``DELETES``; empty for every file."""
    times: int = FOREVER
    hits: int = 0
    """How many requests it has struck."""

    def strikes(self, method: str, path: str) -> bool:
        return self.times > 0 and self.method in ("", method) and path.endswith(self.file)


@dataclass
class Unavailable(Fault):
    """503, and the store never hears of the request."""


@dataclass
class AnswerLost(Fault):
    """The store does what it is asked, and the connection breaks before the answer."""


@dataclass
class Hanging(Fault):
    """No answer until the store recovers, and the store never hears of the request."""

    over: threading.Event = field(default_factory=threading.Event)


@dataclass
class Delayed(Fault):
    """The request waits in the proxy until the test lets it go on."""

    arrived: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)


@dataclass
class Careless(Fault):
    """The store does what it is asked, without a look at the conditions in these headers."""

    ignored: tuple[str, ...] = ("if-match", "if-none-match")


class UnsteadyProxy(ThreadingHTTPServer):
    """Forwards every request that no fault strikes."""

    daemon_threads = True

    def __init__(self, upstream: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.upstream = urlsplit(upstream).netloc
        self.requests: list[str] = []
        """Method and file name of every request, in order."""
        self._faults: list[Fault] = []
        self._mutex = threading.Lock()

    def strike(self, fault: Fault) -> Fault:
        """From now on, this happens, too."""
        with self._mutex:
            self._faults.append(fault)
        return fault

    def recover(self) -> None:
        """No faults any more."""
        with self._mutex:
            for fault in self._faults:
                if isinstance(fault, Hanging):
                    fault.over.set()
            self._faults.clear()

    def next_fault(self, method: str, path: str) -> Fault | None:
        """The fault that strikes a request, which counts as one of its times."""
        with self._mutex:
            self.requests.append(f"{method} {path.rpartition('/')[2]}")
            for fault in self._faults:
                if fault.strikes(method, path):
                    fault.times -= 1
                    fault.hits += 1
                    return fault
        return None

    def handle_error(self, request: object, client_address: object) -> None:
        """A client may go away: that is expected."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: UnsteadyProxy

    def _handle(self) -> None:
        body = self._body()
        fault = self.server.next_fault(self.command, _target(self.path))
        if isinstance(fault, Unavailable):
            self._answer(503, [("Content-Type", "application/xml")], UNAVAILABLE)
            return
        if isinstance(fault, Hanging):
            fault.over.wait(120)
            self.close_connection = True
            return
        if isinstance(fault, Delayed):
            fault.arrived.set()
            fault.go_on.wait(120)
        ignored = fault.ignored if isinstance(fault, Careless) else ()
        status, headers, content = self._forward(body, ignored)
        if isinstance(fault, AnswerLost):
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self._answer(status, headers, content)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle

    def log_message(self, *args: object) -> None:
        pass

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return body

    def _forward(
        self, body: bytes, ignored: Sequence[str]
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection(self.server.upstream, timeout=120)
        headers = {
            name: value
            for name, value in self.headers.items()
            if name.lower() not in (*_HOP_BY_HOP, *ignored)
        }
        try:
            connection.request(self.command, self.path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()

    def _answer(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in ("connection", "transfer-encoding", "date", "server"):
                if name.lower() == "content-length" and self.command != "HEAD":
                    continue
                self.send_header(name, value)
        if self.command != "HEAD" and status != 204:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _target(path: str) -> str:
    url = urlsplit(path)
    return unquote(url.path) + (DELETES if url.query == "delete" else "")


@contextmanager
def in_front_of(upstream: str) -> Iterator[UnsteadyProxy]:
    """A proxy that forwards until the end of the block."""
    proxy = UnsteadyProxy(upstream)
    thread = threading.Thread(target=proxy.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.recover()
        proxy.shutdown()
        proxy.server_close()
        thread.join()
