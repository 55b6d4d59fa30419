"""Defaults for the clients of object stores, where the user has not configured them.

The clients' own defaults give up soon on a store that returns errors for a while, and wait very
long for a store that does not answer.
"""

from functools import lru_cache
from typing import Any

_S3_RETRIES = 8
"""botocore pauses for a random part of 1, 2, 4, 8 … s before them: 8 outlast errors of 20 s in 99
of 100 cases and of 30 s in 97; the 4 that are its default outlast 10 s in 20. Its mode "standard"
has shorter pauses, but shares one budget of retries among all look-ups at once."""

_S3_CONNECTIONS = 64
"""As many as look-ups at once; botocore's default is 10, and the others would wait for these."""

_GCS_READ_S = 15.0
"""Seconds without a byte after which gcsfs retries, as in s3fs; its own default is no limit."""


def options_for(url: str) -> dict[str, Any]:
    """Options for the filesystem of ``url``, beside those that fsspec's configuration states."""
    scheme = url.partition("://")[0]
    if scheme in ("s3", "s3a"):
        return _s3(_configured("s3", "s3a"))
    if scheme in ("gs", "gcs"):
        return _gcs(_configured("gs", "gcs"))
    return {}


def _configured(*schemes: str) -> dict[str, Any]:
    """What fsspec's configuration states; a later scheme wins, as in fsspec."""
    import fsspec

    stated: dict[str, Any] = {}
    for scheme in schemes:
        stated |= fsspec.config.conf.get(scheme, {})
    return stated


def _s3(configured: dict[str, Any]) -> dict[str, Any]:
    # One request for a whole file. With a higher value, s3fs requests the size first, and lists
    # the folder when the file is missing.
    options: dict[str, Any] = {}
    if "max_concurrency" not in configured:
        options["max_concurrency"] = 1
    # A new dict each time: botocore changes its argument.
    client = {"max_pool_connections": _S3_CONNECTIONS, **(configured.get("config_kwargs") or {})}
    if "retries" not in client and _aws_attempts(configured.get("profile")) is None:
        client["retries"] = {"max_attempts": _S3_RETRIES}
    options["config_kwargs"] = client
    return options


@lru_cache
def _aws_attempts(profile: str | None) -> int | None:
    """The number of attempts that AWS's own configuration states: environment or file."""
    from botocore.exceptions import ProfileNotFound
    from botocore.session import Session

    try:
        attempts: int | None = Session(profile=profile).get_config_variable("max_attempts")
    except ProfileNotFound:
        # s3fs raises this error itself.
        return None
    return attempts


def _gcs(configured: dict[str, Any]) -> dict[str, Any]:
    if "requests_timeout" in configured:
        return {}
    from aiohttp import ClientTimeout

    return {"requests_timeout": ClientTimeout(sock_connect=_GCS_READ_S, sock_read=_GCS_READ_S)}
