"""Stores several events of a run at once, where the storage is Dagster's on SQLite."""

import logging
from collections.abc import Collection, Sequence
from typing import Any

import dagster as dg

from marin_dagster._compat import (
    ASSET_CHECK_EVENTS,
    ASSET_EVENTS,
    EVENT_TYPE_TO_PIPELINE_RUN_STATUS,
    EventLogEntry,
    event_log_entry,
    notify_subscribers,
)
from marin_dagster._compat_storage import (
    CAN_STORE_TOGETHER,
    SqliteEventLogStorage,
    store_asset_check_event,
    store_asset_event,
)
from marin_dagster.storage import PooledSqliteEventLogStorage

_MOST_AT_ONCE = 500
"""Events in one statement; SQLite limits its parameters."""


def store_batch(
    instance: dg.DagsterInstance, handler: logging.Handler, records: Sequence[logging.LogRecord]
) -> list[BaseException | None]:
    """Store records of one run's log, in order, and return what storing each has raised.

    Dagster's own batches hold only a few types of events, and SQLite stores them one by one. Here,
    one transaction stores the events in the run's file, and one those that also belong to the file
    of all runs. Any other storage gets one event after the other.

    Args:
        instance: where to store them.
        handler: Dagster's handler, which stores one.
        records: what was logged.
    """
    storage: Any = instance.event_log_storage
    pooled = isinstance(storage, PooledSqliteEventLogStorage)
    if not pooled and not (isinstance(storage, SqliteEventLogStorage) and CAN_STORE_TOGETHER):
        return _store_each(handler, records)
    errors: list[BaseException | None] = []
    for start in range(0, len(records), _MOST_AT_ONCE):
        some = records[start : start + _MOST_AT_ONCE]
        errors += _store_in_sqlite(instance, storage, handler, some)
    return errors


def _store_in_sqlite(
    instance: dg.DagsterInstance,
    storage: SqliteEventLogStorage,
    handler: logging.Handler,
    records: Sequence[logging.LogRecord],
) -> list[BaseException | None]:
    entries = [event_log_entry(record) for record in records]
    types = [entry.dagster_event_type for entry in entries]
    # The run storage must learn of a changed status, too.
    if len(entries) < 2 or any(kind in EVENT_TYPE_TO_PIPELINE_RUN_STATUS for kind in types):
        return _store_each(handler, records)
    errors: list[BaseException | None] = [None] * len(entries)
    try:
        if isinstance(storage, PooledSqliteEventLogStorage):
            storage.store_event_batch(entries)
        else:
            with storage.run_connection(entries[0].run_id) as connection:
                connection.execute(storage.prepare_insert_event_batch(entries))
            errors = _store_in_index(storage, entries)
    except Exception:
        # Nothing is stored: one event that cannot be must not keep the others out.
        return _store_each(handler, records)
    for entry, error in zip(entries, errors, strict=True):
        if error is None:
            notify_subscribers(instance, entry)
    return errors


def _store_in_index(
    storage: SqliteEventLogStorage, entries: Sequence[EventLogEntry]
) -> list[BaseException | None]:
    """Store the events of assets and checks in the file of all runs."""
    errors: list[BaseException | None] = [None] * len(entries)
    found = {
        position: entry
        for position, entry in enumerate(entries)
        if entry.dagster_event_type in ASSET_EVENTS | ASSET_CHECK_EVENTS
    }
    try:
        _index(storage, found.values())
    except Exception:
        for position, entry in found.items():
            try:
                _index(storage, [entry])
            except Exception as error:
                errors[position] = error
    return errors


def _index(storage: SqliteEventLogStorage, entries: Collection[EventLogEntry]) -> None:
    """Store the events in one transaction."""
    if not entries:
        return
    with storage.index_transaction() as connection:
        for entry in entries:
            inserted: Any = connection.execute(storage.prepare_insert_event(entry))
            event_id = inserted.inserted_primary_key[0]
            if entry.dagster_event_type in ASSET_EVENTS:
                store_asset_event(storage, connection, entry, event_id)
            else:
                store_asset_check_event(storage, connection, entry, event_id)


def _store_each(
    handler: logging.Handler, records: Sequence[logging.LogRecord]
) -> list[BaseException | None]:
    errors: list[BaseException | None] = []
    for record in records:
        try:
            handler.emit(record)
        except Exception as error:
            errors.append(error)
        else:
            errors.append(None)
    return errors
