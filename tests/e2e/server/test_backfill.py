"""Dagster's own backfill daemon over steps that are cached and a daily asset below them."""

import logging
import runpy
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill
from dagster._core.test_utils import create_test_daemon_workspace_context
from dagster._core.workspace.load_target import PythonFileTarget
from dagster._daemon.backfill import execute_backfill_iteration

from helpers.runs import run_job

LOCATION = Path(__file__).with_name("backfill_location.py")
KEYS = [dg.AssetKey(name) for name in ("raw", "corpus", "counted")]
DEADLINE_S = 300
"""Guard against a hang."""


@pytest.fixture
def instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dg.DagsterInstance]:
    """An instance whose runs start in processes of their own, without a queue."""
    home = tmp_path / "dagster"
    home.mkdir()
    (home / "dagster.yaml").write_text(
        "telemetry: {enabled: false}\n"
        "run_coordinator: {module: dagster._core.run_coordinator, class: DefaultRunCoordinator}\n"
    )
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    with dg.DagsterInstance.get() as made:
        yield made


def backfill(instance: dg.DagsterInstance) -> BulkActionStatus:
    """Backfill every asset, as the UI asks for it; how the backfill has ended."""
    target = PythonFileTarget(str(LOCATION), None, None, "steps")
    with create_test_daemon_workspace_context(target, instance) as workspace:
        asked = PartitionBackfill.from_asset_partitions(
            backfill_id="everything",
            asset_graph=workspace.create_request_context().asset_graph,
            partition_names=None,
            asset_selection=KEYS,
            backfill_timestamp=time.time(),
            tags={},
            dynamic_partitions_store=instance,
            all_partitions=True,
            title=None,
            description=None,
            run_config=None,
        )
        instance.add_backfill(asked)
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            errors = execute_backfill_iteration(workspace, logging.getLogger("backfill"))
            assert [error for error in errors if error] == []
            found = instance.get_backfill(asked.backfill_id)
            assert found is not None
            if found.status is not BulkActionStatus.REQUESTED:
                return found.status
            time.sleep(0.2)
    raise AssertionError("the backfill has not ended")


@pytest.mark.parametrize("gone", [False, True], ids=["cached", "its input is removed"])
def test_a_backfill_counts_cached_steps_and_goes_on_below_them(
    gone: bool, instance: dg.DagsterInstance
) -> None:
    location = runpy.run_path(str(LOCATION))
    assert run_job(location["defs"], instance).success
    if gone:
        shutil.rmtree(location["raw"].output_path)

    assert backfill(instance) is BulkActionStatus.COMPLETED_SUCCESS

    counted = instance.get_materialized_partitions(KEYS[-1])
    assert counted == set(location["DAYS"])
