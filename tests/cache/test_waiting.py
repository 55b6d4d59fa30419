"""An output that another worker holds: waited for, served, taken over when its lease is stale."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers.cache import GUARD_S, LOCK, STATUS, begin, get, lease, make, put, tree
from marin_dagster.cache import Attempt, Hit, LeaseTiming, StepCache
from marin_dagster.cache.lease import LeaseWatch, LocalLock
from marin_dagster.errors import PreviousAttemptFailedError
from marin_dagster.steps import StepSpec


class Waited(Exception):
    """Raised instead of waiting."""


def must_not_wait(seconds: float) -> None:
    raise Waited


@pytest.mark.parametrize("status", [None, "", "RUNNING", "garbage"])
def test_an_output_without_a_live_lease_is_taken_over_at_once(status: str | None) -> None:
    step = make("step")
    if status is not None:
        put(step, STATUS, status)
    begin(step, wait=must_not_wait, retry_failed=False).commit()


@pytest.mark.parametrize("content", [lease("foreign-1", age_s=91), ""], ids=["stale", "empty"])
def test_a_stale_lease_is_taken_over_at_once(content: str) -> None:
    step = make("step")
    put(step, STATUS, "RUNNING")
    put(step, LOCK, content)
    begin(step, wait=must_not_wait).commit()
    assert (get(step, STATUS), get(step, LOCK)) == ("SUCCESS", None)


@pytest.mark.parametrize(
    "content",
    [lease("ahead", age_s=-1e6), "<html>503</html>", '{"worker_id": "x"}', "\0\0"],
    ids=["from the future", "HTML", "no timestamp", "zeros"],
)
def test_a_lease_that_says_nothing_is_waited_for_and_then_taken_over(content: str) -> None:
    step = make("step")
    put(step, STATUS, "RUNNING")
    put(step, LOCK, content)
    waits: list[float] = []

    def wait(seconds: float) -> None:
        assert get(step, LOCK) == content, "nobody touches it before it is stale"
        waits.append(seconds)
        time.sleep(0.01)

    cache = StepCache(LeaseTiming(stale_s=0.2, poll_s=7.0))
    begin(step, cache, wait=wait).commit()
    assert set(waits) == {7.0}
    assert (get(step, STATUS), get(step, LOCK)) == ("SUCCESS", None)


def wait_for_peer(end: Callable[[Attempt], Any], **options: Any) -> Any:
    """What a second worker gets that waits for a first one, which then ends its attempt."""
    step = make("step")
    peer = begin(step)
    waiting, ended = threading.Event(), threading.Event()
    found: list[Any] = []

    def wait(seconds: float) -> None:
        waiting.set()
        assert ended.wait(GUARD_S)

    def second() -> None:
        try:
            found.append(StepCache().begin(step, wait=wait, **options))
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=second)
    thread.start()
    assert waiting.wait(GUARD_S)
    assert get(step, STATUS) == "RUNNING"
    end(peer)
    ended.set()
    thread.join(GUARD_S)
    [result] = found
    return result


def test_a_live_lease_is_waited_for_and_the_peers_success_is_served() -> None:
    found = wait_for_peer(Attempt.commit)
    assert isinstance(found, Hit)
    assert get(make("step"), LOCK) is None


def test_a_forced_step_waits_for_a_live_peer_and_is_then_built() -> None:
    found = wait_for_peer(Attempt.commit, force=True)
    assert isinstance(found, Attempt)
    found.commit()


def test_a_step_is_built_when_the_peer_that_was_waited_for_failed() -> None:
    found = wait_for_peer(Attempt.fail)
    assert isinstance(found, Attempt)
    found.commit()


def test_without_retries_the_failure_of_the_peer_is_an_error() -> None:
    assert isinstance(wait_for_peer(Attempt.fail, retry_failed=False), PreviousAttemptFailedError)


def test_waiting_can_be_interrupted_and_leaves_nothing() -> None:
    step = make("step")
    peer = begin(step)
    before = tree(step.output_path)
    with pytest.raises(Waited):
        StepCache().begin(step, wait=must_not_wait)
    assert tree(step.output_path) == before
    peer.commit()


def end_first(monkeypatch: pytest.MonkeyPatch, step: StepSpec, status: str) -> None:
    """A peer builds the step between our look at its status and our lock."""
    acquire = LocalLock.acquire

    def late(self: LocalLock, worker_id: str, watch: LeaseWatch) -> bool:
        put(step, STATUS, status)
        return acquire(self, worker_id, watch)

    monkeypatch.setattr(LocalLock, "acquire", late)


def test_the_status_is_read_again_once_the_lease_is_won(monkeypatch: pytest.MonkeyPatch) -> None:
    step = make("step")
    end_first(monkeypatch, step, "SUCCESS")
    assert isinstance(StepCache().begin(step), Hit)
    assert [path.name for path in Path(step.output_path).iterdir()] == [STATUS]


@pytest.mark.parametrize("status", ["FAILED", "DEP_FAILED"])
def test_without_retries_a_failure_that_is_seen_once_the_lease_is_won_counts_too(
    status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = make("step")
    end_first(monkeypatch, step, status)
    with pytest.raises(PreviousAttemptFailedError):
        StepCache().begin(step, retry_failed=False)
    assert [path.name for path in Path(step.output_path).iterdir()] == [STATUS]
    assert get(step, STATUS) == status
