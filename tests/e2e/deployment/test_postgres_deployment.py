"""Runs in a deployment with PostgreSQL, a queue, pools, a daemon and two code locations."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
import steps_location
from dagster_deployment import Deployment, by_step, running_deployment
from process_launcher import PROCESS
from steps_location import NOTES, POOLS

from helpers.processes import wait_until
from helpers.runs import metadata_of, run_job

SHORT_LEASE = {"lease_refresh_s": 0.5, "lease_stale_s": 5, "lease_poll_s": 0.1}
"""So that who takes over from a killed worker need not wait for long."""


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory, postgres: str) -> Iterator[Deployment]:
    with running_deployment(tmp_path_factory.mktemp("deployment"), postgres) as running:
        yield running


def test_the_first_run_builds_the_second_is_served_and_the_event_log_is_that_of_sqlite(
    deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = deployment.run("summary_job"), deployment.run("summary_job")

    steps = ["clean", "raw", "summary"]
    assert deployment.calls(*steps) == {"raw": 1, "clean": 1, "summary": 1}
    assert deployment.steps(first, "ASSET_MATERIALIZATION") == steps
    assert deployment.steps(second, "ASSET_MATERIALIZATION") == []
    assert deployment.steps(second, "ASSET_OBSERVATION") == steps
    event = deployment.instance.get_latest_materialization_event(dg.AssetKey("summary"))
    assert event is not None
    assert event.asset_materialization is not None
    assert event.run_id == first
    assert event.asset_materialization.tags is not None
    hash_id = deployment.output("summary").name.removeprefix("summary_")
    assert event.asset_materialization.tags["dagster/data_version"] == hash_id
    metadata = metadata_of(event.asset_materialization)
    assert metadata["marin/cache"] == "built"
    assert metadata["marin/output_path"] == str(deployment.output("summary"))
    assert metadata["total"] == 7

    monkeypatch.setenv(NOTES, str(tmp_path))
    with dg.instance_for_test() as sqlite:
        for run_id in (first, second):
            local = run_job(steps_location.defs(), sqlite, job="summary_job")
            assert local.success
            stored = [entry.dagster_event for entry in sqlite.all_logs(local.run_id)]
            expected = by_step([event for event in stored if event is not None])
            assert by_step(deployment.events(run_id)) == expected
    assert type(deployment.instance.event_log_storage).__name__ == "PostgresEventLogStorage"


def test_ordinary_assets_beside_the_steps_and_in_another_location_read_them(
    deployment: Deployment,
) -> None:
    # As the UI's Materialize: under the executor that the other definitions brought along.
    page = deployment.run("__ASSET_JOB", assets=["summary", "dashboard"])
    deployment.run("report_job", "reports")

    assert deployment.calls("summary") == {"summary": 1}
    assert deployment.steps(page, "STEP_SUCCESS") == ["dashboard", "summary"]
    assert "Executing steps in process" in deployment.story(page)
    assert deployment.value("dashboard") == "7 in all"
    assert deployment.value("report") == "summary"
    assert deployment.stale("dashboard", "report") == {"dashboard": "FRESH", "report": "FRESH"}


def test_a_retry_policy_runs_a_failed_step_again(deployment: Deployment) -> None:
    run_id = deployment.run("patient_job")

    assert deployment.steps(run_id, "STEP_UP_FOR_RETRY") == ["flaky"]
    assert deployment.steps(run_id, "STEP_RESTARTED") == ["flaky"]
    assert deployment.calls("flaky_before", "flaky", "flaky_after") == {
        "flaky_before": 1,
        "flaky": 2,
        "flaky_after": 1,
    }


def test_a_run_is_retried_by_the_daemon_and_by_hand_from_what_failed(
    deployment: Deployment,
) -> None:
    failed = deployment.launch("broken_job", tags={"dagster/max_retries": "1"})
    assert deployment.server.wait(failed) == "FAILURE", deployment.story(failed)
    assert deployment.steps(failed, "STEP_SUCCESS") == ["broken_before", "broken_beside"]
    wait_until(lambda: deployment.children(failed), "the daemon's run", every_s=0.25)
    [retry] = deployment.children(failed)
    assert deployment.server.wait(retry) == "FAILURE", deployment.story(retry)
    assert deployment.status_of("broken") == "FAILED"

    by_hand = deployment.server.reexecute(retry)

    assert deployment.server.wait(by_hand) == "SUCCESS", deployment.story(by_hand)
    assert set(by_step(deployment.events(retry))) == {"broken", "broken_after"}
    assert set(by_step(deployment.events(by_hand))) == {"broken", "broken_after"}
    assert deployment.calls("broken_before", "broken", "broken_after", "broken_beside") == {
        "broken_before": 1,
        "broken": 3,
        "broken_after": 1,
        "broken_beside": 1,
    }


def test_a_terminated_run_gives_its_lease_and_its_slot_back(deployment: Deployment) -> None:
    pool = POOLS["pooled"]
    run_id = deployment.launch("pooled_job", tags={PROCESS: "yes"})
    wait_until(lambda: deployment.calls("pooled")["pooled"], "the step to start")
    assert deployment.is_locked("pooled")
    following = deployment.launch("next_pooled_job")
    assert deployment.slots(pool) == 1

    deployment.server.terminate(run_id)

    assert deployment.server.wait(run_id) == "CANCELED"
    assert deployment.status_of("pooled") == "FAILED"
    assert not deployment.is_locked("pooled")
    assert deployment.server.wait(following) == "SUCCESS"
    assert deployment.slots(pool) == 0


def kill_worker(deployment: Deployment, run_id: str, step: str, calls: int) -> None:
    """Kill the run's worker when the step was called so often."""
    wait_until(lambda: deployment.calls(step)[step] == calls, f"call {calls} of {step}")
    os.kill(deployment.worker(run_id), signal.SIGKILL)


def launch_process(deployment: Deployment, job: str, *, force: bool = False) -> str:
    """Launch a run with a worker of its own, and leases that run out soon."""
    config = {
        "resources": {"marin_io_manager": {"config": SHORT_LEASE}},
        "execution": {"config": {"force": force}},
    }
    return deployment.launch(job, tags={PROCESS: "yes"}, config=config)


def test_a_run_whose_worker_was_killed_is_resumed_and_takes_the_interrupted_step_over(
    deployment: Deployment,
) -> None:
    # Forced, so that not only the cache must know what the first worker has finished.
    run_id = launch_process(deployment, "killed_job", force=True)
    finished = ["killed_before", "killed_beside"]
    wait_until(lambda: deployment.steps(run_id, "STEP_SUCCESS") == finished, "both", every_s=0.25)

    kill_worker(deployment, run_id, "killed", 1)
    wait_until(lambda: deployment.calls("killed") == {"killed": 2}, "the step to start again")
    deployment.let_go("killed")

    assert deployment.server.wait(run_id) == "SUCCESS", deployment.story(run_id)
    assert deployment.calls("killed_before", "killed_beside", "killed_after") == {
        "killed_before": 1,
        "killed_beside": 1,
        "killed_after": 1,
    }
    built = deployment.steps(run_id, "ASSET_MATERIALIZATION")
    assert built == ["killed", "killed_after", "killed_before", "killed_beside"]
    assert not deployment.is_locked("killed")
    assert deployment.slots(POOLS["killed"]) == 0


def test_after_a_run_that_cannot_be_resumed_the_next_one_finishes_by_itself(
    deployment: Deployment,
) -> None:
    run_id = launch_process(deployment, "lost_job")
    kill_worker(deployment, run_id, "lost", 1)
    kill_worker(deployment, run_id, "lost", 2)
    assert deployment.server.wait(run_id) == "FAILURE"
    assert deployment.status_of("lost") == "RUNNING"
    assert deployment.is_locked("lost")
    deployment.let_go("lost")

    run_id = launch_process(deployment, "lost_job")

    assert deployment.server.wait(run_id) == "SUCCESS", deployment.story(run_id)
    assert deployment.calls("lost_before", "lost", "lost_after") == {
        "lost_before": 1,
        "lost": 3,
        "lost_after": 1,
    }
    assert deployment.slots(POOLS["lost"]) == 0
