"""The region that a configuration asks for: the instance's, else the prefix's, else an error."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from marin_dagster import ArtifactStep, StepContext, StepRunner
from marin_dagster.errors import StepsFailedError
from marin_dagster.lazy import Artifact, cloud_region
from marin_dagster.lazy.cloud_region import find_region

ZONE = "projects/123/zones/europe-west4-b"
NOBODY = "127.0.0.1:9"
"""A port on which nobody listens."""


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloud_region, "_found", {})
    monkeypatch.setenv("GCE_METADATA_HOST", NOBODY)


@pytest.fixture
def metadata(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A metadata server that answers with the test's text, or with its bytes instead of HTTP;
    yields the requests' headers."""
    headers: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            headers.append((self.path, self.headers["Metadata-Flavor"]))
            if isinstance(request.param, bytes):
                self.wfile.write(request.param)
                return
            self.send_response(200)
            self.end_headers()
            self.wfile.write(request.param.encode())

        def log_message(self, *args: Any) -> None:
            """Nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{server.server_port}")
    # A proxy would answer for its own instance.
    monkeypatch.setenv("http_proxy", f"http://{NOBODY}")
    yield headers
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("metadata", [ZONE], indirect=True)
def test_the_instances_region_comes_first_and_is_asked_for_once(metadata: list[Any]) -> None:
    for _ in range(2):
        assert find_region("gs://marin-us-central1/x") == "europe-west4"
    assert metadata == [("/computeMetadata/v1/instance/zone", "Google")]


@pytest.mark.parametrize(
    "metadata",
    [
        *("", "<html>log in first</html>", "projects/1/zones/nowhere"),
        *(b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.0 200 OK\r\nX: " + b"x" * 70_000),
    ],
    ids=["empty", "HTML", "no zone", "another protocol", "long header"],
    indirect=True,
)
def test_what_is_no_zone_is_passed_over(metadata: list[Any]) -> None:
    assert find_region("gs://marin-us-central1/x") == "us-central1"


@pytest.mark.parametrize("host", ["two words", "127.0.0.1:http"])
def test_a_host_that_is_not_valid_is_passed_over(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GCE_METADATA_HOST", host)
    assert find_region("gs://marin-us-central1/x") == "us-central1"


@pytest.mark.parametrize(
    ("prefix", "found"),
    [
        ("gs://marin-us-central1", "us-central1"),
        ("gs://marin-eu-west4/a/b", "europe-west4"),
        ("gs://marin-", None),
        ("gs://other-us-central1/x", None),
        ("s3://marin-us-central1/x", None),
        ("/marin-us-central1", None),
    ],
)
def test_a_prefix_names_its_region(prefix: str, found: str | None) -> None:
    assert find_region(prefix) == found


def reader(seen: list[str]) -> ArtifactStep[Any]:
    def config(context: StepContext) -> str:
        return f"gs://raw-{context.region}/x"

    return ArtifactStep("raw", "2026.07.01", Artifact, run=seen.append, build_config=config)


@pytest.mark.slow
@pytest.mark.parametrize("metadata", [ZONE], indirect=True)
def test_a_run_gets_the_region(metadata: list[Any]) -> None:
    seen: list[str] = []
    handle = reader(seen)
    assert handle.fingerprint_payload() == '"gs://raw-<region>/x"'
    assert metadata == []

    StepRunner().run([handle])

    assert seen == ["gs://raw-europe-west4/x"]


@pytest.mark.slow
def test_a_read_without_a_region_is_an_error() -> None:
    seen: list[str] = []

    with pytest.raises(StepsFailedError) as raised:
        StepRunner().run([reader(seen)])

    message = str(raised.value.exceptions[0])
    assert "raw@2026.07.01" in message
    assert "ctx.region, which is unknown" in message
    assert seen == []
