"""A bucket behind a proxy that misbehaves on demand."""

from collections.abc import Iterator

import pytest

from helpers.unsteady_proxy import UnsteadyProxy, in_front_of
from marin_dagster.cache import client_options, object_lock


def forget() -> None:
    """No client of an earlier test, nor its settings."""
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    object_lock._bucket.cache_clear()
    client_options._aws_attempts.cache_clear()


@pytest.fixture
def proxy(
    s3_prefix: str, s3_server: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[UnsteadyProxy]:
    """``MARIN_PREFIX`` is a bucket that is reached through the proxy only."""
    with in_front_of(s3_server) as found:
        forget()
        monkeypatch.setenv("AWS_ENDPOINT_URL", found.url)
        monkeypatch.setenv("MARIN_PREFIX", s3_prefix)
        yield found
    forget()
