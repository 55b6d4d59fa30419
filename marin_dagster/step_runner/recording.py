"""Which Dagster instance records the runs of a script."""

import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dagster as dg

_opening = threading.Lock()


def keeps_records(given: dg.DagsterInstance | None) -> bool:
    """Whether records stay after the call: in the given instance, or that of DAGSTER_HOME."""
    return given is not None or bool(os.environ.get("DAGSTER_HOME"))


@contextmanager
def recording(given: dg.DagsterInstance | None) -> Iterator[dg.DagsterInstance]:
    """The given instance, else that of DAGSTER_HOME, else a temporary one."""
    if given is not None:
        yield given
    elif keeps_records(given):
        # One thread at a time: the first to open a new home sets it up.
        with _opening:
            opened = dg.DagsterInstance.get()
            opened.get_runs_count()
        with opened as instance:
            yield instance
    else:
        with temporary_instance() as instance:
            yield instance


@contextmanager
def temporary_instance() -> Iterator[dg.DagsterInstance]:
    """An instance for one call."""
    # On disk: not every release's instance in memory can be used from several threads.
    with (
        tempfile.TemporaryDirectory(prefix="marin-dagster-") as folder,
        dg.DagsterInstance.local_temp(folder, _fast_storage(folder)) as instance,
    ):
        yield instance


def would_fail_runs(instance: dg.DagsterInstance) -> bool:
    """Whether the instance's daemon marks runs as failed whose worker its launcher did not start.

    Such as those of a script: run monitoring asks the launcher about every started run.
    """
    launcher = instance.run_launcher
    return bool(instance.run_monitoring_enabled and launcher.supports_check_run_worker_health)


def _fast_storage(folder: str) -> dict[str, Any]:
    # By name, as in dagster.yaml: Dagster imports it, and SQLAlchemy with it, with the instance.
    return {
        "event_log_storage": {
            "module": "marin_dagster.storage",
            "class": "PooledSqliteEventLogStorage",
            "config": {"base_dir": os.path.join(folder, "events")},
        }
    }
