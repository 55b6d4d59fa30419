"""``StepRunner``: steps from a script."""

import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from helpers.processes import GUARD_S
from helpers.runs import Recorder, is_locked, status_of
from marin_dagster import (
    OUT,
    Artifact,
    ArtifactStep,
    ResourceConfig,
    StepRunner,
    StepSpec,
    apply,
    remote,
    resolve,
    run,
)
from marin_dagster.errors import (
    AdoptedDataMissingError,
    MarinDagsterError,
    OutputNotReadyError,
    PreviousAttemptFailedError,
    RecordError,
    ResultError,
    RoutingError,
    StepsFailedError,
    StepWithoutFunctionError,
)

V = "2026.07.01"


def test_terminals_are_enough_and_results_are_found_by_anything(recorder: Recorder) -> None:
    first = recorder.step("first", result={"n": 1})
    last = recorder.step("last", first, result={"n": 2})

    results = StepRunner().run(iter([last]))

    assert recorder.calls == ["first", "last"]
    assert [results[key].result for key in (first, last.name_with_hash, last.output_path)] == [
        {"n": 1},
        {"n": 2},
        {"n": 2},
    ]
    assert set(results) == {first.output_path, last.output_path}
    assert first in results
    assert "nothing" not in results
    with pytest.raises(KeyError, match="There is no step"):
        results["nothing"]


def test_what_is_cached_is_not_run_and_hides_what_it_reads(recorder: Recorder) -> None:
    first = recorder.step("first")
    last = recorder.step("last", first)
    Path(last.output_path).mkdir(parents=True)
    Path(last.output_path, ".executor_status").write_text("SUCCESS")

    results = StepRunner().run([last])

    assert recorder.calls == []
    assert results[last].path == last.output_path
    with pytest.raises(OutputNotReadyError, match="nothing in this run needed it"):
        results[first]


def test_a_listed_step_is_built_although_what_reads_it_is_cached(recorder: Recorder) -> None:
    first = recorder.step("first")
    last = recorder.step("last", first)
    Path(last.output_path).mkdir(parents=True)
    Path(last.output_path, ".executor_status").write_text("SUCCESS")

    StepRunner().run([first, last])

    assert recorder.calls == ["first"]


def test_one_error_carries_every_real_failure(recorder: Recorder) -> None:
    bad = [recorder.step(name, fails=True) for name in ("bad0", "bad1")]
    below = recorder.step("below", *bad)
    good = recorder.step("good")

    with pytest.raises(StepsFailedError, match=r"2 step\(s\) failed") as raised:
        StepRunner().run([below, good])

    assert isinstance(raised.value, ExceptionGroup)
    assert isinstance(raised.value, MarinDagsterError)
    assert sorted(str(error) for error in raised.value.exceptions) == [
        "bad0 fails on purpose",
        "bad1 fails on purpose",
    ]
    assert all(isinstance(error, RuntimeError) for error in raised.value.exceptions)
    notes = [note for error in raised.value.exceptions for note in error.__notes__]
    assert {note.split()[2] for note in notes} == {"bad0", "bad1"}
    assert "good" in recorder.calls
    assert status_of(below) is None
    caught = []
    try:
        raise raised.value
    except* RuntimeError as group:
        caught += group.exceptions
    assert len(caught) == 2


def test_the_cause_of_a_failure_stays(recorder: Recorder) -> None:
    def build(output_path: str) -> None:
        try:
            raise KeyError("inner")
        except KeyError as error:
            raise ValueError("outer") from error

    with pytest.raises(StepsFailedError) as raised:
        StepRunner().run([StepSpec("step", fn=build)])

    assert isinstance(raised.value.exceptions[0].__cause__, KeyError)


def test_failures_of_the_cache_are_carried_too() -> None:
    with pytest.raises(StepsFailedError) as raised:
        StepRunner().run([StepSpec("step", fn=lambda _: object())])

    assert isinstance(raised.value.exceptions[0], ResultError)


def test_failed_steps_run_again_unless_told_not_to(recorder: Recorder) -> None:
    step = recorder.step("step", fails=True)
    with pytest.raises(StepsFailedError):
        StepRunner().run([step])
    recorder.take()

    with pytest.raises(StepsFailedError) as raised:
        StepRunner().run([step], force_run_failed=False)

    assert recorder.take() == []
    assert isinstance(raised.value.exceptions[0], PreviousAttemptFailedError)


def test_a_missing_input_without_a_function_is_said(recorder: Recorder) -> None:
    external = StepSpec("dump")

    with pytest.raises(StepsFailedError, match="1 step") as raised:
        StepRunner().run([recorder.step("reads", external)])
    assert "dump" in str(raised.value.exceptions[0])
    with pytest.raises(StepsFailedError, match="1 step") as raised:
        StepRunner().run([recorder.step("independent"), external])
    assert isinstance(raised.value.exceptions[0], StepWithoutFunctionError)
    assert recorder.take() == ["independent"]


def test_a_dry_run_touches_nothing(
    recorder: Recorder, store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    external, step = StepSpec("dump"), recorder.step("step")

    results = StepRunner().run([step, external], dry_run=True)

    assert recorder.calls == []
    assert not store.exists()
    with pytest.raises(OutputNotReadyError, match="this was a dry run"):
        results[step]
    assert "would be blocked: step dump_" in caplog.text


@pytest.mark.parametrize(("own", "given", "most"), [(2, None, 2), (1, 3, 3), (0, None, 8)])
def test_at_most_so_many_steps_run_at_once(own: int, given: int | None, most: int) -> None:
    together = threading.Barrier(most)
    mutex, inside, peak = threading.Lock(), [0], [0]

    def build(output_path: str) -> None:
        with mutex:
            inside[0] += 1
            peak[0] = max(peak[0], inside[0])
        together.wait(60)
        with mutex:
            inside[0] -= 1

    steps = [StepSpec(f"step{n}", fn=build) for n in range(2 * most)]

    StepRunner(own).run(steps, max_concurrent=given)

    assert peak[0] == most
    with pytest.raises(ValueError, match="max_concurrent = -1"):
        StepRunner(-1).run(steps)


def test_the_run_is_recorded_where_it_should_be(
    recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = recorder.step("step")
    (tmp_path / "own").mkdir()
    with dg.DagsterInstance.local_temp(str(tmp_path / "own")) as instance:
        StepRunner(instance=instance).run([step])
        assert [found.job_name for found in instance.get_runs()] == ["step_runner"]
        assert instance.get_latest_materialization_event(dg.AssetKey("step")) is not None
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    StepRunner().run([recorder.step("other")])
    with dg.DagsterInstance.get() as instance:
        assert len(instance.get_runs()) == 1


def test_steps_with_resources_have_processes_of_their_own() -> None:
    step = StepSpec("step", fn=lambda _: {"pid": os.getpid()}, resources=ResourceConfig(ram="1g"))

    results = StepRunner().run([step])

    assert (results[step].result or {})["pid"] != os.getpid()
    wrapped = remote(resources=ResourceConfig(ram="1g"))(lambda out: Path(out, "x").touch())
    artifact = resolve(apply("lazy", wrapped, version=V, out=OUT))
    assert Path(artifact.path, "x").exists()
    assert artifact.record.provenance is not None
    with pytest.raises(RoutingError, match="v4-8"):
        StepRunner().run([StepSpec("tpu", fn=print, resources=ResourceConfig.with_tpu("v4-8"))])


def test_lazy_artifacts_are_built_and_loaded(tmp_path: Path) -> None:
    class Count(Artifact):
        count: int

    def count(size: int, out: str) -> Any:
        return Count(count=size)

    first = apply("first", count, version=V, artifact_type=Count, size=1, out=OUT)
    second = apply("second", count, version=V, artifact_type=Count, size=2, out=OUT)

    assert [found.count for found in run(first, second)] == [1, 2]
    assert resolve(second).count == 2
    assert StepRunner().run([first])[first].result == {"count": 1}


def test_adopted_data_that_is_asked_for_is_registered(tmp_path: Path, store: Path) -> None:
    (tmp_path / "old").mkdir()
    adopted = ArtifactStep.adopt("old", V, str(tmp_path / "old"))

    assert resolve(adopted).path == str(tmp_path / "old")
    assert store.joinpath("old", V, ".artifact.json").exists()


def test_adopted_data_that_is_missing_stops_nothing_else(
    tmp_path: Path, recorder: Recorder
) -> None:
    adopted = ArtifactStep.adopt("old", V, str(tmp_path / "old"))
    for force_run_failed, kind in (
        (True, AdoptedDataMissingError),
        (False, PreviousAttemptFailedError),
    ):
        with pytest.raises(StepsFailedError) as raised:
            StepRunner().run([adopted, recorder.step("raw")], force_run_failed=force_run_failed)
        assert [type(error) for error in raised.value.exceptions] == [kind]
    assert recorder.take() == ["raw"]


def test_what_is_found_before_anything_runs_is_carried_as_it_is(recorder: Recorder) -> None:
    first = recorder.step("first")
    broken = ArtifactStep("broken", V, Artifact, lambda _: None, lambda _: None)
    StepRunner().run([first, broken])
    broken_record = Path(broken.lower().output_path, ".artifact.json")
    broken_record.write_text("{")
    with pytest.raises(StepsFailedError) as raised:
        StepRunner().run([first, broken])
    assert [type(error) for error in raised.value.exceptions] == [RecordError]
    assert str(broken_record) in str(raised.value.exceptions[0])


def test_a_function_that_opens_its_output_path_is_told_that_it_is_a_folder() -> None:
    def build(output_path: str) -> None:
        with open(output_path, "w") as file:
            file.write("data")

    with pytest.raises(StepsFailedError) as raised:
        StepRunner().run([StepSpec("step", fn=build)])

    assert isinstance(raised.value.exceptions[0], IsADirectoryError)
    assert "Is a directory" in str(raised.value.exceptions[0])


SCRIPT = """
import pathlib, time
from marin_dagster import StepRunner, StepSpec

def wait(output_path):
    pathlib.Path(output_path, "started").write_text("yes")
    while True:
        time.sleep(0.05)

StepRunner().run([StepSpec("step", fn=wait)])
"""


def test_ctrl_c_stops_the_steps_and_leaves_nothing_locked(store: Path) -> None:
    script = subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    step = StepSpec("step", fn=print)
    deadline = time.monotonic() + GUARD_S
    while not Path(step.output_path, "started").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)

    script.send_signal(signal.SIGINT)
    _, stderr = script.communicate(timeout=GUARD_S)

    assert script.returncode != 0
    assert b"KeyboardInterrupt" in stderr
    assert status_of(step) == "FAILED"
    assert not is_locked(step)


STUCK = """
import pathlib, time
from marin_dagster import ResourceConfig, StepRunner, StepSpec

def wait(output_path):
    pathlib.Path(output_path, "started").write_text("yes")
    time.sleep(600)

StepRunner().run([
    StepSpec("stuck", fn=wait),
    StepSpec("elsewhere", fn=wait, resources=ResourceConfig(ram="1g")),
])
"""


def test_a_job_elsewhere_does_not_prolong_the_grace_of_a_step_stuck_in_c(store: Path) -> None:
    script = subprocess.Popen(
        [sys.executable, "-c", STUCK], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    steps = [StepSpec(name, fn=print) for name in ("stuck", "elsewhere")]
    deadline = time.monotonic() + GUARD_S
    while not all(Path(step.output_path, "started").exists() for step in steps):
        assert time.monotonic() < deadline
        time.sleep(0.05)

    script.send_signal(signal.SIGINT)
    _, stderr = script.communicate(timeout=GUARD_S)

    assert b"Step stuck did not stop within 5 s" in stderr
    assert b"Step elsewhere did not" not in stderr
    assert [status_of(step) for step in steps] == ["RUNNING", "FAILED"]


@pytest.mark.parametrize("in_job", [False, True])
def test_the_traceback_of_a_failure_begins_in_the_function(in_job: bool) -> None:
    def fail(output_path: str) -> None:
        raise ValueError("no more disks")

    resources = ResourceConfig(ram="1g") if in_job else None
    with pytest.raises(StepsFailedError) as raised:
        StepRunner().run([StepSpec("bad", fn=fail, resources=resources)])

    cause = raised.value.__cause__
    assert cause is raised.value.exceptions[0]
    frames = [frame.name for frame in traceback.extract_tb(cause.__traceback__)]
    # In a job, the message has the frames.
    assert frames == ([] if in_job else ["fail"])
    assert "no more disks" in str(cause)
