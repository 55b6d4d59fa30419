"""The part of Google Cloud Storage that obstore and gcsfs use, over real HTTP, in memory.

obstore speaks the XML API (``/bucket/key``; writes only if ``x-goog-if-generation-match`` fits),
gcsfs the JSON API (``/storage/v1``, ``/upload/storage/v1``, ``/download/storage/v1``). Both see the
same objects, and every write gives the object a new generation.
"""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

Key = tuple[str, str]
Answer = tuple[int, dict[str, str], bytes]

_JSON_OBJECT = re.compile(r"/(?:download/)?storage/v1/b/([^/]+)/o/([^/]+)$")
_JSON_LIST = re.compile(r"/storage/v1/b/([^/]+)/o/?$")
_JSON_UPLOAD = re.compile(r"/upload/storage/v1/b/([^/]+)/o$")
_XML_OBJECT = re.compile(r"/([^/]+)/(.+)$")


@dataclass(frozen=True)
class Stored:
    """One object as it is now."""

    data: bytes
    generation: int


class GcsServer(ThreadingHTTPServer):
    """Objects with generations behind a port of loopback."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.objects: dict[Key, Stored] = {}
        self.requests: list[str] = []
        """Method and path of every request, and the generation that it demanded."""
        self._generation = 1_700_000_000_000_000
        self._mutex = threading.Lock()

    def write(self, key: Key, data: bytes, expected: str | None) -> Stored | None:
        """Replace an object; None when its generation is not the expected one (0: no object)."""
        with self._mutex:
            if not self._fits(key, expected):
                return None
            self._generation += 1
            self.objects[key] = Stored(data, self._generation)
            return self.objects[key]

    def delete(self, key: Key, expected: str | None) -> int:
        """Remove an object; the status to answer with."""
        with self._mutex:
            if key not in self.objects:
                return 404
            if not self._fits(key, expected):
                return 412
            del self.objects[key]
            return 204

    def _fits(self, key: Key, expected: str | None) -> bool:
        found = self.objects.get(key)
        return expected is None or int(expected) == (found.generation if found else 0)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: GcsServer

    def do_GET(self) -> None:
        self._answer(*self._get())

    def do_PUT(self) -> None:
        self._answer(*self._put())

    def do_POST(self) -> None:
        self._answer(*self._upload())

    def do_DELETE(self) -> None:
        self._answer(*self._delete())

    def log_message(self, *args: object) -> None:
        pass

    def _get(self) -> Answer:
        path, query, _ = self._request()
        if found := _JSON_LIST.match(path):
            return self._list(unquote(found[1]), query.get("prefix", ""))
        key = _key(path)
        stored = self.server.objects.get(key) if key else None
        if key is None or stored is None:
            return 404, {}, b""
        if path.startswith("/storage/v1/"):
            return _json(_resource(key, stored))
        return 200, _headers(stored), stored.data

    def _list(self, bucket: str, prefix: str) -> Answer:
        items = [
            _resource(key, stored)
            for key, stored in sorted(self.server.objects.items())
            if key[0] == bucket and key[1].startswith(prefix)
        ]
        return _json({"items": items})

    def _put(self) -> Answer:
        path, _, body = self._request()
        key = _key(path)
        if key is None:
            return 404, {}, b""
        stored = self.server.write(key, body, self.headers.get("x-goog-if-generation-match"))
        return (200, _headers(stored), b"") if stored else (412, {}, b"")

    def _upload(self) -> Answer:
        path, query, body = self._request()
        found = _JSON_UPLOAD.match(path)
        if not found:
            return 404, {}, b""
        boundary = self.headers.get_param("boundary")
        _, metadata, media, _ = body.split(b"--" + str(boundary).encode(), 3)
        name = json.loads(metadata.strip().partition(b"\n\n")[2])["name"]
        data = media.partition(b"\n\n")[2].removesuffix(b"\n")
        key = (unquote(found[1]), name)
        stored = self.server.write(key, data, query.get("ifGenerationMatch"))
        return _json(_resource(key, stored)) if stored else (412, {}, b"")

    def _delete(self) -> Answer:
        path, query, _ = self._request()
        key = _key(path)
        expected = self.headers.get("x-goog-if-generation-match", query.get("ifGenerationMatch"))
        return (self.server.delete(key, expected) if key else 404), {}, b""

    def _request(self) -> tuple[str, dict[str, str], bytes]:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        expected = self.headers.get("x-goog-if-generation-match")
        line = f"{self.command} {unquote(url.path)}"
        self.server.requests.append(line if expected is None else f"{line} if {expected}")
        return url.path, query, body

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _key(path: str) -> Key | None:
    found = _JSON_OBJECT.match(path) or _XML_OBJECT.match(path)
    return (unquote(found[1]), unquote(found[2])) if found else None


def _headers(stored: Stored) -> dict[str, str]:
    return {
        "ETag": f'"{stored.generation:x}"',
        "Last-Modified": formatdate(usegmt=True),
        "x-goog-generation": str(stored.generation),
    }


def _resource(key: Key, stored: Stored) -> dict[str, str]:
    return {
        "bucket": key[0],
        "name": key[1],
        "size": str(len(stored.data)),
        "generation": str(stored.generation),
    }


def _json(document: object) -> Answer:
    return 200, {"Content-Type": "application/json"}, json.dumps(document).encode()


@contextmanager
def running() -> Iterator[GcsServer]:
    """A server that answers until the end of the block."""
    server = GcsServer()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
