"""End to end on SQLite: a run that dies in the middle, and the ways to go on from there."""

import json
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from helpers import resumable_jobs
from helpers.runs import metadata_of, run_job, status_of
from marin_dagster import build_definitions


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where functions note that they ran."""
    file = tmp_path / "calls.txt"
    file.touch()
    monkeypatch.setenv(resumable_jobs.CALLS, str(file))
    monkeypatch.setenv(resumable_jobs.FAILING, "train")
    return file


@pytest.fixture
def sqlite() -> Iterator[dg.DagsterInstance]:
    """An instance with SQLite storage in a folder of its own."""
    with dg.instance_for_test() as instance:
        yield instance


def _names(calls: Path) -> list[str]:
    return [line.split()[0] for line in calls.read_text().splitlines()]


def test_the_train_that_dies_at_minute_35_is_resumed_where_it_died(
    calls: Path, sqlite: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run_job(build_definitions(resumable_jobs.steps), sqlite)

    assert not first.success
    evaluate, other = resumable_jobs.steps()
    (train,) = evaluate.deps
    (prep,) = train.deps
    assert first.steps("STEP_FAILURE") == ["train"]
    assert "fails at minute 35" in first.error("train")
    assert [status_of(step) for step in (prep, train, evaluate, other)] == [
        "SUCCESS",
        "FAILED",
        None,
        "SUCCESS",
    ]
    assert not Path(evaluate.output_path).exists()

    monkeypatch.delenv(resumable_jobs.FAILING)
    second = run_job(build_definitions(resumable_jobs.steps), sqlite)

    assert second.success
    names = _names(calls)
    assert {name: names.count(name) for name in names} == {
        "prep": 1,
        "other": 1,
        "train": 2,
        "evaluate": 1,
    }
    assert second.observed() == ["other", "prep"]
    assert set(second.materialized()) == {"train", "evaluate"}
    assert json.loads(Path(train.output_path, ".artifact.json").read_text())["result"] == {
        "size": 5
    }


def test_the_runs_stand_in_the_event_log_as_they_happened(
    calls: Path, sqlite: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    definitions = build_definitions(resumable_jobs.steps)
    first = run_job(definitions, sqlite)
    monkeypatch.delenv(resumable_jobs.FAILING)
    second = run_job(definitions, sqlite)
    third = run_job(definitions, sqlite)

    statuses = [sqlite.get_run_by_id(run.run_id).status for run in (first, second, third)]
    assert statuses == [
        dg.DagsterRunStatus.FAILURE,
        dg.DagsterRunStatus.SUCCESS,
        dg.DagsterRunStatus.SUCCESS,
    ]
    built_in = {}
    for name in ("prep", "train", "evaluate", "other"):
        event = sqlite.get_latest_materialization_event(dg.AssetKey(name))
        assert event is not None
        assert event.asset_materialization is not None
        assert metadata_of(event.asset_materialization)["marin/cache"] == "built"
        built_in[name] = event.run_id
    assert built_in == {
        "prep": first.run_id,
        "other": first.run_id,
        "train": second.run_id,
        "evaluate": second.run_id,
    }
    assert third.observed() == ["evaluate", "other", "prep", "train"]
    steps = {stats.step_key: stats.status for stats in sqlite.get_run_step_stats(third.run_id)}
    assert {status.value for status in steps.values()} == {"SUCCESS"}
    assert set(steps) == {"evaluate", "other", "prep", "train"}


def test_re_execution_from_failure_runs_what_failed_and_what_it_kept_from_running(
    calls: Path, sqlite: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = resumable_jobs.loadable("marin")
    with dg.execute_job(job, sqlite) as first:
        assert not first.success
    calls.write_text("")
    monkeypatch.delenv(resumable_jobs.FAILING)

    options = dg.ReexecutionOptions.from_failure(first.run_id, sqlite)
    with dg.execute_job(job, sqlite, reexecution_options=options) as second:
        assert second.success
        started = {event.step_key for event in second.all_events if event.is_step_start}

    assert _names(calls) == ["train", "evaluate"]
    assert started == {"train", "evaluate"}
    run = sqlite.get_run_by_id(second.run_id)
    assert run is not None
    assert run.parent_run_id == first.run_id


def test_re_execution_from_failure_leaves_pruned_and_served_steps_out(
    calls: Path, sqlite: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = resumable_jobs.loadable("marin")
    monkeypatch.delenv(resumable_jobs.FAILING)
    with dg.execute_job(job, sqlite) as built:
        assert built.success
    evaluate, other = resumable_jobs.steps()
    (train,) = evaluate.deps
    (prep,) = train.deps
    for step in (prep, other, evaluate):
        Path(step.output_path, ".executor_status").unlink()
    monkeypatch.setenv(resumable_jobs.FAILING, "evaluate")
    with dg.execute_job(job, sqlite) as failed:
        assert not failed.success
    calls.write_text("")
    monkeypatch.delenv(resumable_jobs.FAILING)

    options = dg.ReexecutionOptions.from_failure(failed.run_id, sqlite)
    with dg.execute_job(job, sqlite, reexecution_options=options) as again:
        assert again.success
        touched = {event.step_key for event in again.all_events if event.step_key}

    assert _names(calls) == ["evaluate"]
    assert touched == {"evaluate"}


def test_re_execution_from_failure_takes_up_what_was_blocked_once_its_input_is_there(
    calls: Path, sqlite: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(resumable_jobs.FAILING)
    job = resumable_jobs.loadable("marin")
    below = frozenset({dg.AssetKey("train"), dg.AssetKey("evaluate")})
    part = job.get_subset(asset_selection=below, asset_check_selection=frozenset())
    with dg.execute_job(part, sqlite) as blocked:
        assert not blocked.success
    with dg.execute_job(job, sqlite, asset_selection=[dg.AssetKey("prep")]) as built:
        assert built.success
    calls.write_text("")

    options = dg.ReexecutionOptions.from_failure(blocked.run_id, sqlite)
    with dg.execute_job(job, sqlite, reexecution_options=options) as again:
        assert again.success

    assert _names(calls) == ["train", "evaluate"]


def test_a_pruned_step_may_stay_pruned_when_a_run_is_executed_again_in_whole(
    calls: Path, sqlite: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(resumable_jobs.FAILING)
    job = resumable_jobs.loadable("marin")
    with dg.execute_job(job, sqlite) as built:
        assert built.success
    evaluate, _ = resumable_jobs.steps()
    (train,) = evaluate.deps
    Path(train.output_path, ".executor_status").unlink()
    calls.write_text("")

    with dg.execute_job(
        job, sqlite, reexecution_options=dg.ReexecutionOptions(parent_run_id=built.run_id)
    ) as again:
        assert again.success
        skipped = [event.step_key for event in again.all_events if event.is_step_skipped]

    assert skipped == ["train"]
    assert _names(calls) == []
