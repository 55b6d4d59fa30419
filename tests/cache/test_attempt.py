"""The life of an attempt: the order of the files, and every way in which it can end."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from helpers.cache import (
    GUARD_S,
    INFO,
    LOCK,
    RECORD,
    STATUS,
    begin,
    build,
    get,
    log_writes,
    make,
    put,
    state,
    tree,
)
from marin_dagster.cache import Attempt, Hit, StepCache
from marin_dagster.errors import LeaseLostError, RecordError


def test_the_files_are_written_in_marins_order(monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_writes(monkeypatch)
    attempt = begin(make("step"))
    assert log == [INFO, f"{STATUS} RUNNING"]
    attempt.commit()
    assert log[2:] == [RECORD, f"{STATUS} SUCCESS", "release"]


def test_an_attempt_holds_the_lease_and_is_running() -> None:
    step = make("step")
    attempt = begin(step)
    assert state(step) == ("RUNNING", True, False)
    assert json.loads(get(step, LOCK) or "").keys() == {"worker_id", "timestamp"}
    attempt.commit()
    assert state(step) == ("SUCCESS", False, True)
    assert attempt.duration_s >= 0


def test_a_commit_returns_the_record_that_it_wrote() -> None:
    step = make("step")
    attempt = begin(step)
    attempt.result = {"n": 1}
    record = attempt.commit()
    assert record
    assert record.model_dump(mode="json") == json.loads(get(step, RECORD) or "")


def test_a_failure_is_marked_and_the_lease_is_gone() -> None:
    step = make("step")
    begin(step).fail()
    assert state(step) == ("FAILED", False, False)


def test_failing_does_not_change_a_committed_attempt(caplog: pytest.LogCaptureFixture) -> None:
    step = make("step")
    attempt = begin(step)
    attempt.commit()
    before = tree(step.output_path)
    attempt.fail()
    assert tree(step.output_path) == before
    assert "lost the lease" not in caplog.text


@pytest.mark.parametrize("end", [Attempt.fail, Attempt.commit])
def test_an_attempt_that_has_ended_cannot_be_committed(end: Any) -> None:
    step = make("step")
    attempt = begin(step)
    end(attempt)
    before = tree(step.output_path)
    with pytest.raises(LeaseLostError, match="already ended"):
        attempt.commit()
    assert tree(step.output_path) == before


def test_an_attempt_that_has_failed_touches_nothing_of_its_successor() -> None:
    step = make("step")
    first = begin(step)
    first.fail()
    second = begin(step)
    before = tree(step.output_path)
    first.fail()
    with pytest.raises(LeaseLostError):
        first.commit()
    assert tree(step.output_path) == before
    second.commit()
    assert state(step) == ("SUCCESS", False, True)


def test_an_attempt_may_be_ended_by_another_thread() -> None:
    step = make("step")
    attempt = begin(step)
    thread = threading.Thread(target=attempt.commit)
    thread.start()
    thread.join(GUARD_S)
    assert state(step) == ("SUCCESS", False, True)


def test_of_two_threads_that_end_one_attempt_only_one_does() -> None:
    step = make("step")
    attempt = begin(step)
    barrier = threading.Barrier(2)
    errors: list[Exception] = []

    def commit() -> None:
        barrier.wait(GUARD_S)
        try:
            attempt.commit()
        except LeaseLostError as error:
            errors.append(error)

    threads = [threading.Thread(target=commit) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(GUARD_S)
    assert len(errors) == 1
    assert state(step) == ("SUCCESS", False, True)


def test_a_record_that_the_function_writes_is_never_overwritten() -> None:
    step = make("step", writes_record=True)
    attempt = begin(step)
    put(step, RECORD, '{"name": "own", "result": {"n": 1}}')
    attempt.result = {"ignored": 2}
    assert attempt.commit().result == {"n": 1}
    assert get(step, RECORD) == '{"name": "own", "result": {"n": 1}}'
    assert get(step, STATUS) == "SUCCESS"


def test_a_function_that_promised_a_record_and_left_none_has_failed() -> None:
    step = make("step", writes_record=True)
    with pytest.raises(RecordError, match=step.name_with_hash):
        begin(step).commit()
    assert state(step) == ("FAILED", False, False)


def test_a_function_that_left_an_unreadable_record_has_failed() -> None:
    step = make("step", writes_record=True)
    attempt = begin(step)
    put(step, RECORD, "garbage")
    with pytest.raises(RecordError, match=RECORD):
        attempt.commit()
    assert get(step, STATUS) == "FAILED"


def test_nothing_without_a_dot_is_written_to_the_output() -> None:
    step = make("step")
    attempt = begin(step)
    assert {path.name[0] for path in Path(step.output_path).iterdir()} == {"."}
    attempt.result = {"n": 1}
    attempt.commit()
    failed = make("failed")
    begin(failed).fail()
    assert {path.name for path in Path(step.output_path).iterdir()} == {STATUS, INFO, RECORD}
    assert {path.name for path in Path(failed.output_path).iterdir()} == {STATUS, INFO}


def test_the_schedulers_info_is_marins_and_is_never_overwritten() -> None:
    dep = build(make("dep"))
    step = make("step", dep, hash_attrs={"n": [1]}, override_output_path="pinned/here")
    begin(step).fail()
    info = json.loads(get(step, INFO) or "")
    assert info == {
        "executor_version": "step_runner",
        "name": "step",
        "fn_name": str(step.fn),
        "config": {"n": [1]},
        "description": None,
        "override_output_path": "pinned/here",
        "version": {},
        "dependencies": [dep.output_path],
        "output_path": step.output_path,
    }
    put(step, INFO, '{"name": "somebody else\'s"}')
    build(step)
    assert get(step, INFO) == '{"name": "somebody else\'s"}'


def test_a_finished_output_is_served_and_not_touched() -> None:
    step = build(make("step"))
    before = tree(step.output_path)
    hit = StepCache().begin(step)
    assert isinstance(hit, Hit)
    assert hit.step is step
    assert tree(step.output_path) == before
