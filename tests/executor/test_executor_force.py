"""``force``, ``retry_failed`` and ``dry_run``: what a run can choose in its config."""

import threading
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from helpers.runs import Recorder, Run, files_of, metadata_of, run_job, status_of
from marin_dagster import ResourceConfig, StepSpec, build_definitions
from marin_dagster.assets import function_runs
from marin_dagster.cache import OutputDir
from marin_dagster.errors import StoreError


@pytest.fixture
def chain(recorder: Recorder) -> list[StepSpec]:
    raw = recorder.step("raw/books")
    clean = recorder.step("clean", raw)
    return [raw, clean, recorder.step("train", clean)]


@pytest.fixture
def definitions(
    chain: list[StepSpec], recorder: Recorder, instance: dg.DagsterInstance
) -> dg.Definitions:
    """A chain that has been built."""
    built = build_definitions(chain)
    assert run_job(built, instance).success
    recorder.take()
    return built


def _failure(run: Run) -> str:
    """Why the whole run failed."""
    (event,) = run.of_type("PIPELINE_FAILURE")
    return str(event.job_failure_data.error)


def test_force_true_builds_every_selected_step_in_order(
    definitions: dg.Definitions, recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    run = run_job(definitions, instance, config={"force": True})

    assert run.success
    assert recorder.calls == ["raw/books", "clean", "train"]
    for made in run.materialized().values():
        assert metadata_of(made)["marin/cache"] == "built"


def test_force_true_leaves_steps_that_are_not_selected_alone(
    definitions: dg.Definitions, recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    assert run_job(definitions, instance, select=["train"], config={"force": True}).success

    assert recorder.calls == ["train"]


@pytest.mark.parametrize("named_by", ["name", "name_with_hash", "asset key"])
def test_force_takes_a_name_a_name_with_hash_or_an_asset_key(
    named_by: str,
    definitions: dg.Definitions,
    chain: list[StepSpec],
    recorder: Recorder,
    instance: dg.DagsterInstance,
) -> None:
    named = {
        "name": chain[0].name,
        "name_with_hash": chain[0].name_with_hash,
        "asset key": dg.AssetKey(["raw", "books"]).to_user_string(),
    }[named_by]

    run = run_job(definitions, instance, config={"force": [named]})

    assert run.success
    assert recorder.calls == ["raw/books"]
    assert run.observed() == ["clean", "train"]


def test_force_by_asset_key_works_where_key_and_name_differ(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    definitions = build_definitions([recorder.step("café.txt"), recorder.step("tea")])
    run_job(definitions, instance)
    recorder.take()

    assert run_job(definitions, instance, config={"force": ["cafe.txt"]}).success

    assert recorder.calls == ["café.txt"]


def test_force_takes_several_names_and_an_empty_list_forces_nothing(
    definitions: dg.Definitions, recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    assert run_job(definitions, instance, config={"force": []}).success
    assert recorder.take() == []

    assert run_job(definitions, instance, config={"force": ["train", "clean"]}).success
    assert recorder.take() == ["clean", "train"]


def test_a_name_that_force_does_not_know_ends_the_run_with_a_suggestion(
    definitions: dg.Definitions, recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    run = run_job(definitions, instance, config={"force": ["train", "raw/book"]})

    assert not run.success
    assert recorder.calls == []
    assert run.steps("STEP_START") == []
    assert "'raw/book'" in _failure(run)
    assert "Did you mean" in _failure(run)
    assert "'raw/books'" in _failure(run)


def test_a_name_that_is_not_selected_is_not_forced(
    definitions: dg.Definitions, recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    # A run of a part keeps the config of the whole, as a re-execution from failure does.
    run = run_job(definitions, instance, select=["clean"], config={"force": ["train"]})

    assert run.success
    assert "train" not in recorder.calls
    messages = [entry.user_message for entry in instance.all_logs(run.run_id)]
    assert "force names 'train', which this run does not select." in messages


def refuse_to_read_the_note(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(folder: OutputDir) -> None:
        raise StoreError("the store refused")

    monkeypatch.setattr(function_runs, "read_job_file", refuse)


@pytest.mark.parametrize(
    ("fields", "config", "error"),
    [
        ({}, {}, "the store refused"),
        ({"resources": ResourceConfig(cpu=1, ram="1g")}, {}, "cannot be sent to a worker"),
        (
            {},
            {"runners": {"away": {"slurm": {"folder": "jobs"}}}, "default": "away"},
            "was not found",
        ),
    ],
    ids=["inline", "not picklable", "no engine"],
)
def test_a_forced_build_that_never_starts_leaves_the_finished_output(
    fields: dict[str, Any],
    config: dict[str, Any],
    error: str,
    recorder: Recorder,
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    raw = recorder.step("raw", result={"size": 3})
    assert run_job(build_definitions([raw]), instance).success
    before = files_of(raw)
    if error == "the store refused":
        refuse_to_read_the_note(monkeypatch)
    monkeypatch.setenv("PATH", "")
    held = threading.Lock() if "resources" in fields else None
    stuck = StepSpec("raw", fn=lambda path: print(held), **fields)

    run = run_job(build_definitions([stuck]), instance, config={"force": True, **config})

    assert not run.success
    assert error in run.error("raw")
    assert files_of(raw) == before
    assert run.observed() == []
    assert run_job(build_definitions([raw]), instance).observed() == ["raw"]


def test_a_forced_step_below_a_step_that_is_gone_builds_that_too(
    definitions: dg.Definitions,
    chain: list[StepSpec],
    recorder: Recorder,
    instance: dg.DagsterInstance,
) -> None:
    Path(chain[1].output_path, ".executor_status").unlink()

    run = run_job(definitions, instance, config={"force": ["train"]})

    assert run.success
    assert recorder.calls == ["clean", "train"]


def test_a_failed_step_is_built_again_unless_retry_failed_is_off(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    broken = recorder.step("train", fails=True)
    assert not run_job(build_definitions([broken]), instance).success
    repaired = recorder.step("train")
    below = recorder.step("below", repaired)
    definitions = build_definitions([below, recorder.step("other")])
    recorder.take()

    refused = run_job(definitions, instance, config={"retry_failed": False})

    assert not refused.success
    assert recorder.take() == ["other"]
    assert refused.steps("STEP_FAILURE") == ["train"]
    for text in (repaired.name_with_hash, repaired.output_path, "failed", "retry_failed"):
        assert text in refused.error("train")
    assert status_of(repaired) == "FAILED"
    assert not Path(below.output_path).exists()

    retried = run_job(definitions, instance)

    assert retried.success
    assert recorder.take() == ["train", "below"]


def test_a_dry_run_lists_every_selected_step_and_leaves_the_store_untouched(
    recorder: Recorder, instance: dg.DagsterInstance, store: Path
) -> None:
    raw = recorder.step("raw")
    end = recorder.step("end", raw)

    run = run_job(build_definitions([end]), instance, config={"dry_run": True})

    assert run.success
    assert recorder.calls == []
    assert not store.exists()
    listed = run.skipped()
    assert set(listed) == {"raw", "end"}
    for step in (raw, end):
        assert step.name_with_hash in listed[step.name]
        assert step.output_path in listed[step.name]
    assert run.materialized() == {}
    assert run.observed() == []


def _contents(store: Path) -> dict[str, tuple[int, bytes]]:
    files = [path for path in store.rglob("*") if path.is_file()]
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def _gone(*steps: StepSpec) -> None:
    for step in steps:
        Path(step.output_path, ".executor_status").unlink()


@pytest.mark.parametrize(
    ("gone", "config", "becomes"),
    [
        ([], {}, {"raw": "served", "clean": "served", "train": "served"}),
        ([0, 1], {}, {"raw": "pruned", "clean": "pruned", "train": "served"}),
        ([1, 2], {}, {"raw": "served", "clean": "run", "train": "run"}),
        ([], {"force": ["clean"]}, {"raw": "served", "clean": "run", "train": "served"}),
    ],
)
def test_a_dry_run_reports_what_a_real_one_then_does_and_writes_nothing(
    gone: list[int],
    config: dict[str, Any],
    becomes: dict[str, str],
    definitions: dg.Definitions,
    chain: list[StepSpec],
    recorder: Recorder,
    instance: dg.DagsterInstance,
    store: Path,
) -> None:
    _gone(*(chain[index] for index in gone))
    before = _contents(store)

    dry = run_job(definitions, instance, config={"dry_run": True, **config})

    assert dry.success
    assert recorder.calls == []
    assert _contents(store) == before
    reported = {key.partition("__")[0]: text for key, text in dry.skipped().items()}
    for name, what in becomes.items():
        would = "would run" if what == "run" else f"would be {what}"
        assert reported[name].startswith(f"Dry run: {would}: "), name
    real = run_job(definitions, instance, config=config)
    ran = [name.partition("/")[0] for name in recorder.calls]
    assert ran == [name for name, what in becomes.items() if what == "run"]
    pruned = [key.partition("__")[0] for key in real.skipped()]
    assert pruned == [name for name, what in becomes.items() if what == "pruned"]


def test_a_dry_run_gives_the_reason_of_each_step(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    train = recorder.step("train", hash_attrs={"lr": 1})
    old = [train, recorder.step("evaluate", train), recorder.step("failing", fails=True)]
    run_job(build_definitions(old), instance)
    train = recorder.step("train", hash_attrs={"lr": 2})
    tpu = ResourceConfig.with_tpu("v4-8")
    new = [
        recorder.step("evaluate", train),
        recorder.step("failing", fails=True),
        recorder.step("elsewhere", resources=tpu),
        recorder.step("reads", StepSpec("dump")),
    ]
    config = {"dry_run": True, "retry_failed": False}

    listed = run_job(build_definitions(new), instance, config=config).skipped()

    assert "would run: train" in listed["train"]
    assert listed["train"].endswith(": attribute lr: 1 -> 2")
    assert listed["evaluate"].endswith(f"; because of {train.name_with_hash}")
    for key, reason in {
        "failing": "its last attempt failed. Set retry_failed",
        "elsewhere": "v4-8",
        "reads": "which no run builds",
    }.items():
        assert listed[key].startswith("Dry run: would be blocked: ")
        assert reason in listed[key]


def test_a_dry_run_lists_only_what_is_selected(
    definitions: dg.Definitions, recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    select, config = ["raw/books", "clean"], {"dry_run": True, "force": True}

    run = run_job(definitions, instance, select=select, config=config)

    assert set(run.skipped()) == {"raw__books", "clean"}


@pytest.mark.usefixtures("broken_store")
def test_a_dry_run_reports_a_store_that_is_broken(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    end = recorder.step("end", recorder.step("raw"), StepSpec("dump"))

    run = run_job(build_definitions([end]), instance, config={"dry_run": True})

    assert run.success
    for text in run.skipped().values():
        assert text.startswith("Dry run: would be blocked: ")
        assert "broken filesystem" in text
