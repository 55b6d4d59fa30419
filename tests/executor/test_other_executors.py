"""The same assets under Dagster's own executors: no pruning, but nothing is built twice."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from helpers import resumable_jobs
from helpers.runs import is_locked, metadata_of, status_of


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where functions note that they ran."""
    file = tmp_path / "calls.txt"
    file.touch()
    monkeypatch.setenv(resumable_jobs.CALLS, str(file))
    monkeypatch.delenv(resumable_jobs.FAILING, raising=False)
    return file


@pytest.fixture
def sqlite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dg.DagsterInstance]:
    """An instance that other processes can open, too."""
    home = tmp_path / "dagster"
    home.mkdir()
    (home / "dagster.yaml").write_text("telemetry:\n  enabled: false\n")
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    with dg.DagsterInstance.get() as instance:
        yield instance


def _names(calls: Path) -> list[str]:
    return [line.split()[0] for line in calls.read_text().splitlines()]


def _processes(calls: Path) -> set[int]:
    return {int(line.split()[1]) for line in calls.read_text().splitlines()}


def _cache_says(result: dg.JobExecutionResult) -> dict[str, str]:
    return {
        event.asset_key.to_user_string(): metadata_of(
            event.step_materialization_data.materialization
        )["marin/cache"]
        for event in result.all_events
        if event.event_type_value == "ASSET_MATERIALIZATION" and event.asset_key
    }


def test_under_the_in_process_executor_the_cache_is_honoured(
    calls: Path, sqlite: dg.DagsterInstance
) -> None:
    job = resumable_jobs.loadable("in process")

    with dg.execute_job(job, sqlite) as first:
        assert first.success
        assert set(_cache_says(first).values()) == {"built"}
    with dg.execute_job(job, sqlite) as second:
        assert second.success
        assert _cache_says(second) == dict.fromkeys(("prep", "train", "evaluate", "other"), "hit")

    assert sorted(_names(calls)) == ["evaluate", "other", "prep", "train"]


def test_under_the_multiprocess_executor_the_cache_is_honoured(
    calls: Path, sqlite: dg.DagsterInstance
) -> None:
    job = resumable_jobs.loadable("multiprocess")
    prep, train = dg.AssetKey("prep"), dg.AssetKey("train")

    with dg.execute_job(job, sqlite, asset_selection=[prep, train]) as first:
        assert first.success
        assert _cache_says(first) == {"prep": "built", "train": "built"}
    with dg.execute_job(job, sqlite, asset_selection=[train]) as second:
        assert second.success
        assert _cache_says(second) == {"train": "hit"}

    assert _names(calls) == ["prep", "train"]
    assert len(_processes(calls) - {os.getpid()}) == 2


def test_a_step_that_fails_under_the_in_process_executor_is_marked_and_releases_its_lock(
    calls: Path, sqlite: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(resumable_jobs.FAILING, "train")

    with dg.execute_job(resumable_jobs.loadable("in process"), sqlite) as result:
        assert not result.success

    evaluate, other = resumable_jobs.steps()
    (train,) = evaluate.deps
    assert sorted(_names(calls)) == ["other", "prep", "train"]
    assert status_of(train) == "FAILED"
    assert not is_locked(train)
    assert status_of(other) == "SUCCESS"
    assert not Path(evaluate.output_path).exists()


@pytest.mark.parametrize(
    ("way", "warnings"), [("in process", 1), ("multiprocess", 1), ("marin", 0)]
)
def test_a_run_under_another_executor_warns_once(
    way: str, warnings: int, calls: Path, sqlite: dg.DagsterInstance
) -> None:
    keys = [dg.AssetKey("prep"), dg.AssetKey("train")]
    with dg.execute_job(resumable_jobs.loadable(way), sqlite, asset_selection=keys) as result:
        assert result.success

    logged = sqlite.all_logs(result.run_id)
    warned = [entry.user_message for entry in logged if entry.level == logging.WARNING]
    assert len(warned) == warnings
    for message in warned:
        assert "executor=marin_executor" in message
        assert "neither force nor runners" in message


def test_what_one_executor_built_another_serves(calls: Path, sqlite: dg.DagsterInstance) -> None:
    with dg.execute_job(resumable_jobs.loadable("in process"), sqlite) as built:
        assert built.success

    with dg.execute_job(resumable_jobs.loadable("marin"), sqlite) as served:
        assert served.success
        observed = [
            event.step_key
            for event in served.all_events
            if event.event_type_value == "ASSET_OBSERVATION"
        ]

    assert sorted(observed) == ["evaluate", "other", "prep", "train"]
    assert len(_names(calls)) == 4


def test_a_step_asked_for_alone_whose_input_is_missing_fails_under_any_executor(
    calls: Path, sqlite: dg.DagsterInstance
) -> None:
    with dg.execute_job(
        resumable_jobs.loadable("in process"),
        sqlite,
        asset_selection=[dg.AssetKey("train")],
    ) as result:
        assert not result.success
        (failure,) = result.get_step_failure_events()

    (train,) = resumable_jobs.steps()[0].deps
    assert "DependencyNotBuiltError" in str(failure.step_failure_data.error)
    assert _names(calls) == []
    assert not Path(train.output_path).exists()
