"""The asset check ``cache_integrity``, in runs."""

import json
import logging
import shutil
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import dagster as dg
import pytest

from helpers.runs import JOB, Recorder, Run, run_job
from helpers.sensor_ticks import Watch
from marin_dagster import (
    MarinIOManager,
    StepSpec,
    build_definitions,
    build_marin_assets,
    build_marin_checks,
    marin_executor,
)
from marin_dagster._compat import InMemoryJob, execute_run
from marin_dagster.lazy import OUT, apply

EVERYTHING = "__ASSET_JOB"
"""The job behind the UI's Materialize and Execute buttons."""

Evaluations = dict[str, dg.AssetCheckEvaluation]


def evaluations(run: Run) -> Evaluations:
    """The results of a run's checks by asset key."""
    found = [
        event.event_specific_data
        for event in run.events
        if event.event_type_value == "ASSET_CHECK_EVALUATION"
    ]
    return {evaluation.asset_key.to_user_string(): evaluation for evaluation in found}


def run_checks(
    definitions: dg.Definitions,
    instance: dg.DagsterInstance,
    *keys: str,
    assets: Iterable[str] = (),
) -> Run:
    """A run of the checks of some assets, as the UI's Execute starts it, and of other assets."""
    selected = {dg.AssetKey.from_user_string(key) for key in assets}
    checks = {
        dg.AssetCheckKey(dg.AssetKey.from_user_string(key), "cache_integrity") for key in keys
    }
    job = definitions.resolve_job_def(EVERYTHING)
    job = job.get_subset(asset_selection=selected, asset_check_selection=checks)
    recorded = instance.create_run_for_job(job_def=job)
    result = execute_run(InMemoryJob(job), recorded, instance, raise_on_error=False)
    return Run(result.success, list(result.all_events), recorded.run_id)


def metadata_value(evaluation: dg.AssetCheckEvaluation, name: str) -> Any:
    return evaluation.metadata[name].value


@pytest.mark.parametrize("job", [JOB, EVERYTHING])
def test_materialize_all_checks_what_it_has_built_or_served(
    job: str, instance: dg.DagsterInstance, recorder: Recorder
) -> None:
    definitions = build_definitions([recorder.step("a.b/clean-1", recorder.step("raw"))])
    for built in (["raw", "a.b/clean-1"], []):
        run = run_job(definitions, instance, job=job)
        assert run.success
        # By the step's own op: a check does not count as a step of the run.
        assert len(run.steps("STEP_SUCCESS")) == 2
        assert recorder.take() == built
        found = evaluations(run)
        assert sorted(found) == ["a.b/clean-1", "raw"]
        assert all(evaluation.passed for evaluation in found.values())
        assert not any(evaluation.blocking for evaluation in found.values())


def test_a_check_sets_nothing_going(instance: dg.DagsterInstance, recorder: Recorder) -> None:
    raw = recorder.step("raw")
    definitions = build_definitions([recorder.step("clean", raw)])
    run_job(definitions, instance)
    recorder.take()
    shutil.rmtree(raw.output_path)

    run = run_job(definitions, instance, job=EVERYTHING)

    assert run.success
    assert recorder.take() == []  # pruned: what reads it is finished
    found = evaluations(run)
    assert found["clean"].passed
    assert found["raw"].passed  # who removes an intermediate output has done nothing wrong
    assert "Nothing needs it now" in (found["raw"].description or "")
    assert "materialize it alone to rebuild it" in (found["raw"].description or "")


def test_an_output_that_is_gone_and_needed_is_a_warning(
    instance: dg.DagsterInstance, recorder: Recorder
) -> None:
    raw = recorder.step("raw")
    clean = recorder.step("clean", raw)
    definitions = build_definitions([clean])
    run_job(definitions, instance)
    for step in (raw, clean):
        shutil.rmtree(step.output_path)

    found = evaluations(run_checks(definitions, instance, "raw", "clean"))

    name = clean.name_with_hash
    what_helps = {
        "raw": f"{name} needs it and is not finished: a run of {name} builds both.",
        "clean": "Materialize it to build it again.",
    }
    for key, text in what_helps.items():
        assert not found[key].passed
        assert found[key].severity is dg.AssetCheckSeverity.WARN
        assert (found[key].description or "").endswith(text)


@pytest.mark.parametrize("gone", [["raw"], ["raw", "clean"]])
def test_the_sensor_and_the_check_say_the_same_of_what_is_gone(
    gone: list[str], instance: dg.DagsterInstance, recorder: Recorder
) -> None:
    raw = recorder.step("raw")
    steps = {"raw": raw, "clean": recorder.step("clean", raw)}
    definitions = build_definitions([steps["clean"]])
    run_job(definitions, instance)
    for name in gone:
        shutil.rmtree(steps[name].output_path)

    checked = evaluations(run_checks(definitions, instance, *gone))
    observed = Watch(instance, [steps["clean"]]).tick()

    assert sorted(observed) == sorted(gone)
    for name in gone:
        assert observed[name].description.endswith(f": {checked[name].description}")


def test_an_asset_and_the_check_of_another(
    instance: dg.DagsterInstance, recorder: Recorder
) -> None:
    raw = recorder.step("raw")
    definitions = build_definitions([recorder.step("clean", raw)])
    run_job(definitions, instance, select=["raw"])
    recorder.take()
    run = run_checks(definitions, instance, "raw", assets=["clean"])
    assert run.success
    assert list(run.materialized()) == ["clean"]
    assert list(evaluations(run)) == ["raw"]
    assert recorder.take() == ["clean"]


def test_other_executors_check_what_they_have_built_or_served(
    instance: dg.DagsterInstance, recorder: Recorder
) -> None:
    definitions = build_definitions(
        [recorder.step("clean", recorder.step("raw"))], executor=dg.in_process_executor
    )
    for _ in range(2):
        run = run_job(definitions, instance)
        assert run.success
        assert all(found.passed for found in evaluations(run).values())
        assert sorted(evaluations(run)) == ["clean", "raw"]


def test_where_nothing_is_finished_there_is_nothing_to_check(
    instance: dg.DagsterInstance, recorder: Recorder
) -> None:
    definitions = build_definitions([recorder.step("raw")])
    run = run_checks(definitions, instance, "raw")
    assert run.success
    found = evaluations(run)["raw"]
    assert found.passed
    assert "nothing to check (status: nothing there)" in (found.description or "")
    assert recorder.take() == []


def test_each_fault_is_told(instance: dg.DagsterInstance, recorder: Recorder) -> None:
    steps = [recorder.step(name) for name in ("fine", "lost", "torn", "foreign")]
    definitions = build_definitions(steps)
    run_job(definitions, instance)
    records = {step.name: Path(step.output_path, ".artifact.json") for step in steps}
    records["lost"].unlink()
    records["torn"].write_bytes(records["torn"].read_bytes()[:40])
    records["foreign"].write_text(
        json.dumps(json.loads(records["foreign"].read_text()) | {"name": "other"})
    )

    found = evaluations(run_checks(definitions, instance, *records))

    assert {key: evaluation.passed for key, evaluation in found.items()} == {
        "fine": True,
        "lost": False,
        "torn": False,
        "foreign": False,
    }
    assert ".artifact.json is missing" in metadata_value(found["lost"], "marin/faults")
    assert f"{records['torn']} cannot be read" in metadata_value(found["torn"], "marin/faults")
    assert "belongs to the step 'other'" in metadata_value(found["foreign"], "marin/faults")
    assert metadata_value(found["torn"], "marin/output_path") == str(records["torn"].parent)
    assert found["torn"].severity is dg.AssetCheckSeverity.ERROR


def test_some_checks_alone(instance: dg.DagsterInstance, recorder: Recorder) -> None:
    definitions = build_definitions([recorder.step("clean", recorder.step("raw"))])
    run_job(definitions, instance)
    recorder.take()
    run = run_checks(definitions, instance, "raw")
    assert run.success
    assert list(evaluations(run)) == ["raw"]
    assert recorder.take() == []


def make(out: str, size: int) -> None:
    Path(out, "data.txt").write_text(str(size))


def tokens(size: int, version: str = "2026.07.01") -> Any:
    return apply("tokens", make, version=version, out=OUT, size=size)


def test_drift_is_a_warning_that_tells_the_fields(instance: dg.DagsterInstance) -> None:
    run_job(build_definitions([tokens(1)]), instance)
    found = evaluations(run_job(build_definitions([tokens(2)]), instance, job=EVERYTHING))
    assert not found["tokens"].passed
    assert found["tokens"].severity is dg.AssetCheckSeverity.WARN
    assert "size" in metadata_value(found["tokens"], "marin/drift")
    assert "marin/faults" not in found["tokens"].metadata

    found = evaluations(run_checks(build_definitions([tokens(1)]), instance, "tokens"))
    assert found["tokens"].passed


def test_a_dev_version_does_not_drift(instance: dg.DagsterInstance) -> None:
    run_job(build_definitions([tokens(1, "dev")]), instance)
    found = evaluations(run_checks(build_definitions([tokens(2, "dev")]), instance, "tokens"))
    assert found["tokens"].passed


def test_a_failed_step_leaves_the_others_checked_next_time(
    instance: dg.DagsterInstance, recorder: Recorder
) -> None:
    definitions = build_definitions([recorder.step("bad", fails=True), recorder.step("good")])
    run = run_job(definitions, instance, job=EVERYTHING)
    assert run.steps("STEP_FAILURE") == ["bad"]
    found = evaluations(run_checks(definitions, instance, "bad", "good"))
    assert "(status: FAILED)" in (found["bad"].description or "")
    assert found["good"].passed


@pytest.mark.usefixtures("broken_store")
def test_a_store_that_refuses_is_an_error_of_the_check(
    instance: dg.DagsterInstance, recorder: Recorder, store: Path
) -> None:
    here = recorder.step("here", output_path_prefix=str(store))
    definitions = build_definitions([here, recorder.step("away")])
    run_job(definitions, instance, select=["here"])
    run = run_checks(definitions, instance, "here", "away")
    assert not run.success
    assert list(evaluations(run)) == ["here"]
    assert "broken://bucket/store/away" in run.error("away")


def test_assets_and_checks_made_by_hand_fit(
    instance: dg.DagsterInstance, recorder: Recorder
) -> None:
    step = recorder.step("raw")
    definitions = dg.Definitions(
        assets=build_marin_assets([step]),
        asset_checks=build_marin_checks(lambda: [step]),
        resources={"marin_io_manager": MarinIOManager()},
        executor=marin_executor,
    )
    run = run_job(definitions, instance, job=EVERYTHING)
    assert run.success
    assert evaluations(run)["raw"].passed


def test_two_graphs_in_one_location_have_checks_each(
    instance: dg.DagsterInstance, recorder: Recorder
) -> None:
    merged = dg.Definitions.merge(
        build_definitions([recorder.step("one")], job_name="first"),
        build_definitions([recorder.step("two")], job_name="second"),
        dg.Definitions(executor=marin_executor),
    )
    run = run_job(merged, instance, job=EVERYTHING)
    assert run.success
    assert sorted(evaluations(run)) == ["one", "two"]


def test_a_failure_leaves_the_checks_of_other_steps_alone(
    instance: dg.DagsterInstance, recorder: Recorder
) -> None:
    good, bad = recorder.step("good"), recorder.step("bad", fails=True)
    definitions = build_definitions([recorder.step("below", good, bad), good, recorder.step("new")])
    run_job(definitions, instance, select=["good"])

    run = run_job(definitions, instance, job=EVERYTHING)

    assert run.steps("STEP_FAILURE") == ["bad"]
    assert {key: found.passed for key, found in evaluations(run).items()} == {
        "good": True,
        "new": True,
    }
    # Of the step that failed, and of the one below it; nothing of their checks.
    errors = [entry for entry in instance.all_logs(run.run_id) if entry.level >= logging.ERROR]
    assert {entry.step_key for entry in errors} == {"bad", "below", None}
    assert not [entry for entry in errors if "cache_integrity" in entry.user_message]


def test_a_graph_can_do_without(instance: dg.DagsterInstance, recorder: Recorder) -> None:
    definitions = build_definitions([recorder.step("raw")], checks=False)
    run = run_job(definitions, instance, job=EVERYTHING)
    assert run.success
    assert evaluations(run) == {}


def test_keys_may_be_changed_after_the_checks_are_built(
    instance: dg.DagsterInstance, recorder: Recorder
) -> None:
    built = build_definitions([recorder.step("clean", recorder.step("raw"))])
    module = ModuleType("ours")
    module.assets, module.checks = list(built.assets or ()), list(built.asset_checks or ())  # type: ignore[attr-defined]
    definitions = dg.Definitions(
        assets=dg.load_assets_from_modules([module], key_prefix="team"),
        asset_checks=dg.load_asset_checks_from_modules([module], asset_key_prefix="team"),
        resources=built.resources,
        executor=marin_executor,
    )
    run = run_job(definitions, instance, job=EVERYTHING)
    assert run.success
    assert {key: found.passed for key, found in evaluations(run).items()} == {
        "team/clean": True,
        "team/raw": True,
    }


def test_graphs_that_share_data_of_others_merge(
    instance: dg.DagsterInstance, recorder: Recorder
) -> None:
    given = StepSpec("given")
    merged = dg.Definitions.merge(
        build_definitions([recorder.step("one", given)], job_name="first"),
        build_definitions([recorder.step("two", given)], job_name="second"),
    )
    dg.Definitions.validate_loadable(merged)
    checks = merged.resolve_asset_graph().asset_check_keys
    assert sorted(key.asset_key.to_user_string() for key in checks) == ["one", "two"]


def test_a_removed_dev_version_is_told(instance: dg.DagsterInstance) -> None:
    definitions = build_definitions([tokens(1, "dev")])
    run_job(definitions, instance)
    shutil.rmtree(tokens(1, "dev").path())
    found = evaluations(run_checks(definitions, instance, "tokens"))
    assert not found["tokens"].passed


def test_the_checks_of_a_graph_do_not_fill_the_list_of_definitions(recorder: Recorder) -> None:
    step = recorder.step("raw")
    definitions = build_definitions([step])
    apart = dg.Definitions(
        build_marin_assets([step]),
        asset_checks=build_marin_checks([step]),
        resources=definitions.resources,
    )

    for found in (definitions, apart):
        [check] = found.resolve_asset_graph().asset_check_keys
        # ``dg list defs`` repeats a description for each asset.
        assert found.resolve_asset_graph().get_check_spec(check).description is None


def test_the_log_of_a_run_of_checks_alone_counts_checks(
    instance: dg.DagsterInstance, recorder: Recorder
) -> None:
    definitions = build_definitions([recorder.step("clean", recorder.step("raw"))])
    run_job(definitions, instance)

    run = run_checks(definitions, instance, "raw", "clean")

    lines = [entry.user_message for entry in instance.all_logs(run.run_id)]
    assert "Checks: 2. No step is selected." in lines
    assert lines.count("Result: 2 checked.") == 1
