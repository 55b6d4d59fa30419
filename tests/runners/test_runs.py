"""Runs whose steps leave the run worker: what Dagster records, and what the config can set."""

import os
import re
import threading
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from helpers import step_functions
from helpers.fake_engine import FakeRunner
from helpers.processes import GUARD_S
from helpers.runs import Recorder, Run, metadata_of, run_job, status_of
from marin_dagster import (
    DagsterMarinTranslator,
    ResourceConfig,
    StepLike,
    StepSpec,
    build_definitions,
    build_marin_assets,
    build_marin_executor,
    remote,
)
from marin_dagster.assets.io_manager import MarinIOManager

SMALL = ResourceConfig(ram="512m")
JOB = "materialize_steps"


def where(output_path: str) -> dict[str, Any]:
    """Which process this is."""
    return {"pid": os.getpid(), "parent": os.environ.get("PARENT", "")}


def is_here(run: Run, key: str) -> bool:
    """Whether a step's function ran in this process."""
    return bool(metadata_of(run.materialized()[key])["pid"] == os.getpid())


def log_of(run: Run, instance: dg.DagsterInstance) -> str:
    return "\n".join(entry.user_message or "" for entry in instance.all_logs(run.run_id))


def test_steps_with_resources_run_in_a_process_and_that_is_said_once(
    instance: dg.DagsterInstance,
) -> None:
    steps = [
        StepSpec("plain", fn=where),
        StepSpec("own", fn=where, resources=SMALL),
        StepSpec("wrapped", fn=remote(resources=SMALL)(where)),
    ]

    run = run_job(build_definitions(steps), instance)

    assert run.success
    assert [is_here(run, key) for key in ("plain", "own", "wrapped")] == [True, False, False]
    found = metadata_of(run.materialized()["own"])
    assert found["marin/runner"] == "process"
    assert found["marin/job"].startswith("own-")
    assert "marin/runner" not in metadata_of(run.materialized()["plain"])
    log = log_of(run, instance)
    assert log.count("No runner is configured") == 1
    assert f"submitted to process as job {found['marin/job']}" in log


def test_a_second_run_serves_what_a_job_has_built(instance: dg.DagsterInstance) -> None:
    definitions = build_definitions([StepSpec("own", fn=where, resources=SMALL)])

    assert run_job(definitions, instance).success
    again = run_job(definitions, instance)

    assert again.observed() == ["own"]
    assert "No runner is configured" not in log_of(again, instance)


def test_a_remote_exception_is_in_the_failure_with_its_traceback(
    instance: dg.DagsterInstance,
) -> None:
    steps = [StepSpec("own", fn=step_functions.raise_error, resources=SMALL)]

    run = run_job(build_definitions(steps), instance)

    error = run.error("own")
    assert "LookupError: no such corpus" in error
    assert "step_functions.py" in error
    assert status_of(steps[0]) == "FAILED"


def test_a_killed_job_leaves_its_signal_and_a_retry_leaves_the_run_green(
    instance: dg.DagsterInstance,
) -> None:
    step = StepSpec("own", fn=step_functions.kill_itself_once, resources=SMALL)
    policy = dg.RetryPolicy(max_retries=1)
    definitions = dg.Definitions(
        assets=build_marin_assets([step]),
        resources={"marin_io_manager": MarinIOManager()},
        jobs=[
            dg.define_asset_job(JOB, executor_def=build_marin_executor(), op_retry_policy=policy)
        ],
    )

    run = run_job(definitions, instance)

    assert run.success
    [retry] = run.of_type("STEP_UP_FOR_RETRY")
    assert "signal 9 (SIGKILL)" in str(retry.step_retry_data.error)
    assert status_of(step) == "SUCCESS"


def run_with_policy(
    instance: dg.DagsterInstance, runner: str, step: StepSpec, policy: dg.RetryPolicy | None
) -> Run:
    definitions = dg.Definitions(
        assets=build_marin_assets([step]),
        resources={"marin_io_manager": MarinIOManager()},
        jobs=[
            dg.define_asset_job(
                JOB,
                executor_def=build_marin_executor(),
                op_retry_policy=policy,
            )
        ],
    )
    return run_job(definitions, instance, config={"default_with_resources": runner})


@pytest.mark.parametrize("runner", ["inline", "process"])
def test_a_failure_that_allows_no_retries_is_the_only_attempt_and_shows_its_metadata(
    instance: dg.DagsterInstance, runner: str
) -> None:
    step = StepSpec("own", fn=step_functions.give_up, resources=SMALL)

    run = run_with_policy(instance, runner, step, dg.RetryPolicy(max_retries=3))

    assert not run.success
    assert len(step_functions.beside(step.output_path, "entries").read_text().splitlines()) == 1
    assert not run.of_type("STEP_UP_FOR_RETRY")
    [failed] = run.of_type("STEP_FAILURE")
    shown = failed.step_failure_data.user_failure_data
    assert shown is not None
    assert shown.description == "the corpus is empty"
    assert shown.metadata == {
        "rows": dg.MetadataValue.int(3),
        "page": dg.MetadataValue.url("https://example.com"),
    }
    assert "in give_up" in run.error("own")


@pytest.mark.parametrize("runner", ["inline", "process"])
def test_a_function_asks_for_its_own_number_of_retries(
    instance: dg.DagsterInstance, runner: str
) -> None:
    step = StepSpec("own", fn=step_functions.ask_for_a_retry, resources=SMALL)

    run = run_with_policy(instance, runner, step, None)

    assert run.success

    first, second = run.of_type("STEP_UP_FOR_RETRY")
    assert "no such corpus yet" in str(first.step_retry_data.error)
    assert "no such corpus yet" in str(second.step_retry_data.error)
    assert len(step_functions.beside(step.output_path, "entries").read_text().splitlines()) == 3


def test_what_a_job_writes_is_in_its_own_steps_log(tmp_path: Path) -> None:
    steps = [StepSpec(name, fn=step_functions.write, resources=SMALL) for name in ("a", "b")]
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        run = run_job(build_definitions(steps), instance)
        manager = instance.compute_log_manager
        for name in ("a", "b"):
            data = manager.get_log_data(manager.build_log_key_for_run(run.run_id, name))
            assert data.stdout == b"on stdout\n"
            assert data.stderr == b"on stderr\n"


def test_routes_and_runners_of_the_runs_config(instance: dg.DagsterInstance) -> None:
    steps = [
        StepSpec("prepare", fn=where),
        StepSpec("small", fn=where, resources=SMALL),
        StepSpec("train/large", fn=where, resources=SMALL),
    ]

    run = run_job(
        build_definitions(steps),
        instance,
        config={
            "runners": {
                "one": {"process": {"env": {"PARENT": "one"}}},
                "two": {"process": {"env": {"PARENT": "two"}}},
            },
            "routes": [{"step": "train/*", "runner": "two"}, {"step": "prepare", "runner": "one"}],
            "default_with_resources": "inline",
        },
    )

    assert run.success
    parents = {key: metadata_of(found) for key, found in run.materialized().items()}
    assert is_here(run, "small")
    assert parents["prepare"]["marin/runner"] == "one"
    assert parents["train/large"]["marin/runner"] == "two"


def test_the_runs_config_for_one_step_comes_first(instance: dg.DagsterInstance) -> None:
    import resource

    def limit(output_path: str) -> dict[str, Any]:
        return {"limit": resource.getrlimit(resource.RLIMIT_DATA)[0], "pid": os.getpid()}

    steps = [StepSpec(name, fn=limit, resources=SMALL) for name in ("a", "train/b", "c")]

    run = run_job(
        build_definitions(steps),
        instance,
        config={"steps": {"a": {"runner": "inline"}, "train/b": {"ram": "1g"}}},
    )

    assert run.success
    assert is_here(run, "a")
    assert metadata_of(run.materialized()["train/b"])["limit"] == 1 << 30
    assert metadata_of(run.materialized()["c"])["limit"] == 512 << 20


def test_a_tag_of_the_translator_names_the_runner(instance: dg.DagsterInstance) -> None:
    class Tagging(DagsterMarinTranslator):
        def get_op_tags(self, step: StepLike) -> dict[str, Any]:
            return {**super().get_op_tags(step), "marin/runner": "process"}

    run = run_job(build_definitions([StepSpec("plain", fn=where)], translator=Tagging()), instance)

    assert metadata_of(run.materialized()["plain"])["marin/runner"] == "process"


@pytest.mark.parametrize(
    ("config", "error"),
    [
        ({"steps": {"b": {"runner": "slurm"}}}, "there is no runner 'slurm'"),
        ({"routes": [{"runner": "nowhere"}]}, "there is no runner 'nowhere'"),
        (
            {"steps": {"bb": {"runner": "inline"}}},
            "steps names 'bb', but this run has no",
        ),
        ({"steps": {"b": {"runner": "inline", "env": {"A": "1"}}}}, "b_.*it runs inline"),
        ({"steps": {"b": {"env": {"A=B": "1"}}}}, "b_.*'A=B' cannot be the name"),
        ({"steps": {"b": {"ram": "lots"}}}, "b_.*in this run's config: .*'lots' is not a size"),
        ({"routes": [{"runner": "process", "device": "npu"}]}, "'npu' must be cpu, gpu or tpu"),
        ({"runners": {"x": {"process": {"gpus": -1}}}}, "runners.x.process: .*gpus"),
    ],
)
def test_wrong_config_fails_before_anything_runs(
    instance: dg.DagsterInstance, config: dict[str, Any], error: str
) -> None:
    recorder = Recorder()
    steps = [recorder.step("a"), recorder.step("b", resources=SMALL)]

    run = run_job(build_definitions(steps), instance, config=config)

    assert not run.success
    [failure] = run.of_type("PIPELINE_FAILURE")
    assert re.search(f"(?s){error}", str(failure.job_failure_data.error))
    assert recorder.calls == []
    assert status_of(steps[1]) is None


def test_every_step_that_no_runner_can_take_is_named_before_anything_runs(
    instance: dg.DagsterInstance,
) -> None:
    recorder = Recorder()
    steps = [
        recorder.step("a"),
        recorder.step("tpu", resources=ResourceConfig.with_tpu("v4-8")),
        recorder.step("wide", resources=ResourceConfig(replicas=3)),
    ]

    run = run_job(build_definitions(steps), instance)

    [failure] = run.of_type("PIPELINE_FAILURE")
    error = str(failure.job_failure_data.error)
    assert "tpu_" in error
    assert "v4-8" in error
    assert "wide_" in error
    assert "replicas=3" in error
    assert recorder.calls == []


@pytest.mark.parametrize(
    "config",
    [
        {"steps": {"other": {"ram": "1g"}}},
        {"force": ["other"]},
        {"force": ["group/named"]},
    ],
)
def test_config_may_name_steps_that_a_part_of_the_run_does_not_select(
    instance: dg.DagsterInstance, config: dict[str, Any]
) -> None:
    recorder = Recorder()
    steps = [recorder.step("one"), recorder.step("other"), recorder.step("group/named")]

    run = run_job(build_definitions(steps), instance, select=["one"], config=config)

    assert run.success
    assert recorder.calls == ["one"]
    assert "which this run does not select" in log_of(run, instance)


def test_a_cached_step_needs_no_runner(instance: dg.DagsterInstance) -> None:
    step = StepSpec("tpu", fn=where, resources=ResourceConfig.with_tpu("v4-8"))
    Path(step.output_path).mkdir(parents=True)
    Path(step.output_path, ".executor_status").write_text("SUCCESS")

    assert run_job(build_definitions([step]), instance).success


def test_runners_made_in_code(instance: dg.DagsterInstance) -> None:
    engine = FakeRunner("mine", prepare=lambda job: job.succeed())
    step = StepSpec("own", fn=where, resources=SMALL)

    run = run_job(build_definitions([step], runners={"mine": engine}), instance)

    assert run.success
    assert metadata_of(run.materialized()["own"])["marin/runner"] == "mine"
    with pytest.raises(ValueError, match="build_marin_executor"):
        build_definitions([step], executor=build_marin_executor(), runners={"mine": engine})


def test_local_and_remote_steps_count_together(instance: dg.DagsterInstance) -> None:
    mutex, running, most, full = threading.Lock(), [0], [0], threading.Event()

    def enter(*_: Any) -> None:
        with mutex:
            running[0] += 1
            most[0] = max(most[0], running[0])
            if running[0] == 3:
                full.set()
        # Nobody leaves before the limit was reached once; one too many would come in meanwhile.
        full.wait(GUARD_S)
        threading.Event().wait(0.05)
        with mutex:
            running[0] -= 1

    def finish_later(job: Any) -> None:
        threading.Thread(target=lambda: (enter(), job.succeed())).start()

    engine = FakeRunner("mine", prepare=finish_later)
    steps = [StepSpec(f"here{n}", fn=enter) for n in range(6)]
    steps += [StepSpec(f"there{n}", fn=where, resources=SMALL) for n in range(6)]

    run = run_job(
        build_definitions(steps, runners={"mine": engine}), instance, config={"max_concurrent": 3}
    )

    assert run.success
    assert most[0] == 3


def test_a_tag_limit_on_the_device_holds_for_remote_steps(instance: dg.DagsterInstance) -> None:
    mutex, running, most = threading.Lock(), [0], [0]

    def work(job: Any) -> None:
        with mutex:
            running[0] += 1
            most[0] = max(most[0], running[0])

        def end() -> None:
            threading.Event().wait(0.05)
            with mutex:
                running[0] -= 1
            job.succeed()

        threading.Thread(target=end).start()

    engine = FakeRunner("mine", prepare=work)
    tpu = ResourceConfig.with_tpu("v4-8")
    steps = [StepSpec(f"tpu{n}", fn=where, resources=tpu) for n in range(5)]

    run = run_job(
        build_definitions(steps, runners={"mine": engine}),
        instance,
        config={"tag_concurrency_limits": [{"key": "marin/device", "value": "tpu", "limit": 1}]},
    )

    assert run.success
    assert most[0] == 1


def test_a_left_over_job_stops_executors_that_know_no_runners(
    instance: dg.DagsterInstance,
) -> None:
    step = StepSpec("own", fn=where, resources=SMALL)
    Path(step.output_path).mkdir(parents=True)
    Path(step.output_path, ".executor_status").write_text("RUNNING")
    Path(step.output_path, ".step_job.json").write_text(
        '{"runner": "cluster", "job": "own-1", "owner": "host-1-0123abcd", "engine": "slurm"}'
    )

    run = run_job(build_definitions([step], executor=dg.in_process_executor), instance)

    assert not run.success
    assert "'cluster' (slurm) was left over" in run.error("own")
