"""The cache sensor while things change: work elsewhere, removals, drift, a store cut off."""

import logging
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
import fsspec
import pytest
from dagster._core.definitions.data_version import StaleStatus
from dagster._core.test_utils import create_test_daemon_workspace_context
from dagster._core.workspace.load_target import PythonFileTarget
from dagster._daemon.sensor import execute_sensor_iteration
from fsspec.implementations.local import LocalFileSystem

from helpers.runs import Recorder, metadata_of, run_job
from helpers.sensor_ticks import Watch, build_outside
from marin_dagster import MarinDagsterError, MarinIOManager, StepCache, StepSpec, apply, lower
from marin_dagster.automation import cache_sensor as sensor_module
from marin_dagster.cache import Attempt
from marin_dagster.lazy import OUT

GUARD_S = 60


@contextmanager
def _built_in_another_process(step: StepSpec) -> Iterator[str]:
    """A live process that builds the step until the block ends; yields who it is."""
    code = (
        "import sys\n"
        "from marin_dagster import StepCache, StepSpec\n"
        f"attempt = StepCache().begin(StepSpec({step.name!r}, fn=print))\n"
        "print(attempt.worker_id, flush=True)\n"
        "sys.stdin.readline()\n"
        "attempt.commit()\n"
    )
    worker = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert worker.stdout is not None
    yield worker.stdout.readline().strip()
    worker.communicate("\n", timeout=GUARD_S)
    assert worker.returncode == 0


def _begin(step: Any) -> Attempt:
    attempt = StepCache().begin(step)
    assert isinstance(attempt, Attempt)
    return attempt


def test_work_elsewhere_is_observed_once_and_then_its_result_materialized(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    step = recorder.step("raw")
    watch = Watch(instance, [step])

    with _built_in_another_process(step) as owner:
        events = watch.tick()
        again = watch.tick()

    assert isinstance(events["raw"], dg.AssetObservation)
    assert metadata_of(events["raw"])["marin/cache"] == "running"
    assert metadata_of(events["raw"])["marin/owner"] == owner
    assert owner in (events["raw"].description or "")
    assert again == {}
    assert watch.reported() == {"raw": "hit"}
    assert watch.remembered == 0
    assert watch.tick() == {}


def test_another_owner_is_another_observation(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    step = recorder.step("raw")
    watch = Watch(instance, [step])

    for _ in range(2):
        attempt = _begin(step)
        assert metadata_of(watch.tick()["raw"])["marin/owner"] == attempt.worker_id
        assert watch.tick() == {}
        assert watch.remembered == 1
        attempt.fail()

    # It never was finished, so that there is nothing to miss.
    assert watch.tick() == {}
    assert watch.remembered == 0


def test_what_a_run_of_this_instance_builds_is_left_to_it(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    building, reported = threading.Event(), threading.Event()

    def build(output_path: str) -> None:
        building.set()
        assert reported.wait(GUARD_S)

    slow = StepSpec("slow", fn=build)
    other = recorder.step("other")
    build_outside(other)
    watch = Watch(instance, [slow, other])
    run = threading.Thread(
        target=run_job, args=(watch.definitions, instance), kwargs={"select": ["slow"]}
    )
    run.start()
    try:
        assert building.wait(GUARD_S)
        while_running = watch.reported()
        # Committed, and its event not written yet.
        Path(slow.output_path, ".executor_status").write_text("SUCCESS")
        when_committed = watch.reported()
    finally:
        reported.set()
        run.join(GUARD_S)

    assert while_running == {"other": "hit"}
    assert when_committed == {}
    assert watch.tick() == {}
    assert watch.remembered == 0


def test_a_run_that_records_an_output_during_the_tick_is_not_repeated(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    step = recorder.step("raw")
    build_outside(step)
    ran: list[str] = []

    class MeanwhileCache(StepCache):
        def look_up_many(self, steps: Any) -> Any:
            found = super().look_up_many(steps)
            ran.extend(run_job(Watch(instance, [step]).definitions, instance).materialized())
            return found

    class MeanwhileManager(MarinIOManager):
        @property
        def cache(self) -> StepCache:
            return MeanwhileCache()

    watch = Watch(instance, [step], manager=MeanwhileManager())

    assert watch.tick() == {}
    assert ran == ["raw"]


def test_a_removed_output_is_observed_once_and_materialized_when_it_is_back(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    raw = recorder.step("raw")
    end = recorder.step("end", raw)
    watch = Watch(instance, [end])
    run_job(watch.definitions, instance)
    assert watch.tick() == {}
    clean = watch.cursor
    shutil.rmtree(raw.output_path)

    events = watch.tick()

    assert list(events) == ["raw"]
    assert isinstance(events["raw"], dg.AssetObservation)
    assert metadata_of(events["raw"])["marin/cache"] == "removed"
    removed = watch.cursor
    assert watch.tick() == {}
    assert watch.cursor == removed

    build_outside(raw)
    assert isinstance(watch.tick()["raw"], dg.AssetMaterialization)
    assert watch.tick() == {}
    assert watch.cursor == clean
    assert (watch.stale("raw"), watch.stale("end")) == (StaleStatus.FRESH, StaleStatus.FRESH)


def test_an_output_that_a_run_of_this_instance_built_again_is_no_news(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    watch = Watch(instance, [raw := recorder.step("raw")])
    run_job(watch.definitions, instance)
    shutil.rmtree(raw.output_path)
    assert watch.reported() == {"raw": "removed"}

    run_job(watch.definitions, instance)

    assert watch.tick() == {}
    assert watch.remembered == 0


def test_an_output_that_is_built_again_elsewhere_is_told_from_begin_to_end(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    watch = Watch(instance, [raw := recorder.step("raw")])
    run_job(watch.definitions, instance)
    story = []

    attempt = StepCache().begin(raw, force=True)
    assert isinstance(attempt, Attempt)
    assert watch.tick() == {}
    attempt.withdraw()
    story.append(watch.reported())
    attempt.fail()
    story.append(watch.reported())
    attempt = _begin(raw)
    story.append(watch.reported())
    attempt.commit()
    story.append(watch.reported())

    assert [tick["raw"] for tick in story] == ["running", "failed", "running", "hit"]
    assert watch.tick() == {}


def test_a_changed_step_whose_old_output_lies_elsewhere_is_not_called_removed(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    old, new = (recorder.step("raw", hash_attrs={"version": number}) for number in (1, 2))
    run_job(Watch(instance, [old]).definitions, instance)

    assert Watch(instance, [new]).tick() == {}


def _make(out: str, size: int) -> None:
    Path(out, "data.txt").write_text(str(size))


def _artifact(name: str, size: int, version: str = "2026.07.01") -> Any:
    return apply(name, _make, version=version, out=OUT, size=size)


def test_a_drifted_output_has_the_version_that_is_recorded(instance: dg.DagsterInstance) -> None:
    old, new = _artifact("raw", size=1), _artifact("raw", size=2)
    build_outside(old)
    watch = Watch(instance, [new])

    made = watch.tick()["raw"]

    tags = made.tags or {}
    assert tags["dagster/data_version"] == old.fingerprint()
    assert tags["dagster/code_version"] == f"2026.07.01-{old.fingerprint()}"
    assert "size: 1 -> 2" in metadata_of(made)["marin/drift"]
    assert watch.tick() == {}
    assert watch.stale("raw") == StaleStatus.STALE
    assert Watch(instance, [old]).stale("raw") == StaleStatus.FRESH

    shutil.rmtree(lower(new).output_path)
    assert watch.reported() == {"raw": "removed"}


def test_each_build_of_a_dev_version_is_told_once_unless_a_run_has_recorded_it(
    instance: dg.DagsterInstance,
) -> None:
    watch = Watch(instance, [handle := _artifact("raw", size=1, version="dev")])
    run_job(watch.definitions, instance)
    assert watch.tick() == {}

    versions = []
    for _ in range(2):
        build_outside(handle)
        (made,) = watch.tick().values()
        versions.append((made.tags or {})["dagster/data_version"])
        assert watch.tick() == {}
        assert watch.stale("raw") == StaleStatus.FRESH

    assert versions[0] != versions[1]
    assert all(version.startswith(handle.fingerprint()) for version in versions)


class CutFileSystem(LocalFileSystem):
    """The local disk, of which parts can be cut off."""

    protocol = "cut"
    cut: str | None = None
    """Paths with this in them do not answer."""

    @classmethod
    def _strip_protocol(cls, path: Any) -> str:
        return str(path).removeprefix("cut://")

    def cat_file(self, path: str, *args: Any, **kwargs: Any) -> bytes:
        if self.cut is not None and self.cut in path:
            raise OSError("the store is cut off")
        return bytes(super().cat_file(path, *args, **kwargs))


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch, store: Path) -> Iterator[type[CutFileSystem]]:
    """``MARIN_PREFIX`` on a store that can be cut off."""
    fsspec.register_implementation("cut", CutFileSystem, clobber=True)
    monkeypatch.setenv("MARIN_PREFIX", f"cut://{store}")
    yield CutFileSystem
    CutFileSystem.cut = None


def test_steps_that_the_store_does_not_tell_of_stay_as_they_were_and_are_named(
    instance: dg.DagsterInstance, cut: type[CutFileSystem], capfd: pytest.CaptureFixture[str]
) -> None:
    steps = [StepSpec(name, fn=print) for name in ("away", "gone", "new")]
    away, gone, new = steps
    watch = Watch(instance, steps)
    run_job(watch.definitions, instance, select=["away", "gone"])
    shutil.rmtree(gone.output_path.removeprefix("cut://"))
    assert watch.reported() == {"gone": "removed"}
    cursor = watch.cursor
    build_outside(new)

    cut.cut = away.name
    capfd.readouterr()
    assert watch.reported() == {"new": "hit"}
    assert f"left as they were: {away.name_with_hash}. Of the first: " in capfd.readouterr().err
    cut.cut = gone.name
    assert watch.tick() == {}

    assert watch.cursor == cursor
    cut.cut = None
    assert watch.tick() == {}


def test_a_tick_fails_when_the_store_tells_nothing_of_any_step(
    instance: dg.DagsterInstance, cut: type[CutFileSystem]
) -> None:
    watch = Watch(instance, [StepSpec("one", fn=print), StepSpec("two", fn=print)])
    cut.cut = "/"

    with pytest.raises(MarinDagsterError, match=r"none of the 2 steps.*cut off"):
        watch.evaluate()


def test_a_removal_that_is_put_off_is_told_on_the_next_tick(
    recorder: Recorder, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sensor_module, "EVENTS_PER_TICK", 1)
    steps = [recorder.step("one"), recorder.step("two")]
    watch = Watch(instance, steps)
    run_job(watch.definitions, instance)
    for step in steps:
        shutil.rmtree(step.output_path)

    assert [watch.reported() for _ in range(3)] == [{"one": "removed"}, {"two": "removed"}, {}]


def test_a_cursor_of_another_making_is_as_good_as_none(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    step = recorder.step("raw")
    build_outside(step)

    for cursor in ("not json", "[1]", '{"a": 1}'):
        assert len(Watch(instance, [step], cursor=cursor).evaluate().asset_events) == 1


LOCATION = """
from marin_dagster import StepSpec, build_definitions

raw = StepSpec("raw", fn=print)
defs = build_definitions([StepSpec("end", deps=[raw], fn=print)], cache_sensor=True)
"""


def test_dagsters_daemon_runs_the_sensor_in_a_code_server(tmp_path: Path) -> None:
    location = tmp_path / "location.py"
    location.write_text(LOCATION)
    namespace: dict[str, Any] = {}
    exec(LOCATION, namespace)
    build_outside(namespace["raw"])
    target = PythonFileTarget(str(location), None, str(tmp_path), "steps")
    home = tmp_path / "home"
    home.mkdir()
    with ExitStack() as stack:
        instance = stack.enter_context(dg.DagsterInstance.local_temp(str(home)))
        workspace = stack.enter_context(create_test_daemon_workspace_context(target, instance))

        errors = [found for found in _iterate(workspace) if found is not None]

        assert errors == []
        event = instance.get_latest_materialization_event(dg.AssetKey("raw"))
        assert event is not None
        assert event.asset_materialization is not None
        assert metadata_of(event.asset_materialization)["marin/cache"] == "hit"
        assert instance.get_latest_materialization_event(dg.AssetKey("end")) is None
        (state,) = instance.all_instigator_state()
        (tick,) = instance.get_ticks(state.instigator_origin_id, state.selector_id)
        assert "2 steps checked: 1 new" in (tick.tick_data.skip_reason or "")


def _iterate(workspace: Any) -> list[Any]:
    return list(execute_sensor_iteration(workspace, logging.getLogger("sensor"), None, None))
