"""Looking outputs up: what is found, that nothing is written, and that 64 are looked at at once."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.spec import AbstractFileSystem

from helpers.cache import GUARD_S, LOCK, STATUS, begin, build, lease, make, put, tree
from marin_dagster.cache import CacheState, Hit, OutputDir, StepCache, parallel
from marin_dagster.errors import RecordError, StoreError
from marin_dagster.steps import StepSpec

look_up = StepCache().look_up


def test_each_state_is_found() -> None:
    build(make("hit"))
    begin(make("failed")).fail()
    running = begin(make("running"))
    put(make("dep failed"), STATUS, "DEP_FAILED")
    put(make("garbage"), STATUS, "garbage")
    put(make("no status"), "data.txt", "x")
    put(make("left behind"), STATUS, "RUNNING")
    put(make("stale"), STATUS, "RUNNING")
    put(make("stale"), LOCK, lease(age_s=91))
    put(make("foreign"), STATUS, "RUNNING")
    put(make("foreign"), LOCK, lease("foreign-1"))
    put(make("unreadable lock"), STATUS, "RUNNING")
    put(make("unreadable lock"), LOCK, "garbage")
    expected = {
        "hit": CacheState.HIT,
        "failed": CacheState.FAILED,
        "running": CacheState.RUNNING,
        "dep failed": CacheState.FAILED,
        "garbage": CacheState.MISS,
        "no status": CacheState.MISS,
        "left behind": CacheState.MISS,
        "stale": CacheState.MISS,
        "foreign": CacheState.RUNNING,
        "unreadable lock": CacheState.RUNNING,
        "missing": CacheState.MISS,
    }
    assert {name: look_up(make(name)).state for name in expected} == expected
    assert look_up(make("foreign")).owner == "foreign-1"
    assert look_up(make("hit")).owner is None
    running.commit()


def test_a_success_is_a_hit_while_a_foreign_lock_stands() -> None:
    step = build(make("step"))
    put(step, LOCK, lease("foreign-1"))
    assert look_up(step).state is CacheState.HIT


def test_a_dev_version_is_never_a_hit() -> None:
    step = build(make("step", hash_attrs={"fingerprint": "f", "version": "dev"}))
    assert look_up(step).state is CacheState.MISS


def test_a_step_without_function_is_looked_up() -> None:
    build(make("step"))
    assert look_up(StepSpec("step")).state is CacheState.HIT


def test_looking_up_writes_nothing_in_an_empty_store(store: Path) -> None:
    steps = [make(f"s{index}") for index in range(50)]
    found = StepCache().look_up_many(steps)
    assert {result.state for result in found.values()} == {CacheState.MISS}
    assert not store.exists()


def test_looking_up_writes_nothing_in_a_full_store(store: Path) -> None:
    steps = [build(make(f"s{index}")) for index in range(5)]
    begin(make("failed")).fail()
    put(make("left behind"), STATUS, "RUNNING")
    put(make("left behind"), LOCK, lease(age_s=91))
    before = tree(store)
    StepCache().look_up_many([*steps, make("failed"), make("left behind"), make("missing")])
    assert tree(store) == before


def test_many_are_found_by_output_path_in_their_order() -> None:
    steps = [make(f"s{index}") for index in range(100)]
    for step in steps[::2]:
        build(step)
    found = StepCache().look_up_many(steps)
    assert list(found) == [step.output_path for step in steps]
    states = [found[step.output_path].state for step in steps]
    assert states == [CacheState.HIT, CacheState.MISS] * 50


def test_no_steps_are_no_results() -> None:
    assert StepCache().look_up_many([]) == {}


def test_one_output_that_cannot_be_read_is_unknown_and_holds_up_no_other() -> None:
    steps = [make(f"s{index}") for index in range(40)]
    Path(steps[20].output_path, STATUS).mkdir(parents=True)
    found = StepCache().look_up_many(steps)
    unknown = found.pop(steps[20].output_path)
    assert unknown.state is CacheState.UNKNOWN
    assert steps[20].output_path in str(unknown.error)
    assert {look.state for look in found.values()} == {CacheState.MISS}
    with pytest.raises(StoreError, match=steps[20].output_path):
        StepCache().look_up(steps[20])


class MeetingFileSystem(AbstractFileSystem):
    """A store where each reader waits until 64 of them have come."""

    protocol = "meeting"
    meeting: ClassVar[threading.Barrier]
    inside: ClassVar[Counter[str]]
    mutex: ClassVar[threading.Lock]

    def cat_file(self, path: str, start: Any = None, end: Any = None, **options: Any) -> bytes:
        if "/first/" in path:
            return b"SUCCESS"
        with self.mutex:
            self.inside["now"] += 1
            self.inside["most"] = max(self.inside["most"], self.inside["now"])
        self.meeting.wait(GUARD_S)
        with self.mutex:
            self.inside["now"] -= 1
        self.meeting.wait(GUARD_S)
        return b"SUCCESS"


@pytest.fixture
def meeting(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the readers of ``meeting://`` paths, of which the first is alone and takes long."""
    monkeypatch.setattr(parallel, "_WORTH_A_THREAD_S", -1.0)
    MeetingFileSystem.meeting = threading.Barrier(parallel.WIDTH)
    MeetingFileSystem.inside = Counter()
    MeetingFileSystem.mutex = threading.Lock()
    fsspec.register_implementation("meeting", MeetingFileSystem, clobber=True)
    return MeetingFileSystem.inside


def test_64_outputs_are_looked_up_at_once_and_never_more(meeting: Counter[str]) -> None:
    steps = [
        StepSpec("a", override_output_path=f"meeting://store/{n}")
        for n in ("first", *range(2 * parallel.WIDTH))
    ]
    found = StepCache().look_up_many(steps)
    assert list(found) == [step.output_path for step in steps]
    assert {result.state for result in found.values()} == {CacheState.HIT}
    assert meeting["most"] == parallel.WIDTH == 64


def test_the_records_of_64_outputs_are_read_at_once(meeting: Counter[str]) -> None:
    def read(number: int) -> None:
        hit = Hit(StepSpec("a"), OutputDir.at(f"meeting://store/{number}"))
        with pytest.raises(RecordError):  # that store holds one word everywhere
            _ = hit.record

    with ThreadPoolExecutor(parallel.WIDTH) as pool:
        list(pool.map(read, range(parallel.WIDTH)))
    assert meeting["most"] == parallel.WIDTH == 64


def test_on_a_store_that_answers_at_once_one_thread_looks(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "_WORTH_A_THREAD_S", float("inf"))
    threads = set()

    class Quick(LocalFileSystem):
        protocol = "quick"
        cachable = False

        @classmethod
        def _strip_protocol(cls, path: str) -> str:
            return path.removeprefix("quick://")

        def cat_file(self, path: str, *args: Any, **options: Any) -> bytes:
            threads.add(threading.get_ident())
            return b"SUCCESS"

    fsspec.register_implementation("quick", Quick, clobber=True)
    steps = [StepSpec("a", override_output_path=f"quick://store/{n}") for n in range(20)]

    StepCache().look_up_many(steps)

    assert threads == {threading.get_ident()}


def test_the_dependencies_of_one_step_are_looked_up_at_once(meeting: Counter[str]) -> None:
    deps = [
        StepSpec("a", override_output_path=f"meeting://store/{n}")
        for n in ("first", *range(parallel.WIDTH))
    ]
    begin(make("reader", *deps)).commit()
    assert meeting["most"] == parallel.WIDTH == 64
