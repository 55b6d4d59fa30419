"""Leases and outputs in Google Cloud Storage: real clients against a small server of its API."""

import threading
from collections.abc import Iterator

import fsspec
import pytest
from aiohttp import ClientTimeout

from helpers.cache import GUARD_S, LOCK, RECORD, STATUS, begin, build, lease, make
from helpers.gcs_server import GcsServer, running
from helpers.unsteady_proxy import AnswerLost, Hanging, Unavailable, UnsteadyProxy, in_front_of
from marin_dagster.cache import (
    CacheState,
    Hit,
    LeaseTiming,
    OutputDir,
    StepCache,
    client_options,
    object_lock,
    store,
)
from marin_dagster.cache.lease import LeaseWatch, Lock, parse_lease
from marin_dagster.cache.locks import lock_for
from marin_dagster.cache.object_lock import ObjectLock
from marin_dagster.cache.worker_ids import new_worker_id
from marin_dagster.errors import LeaseLostError, StoreTimeoutError

BUCKET = "bucket"
TIMING = LeaseTiming()


@pytest.fixture
def gcs(monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsServer]:
    """An empty server; the process's GCS settings and ``MARIN_PREFIX`` point to it."""
    import fsspec
    from gcsfs.core import GCSFileSystem

    # The class that gcsfs registers asks over gRPC first what kind of bucket it is.
    for scheme in ("gs", "gcs"):
        fsspec.register_implementation(scheme, GCSFileSystem, clobber=True)
    GCSFileSystem.clear_instance_cache()
    with running() as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        # One bucket for each server: the lock's client is kept for as long as the process lives.
        monkeypatch.setenv("MARIN_PREFIX", f"gs://{BUCKET}-{server.server_port}/store")
        monkeypatch.setitem(fsspec.config.conf, "gcs", {"token": "anon"})
        yield server
    GCSFileSystem.clear_instance_cache()


@pytest.fixture
def proxy(gcs: GcsServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[UnsteadyProxy]:
    """The server is reached through a proxy only."""
    with in_front_of(gcs.url) as found:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", found.url)
        yield found


def folder(name: str = "step") -> OutputDir:
    return OutputDir.at(make(name).output_path)


def lock(name: str = "step") -> Lock:
    found = lock_for(folder(name), TIMING)
    assert isinstance(found, ObjectLock)
    return found


def holder(name: str = "step") -> str | None:
    found = lock(name).read()
    return found.worker_id if found else None


def writes(server: GcsServer) -> list[str]:
    """What the puts of lock files demanded of the generation, in order."""
    return [
        line.rpartition(" if ")[2]
        for line in server.requests
        if line.startswith("PUT ") and LOCK in line
    ]


def generation(server: GcsServer, name: str = "step") -> str:
    bucket, _, key = folder(name).file(LOCK).partition("/")
    return str(server.objects[bucket, key].generation)


def test_the_first_put_demands_that_there_is_no_lock_and_a_renewal_the_generation_it_read(
    gcs: GcsServer,
) -> None:
    worker_id = new_worker_id()
    assert lock().acquire(worker_id, LeaseWatch(TIMING))
    first = generation(gcs)
    lock().refresh(worker_id)
    assert generation(gcs) != first
    assert writes(gcs) == ["0", first]
    assert holder() == worker_id


def test_a_worker_that_does_not_see_the_lock_yet_cannot_overwrite_it(
    gcs: GcsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lock().acquire("first", LeaseWatch(TIMING))
    late = lock()
    get = ObjectLock._get
    answers = iter([(None, None)])
    monkeypatch.setattr(ObjectLock, "_get", lambda self: next(answers, None) or get(self))
    assert not late.acquire("second", LeaseWatch(TIMING))
    assert holder() == "first"


@pytest.mark.usefixtures("gcs")
def test_of_two_workers_exactly_one_wins_each_race() -> None:
    for number in range(60):
        name = f"step{number // 2}"
        if number % 2:
            folder(name).write(LOCK, lease("dead-1", age_s=91).encode())
        start = threading.Barrier(2)
        won: list[str] = []

        def want(worker_id: str, name: str = name, start: threading.Barrier = start) -> None:
            competitor = lock(name)
            start.wait(GUARD_S)
            if competitor.acquire(worker_id, LeaseWatch(TIMING)):
                won.append(worker_id)  # noqa: B023

        both = [threading.Thread(target=want, args=(f"worker-{which}",)) for which in "ab"]
        for thread in both:
            thread.start()
        for thread in both:
            thread.join(GUARD_S)
        assert won == [holder(name)]
        lock(name).release(won[0])


def test_a_renewal_that_a_takeover_precedes_is_refused_and_the_lease_is_lost(
    gcs: GcsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lock().acquire("slow", LeaseWatch(TIMING))
    get = ObjectLock._get

    def get_then_lose(self: ObjectLock) -> object:
        found = get(self)
        monkeypatch.setattr(ObjectLock, "_get", get)
        folder().write(LOCK, lease("quick").encode())
        return found

    stale = generation(gcs)
    monkeypatch.setattr(ObjectLock, "_get", get_then_lose)
    with pytest.raises(LeaseLostError, match="quick"):
        lock().refresh("slow")
    assert writes(gcs) == ["0", stale]
    assert holder() == "quick"


@pytest.mark.usefixtures("gcs")
def test_a_lease_that_is_gone_cannot_be_renewed() -> None:
    with pytest.raises(LeaseLostError, match="is gone"):
        lock().refresh("anyone")


def test_a_stale_lease_is_taken_over_by_its_generation_and_a_live_one_is_not(
    gcs: GcsServer,
) -> None:
    folder().write(LOCK, lease("alive-1", age_s=60).encode())
    assert not lock().acquire("second", LeaseWatch(TIMING))
    assert writes(gcs) == []

    folder().write(LOCK, lease("dead-1", age_s=91).encode())
    stale = generation(gcs)
    assert lock().acquire("second", LeaseWatch(TIMING))
    assert writes(gcs) == [stale]
    assert holder() == "second"


@pytest.mark.usefixtures("gcs")
def test_release_removes_a_worker_s_own_lock_only() -> None:
    assert lock().acquire("first", LeaseWatch(TIMING))
    lock().release("second")
    assert holder() == "first"
    lock().release("first")
    assert folder().read(LOCK) is None
    lock().release("first")


@pytest.mark.usefixtures("gcs")
def test_an_output_is_built_looked_up_and_served() -> None:
    step, cache = make("step"), StepCache()
    assert cache.look_up(step).state is CacheState.MISS

    attempt = begin(step, cache)
    held = parse_lease(folder().read(LOCK))
    assert folder().read(STATUS) == b"RUNNING"
    assert held
    assert cache.look_up(step).owner == held.worker_id
    attempt.result = {"loss": 0.5}
    attempt.commit()

    assert folder().read(STATUS) == b"SUCCESS"
    assert folder().read(RECORD)
    assert folder().read(LOCK) is None
    assert cache.look_up(step).state is CacheState.HIT
    hit = cache.begin(step)
    assert isinstance(hit, Hit)
    assert hit.record
    assert hit.record.result == {"loss": 0.5}


@pytest.mark.usefixtures("gcs")
def test_a_step_is_built_on_finished_inputs_and_a_failure_leaves_no_lock() -> None:
    inputs = build(make("inputs"))
    attempt = begin(make("step", inputs))
    attempt.fail()
    output = OutputDir.at(make("step", inputs).output_path)
    assert (output.read(STATUS), output.read(LOCK)) == (b"FAILED", None)
    assert StepCache().look_up(make("step", inputs)).state is CacheState.FAILED


@pytest.mark.usefixtures("gcs")
def test_the_files_of_an_output_are_counted_without_the_cache_s_own() -> None:
    step = build(make("step"))
    output = OutputDir.at(step.output_path)
    output.write("data.txt", b"12345")
    assert output.files() == {"data.txt": 5}


@pytest.mark.parametrize("fault", [AnswerLost, Unavailable])
def test_a_worker_whose_puts_go_wrong_on_the_way_takes_keeps_and_gives_back_the_lease(
    proxy: UnsteadyProxy, fault: type[AnswerLost | Unavailable]
) -> None:
    struck = [proxy.strike(fault("PUT", LOCK, times=1))]
    assert lock().acquire("first", LeaseWatch(TIMING))
    struck.append(proxy.strike(fault("PUT", LOCK, times=1)))
    lock().refresh("first")
    assert holder() == "first"
    struck.append(proxy.strike(fault("DELETE", LOCK, times=1)))
    lock().release("first")
    assert holder() is None
    assert [each.hits for each in struck] == [1, 1, 1]


def test_a_store_that_hangs_for_a_moment_is_asked_again(
    proxy: UnsteadyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_options, "_GCS_READ_S", 1.0)
    fault = proxy.strike(Hanging("GET", STATUS, times=1))
    assert StepCache().look_up(make("step")).state is CacheState.MISS
    assert fault.hits == 1


@pytest.mark.parametrize("configured", [{}, {"requests_timeout": 600}])
def test_a_store_that_hangs_gives_one_error_soon_that_names_the_file(
    proxy: UnsteadyProxy, monkeypatch: pytest.MonkeyPatch, configured: dict[str, int]
) -> None:
    monkeypatch.setitem(fsspec.config.conf, "gcs", {"token": "anon", **configured})
    monkeypatch.setattr(store, "_PATIENCE_S", 2.0)
    proxy.strike(Hanging())
    with pytest.raises(StoreTimeoutError, match=f" {make('step').output_path}/{STATUS}: "):
        StepCache().look_up(make("step"))
    assert folder().fs.requests_timeout == configured.get(
        "requests_timeout", ClientTimeout(sock_connect=15.0, sock_read=15.0)
    )


def test_committing_to_a_store_that_hangs_asks_no_second_time(
    proxy: UnsteadyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_AWAY_S", 0.5)
    monkeypatch.setattr(object_lock, "_TIMEOUTS", {"connect_timeout": "1s", "timeout": "1s"})
    monkeypatch.setattr(object_lock, "_RETRIES", {"max_retries": 1})
    attempt = begin(make("step"))
    fault = proxy.strike(Hanging())
    with pytest.raises(StoreTimeoutError, match=f" {make('step').output_path}/{LOCK}: "):
        attempt.commit()
    assert fault.hits == 3  # the put that renews the lease, then a read, which is tried twice
    proxy.recover()
    assert (folder().read(STATUS), holder()) == (b"RUNNING", attempt._lease.worker_id)
