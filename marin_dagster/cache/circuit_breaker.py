"""``CircuitBreaker``: one timeout is enough to stop asking a bucket."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from marin_dagster.errors import StoreTimeoutError


@dataclass(eq=False)
class CircuitBreaker:
    """Remembers the buckets that did not answer. Safe to use from several threads."""

    _timeouts: dict[str, StoreTimeoutError] = field(default_factory=dict)

    @contextmanager
    def asking(self, url: str) -> Iterator[None]:
        """Around a question about ``url``: the store gets none after a timeout in the same bucket.

        Raises:
            StoreTimeoutError: the question timed out, or an earlier one did.
        """
        bucket = "/".join(url.split("/", 3)[:3])
        if bucket in self._timeouts:
            raise self._timeouts[bucket]
        try:
            yield
        except StoreTimeoutError as error:
            self._timeouts[bucket] = error
            raise
