"""What a run serves, prunes and builds, and what it reports to the instance about each step."""

from pathlib import Path

import dagster as dg

from helpers.runs import Recorder, memory_instance, metadata_of, run_job, status_of
from marin_dagster import StepSpec, build_definitions


def _build(step: StepSpec, *, alone: bool = True) -> None:
    """Build a step as somebody else would: another instance, and nothing but its files stay."""
    with memory_instance() as elsewhere:
        select = [step.name] if alone else None
        assert run_job(build_definitions([step]), elsewhere, select=select).success


def _forget(step: StepSpec) -> None:
    Path(step.output_path, ".executor_status").unlink()


def test_a_first_run_builds_everything_in_order_and_a_second_nothing(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    raw = recorder.step("raw")
    clean = recorder.step("clean", raw)
    definitions = build_definitions([recorder.step("train", clean)])

    first = run_job(definitions, instance)

    assert first.success
    assert recorder.take() == ["raw", "clean", "train"]
    assert set(first.materialized()) == {"raw", "clean", "train"}
    assert [status_of(step) for step in (raw, clean)] == ["SUCCESS", "SUCCESS"]
    assert run_job(definitions, instance).success
    assert recorder.take() == []


def test_a_diamond_with_one_cached_branch_runs_the_shared_top_once(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    top = recorder.step("top")
    left, right = recorder.step("left", top), recorder.step("right", top)
    bottom = recorder.step("bottom", left, right)
    _build(left, alone=False)
    _forget(top)
    recorder.take()

    run = run_job(build_definitions([bottom]), instance)

    assert run.success
    assert recorder.calls == ["top", "right", "bottom"]
    assert metadata_of(run.materialized()["left"])["marin/cache"] == "hit"
    assert run.skipped() == {}


def test_a_diamond_whose_bottom_is_cached_runs_nothing(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    top = recorder.step("top")
    left, right = recorder.step("left", top), recorder.step("right", top)
    bottom = recorder.step("bottom", left, right)
    _build(bottom, alone=False)
    for step in (top, left):
        _forget(step)
    recorder.take()

    run = run_job(build_definitions([bottom]), instance)

    assert run.success
    assert recorder.calls == []
    assert set(run.skipped()) == {"top", "left"}
    assert set(run.materialized()) == {"right", "bottom"}


def test_of_a_chain_with_only_the_end_cached_no_function_runs_and_the_rest_says_why(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    download = recorder.step("download")
    normalize = recorder.step("normalize", download)
    tokenize = recorder.step("tokenize", normalize)
    _build(tokenize, alone=False)
    for step in (download, normalize):
        _forget(step)
    recorder.take()

    run = run_job(build_definitions([tokenize]), instance)

    assert run.success
    assert recorder.calls == []
    skipped = run.skipped()
    assert set(skipped) == {"download", "normalize"}
    for step in (download, normalize):
        assert step.name_with_hash in skipped[step.name]
        assert "not needed" in skipped[step.name]
        assert "in the cache" in skipped[step.name]
        assert status_of(step) is None
    assert set(run.materialized()) == {"tokenize"}
    assert run.steps("STEP_START") == ["tokenize"]


def test_a_pruned_step_is_built_when_it_is_the_end_of_the_selection(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    raw = recorder.step("raw")
    end = recorder.step("end", raw)
    _build(end, alone=False)
    _forget(raw)
    recorder.take()

    assert run_job(build_definitions([end]), instance, select=["raw"]).success

    assert recorder.calls == ["raw"]


def test_a_hit_unknown_to_the_instance_is_materialized_with_its_builder_then_only_observed(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    raw = recorder.step("raw")
    end = recorder.step("end", raw)
    _build(end, alone=False)
    recorder.take()
    definitions = build_definitions([end])

    first = run_job(definitions, instance)
    second = run_job(definitions, instance)

    assert recorder.calls == []
    for step in (raw, end):
        made = first.materialized()[step.name]
        metadata = metadata_of(made)
        assert metadata["marin/cache"] == "hit"
        assert metadata["marin/built_by"]
        assert metadata["marin/built_at"] > 0
        assert (made.tags or {})["dagster/data_version"] == step.hash_id
    assert first.observed() == []
    assert second.success
    assert second.observed() == ["end", "raw"]
    assert second.materialized() == {}


def test_a_hit_known_to_the_instance_never_starts_its_op(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    definitions = build_definitions([recorder.step("raw")])
    run_job(definitions, instance)

    run = run_job(definitions, instance)

    assert run.observed() == ["raw"]
    assert run.steps("STEP_SUCCESS") == ["raw"]
    for kind in ("STEP_OUTPUT", "HANDLED_OUTPUT", "ASSET_MATERIALIZATION", "STEP_FAILURE"):
        assert run.steps(kind) == []
    (event,) = run.of_type("ASSET_OBSERVATION")
    metadata = event.event_specific_data.asset_observation.metadata
    assert metadata["marin/cache"].value == "hit"
    # What the run's page in the UI shows of it.
    (success,) = run.of_type("STEP_SUCCESS")
    step = definitions.resolve_asset_graph().get(dg.AssetKey("raw"))
    name = step.metadata["marin/name_with_hash"]
    assert success.message == f"Served from the cache: {name}"


def test_the_latest_materialization_stays_the_true_build(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    definitions = build_definitions([recorder.step("raw")])
    built = run_job(definitions, instance)

    for _ in range(2):
        assert run_job(definitions, instance).observed() == ["raw"]

    event = instance.get_latest_materialization_event(dg.AssetKey("raw"))
    assert event is not None
    assert event.run_id == built.run_id


def test_going_back_to_an_earlier_version_materializes_it_again_from_the_cache(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    old, new = (recorder.step("raw", hash_attrs={"version": number}) for number in (1, 2))
    for step in (old, new):
        run_job(build_definitions([step]), instance)

    run = run_job(build_definitions([old]), instance)

    assert recorder.calls == ["raw", "raw"]
    made = run.materialized()["raw"]
    assert (made.tags or {})["dagster/data_version"] == old.hash_id
    assert metadata_of(made)["marin/cache"] == "hit"


def test_a_run_says_first_what_becomes_of_its_steps(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    download = recorder.step("download")
    normalize = recorder.step("normalize", download)
    _build(normalize, alone=False)
    _forget(download)
    mixed = build_definitions([normalize, recorder.step("fresh")])
    below = recorder.step("below", StepSpec("from elsewhere"))
    stuck = build_definitions([recorder.step("further below", below)])

    first = run_job(mixed, instance)
    again = run_job(mixed, instance, select=["normalize", "fresh"])
    forced = run_job(mixed, instance, select=["fresh"], config={"force": True})
    blocked = run_job(stuck, instance)

    messages = [
        entry.user_message
        for run in (first, again, forced, blocked)
        for entry in instance.all_logs(run.run_id)
        if entry.user_message.startswith("Steps: ")
    ]
    assert messages == [
        "Steps: 3, of which 1 in the cache, 1 not needed, 1 to run.",
        "Steps: 2, of which 2 in the cache.",
        "Steps: 1, of which 1 to run.",
        "Steps: 2, of which 2 blocked.",
    ]
