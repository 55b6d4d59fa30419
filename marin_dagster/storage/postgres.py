"""``PooledPostgresEventLogStorage``: Dagster's event log in PostgreSQL, with connections kept."""

import os
from collections.abc import Mapping
from typing import Any
from weakref import WeakSet

import sqlalchemy as db
from sqlalchemy.engine import Engine

from marin_dagster._compat import ConfigurableClassData

try:
    from dagster_postgres import utils
    from dagster_postgres.event_log import PostgresEventLogStorage
except ImportError as error:
    raise ImportError(
        "PooledPostgresEventLogStorage needs dagster-postgres: "
        "pip install 'marin-dagster[postgres]'"
    ) from error

_POOL: Mapping[str, Any] = {
    # As in Dagster. No state of a session outlives a statement, so a proxy that pools
    # transactions, such as PgBouncer, may stand before the server.
    "isolation_level": "AUTOCOMMIT",
    "pool_size": 2,
    # For threads that write at the same moment; these connections are closed again.
    "max_overflow": 30,
    # The server or a proxy may have closed a connection in the meantime.
    "pool_pre_ping": True,
    "pool_recycle": 300,
}
_storages: "WeakSet[PooledPostgresEventLogStorage]" = WeakSet()


class PooledPostgresEventLogStorage(PostgresEventLogStorage):
    """Dagster's event log in PostgreSQL, with up to two connections of a process kept open.

    Reads and writes the tables of Dagster's ``PostgresEventLogStorage`` and has its config. In
    ``dagster.yaml``, beside the entries of the run and schedule storages::

        event_log_storage:
          module: marin_dagster.storage
          class: PooledPostgresEventLogStorage
          config:
            postgres_url: {env: DAGSTER_POSTGRES_URL}

    A connection is tested before each use, so a server that restarts is connected to again.

    Args:
        postgres_url: the database.
        should_autocreate_tables: whether missing tables are made.
        inst_data: how Dagster constructs the storage again in another process.
        token_provider: see dagster-postgres; releases before 0.29 have none.
    """

    def __init__(
        self,
        postgres_url: str,
        should_autocreate_tables: bool = True,
        inst_data: ConfigurableClassData | None = None,
        token_provider: Any = None,
    ) -> None:
        provider = {"token_provider": token_provider} if token_provider is not None else {}
        super().__init__(postgres_url, should_autocreate_tables, inst_data, **provider)
        self._provider = token_provider
        self._engine = _create_engine(postgres_url, token_provider)
        _storages.add(self)

    @classmethod
    def from_config_value(
        cls, inst_data: ConfigurableClassData | None, config_value: Mapping[str, Any]
    ) -> "PooledPostgresEventLogStorage":
        """The storage that ``dagster.yaml`` configures."""
        provider_of = getattr(utils, "get_token_provider_from_config", lambda _: None)
        return cls(
            utils.pg_url_from_config(config_value),
            config_value.get("should_autocreate_tables", True),
            inst_data,
            provider_of(config_value),
        )

    def optimize_for_webserver(
        self, statement_timeout: int, pool_recycle: int, max_overflow: int
    ) -> None:
        """Keep the connections with the webserver's settings; it calls this when it starts.

        Args:
            statement_timeout: milliseconds after which the server ends a statement.
            pool_recycle: seconds after which a connection is replaced.
            max_overflow: connections beside those that are kept.
        """
        self._engine.dispose()
        self._engine = _create_engine(
            self.postgres_url,
            self._provider,
            pool_recycle=pool_recycle,
            max_overflow=max_overflow,
        )
        db.event.listen(
            self._engine,
            "connect",
            lambda connection, _: utils.set_pg_statement_timeout(connection, statement_timeout),
        )

    def dispose(self) -> None:
        """Close all connections; Dagster calls it when it disposes of the instance."""
        super().dispose()
        self._engine.dispose()

    def _after_fork(self) -> None:
        # The parent still uses its connections: the child must not close them.
        self._engine.dispose(close=False)


def _create_engine(url: str, token_provider: Any, **pool: Any) -> Engine:
    if token_provider is None:
        return db.create_engine(url, **{**_POOL, **pool})
    engine: Engine = utils.create_pg_engine(url, token_provider, **{**_POOL, **pool})
    return engine


def _after_fork_in_child() -> None:
    for storage in list(_storages):
        storage._after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)
