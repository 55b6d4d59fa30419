"""Event log storages for ``dagster.yaml`` that keep their database connections.

Dagster's own open and close a connection for each event, which is most of what an event costs.
These read and write the same databases, also while others use Dagster's own on them. To go back,
remove the entry from ``dagster.yaml``.
"""

from typing import TYPE_CHECKING, Any

from marin_dagster.storage.sqlite import PooledSqliteEventLogStorage

if TYPE_CHECKING:
    from marin_dagster.storage.postgres import PooledPostgresEventLogStorage

__all__ = ["PooledPostgresEventLogStorage", "PooledSqliteEventLogStorage"]


def __getattr__(name: str) -> Any:
    # It needs dagster-postgres.
    if name == "PooledPostgresEventLogStorage":
        from marin_dagster.storage.postgres import PooledPostgresEventLogStorage

        return PooledPostgresEventLogStorage
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
