"""Private names of Dagster's event storage, apart from ``_compat`` because they import SQLAlchemy.

SQLAlchemy takes longer to import than this package and is not needed to load a code location.
"""

from typing import Any

from dagster._core.storage.event_log import SqliteEventLogStorage

from marin_dagster._compat import EventLogEntry

__all__ = ["CAN_STORE_TOGETHER", "SqliteEventLogStorage", "store_asset_event"]

CAN_STORE_TOGETHER = hasattr(SqliteEventLogStorage, "_store_asset_event_tags")
"""Whether :func:`store_asset_event` works; Dagster 1.11 opens a connection for each table."""


def store_asset_event(
    storage: SqliteEventLogStorage, connection: Any, entry: EventLogEntry, event_id: int
) -> None:
    """Store what Dagster looks up of an event of an asset, beside the event itself."""
    storage._store_asset_event_tags(connection, [entry], [event_id])
    storage._store_asset_event(connection, entry, event_id)
