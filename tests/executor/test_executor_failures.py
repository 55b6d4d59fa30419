"""Steps that fail, however they do it: what is left behind, and what goes on without them."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from helpers.runs import Recorder, is_locked, memory_instance, metadata_of, run_job, status_of
from marin_dagster import StepSpec, build_definitions
from marin_dagster.cache import StepCache


def test_dependents_of_a_failed_step_do_not_run_and_the_others_finish(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    raw = recorder.step("raw")
    broken = recorder.step("broken", raw, fails=True)
    below = recorder.step("below", broken)
    end = recorder.step("end", below)
    other = recorder.step("other", raw)

    run = run_job(build_definitions([end, other]), instance)

    assert not run.success
    assert instance.get_run_by_id(run.run_id).status == dg.DagsterRunStatus.FAILURE
    assert sorted(recorder.calls) == ["broken", "other", "raw"]
    assert run.steps("STEP_FAILURE") == ["broken"]
    assert set(run.materialized()) == {"raw", "other"}
    assert "broken fails on purpose" in run.error("broken")
    assert [status_of(step) for step in (raw, broken, other)] == ["SUCCESS", "FAILED", "SUCCESS"]
    assert not Path(below.output_path).exists()
    assert not Path(end.output_path).exists()
    assert not any(is_locked(step) for step in (raw, broken, other))


def test_what_a_failed_step_wrote_stays_for_its_author_to_see(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    broken = recorder.step("broken", fails=True)

    run_job(build_definitions([broken]), instance)

    assert Path(broken.output_path, "data.txt").read_text() == "broken"
    assert not Path(broken.output_path, ".artifact.json").exists()


def test_several_failures_are_each_reported_with_their_cause(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    steps = [recorder.step(name, fails=True) for name in ("one", "two", "three")]

    run = run_job(build_definitions([recorder.step("end", *steps)]), instance)

    assert run.steps("STEP_FAILURE") == ["one", "three", "two"]
    for step in steps:
        assert f"{step.name} fails on purpose" in run.error(step.name)


def test_an_exception_keeps_its_chain_of_causes(instance: dg.DagsterInstance) -> None:
    def build(output_path: str) -> None:
        try:
            raise KeyError("the inner reason")
        except KeyError as error:
            raise RuntimeError("the outer reason") from error

    run = run_job(build_definitions([StepSpec("raw", fn=build)]), instance)

    assert "the outer reason" in run.error("raw")
    assert "the inner reason" in run.error("raw")


def _exit(output_path: str) -> None:
    sys.exit(3)


def _interrupt(output_path: str) -> None:
    raise KeyboardInterrupt


def _dagster_interrupt(output_path: str) -> None:
    raise dg.DagsterExecutionInterruptedError


def _generator_exit(output_path: str) -> None:
    raise GeneratorExit


def _dagster_failure(output_path: str) -> None:
    raise dg.Failure("not today", metadata={"loss": 3})


@pytest.mark.parametrize(
    "function", [_exit, _interrupt, _dagster_interrupt, _generator_exit, _dagster_failure]
)
def test_whatever_a_function_raises_fails_its_step_and_only_its_step(
    function: Callable[[str], None], recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    broken = StepSpec("broken", fn=function)
    below = recorder.step("below", broken)
    other = recorder.step("other")

    run = run_job(build_definitions([below, other]), instance)

    assert not run.success
    assert instance.get_run_by_id(run.run_id).status == dg.DagsterRunStatus.FAILURE
    assert run.steps("STEP_FAILURE") == ["broken"]
    assert recorder.calls == ["other"]
    assert status_of(broken) == "FAILED"
    assert status_of(other) == "SUCCESS"
    assert not is_locked(broken)
    assert not Path(below.output_path).exists()


def test_a_cached_step_is_fine_when_its_dependent_runs_and_a_sibling_fails(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    a = recorder.step("a")
    b = recorder.step("b", a)
    c = recorder.step("c", fails=True)
    with memory_instance() as elsewhere:
        run_job(build_definitions([a]), elsewhere)
    recorder.take()

    run = run_job(build_definitions([b, c]), instance)

    assert not run.success
    assert run.steps("STEP_FAILURE") == ["c"]
    assert sorted(recorder.calls) == ["b", "c"]
    assert metadata_of(run.materialized()["a"])["marin/cache"] == "hit"
    assert metadata_of(run.materialized()["b"])["marin/cache"] == "built"


def _vanish_before_begin(monkeypatch: pytest.MonkeyPatch, victim: StepSpec) -> None:
    """Remove the victim's status after the run has decided and before any step begins."""
    begin = StepCache.begin

    def vanishing(self: StepCache, step: Any, **options: Any) -> Any:
        Path(victim.output_path, ".executor_status").unlink(missing_ok=True)
        return begin(self, step, **options)

    monkeypatch.setattr(StepCache, "begin", vanishing)


def test_a_hit_that_vanishes_after_its_inputs_were_pruned_fails_and_runs_nothing(
    recorder: Recorder, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = recorder.step("raw")
    clean = recorder.step("clean", raw)
    end = recorder.step("end", clean)
    with memory_instance() as elsewhere:
        run_job(build_definitions([clean]), elsewhere)
    Path(raw.output_path, ".executor_status").unlink()
    recorder.take()
    with monkeypatch.context() as patch:
        _vanish_before_begin(patch, clean)
        run = run_job(build_definitions([end]), instance)

    assert not run.success
    assert recorder.calls == []
    assert run.steps("STEP_FAILURE") == ["clean"]
    assert set(run.skipped()) == {"raw"}
    for text in ("OutputVanishedError", clean.name_with_hash, clean.output_path, "Run again"):
        assert text in run.error("clean")
    assert status_of(clean) is None
    assert not is_locked(clean)

    assert run_job(build_definitions([end]), instance).success
    assert recorder.calls == ["raw", "clean", "end"]


def test_a_known_hit_that_vanishes_fails_the_step_that_reads_it(
    recorder: Recorder, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = recorder.step("raw")
    end = recorder.step("end", raw)
    run_job(build_definitions([raw]), instance)
    recorder.take()
    _vanish_before_begin(monkeypatch, raw)

    run = run_job(build_definitions([end]), instance)

    assert run.observed() == ["raw"]
    assert run.steps("STEP_FAILURE") == ["end"]
    assert recorder.calls == []
    assert raw.output_path in run.error("end")
    assert status_of(end) is None


def test_what_is_cached_below_a_failure_is_served_and_read(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    bad = recorder.step("bad", fails=True)
    found = recorder.step("found", bad)
    with memory_instance() as elsewhere:
        for path in (bad.output_path, found.output_path):
            Path(path).mkdir(parents=True)
            Path(path, ".executor_status").write_text("SUCCESS")
        run_job(build_definitions([found]), elsewhere)
    Path(bad.output_path, ".executor_status").unlink()
    needs_bad, reads = recorder.step("needs_bad", bad), recorder.step("reads", found)

    run = run_job(build_definitions([needs_bad, reads]), instance)

    assert run.steps("STEP_FAILURE") == ["bad"]
    assert sorted(recorder.calls) == ["bad", "reads"]
    assert sorted(run.materialized()) == ["found", "reads"]


def test_what_is_cached_below_a_missing_input_is_served(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    raw = recorder.step("raw", StepSpec("given"))
    found = recorder.step("found", raw)
    Path(found.output_path).mkdir(parents=True)
    Path(found.output_path, ".executor_status").write_text("SUCCESS")

    run = run_job(build_definitions([found, recorder.step("other", raw)]), instance)

    assert run.steps("STEP_FAILURE") == ["raw"]
    assert list(run.materialized()) == ["found"]


@pytest.mark.parametrize("config", [{"force": ["rwa"]}, {"default_with_resources": "nope"}])
def test_a_run_that_cannot_be_planned_marks_nothing_as_failed(
    config: dict[str, Any], recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    definitions = build_definitions([recorder.step("raw")])
    run_job(definitions, instance)

    run = run_job(definitions, instance, config=config)

    assert not run.success
    (record,) = instance.get_asset_records([dg.AssetKey("raw")])
    assert record.asset_entry.last_run_id != run.run_id
