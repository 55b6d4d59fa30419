"""``StepRunner`` where nothing must run: no job and no run, and what an instance learns."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.launcher import CheckRunHealthResult, DefaultRunLauncher, WorkerStatus

from helpers.runs import Recorder, run_job, status_of
from marin_dagster import StepRunner, StepSpec, build_definitions
from marin_dagster.errors import StepsFailedError
from marin_dagster.step_runner import runner_call


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    (tmp_path / "dagster").mkdir()
    with dg.DagsterInstance.local_temp(str(tmp_path / "dagster")) as found:
        yield found


@pytest.fixture
def no_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever starts Dagster's machinery fails."""

    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("started a run")

    monkeypatch.setattr(runner_call, "build_definitions", fail)
    monkeypatch.setattr(dg.DagsterInstance, "local_temp", fail)
    monkeypatch.setattr(dg.DagsterInstance, "create_run_for_job", fail)


def built(recorder: Recorder) -> list[StepSpec]:
    raw = recorder.step("raw")
    clean = recorder.step("clean", raw)
    steps = [clean, recorder.step("model", clean, result={"loss": 0.5})]
    StepRunner().run(steps)
    recorder.take()
    return steps


def versions(instance: dg.DagsterInstance) -> dict[str, str]:
    return {
        record.asset_entry.asset_key.to_user_string(): (
            record.asset_entry.last_materialization.tags or {}
        )["dagster/data_version"]
        for record in instance.get_asset_records()
        if record.asset_entry.last_materialization
    }


@pytest.mark.parametrize("removed", [[], ["raw"]])
def test_cached_steps_start_no_run(
    removed: list[str],
    recorder: Recorder,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    steps = built(recorder)
    for name in removed:
        (path,) = [dep.output_path for dep in steps[0].deps if dep.name == name]
        shutil.rmtree(path)
    request.getfixturevalue("no_runs")

    results = StepRunner().run(steps)

    assert recorder.take() == []
    assert results["model"].result == {"loss": 0.5}
    expected = "all 3 steps are cached" if not removed else "2 steps are cached, and nothing needs"
    assert f"Nothing to run: {expected}" in capsys.readouterr().err


def test_an_instance_gets_what_it_does_not_know_and_no_run(
    recorder: Recorder, instance: dg.DagsterInstance, request: pytest.FixtureRequest
) -> None:
    steps = built(recorder)
    request.getfixturevalue("no_runs")

    StepRunner(instance=instance).run(steps)

    assert instance.get_runs() == []
    expected = {
        "raw": steps[0].deps[0].hash_id,
        "clean": steps[0].hash_id,
        "model": steps[1].hash_id,
    }
    assert {name: version[-8:] for name, version in versions(instance).items()} == expected
    event = instance.get_latest_materialization_event(dg.AssetKey("model"))
    assert event
    assert event.asset_materialization
    metadata = event.asset_materialization.metadata
    assert metadata["marin/cache"].value == "hit"
    assert metadata["loss"].value == 0.5

    StepRunner(instance=instance).run(steps)

    for name in expected:
        records = instance.fetch_materializations(dg.AssetKey(name), limit=10).records
        assert len(records) == 1  # known by now


def test_a_run_afterwards_knows_the_outputs(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    steps = built(recorder)
    StepRunner(instance=instance).run(steps)

    run = run_job(build_definitions(steps), instance)

    assert run.success
    assert [event for event in run.events if event.is_step_materialization] == []


def test_one_step_that_must_run_is_a_run(recorder: Recorder, instance: dg.DagsterInstance) -> None:
    steps = built(recorder)
    StepRunner(instance=instance).run([*steps, recorder.step("new")])
    assert len(instance.get_runs()) == 1
    assert recorder.take() == ["new"]


def test_a_failed_step_is_a_run(recorder: Recorder, instance: dg.DagsterInstance) -> None:
    (step,) = steps = [recorder.step("step")]
    StepRunner().run(steps)
    Path(step.output_path, ".executor_status").write_text("FAILED")
    recorder.take()
    StepRunner(instance=instance).run(steps)
    assert recorder.take() == ["step"]
    assert status_of(step) == "SUCCESS"


class CheckingLauncher(DefaultRunLauncher):
    """A launcher that knows only the workers that it has started, as in Kubernetes."""

    @property
    def supports_check_run_worker_health(self) -> bool:
        return True

    def check_run_worker_health(self, run: dg.DagsterRun) -> CheckRunHealthResult:
        return CheckRunHealthResult(WorkerStatus.NOT_FOUND, "no such job")


def test_run_monitoring_finds_no_run_to_mark_as_failed(recorder: Recorder, tmp_path: Path) -> None:
    (tmp_path / "dagster").mkdir()
    overrides = {
        "run_monitoring": {"enabled": True},
        "run_launcher": {"module": __name__, "class": "CheckingLauncher"},
    }
    with dg.DagsterInstance.local_temp(str(tmp_path / "dagster"), overrides) as instance:
        seen: list[int] = []
        step = StepSpec("step", fn=lambda _: seen.append(len(instance.get_runs())))
        broken = recorder.step("broken", fails=True)

        with pytest.raises(StepsFailedError):
            StepRunner(instance=instance).run([step, broken])

        assert seen == [0]
        assert instance.get_runs() == []
        assert list(versions(instance)) == ["step"]


@pytest.mark.usefixtures("no_runs")
def test_a_dry_run_starts_no_run(
    recorder: Recorder, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = recorder.step("raw")
    StepRunner().run([recorder.step("clean", raw)], dry_run=True)
    lines = [line for line in capsys.readouterr().err.splitlines() if "Dry run" in line]
    assert [line.partition(" -> ")[0] for line in lines] == [
        f"Dry run: would run: {raw.name_with_hash}",
        f"Dry run: would run: {recorder.step('clean', raw).name_with_hash}",
    ]
    assert not store.exists()


def test_a_dry_run_reports_what_a_dry_run_in_dagster_does(
    recorder: Recorder, instance: dg.DagsterInstance, capsys: pytest.CaptureFixture[str]
) -> None:
    def graph(size: int) -> list[StepSpec]:
        raw = recorder.step("raw", hash_attrs={"size": size})
        clean = recorder.step("clean", raw)
        other = recorder.step("other")
        external = StepSpec("dump")
        return [recorder.step("model", clean, other), recorder.step("reads", external)]

    StepRunner(instance=instance).run(graph(1)[:1])
    shutil.rmtree(graph(1)[0].deps[0].output_path)
    for size in (1, 2):
        run = run_job(build_definitions(graph(size)), instance, config={"dry_run": True})
        expected = [
            event.message for event in run.events if (event.message or "").startswith("Dry run: ")
        ]
        capsys.readouterr()

        StepRunner(instance=instance).run(graph(size), dry_run=True)

        found = capsys.readouterr().err.splitlines()
        assert sorted(line for line in found if line.startswith("Dry run: ")) == sorted(expected)
