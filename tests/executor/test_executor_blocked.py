"""Selections that leave out what they need: steps that cannot run fail at once."""

from pathlib import Path

import dagster as dg

from helpers.runs import Recorder, run_job, status_of
from marin_dagster import StepSpec, build_definitions


def test_a_step_whose_dependency_is_neither_built_nor_selected_fails_and_says_what_to_select(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    raw = recorder.step("raw/books")
    clean = recorder.step("clean", raw)

    run = run_job(build_definitions([clean]), instance, select=["clean"])

    assert not run.success
    assert recorder.calls == []
    assert run.steps("STEP_FAILURE") == ["clean"]
    assert run.steps("STEP_START") == []
    message = run.error("clean")
    for text in (clean.name_with_hash, "'raw/books'", raw.output_path, "Select it"):
        assert text in message
    assert not Path(clean.output_path).exists()


def test_every_missing_dependency_is_named_and_no_other(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    here, one, two = (recorder.step(name) for name in ("here", "one", "two"))
    end = recorder.step("end", here, one, two)
    definitions = build_definitions([end])
    run_job(definitions, instance, select=["here"])

    run = run_job(definitions, instance, select=["end"])

    assert one.output_path in run.error("end")
    assert two.output_path in run.error("end")
    assert here.output_path not in run.error("end")


def test_of_many_missing_dependencies_the_rest_is_counted(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    external = [StepSpec(f"external-{number:02}") for number in range(30)]
    left_out = [recorder.step(f"left-out-{number:02}") for number in range(30)]
    end = recorder.step("end", *external, *left_out)

    message = run_job(build_definitions([end]), instance, select=["end"]).error("end")

    assert f"'left-out-04' ({left_out[4].output_path}) and 25 more, which" in message
    assert f"'external-04' ({external[4].output_path}) and 25 more, which" in message
    assert "left-out-05" not in message
    assert "external-05" not in message


def test_independent_steps_run_and_dependents_of_the_blocked_ones_do_not(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    raw = recorder.step("raw")
    blocked = recorder.step("z_blocked", raw)
    below = recorder.step("m_below", blocked)
    end = recorder.step("a_end", below)
    other = recorder.step("other")
    below_other = recorder.step("below_other", other)

    run = run_job(
        build_definitions([end, below_other]),
        instance,
        select=["z_blocked", "m_below", "a_end", "other", "below_other"],
    )

    assert not run.success
    assert recorder.calls == ["other", "below_other"]
    assert run.steps("STEP_FAILURE") == ["z_blocked"]
    assert set(run.materialized()) == {"other", "below_other"}
    for step in (raw, blocked, below, end):
        assert not Path(step.output_path).exists()
    assert status_of(below_other) == "SUCCESS"


def test_the_log_says_which_dependency_keeps_a_step_from_running(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    blocked = recorder.step("blocked", recorder.step("raw"))
    end = recorder.step("end", recorder.step("below", blocked))

    run = run_job(build_definitions([end]), instance, select=["blocked", "below", "end"])

    messages = {
        entry.step_key: entry.user_message
        for entry in instance.all_logs(run.run_id)
        if not entry.is_dagster_event and entry.step_key
    }
    assert "blocked" in messages["below"]
    assert "below" in messages["end"]


def test_a_dependency_whose_last_attempt_failed_is_not_built(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    raw = recorder.step("raw", fails=True)
    definitions = build_definitions([recorder.step("clean", raw)])
    run_job(definitions, instance, select=["raw"])
    recorder.take()

    run = run_job(definitions, instance, select=["clean"])

    assert not run.success
    assert recorder.calls == []
    assert raw.output_path in run.error("clean")


def test_a_built_dependency_need_not_be_selected(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    raw = recorder.step("raw")
    definitions = build_definitions([recorder.step("clean", raw)])
    run_job(definitions, instance, select=["raw"])

    run = run_job(definitions, instance, select=["clean"])

    assert run.success
    assert recorder.calls == ["raw", "clean"]
    assert run.observed() == []


def test_a_cached_step_is_served_although_its_dependency_is_neither_built_nor_selected(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    raw = recorder.step("raw")
    definitions = build_definitions([recorder.step("clean", raw)])
    run_job(definitions, instance)
    Path(raw.output_path, ".executor_status").unlink()
    recorder.take()

    run = run_job(definitions, instance, select=["clean"])

    assert run.success
    assert recorder.calls == []


def test_a_gap_in_the_selection_blocks_what_lies_below_the_gap(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    raw = recorder.step("raw")
    clean = recorder.step("clean", raw)
    train = recorder.step("train", clean)

    run = run_job(build_definitions([train]), instance, select=["raw", "train"])

    assert not run.success
    assert recorder.calls == ["raw"]
    assert run.steps("STEP_FAILURE") == ["train"]
    assert clean.output_path in run.error("train")
