"""After a run of which part fails, Dagster calls failed what has failed, and nothing else."""

import shutil
from typing import Any

import dagster as dg
import pytest

from helpers.runs import Recorder, run_job
from marin_dagster import DagsterMarinTranslator, StepLike, StepRunner, StepSpec, build_definitions
from marin_dagster.errors import StepsFailedError


class WatchingTranslator(DagsterMarinTranslator):
    """Each asset's automation fires when Dagster calls the asset failed."""

    def get_asset_spec(self, step: StepLike) -> dg.AssetSpec:
        condition = dg.AutomationCondition.execution_failed()
        return super().get_asset_spec(step).replace_attributes(automation_condition=condition)


def _definitions(*steps: Any) -> dg.Definitions:
    return build_definitions(steps, translator=WatchingTranslator())


def _failed(definitions: dg.Definitions, instance: dg.DagsterInstance) -> list[str]:
    """The assets that Dagster's automation takes for failed, by the rule that the UI has, too."""
    found = dg.evaluate_automation_conditions(definitions, instance)
    return sorted(
        result.key.to_user_string() for result in found.results if result.true_subset.size
    )


def _planned_by(instance: dg.DagsterInstance, name: str) -> str:
    plan = instance.event_log_storage.get_latest_planned_materialization_info(dg.AssetKey(name))
    assert plan
    return plan.run_id


@pytest.fixture
def definitions(recorder: Recorder, instance: dg.DagsterInstance) -> dg.Definitions:
    """``gone`` -> ``done`` -> ``broken`` -> ``below``, and ``other`` beside them.

    ``done`` and ``other`` are in the cache, and ``gone`` was, too.
    """
    gone = recorder.step("gone")
    done = recorder.step("done", gone)
    made = _definitions(
        recorder.step("below", recorder.step("broken", done, fails=True)), recorder.step("other")
    )
    assert run_job(made, instance, select=["gone", "done", "other"]).success
    shutil.rmtree(gone.output_path)
    return made


def test_what_was_pruned_or_served_has_not_failed_with_the_run(
    definitions: dg.Definitions, instance: dg.DagsterInstance
) -> None:
    run = run_job(definitions, instance)

    assert not run.success
    assert list(run.skipped()) == ["gone"]
    assert run.observed() == ["done", "other"]
    assert run.steps("STEP_FAILURE") == ["broken"]
    assert _failed(definitions, instance) == ["below", "broken"]
    # The latest materializations are the true builds, as ever.
    for name in ("gone", "done", "other"):
        event = instance.get_latest_materialization_event(dg.AssetKey(name))
        assert event
        assert event.run_id != run.run_id


def test_a_pruned_asset_that_was_never_built_here_has_not_failed(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    unseen = recorder.step("unseen")
    ready = recorder.step("ready", unseen)
    ready_alone = build_definitions([ready])
    assert run_job(ready_alone, instance).success
    shutil.rmtree(unseen.output_path)
    definitions = _definitions(ready, recorder.step("broken", fails=True))
    with dg.DagsterInstance.ephemeral() as elsewhere:
        run = run_job(definitions, elsewhere, config={"max_concurrent": 1})

        assert list(run.skipped()) == ["unseen"]
        assert elsewhere.get_latest_materialization_event(dg.AssetKey("unseen")) is None
        assert _failed(definitions, elsewhere) == ["broken"]


def test_the_same_holds_when_nothing_could_start(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    missing = recorder.step("missing")
    definitions = _definitions(recorder.step("blocked", missing), recorder.step("other"))
    assert run_job(definitions, instance, select=["other"]).success

    run = run_job(definitions, instance, select=["blocked", "other"])

    assert run.observed() == ["other"]
    assert recorder.take() == ["other"]
    assert _failed(definitions, instance) == ["blocked"]


def test_a_plan_of_another_run_stays(recorder: Recorder, instance: dg.DagsterInstance) -> None:
    def plan_elsewhere(output_path: str) -> None:
        job = definitions.resolve_job_def("materialize_steps")
        later.append(instance.create_run_for_job(job_def=job).run_id)
        raise RuntimeError("fails on purpose")

    later: list[str] = []
    other = recorder.step("other")
    definitions = _definitions(StepSpec("broken", fn=plan_elsewhere), other)
    assert run_job(definitions, instance, select=["other"]).success

    assert not run_job(definitions, instance).success

    assert _planned_by(instance, "other") == later[0]


def test_a_run_that_succeeds_keeps_its_plans(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    definitions = _definitions(recorder.step("raw"))
    assert run_job(definitions, instance).success

    run = run_job(definitions, instance)

    assert run.observed() == ["raw"]
    assert _planned_by(instance, "raw") == run.run_id
    assert _failed(definitions, instance) == []


def test_what_fails_in_a_later_run_is_marked_although_it_was_left_alone_before(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    def build(output_path: str) -> None:
        if broken_now:
            raise RuntimeError("fails on purpose")

    broken_now: list[bool] = []
    fickle = StepSpec("fickle", fn=build)
    definitions = _definitions(fickle, recorder.step("broken", fails=True))
    assert run_job(definitions, instance, select=["fickle"]).success
    assert not run_job(definitions, instance).success
    assert _failed(definitions, instance) == ["broken"]

    broken_now.append(True)
    assert not run_job(definitions, instance, config={"force": ["fickle"]}).success

    assert _failed(definitions, instance) == ["broken", "fickle"]


def test_the_step_runner_marks_only_what_failed(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    steps = [recorder.step("other"), recorder.step("broken", fails=True)]
    runner = StepRunner(instance=instance)
    runner.run(steps[:1])

    with pytest.raises(StepsFailedError):
        runner.run(steps)

    assert _failed(_definitions(*steps), instance) == ["broken"]
