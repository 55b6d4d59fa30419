"""``PooledSqliteEventLogStorage``: Dagster's event log in SQLite files, with connections kept."""

import os
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import groupby
from typing import Any
from weakref import WeakSet

import dagster as dg
import sqlalchemy as db
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.pool import NullPool, StaticPool

from marin_dagster._compat import ConfigurableClassData, EventLogEntry, UserConfigSchema
from marin_dagster._compat_storage import SqliteEventLogStorage

_INDEX = "index"
_KEPT = 16
"""Files that stay open; each run has one."""
_BUSY_S = 30
"""Seconds to wait for another writer of a file, as in Dagster."""

_storages: "WeakSet[PooledSqliteEventLogStorage]" = WeakSet()
_forking: "list[PooledSqliteEventLogStorage]" = []
"""Whose locks the thread that forks holds."""
_abandoned: list[Any] = []
"""Connections that are never closed; see :func:`_abandon`."""


@dataclass(frozen=True)
class _Shard:
    """An open database file."""

    engine: Engine
    file: tuple[int, int]
    """Device and inode: the file may be deleted and made anew by another process."""


class PooledSqliteEventLogStorage(SqliteEventLogStorage):
    """Dagster's event log in SQLite files, with connections kept open between events.

    Reads and writes the files of Dagster's ``SqliteEventLogStorage``, which other processes may use
    at the same time. In ``dagster.yaml``::

        event_log_storage:
          module: marin_dagster.storage
          class: PooledSqliteEventLogStorage

    Commits do not wait for the disk (``synchronous=NORMAL``): when a process is killed, nothing
    that was stored is lost; when the machine loses power, the newest events may be, and the files
    stay whole. At most 16 files are open at once; a file that was deleted is made anew.

    Args:
        base_dir: the folder of the files. In ``dagster.yaml``, ``base_dir`` in ``config`` names
            another one than Dagster's, which is ``history/runs`` in ``DAGSTER_HOME``.
        inst_data: how Dagster constructs the storage again in another process.
    """

    def __init__(self, base_dir: str, inst_data: ConfigurableClassData | None = None) -> None:
        self._shards: OrderedDict[str, _Shard] = OrderedDict()
        self._open: dict[str, Connection] = {}
        self._tables: set[str] = set()
        self._has_index_columns = False
        # Reentrant: a batch is one transaction around what single events do.
        self._pool_lock = threading.RLock()
        super().__init__(base_dir, inst_data)
        _storages.add(self)

    @classmethod
    def config_type(cls) -> UserConfigSchema:
        """The config's fields in ``dagster.yaml``."""
        return {"base_dir": dg.Field(dg.StringSource, is_required=False)}

    @classmethod
    def from_config_value(
        cls, inst_data: ConfigurableClassData | None, config_value: Any
    ) -> "PooledSqliteEventLogStorage":
        """The storage that ``dagster.yaml`` configures.

        Raises:
            ValueError: neither ``base_dir`` nor the environment variable DAGSTER_HOME is set.
        """
        home = os.environ.get("DAGSTER_HOME")
        base_dir = config_value.get("base_dir") or (home and os.path.join(home, "history", "runs"))
        if not base_dir:
            raise ValueError(
                "event_log_storage in dagster.yaml: set base_dir in its config, or the environment "
                "variable DAGSTER_HOME."
            )
        return cls(base_dir, inst_data)

    @contextmanager
    def _connect(self, shard: str) -> Iterator[Connection]:
        """A connection to a file, in a transaction; within another use of it, the same one."""
        with self._pool_lock:
            if (open_connection := self._open.get(shard)) is not None:
                yield open_connection
                return
            engine = self._engine(shard)
            try:
                with engine.connect() as connection, connection.begin():
                    self._open[shard] = connection
                    yield connection
            except BaseException:
                # Whatever went wrong, the next use begins with a new connection.
                self._close(shard)
                raise
            finally:
                self._open.pop(shard, None)

    def store_event_batch(self, events: Sequence[EventLogEntry]) -> None:
        """Store the events of each run in one transaction for each file.

        Dagster calls it for the planned events of a run when ``DAGSTER_EVENT_BATCH_SIZE`` is set.
        """
        # One run after the other: a process that holds two runs' files could wait for another.
        for run_id, of_run in groupby(events, key=lambda event: event.run_id):
            # The run's file is committed first, as for a single event.
            with self._connect(_INDEX), self._connect(run_id):
                for event in of_run:
                    super().store_event(event)
            self._wake_watchers(run_id)

    def store_event(self, event: EventLogEntry) -> None:
        """Store an event."""
        super().store_event(event)
        self._wake_watchers(event.run_id)

    def _wake_watchers(self, run_id: str) -> None:
        # Those who wait for a run's events, such as the UI, watch its file. What is written goes to
        # the journal beside it, as long as a connection is open.
        with suppress(FileNotFoundError):
            os.utime(self.path_for_shard(run_id))

    def has_table(self, table_name: str) -> bool:
        """Whether the index has a table. One that is there is not looked for again."""
        if table_name not in self._tables and super().has_table(table_name):
            self._tables.add(table_name)
        return table_name in self._tables

    def _has_asset_key_index_cols_on_connection(self, conn: Connection) -> bool:
        # Dagster asks SQLite for each asset event; columns that are there stay.
        if not self._has_index_columns:
            self._has_index_columns = super()._has_asset_key_index_cols_on_connection(conn)
        return self._has_index_columns

    def delete_events(self, run_id: str) -> None:
        """Delete a run's events, and close its file."""
        super().delete_events(run_id)
        with self._pool_lock:
            self._close(run_id)

    def wipe(self) -> None:
        """Delete all events."""
        with self._pool_lock:
            self._close_all()
            super().wipe()

    def upgrade(self) -> None:
        """Migrate all files to this release's schema."""
        with self._pool_lock:
            super().upgrade()
            self._close_all()

    def dispose(self) -> None:
        """Close all connections; Dagster calls it when it disposes of the instance."""
        super().dispose()
        with self._pool_lock:
            self._close_all()

    def _engine(self, shard: str) -> Engine:
        path = self.path_for_shard(shard)
        known = self._shards.get(shard)
        if known is not None:
            if known.file == _file(path):
                self._shards.move_to_end(shard)
                return known.engine
            # SQLite would delete the new file's journal together with the old connection.
            _abandon(self._shards.pop(shard))
            self._initialized_dbs.discard(shard)
        if shard not in self._initialized_dbs or not os.path.exists(path):
            # On a connection of its own, since it uses two at once.
            unpooled = _create_engine(self.conn_string_for_shard(shard), NullPool)
            self._initdb(unpooled)
            self._initialized_dbs.add(shard)
        engine = _create_engine(self.conn_string_for_shard(shard), StaticPool)
        self._shards[shard] = _Shard(engine, _file(path) or (0, 0))
        unused = [name for name in self._shards if name not in (_INDEX, shard, *self._open)]
        for name in unused[: max(0, len(self._shards) - _KEPT)]:
            self._close(name)
        return engine

    def _close(self, shard: str) -> None:
        if (known := self._shards.pop(shard, None)) is None:
            return
        if known.file == _file(self.path_for_shard(shard)):
            known.engine.dispose()
        else:
            _abandon(known)

    def _close_all(self) -> None:
        for shard in list(self._shards):
            self._close(shard)

    def _before_fork(self) -> None:
        # SQLite's connections and locks must not cross a fork, not even unused.
        self._pool_lock.acquire()
        self._close_all()

    def _after_fork_in_parent(self) -> None:
        self._pool_lock.release()

    def _after_fork_in_child(self) -> None:
        # Another thread, which the child does not have, may have waited for the locks.
        self._pool_lock = threading.RLock()
        self._db_lock = threading.Lock()


def _create_engine(url: str, pool: Any) -> Engine:
    engine = db.create_engine(
        url,
        poolclass=pool,
        # Several threads use it, one after the other.
        connect_args={"timeout": _BUSY_S, "check_same_thread": False},
    )

    @db.event.listens_for(engine, "connect")
    def _configure(connection: sqlite3.Connection, _: Any) -> None:
        connection.execute("PRAGMA synchronous=NORMAL")

    return engine


def _file(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _abandon(connection: Any) -> None:
    """Keep the connection to a deleted file from being closed.

    Closing it would delete the journal of the file that now has the name.
    """
    _abandoned.append(connection)


def _before_fork() -> None:
    _forking[:] = _storages
    for storage in _forking:
        storage._before_fork()


def _after_fork_in_parent() -> None:
    for storage in reversed(_forking):
        storage._after_fork_in_parent()
    _forking.clear()


def _after_fork_in_child() -> None:
    for storage in _forking:
        storage._after_fork_in_child()
    _forking.clear()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)
