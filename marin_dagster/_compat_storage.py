"""Private names of Dagster's event storage, apart from ``_compat`` because they import SQLAlchemy.

SQLAlchemy takes longer to import than this package and is not needed to load a code location.
"""

import copy
from contextlib import nullcontext
from typing import Any

from dagster._core.storage.event_log import SqliteEventLogStorage

from marin_dagster._compat import EventLogEntry

__all__ = [
    "CAN_STORE_TOGETHER",
    "SqliteEventLogStorage",
    "store_asset_check_event",
    "store_asset_event",
]

CAN_STORE_TOGETHER = hasattr(SqliteEventLogStorage, "_store_asset_event_tags")
"""Whether :func:`store_asset_event` works; Dagster 1.11 opens a connection for each table."""


def store_asset_event(
    storage: SqliteEventLogStorage, connection: Any, entry: EventLogEntry, event_id: int
) -> None:
    """Store what Dagster looks up of an event of an asset, beside the event itself."""
    storage._store_asset_event_tags(connection, [entry], [event_id])
    storage._store_asset_event(connection, entry, event_id)


def store_asset_check_event(
    storage: SqliteEventLogStorage, connection: Any, entry: EventLogEntry, event_id: int
) -> None:
    """Store what Dagster looks up of an event of a check, beside the event itself.

    Dagster's own method opens two connections for each event.
    """
    on_connection: Any = copy.copy(storage)
    on_connection.index_connection = lambda: nullcontext(connection)
    # Asked on a connection of its own, it would wait for this one. The run's planned events are in
    # the table already.
    on_connection.has_table = lambda name: True
    on_connection.store_asset_check_event(entry, event_id)
