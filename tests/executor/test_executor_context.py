"""Where a step's function finds itself: its caller's context, its folder, its own thread."""

import contextvars
import os
import threading
from pathlib import Path
from typing import Any, ClassVar

import dagster as dg
import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from helpers.runs import Recorder, is_locked, run_job, status_of
from marin_dagster import ResourceConfig, StepSpec, build_definitions, remote

client: contextvars.ContextVar[str] = contextvars.ContextVar("client", default="none")


def test_the_callers_context_variables_reach_the_function(instance: dg.DagsterInstance) -> None:
    seen = []
    steps = [
        StepSpec(name, fn=lambda output_path: seen.append(client.get())) for name in ("a", "b")
    ]
    token = client.set("cluster")
    try:
        run = run_job(build_definitions(steps), instance)
    finally:
        client.reset(token)

    assert run.success
    assert seen == ["cluster", "cluster"]


def test_what_a_function_sets_in_its_context_stays_there(instance: dg.DagsterInstance) -> None:
    seen = []

    def build(output_path: str) -> None:
        seen.append(client.get())
        client.set("changed")

    first = StepSpec("first", fn=build)

    assert run_job(
        build_definitions([StepSpec("second", deps=[first], fn=build)]), instance
    ).success

    assert seen == ["none", "none"]
    assert client.get() == "none"


def test_steps_run_outside_the_main_thread(instance: dg.DagsterInstance) -> None:
    threads = []

    def build(output_path: str) -> None:
        threads.append(threading.current_thread())

    assert run_job(build_definitions([StepSpec("raw", fn=build)]), instance).success

    assert threads[0] is not threading.main_thread()
    assert threads[0].daemon


def test_no_thread_of_a_step_is_left_after_the_run(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    before = set(threading.enumerate())
    definitions = build_definitions([recorder.step(f"step_{index}") for index in range(20)])

    run_job(definitions, instance)

    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("marin-step"):
            thread.join(timeout=30)
            assert not thread.is_alive()


def test_the_output_folder_is_there_and_holds_no_data_when_the_function_starts(
    instance: dg.DagsterInstance,
) -> None:
    seen: list[list[str]] = []
    statuses = []

    def build(output_path: str) -> None:
        seen.append(sorted(os.listdir(output_path)))
        statuses.append(Path(output_path, ".executor_status").read_text())

    assert run_job(build_definitions([StepSpec("raw/books", fn=build)]), instance).success

    assert [name for name in seen[0] if not name.startswith(".")] == []
    assert statuses == ["RUNNING"]


def test_a_relative_prefix_is_one_folder_whatever_directory_a_step_changes_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, instance: dg.DagsterInstance
) -> None:
    for name in ("home", "elsewhere", "later"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "home")
    monkeypatch.setenv("MARIN_PREFIX", "./store")
    calls = []

    def wander(output_path: str) -> dict[str, int]:
        calls.append("raw")
        os.chdir(tmp_path / "elsewhere")
        Path(output_path, "data.txt").write_text("raw")
        return {"lines": 1}

    raw = StepSpec("raw", fn=wander)

    def read(output_path: str) -> None:
        calls.append("end")
        Path(output_path, "data.txt").write_text(Path(raw.output_path, "data.txt").read_text())

    end = StepSpec("end", deps=[raw], fn=read)
    definitions = build_definitions([end])

    assert run_job(definitions, instance).success
    monkeypatch.chdir(tmp_path / "later")
    assert run_job(definitions, instance).success

    assert calls == ["raw", "end"]
    for step in (raw, end):
        assert Path(step.output_path).parent == tmp_path / "home" / "store"
        assert status_of(step) == "SUCCESS"
        assert not is_locked(step)
        for name in ("data.txt", ".artifact.json", ".executor_status"):
            assert Path(step.output_path, name).exists()
    assert os.listdir(tmp_path / "elsewhere") == []
    assert os.listdir(tmp_path / "later") == []


def test_a_remote_function_runs_here_when_the_config_says_so(
    instance: dg.DagsterInstance,
) -> None:
    paths = []
    wrapped = remote(resources=ResourceConfig.with_gpu("H100"))(paths.append)
    step = StepSpec("train", fn=wrapped)
    config = {"default_with_resources": "inline"}

    assert run_job(build_definitions([step]), instance, config=config).success

    assert paths == [step.output_path]


def test_a_run_writes_nothing_without_a_dot_beside_what_the_function_wrote(
    recorder: Recorder, instance: dg.DagsterInstance, store: Path
) -> None:
    step = recorder.step("raw/books", result={"lines": 1})

    assert run_job(build_definitions([step]), instance).success

    assert sorted(os.listdir(step.output_path)) == [
        ".artifact.json",
        ".executor_info",
        ".executor_status",
        "data.txt",
    ]
    assert os.listdir(store) == ["raw"]
    assert os.listdir(store / "raw") == [step.name_with_hash.removeprefix("raw/")]


class LoggedFileSystem(MemoryFileSystem):
    """A store in memory that remembers what was written, in order."""

    protocol = "logged"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    log: ClassVar[list[str]] = []

    def pipe_file(self, path: str, value: bytes, *args: Any, **kwargs: Any) -> None:
        name = path.rpartition("/")[2]
        content = value.decode() if name == ".executor_status" else "…"
        self.log.append(f"{name} {content}")
        super().pipe_file(path, value, *args, **kwargs)


def test_the_files_of_a_step_are_written_in_marins_order_on_any_filesystem(
    monkeypatch: pytest.MonkeyPatch, instance: dg.DagsterInstance
) -> None:
    fsspec.register_implementation("logged", LoggedFileSystem, clobber=True)
    monkeypatch.setenv("MARIN_PREFIX", "logged://bucket/store")
    log = LoggedFileSystem.log
    log.clear()
    step = StepSpec("raw", fn=lambda output_path: log.append("the function"))

    run = run_job(build_definitions([step]), instance)

    assert run.success
    assert [entry for entry in log if not entry.startswith(".executor_status.lock")] == [
        ".executor_info …",
        ".executor_status RUNNING",
        "the function",
        ".artifact.json …",
        ".executor_status SUCCESS",
    ]
    assert log[0].startswith(".executor_status.lock")
    assert not any(path.endswith(".lock") for path in LoggedFileSystem.store)
