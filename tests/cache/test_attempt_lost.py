"""Attempts that the store or another worker stops: never a success, nothing foreign touched."""

from pathlib import Path
from typing import Any

import pytest

from helpers.cache import (
    LOCK,
    RECORD,
    STATUS,
    begin,
    get,
    lease,
    log_writes,
    make,
    put,
    state,
    tree,
)
from marin_dagster.cache import Attempt, OutputDir
from marin_dagster.cache import attempt as attempt_module
from marin_dagster.errors import LeaseLostError, StoreError
from marin_dagster.steps import StepSpec


@pytest.mark.parametrize("error", [StoreError("full"), OSError("full"), KeyboardInterrupt()])
def test_an_output_whose_record_cannot_be_written_has_failed(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(folder: OutputDir, record: Any) -> None:
        raise error

    monkeypatch.setattr(attempt_module, "write_record", refuse)
    step = make("step")
    log = log_writes(monkeypatch)
    with pytest.raises(type(error)):
        begin(step).commit()
    assert state(step) == ("FAILED", False, False)
    assert f"{STATUS} SUCCESS" not in log


def test_an_output_whose_success_cannot_be_written_has_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write = OutputDir.write

    def refuse_success(self: OutputDir, name: str, data: bytes) -> None:
        if data == b"SUCCESS":
            raise StoreError("full")
        write(self, name, data)

    monkeypatch.setattr(OutputDir, "write", refuse_success)
    step = make("step")
    with pytest.raises(StoreError):
        begin(step).commit()
    assert state(step) == ("FAILED", False, True)


@pytest.fixture
def taken_over() -> tuple[StepSpec, Attempt, dict[str, Any]]:
    """An attempt whose output a foreign worker has taken over, and the foreign files."""
    step = make("step")
    attempt = begin(step)
    put(step, LOCK, lease("foreign-1"))
    put(step, STATUS, "RUNNING")
    put(step, RECORD, '{"name": "foreign"}')
    return step, attempt, tree(step.output_path)


@pytest.mark.parametrize("end", [Attempt.commit, Attempt.fail])
def test_an_attempt_that_lost_its_lease_touches_nothing_of_the_new_owner(
    end: Any, taken_over: tuple[StepSpec, Attempt, dict[str, Any]]
) -> None:
    step, attempt, foreign = taken_over
    if end is Attempt.commit:
        with pytest.raises(LeaseLostError, match="foreign-1"):
            attempt.commit()
    else:
        end(attempt)
    assert tree(step.output_path) == foreign
    attempt.fail()
    assert tree(step.output_path) == foreign


def test_an_attempt_does_not_overwrite_what_a_peer_finished_and_released() -> None:
    step = make("step")
    attempt = begin(step)
    Path(step.output_path, LOCK).unlink()
    put(step, STATUS, "SUCCESS")
    put(step, RECORD, '{"name": "foreign"}')
    foreign = tree(step.output_path)
    with pytest.raises(LeaseLostError):
        attempt.commit()
    assert tree(step.output_path) == foreign


def test_a_lease_that_is_lost_while_the_record_is_written_gives_no_success(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step = make("step")
    attempt = begin(step)
    write = attempt_module.write_record

    def write_and_lose(folder: OutputDir, record: Any) -> None:
        write(folder, record)
        put(step, LOCK, lease("foreign-1"))

    monkeypatch.setattr(attempt_module, "write_record", write_and_lose)
    with pytest.raises(LeaseLostError, match="foreign-1"):
        attempt.commit()
    assert get(step, STATUS) == "RUNNING"
    assert "foreign-1" in (get(step, LOCK) or "")
