"""The cloud region of this process, detected as Marin does."""

import os
import re
import urllib.request
from http.client import HTTPException
from urllib.parse import urlparse

HOST_VARIABLE = "GCE_METADATA_HOST"
"""Environment variable of Google's libraries: the metadata server's host."""

_HOST = "metadata.google.internal"
_TIMEOUT_S = 2.0
_ZONE = re.compile(r"projects/[^/]+/zones/([a-z]+-[a-z]+\d+)-[a-z]+")
_found: dict[str, str] = {}


def find_region(prefix: str) -> str | None:
    """The region of the Google Cloud instance that this process runs on, else of the prefix.

    Mirrors Marin's order. Waits up to 2 seconds for a metadata server; its answer is kept. Without
    one, or when its answer is unusable, the prefix decides.

    Args:
        prefix: storage prefix; ``gs://marin-us-central1/…`` is in ``us-central1``.
    """
    return _region_of_instance() or region_of_prefix(prefix)


def region_of_prefix(prefix: str) -> str | None:
    """The region that Marin's buckets, ``gs://marin-{region}``, have in their names."""
    url = urlparse(prefix)
    if url.scheme != "gs" or not url.netloc.startswith("marin-"):
        return None
    region = url.netloc.removeprefix("marin-")
    # Marin's bucket in the Netherlands is called marin-eu-west4.
    return re.sub(r"^eu-", "europe-", region) or None


def _region_of_instance() -> str | None:
    host = os.environ.get(HOST_VARIABLE) or _HOST
    if host not in _found:
        request = urllib.request.Request(
            f"http://{host}/computeMetadata/v1/instance/zone",
            headers={"Metadata-Flavor": "Google"},
        )
        # Not through a proxy: it would get the region of its own instance.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=_TIMEOUT_S) as answer:
                zone = answer.read(1000).decode(errors="replace").strip()
        except (OSError, ValueError, HTTPException):
            return None
        if (match := _ZONE.fullmatch(zone)) is None:
            return None
        _found[host] = match[1]
    return _found[host]
