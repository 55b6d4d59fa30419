"""A tree that one side built is served by the other without running a function."""

import re
from collections.abc import Callable
from datetime import datetime
from typing import Any

import dagster as dg
import pytest
from marin.execution.artifact import read_record as marin_read_record
from marin.execution.step_runner import StepRunner, run_step, step_is_built
from marin.execution.step_spec import StepSpec as MarinStep
from marin.execution.step_status import PreviousTaskFailedError
from marin_peer import (
    CLASSES,
    Calls,
    class_name,
    files_below,
    is_locked,
    marin_status,
    names,
    read_json,
    remove_tree,
    small_graph,
    write_file,
)

from helpers.runs import metadata_of, run_job
from marin_dagster import StepCache, StepSpec, build_definitions
from marin_dagster.cache import CacheState, Hit, OutputDir, Status, read_record, read_status
from marin_dagster.errors import PreviousAttemptFailedError
from marin_dagster.steps import StepGraph

pytestmark = pytest.mark.interop

BUILT = ["alone", "flaky", "raw/tokenize", "report", "train", "vocab"]
either_class = pytest.mark.parametrize("make", CLASSES, ids=class_name)


def marin_builds(steps: list[Any]) -> None:
    """As StepRunner builds, one step after the other, without its polling."""
    for step in StepGraph.from_steps(steps).steps.values():
        try:
            run_step(step)
        except RuntimeError:
            return


def without_moments(content: bytes) -> bytes:
    """A file without what differs between two objects of one kind, and between two moments; and
    without what launched it, which is a run of Dagster or a command line."""
    content = re.sub(rb" at 0x[0-9a-f]+", b"", content)
    launch = rb'"command_line": \[[^\]]*\](,\s+"dagster_job": "\w+",\s+"dagster_run_id": "[-\w]+")?'
    content = re.sub(launch, b"", content)
    return re.sub(rb'"created_at": "[^"]+"', b'"created_at": ""', content)


def contents(prefix: str) -> dict[str, bytes]:
    """Every file of a store."""
    folder = OutputDir.at(prefix)
    return {name: folder.read(name) or b"" for name in files_below(prefix)}


@either_class
def test_what_marins_step_runner_built_is_served_and_only_its_failure_reruns(
    make: Callable[..., Any], instance: dg.DagsterInstance, calls: Calls, store: Any
) -> None:
    calls.broken.add("flaky")
    with pytest.raises(RuntimeError, match="1 step"):
        StepRunner().run(small_graph(MarinStep, calls, str(store)))
    assert calls.take() == ["alone", "flaky", "raw/tokenize", "train", "vocab"]

    calls.broken.clear()
    steps = small_graph(make, calls, str(store))
    paths = {step.name: step.output_path for step in steps}
    run = run_job(build_definitions(steps), instance)
    assert run.success
    assert calls.take() == ["flaky", "report"]

    for name, materialization in run.materialized().items():
        metadata = metadata_of(materialization)
        name = "/".join(name.split("/"))
        record = marin_read_record(paths[name])
        assert record is not None
        assert record.provenance is not None
        assert metadata["marin/output_path"] == paths[name]
        if name in ("flaky", "report"):
            assert metadata["marin/cache"] == "built"
            continue
        assert metadata["marin/cache"] == "hit"
        assert metadata["marin/built_by"] == record.provenance.built_by
        built_at = datetime.fromisoformat(record.provenance.created_at).timestamp()
        assert metadata["marin/built_at"] == pytest.approx(built_at)
    assert sorted(run.materialized()) == BUILT
    assert metadata_of(run.materialized()["vocab"])["nested.loss"] == 0.25

    again = run_job(build_definitions(steps), instance)
    assert again.success
    assert calls.take() == []
    assert again.observed() == BUILT


def test_what_our_executor_built_is_served_by_marins_step_runner_and_only_the_failure_reruns(
    instance: dg.DagsterInstance, calls: Calls, store: Any
) -> None:
    calls.broken.add("flaky")
    assert not run_job(
        build_definitions(small_graph(StepSpec, calls, str(store))), instance
    ).success
    assert calls.take() == ["alone", "flaky", "raw/tokenize", "train", "vocab"]
    steps = small_graph(MarinStep, calls, str(store))
    statuses = {step.name: marin_status(step.output_path) for step in steps}
    assert statuses == dict.fromkeys(BUILT, "SUCCESS") | {"flaky": "FAILED", "report": None}

    calls.broken.clear()
    StepRunner().run(steps)
    assert calls.take() == ["flaky", "report"]
    before = contents(str(store))
    StepRunner().run(steps)
    assert calls.take() == []
    assert contents(str(store)) == before


def test_on_every_store_our_cache_serves_what_marin_built(prefix: str, calls: Calls) -> None:
    marin_builds(small_graph(MarinStep, calls, prefix))
    assert calls.take() == BUILT
    before = contents(prefix)
    cache = StepCache()
    for make in CLASSES:
        found = cache.look_up_many(small_graph(make, calls, prefix))
        assert {each.state for each in found.values()} == {CacheState.HIT}
    for step in small_graph(StepSpec, calls, prefix):
        hit = cache.begin(step)
        assert isinstance(hit, Hit)
        record, marins = hit.record, marin_read_record(step.output_path)
        assert record is not None
        assert marins is not None
        assert record.model_dump() == marins.model_dump()
        assert record.name == step.name
    assert contents(prefix) == before


def test_on_every_store_marin_serves_what_our_executor_built(
    prefix: str, instance: dg.DagsterInstance, calls: Calls
) -> None:
    assert run_job(build_definitions(small_graph(StepSpec, calls, prefix)), instance).success
    assert calls.take() == BUILT
    before = contents(prefix)
    for step in small_graph(MarinStep, calls, prefix):
        assert marin_status(step.output_path) == "SUCCESS"
        assert step_is_built(step)
        assert not is_locked(step.output_path)
        run_step(step)
        record = marin_read_record(step.output_path)
        assert record is not None
        assert record.name == step.name
        assert record.deps == step.dep_names
        assert record.dep_paths == step.dep_paths
    assert calls.take() == []
    assert contents(prefix) == before


@pytest.mark.parametrize("prefix", ["disk", "memory"], indirect=True)
def test_both_sides_leave_the_same_files_with_the_same_content(
    prefix: str, instance: dg.DagsterInstance, calls: Calls
) -> None:
    calls.broken.add("flaky")
    run_job(build_definitions(small_graph(StepSpec, calls, prefix)), instance)
    ours = contents(prefix)
    remove_tree(prefix)
    with pytest.raises(RuntimeError):
        StepRunner().run(small_graph(MarinStep, calls, prefix))
    marins = contents(prefix)
    assert sorted(ours) == sorted(marins)
    assert len([name for name in ours if name.endswith(".executor_info")]) == 5
    assert len([name for name in ours if name.endswith(".artifact.json")]) == 4
    for name, content in marins.items():
        assert without_moments(ours[name]) == without_moments(content), name


def test_neither_side_overwrites_the_others_scheduled_info_nor_reads_it_as_a_record(
    store: Any, calls: Calls
) -> None:
    step = MarinStep("a", output_path_prefix=str(store), fn=calls.function("a"))
    write_file(step.output_path, ".executor_info", '{"executor_version": "step_runner", "n": 1}')
    assert marin_read_record(step.output_path) is None
    assert read_record(OutputDir.at(step.output_path)) is None
    attempt = StepCache().begin(step)
    assert not isinstance(attempt, Hit)
    attempt.fail()
    StepRunner().run([step])
    assert read_json(step.output_path, ".executor_info") == {
        "executor_version": "step_runner",
        "n": 1,
    }


def test_a_failure_of_either_side_is_an_error_for_the_other_when_failures_are_not_retried(
    store: Any, calls: Calls
) -> None:
    calls.broken.update({"a", "b"})
    a, b = (
        MarinStep(name, output_path_prefix=str(store), fn=calls.function(name)) for name in "ab"
    )
    with pytest.raises(RuntimeError):
        run_step(a)
    with pytest.raises(PreviousAttemptFailedError, match=a.name_with_hash):
        StepCache().begin(a, retry_failed=False)
    attempt = StepCache().begin(b)
    assert not isinstance(attempt, Hit)
    attempt.fail()
    with pytest.raises(PreviousTaskFailedError):
        StepRunner().run([b], force_run_failed=False)
    assert calls.take() == ["a"]


@pytest.mark.parametrize("token", ["DEP_FAILED", "FAILED", "RUNNING", "", "UNKNOWN"])
def test_what_is_not_a_success_to_one_is_built_by_the_other(
    token: str, store: Any, calls: Calls
) -> None:
    for name, build in {"a": run_step, "b": lambda step: StepCache().begin(step).commit()}.items():
        step = MarinStep(name, output_path_prefix=str(store), fn=calls.function(name))
        write_file(step.output_path, ".executor_status", token)
        build(step)
        assert marin_status(step.output_path) == "SUCCESS"
        assert read_status(OutputDir.at(step.output_path)) is Status.SUCCESS


@pytest.mark.parametrize(
    "attrs",
    [
        {},
        {"version": "dev"},
        {"fingerprint": "0123abcd"},
        {"fingerprint": "0123abcd", "version": "dev"},
        {"fingerprint": "0123abcd", "version": "mine-dev"},
        {"fingerprint": "0123abcd", "version": "2026.01.02"},
        {"fingerprint": "0123abcd", "version": "devel"},
        {"fingerprint": None, "version": "dev"},
    ],
    ids=str,
)
def test_the_same_finished_outputs_are_rebuilt_as_dev_versions(
    attrs: dict[str, Any], store: Any, calls: Calls
) -> None:
    step = MarinStep("a", output_path_prefix=str(store), hash_attrs=attrs, fn=calls.function("a"))
    write_file(step.output_path, ".executor_status", "SUCCESS")
    served = step_is_built(step)
    assert (StepCache().look_up(step).state is CacheState.HIT) == served
    outcome = StepCache().begin(step)
    assert isinstance(outcome, Hit) == served
    if not isinstance(outcome, Hit):
        outcome.fail()


@either_class
def test_with_only_the_terminal_of_a_tree_of_marins_left_nothing_runs(
    make: Callable[..., Any], store: Any, instance: dg.DagsterInstance, calls: Calls
) -> None:
    marin_builds(small_graph(MarinStep, calls, str(store)))
    calls.take()
    train = small_graph(make, calls, str(store))[0]
    for dep in train.deps:
        remove_tree(dep.output_path)
    run = run_job(build_definitions([train]), instance)
    assert run.success
    assert run.steps("STEP_SKIPPED") == ["raw__tokenize", "vocab"]
    StepRunner().run([small_graph(MarinStep, calls, str(store))[0]])
    assert calls.take() == []
    left = {path for path in StepGraph.from_steps([train]).steps if marin_status(path)}
    assert names([train], left) == ["train"]
