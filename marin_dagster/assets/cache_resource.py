"""``cache_of``: the cache with the settings of a :class:`MarinIOManager` among the resources."""

from typing import Any

from marin_dagster.cache import StepCache
from marin_dagster.errors import StepError


def cache_of(resources: Any, io_manager_key: str, asking: str) -> StepCache:
    """The cache with the settings of the :class:`MarinIOManager` among Dagster's resources.

    Args:
        resources: what Dagster gives as ``context.resources``.
        io_manager_key: the IO manager's resource key.
        asking: the caller, as the error names it.

    Raises:
        StepError: the resource is something else.
    """
    cache: StepCache | None = getattr(getattr(resources, io_manager_key), "cache", None)
    if cache is None:
        raise StepError(
            f"{asking}: the resource {io_manager_key!r} is not a MarinIOManager. Make it one, or "
            "give another io_manager_key."
        )
    return cache
