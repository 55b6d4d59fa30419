"""A bucket whose answers fail for a while, for ever, are lost on the way, or come late."""

import threading
import time

import pytest

from helpers.cache import GUARD_S, LOCK, RECORD, STATUS, begin, build, lease, make
from helpers.unsteady_proxy import DELETES, AnswerLost, Delayed, Unavailable, UnsteadyProxy
from marin_dagster.cache import (
    Attempt,
    CacheState,
    Hit,
    LeaseTiming,
    OutputDir,
    StepCache,
    object_lock,
)
from marin_dagster.cache.lease import LeaseWatch, parse_lease
from marin_dagster.cache.locks import lock_for
from marin_dagster.errors import LeaseLostError, StoreError

TIMING = LeaseTiming()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both clients give up sooner, where a test waits for them several times."""
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
    monkeypatch.setattr(object_lock, "_RETRIES", {"max_retries": 1})


def read(name: str) -> bytes | None:
    return OutputDir.at(make("step").output_path).read(name)


def holder() -> str | None:
    found = parse_lease(read(LOCK))
    return found.worker_id if found else None


def begin_at_once() -> Attempt:
    """Begin the step; fails when it would wait for a live holder."""

    def wait(seconds: float) -> None:
        raise AssertionError("it waits, although nobody else holds the lease")

    attempt = begin(make("step"), wait=wait)
    assert holder() == attempt._lease.worker_id
    return attempt


def check_finished() -> None:
    assert (read(STATUS), read(LOCK)) == (b"SUCCESS", None)
    hit = StepCache().begin(make("step"))
    assert isinstance(hit, Hit)
    assert hit.record
    assert hit.record.result == {"loss": 0.5}


def finish(attempt: Attempt) -> None:
    attempt.result = {"loss": 0.5}
    attempt.commit()
    check_finished()


# For a while.


@pytest.mark.parametrize("file", ["", STATUS, LOCK])
def test_a_look_up_outlasts_a_store_that_is_away_for_a_while(
    proxy: UnsteadyProxy, file: str
) -> None:
    attempt = begin(make("step"))
    fault = proxy.strike(Unavailable(file=file, times=2))
    found = StepCache().look_up(make("step"))
    assert (found.state, found.owner) == (CacheState.RUNNING, attempt._lease.worker_id)
    assert fault.hits == 2
    finish(attempt)


@pytest.mark.parametrize(
    ("method", "file"), [("", ""), ("GET", LOCK), ("PUT", LOCK), ("PUT", STATUS)]
)
def test_beginning_outlasts_a_store_that_is_away_for_a_while(
    proxy: UnsteadyProxy, method: str, file: str
) -> None:
    fault = proxy.strike(Unavailable(method, file, times=2))
    attempt = begin_at_once()
    assert fault.hits == 2
    finish(attempt)


@pytest.mark.parametrize(
    ("method", "file"),
    [("", ""), ("PUT", LOCK), ("PUT", RECORD), ("PUT", STATUS), ("POST", DELETES)],
)
def test_committing_outlasts_a_store_that_is_away_for_a_while(
    proxy: UnsteadyProxy, method: str, file: str
) -> None:
    attempt = begin(make("step"))
    fault = proxy.strike(Unavailable(method, file, times=2))
    finish(attempt)
    assert fault.hits == 2


# For ever.


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("file", [STATUS, LOCK])
def test_beginning_in_a_store_that_is_away_for_good_says_which_file_it_wanted(
    proxy: UnsteadyProxy, file: str
) -> None:
    proxy.strike(Unavailable(file=file))
    with pytest.raises(StoreError, match=f"{make('step').output_path}/{file}: "):
        begin(make("step"))
    proxy.recover()
    assert (read(STATUS), read(LOCK)) == (None, None)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("file", ["", RECORD, STATUS, LOCK])
def test_committing_to_a_store_that_is_away_for_good_is_no_success(
    proxy: UnsteadyProxy, file: str
) -> None:
    attempt = begin(make("step"))
    attempt.result = {"loss": 0.5}
    proxy.strike(Unavailable(file=file))
    with pytest.raises(StoreError, match=f"{make('step').output_path}/{file or LOCK}: "):
        attempt.commit()
    proxy.recover()
    assert read(STATUS) == (b"FAILED" if file == RECORD else b"RUNNING")
    # Where the lock could not be given back, it runs out.
    assert (read(LOCK) is None) == (file in (RECORD, STATUS))

    soon_stale = StepCache(LeaseTiming(stale_s=0.2, poll_s=0.01))
    assert build(make("step"), {"loss": 0.5}, soon_stale)
    check_finished()


# Answers that are lost.


def test_a_worker_whose_new_lock_s_answer_is_lost_holds_the_lease(proxy: UnsteadyProxy) -> None:
    fault = proxy.strike(AnswerLost("PUT", LOCK, times=1))
    attempt = begin_at_once()
    assert fault.hits == 1
    finish(attempt)


def test_a_worker_whose_takeover_s_answer_is_lost_holds_the_lease(proxy: UnsteadyProxy) -> None:
    OutputDir.at(make("step").output_path).write(LOCK, lease("dead-1", age_s=91).encode())
    fault = proxy.strike(AnswerLost("PUT", LOCK, times=1))
    attempt = begin_at_once()
    assert fault.hits == 1
    finish(attempt)


@pytest.mark.parametrize("times", [1, 2])
def test_a_worker_whose_renewals_answers_are_lost_holds_the_lease(
    proxy: UnsteadyProxy, times: int
) -> None:
    attempt = begin(make("step"))
    fault = proxy.strike(AnswerLost("PUT", LOCK, times=times))
    attempt._lease.check()
    assert fault.hits >= 1
    assert attempt._lease.lost is None
    finish(attempt)


def test_a_release_whose_answer_is_lost_is_no_error(
    proxy: UnsteadyProxy, caplog: pytest.LogCaptureFixture
) -> None:
    attempt = begin(make("step"))
    fault = proxy.strike(AnswerLost("POST", DELETES, times=1))
    finish(attempt)
    assert fault.hits == 1
    assert [record.message for record in caplog.records if record.name.startswith("marin")] == []


@pytest.mark.parametrize("file", [STATUS, RECORD])
def test_a_write_whose_answer_is_lost_is_written(proxy: UnsteadyProxy, file: str) -> None:
    attempt = begin(make("step"))
    fault = proxy.strike(AnswerLost("PUT", file, times=1))
    finish(attempt)
    assert fault.hits == 1


@pytest.mark.parametrize("file", [STATUS, LOCK])
def test_a_read_whose_answer_is_lost_is_read_again(proxy: UnsteadyProxy, file: str) -> None:
    fault = proxy.strike(AnswerLost("GET", file, times=1))
    finish(begin_at_once())
    assert fault.hits == 1


# Late.


def test_a_renewal_that_arrives_after_a_takeover_changes_nothing(proxy: UnsteadyProxy) -> None:
    attempt = begin(make("step"))
    attempt.result = {"loss": 0.0}
    late = Delayed("PUT", LOCK, times=1)
    proxy.strike(late)
    errors: list[BaseException] = []

    def commit() -> None:
        try:
            attempt.commit()
        except LeaseLostError as error:
            errors.append(error)

    committing = threading.Thread(target=commit)
    committing.start()
    assert late.arrived.wait(GUARD_S)
    taker = lock_for(OutputDir.at(make("step").output_path), LeaseTiming(stale_s=0.0))
    time.sleep(0.01)
    assert taker.acquire("taker", LeaseWatch(LeaseTiming(stale_s=0.0)))
    late.go_on.set()
    committing.join(GUARD_S)
    assert len(errors) == 1
    assert holder() == "taker"
    assert (read(STATUS), read(RECORD)) == (b"RUNNING", None)
    taker.release("taker")
    finish(begin_at_once())
