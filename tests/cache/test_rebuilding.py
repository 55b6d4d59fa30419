"""Building a finished output again: it stays finished until the function begins."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers.cache import LOCK, RECORD, STATUS, begin, build, get, make, put, state, tree
from helpers.dying import killed_at_each_change, remove_lock
from marin_dagster.cache import CacheState, StepCache
from marin_dagster.cache import attempt as attempt_module
from marin_dagster.cache import cache as cache_module
from marin_dagster.errors import LeaseLostError, StoreError
from marin_dagster.steps import StepSpec


@pytest.fixture(params=["forced", "dev"])
def step(request: pytest.FixtureRequest) -> StepSpec:
    """A step with a finished output that is to be built again."""
    attrs = {"fingerprint": "0", "version": "dev"} if request.param == "dev" else {}
    return build(make("step", hash_attrs=attrs), result={"n": 1})


def whole(step: StepSpec) -> dict[str, tuple[bytes, int]]:
    """The output without the lock."""
    return {name: file for name, file in tree(step.output_path).items() if name != LOCK}


def refuse() -> None:
    raise StoreError("refused")


def refusing_under_the_lease(
    step: StepSpec, name: str, refusal: Callable[[], None] = refuse
) -> Callable[..., Any]:
    """A function of the cache that fails once the step's lease is held."""
    function = getattr(cache_module, name)

    def wrapper(*arguments: Any) -> Any:
        if get(step, LOCK):
            refusal()
        return function(*arguments)

    return wrapper


def test_an_output_that_is_to_be_built_again_is_finished_until_it_is_withdrawn(
    step: StepSpec,
) -> None:
    before = whole(step)
    attempt = begin(step, force=True)
    assert whole(step) == before
    assert not attempt.cut_off

    attempt.withdraw()

    assert state(step) == ("RUNNING", True, True)
    attempt.commit()
    assert state(step) == ("SUCCESS", False, True)
    assert not attempt.cut_off


def test_a_failure_before_the_output_is_withdrawn_leaves_it_finished(step: StepSpec) -> None:
    before = tree(step.output_path)
    attempt = begin(step, force=True)

    attempt.fail()

    assert tree(step.output_path) == before
    assert not attempt.cut_off


def test_a_failure_after_the_output_is_withdrawn_is_one(step: StepSpec) -> None:
    attempt = begin(step, force=True)
    attempt.withdraw()

    attempt.fail()

    assert state(step) == ("FAILED", False, True)
    assert attempt.cut_off


@pytest.mark.parametrize("ends", ["lost", "ended"])
def test_what_is_no_attempt_any_more_withdraws_nothing(step: StepSpec, ends: str) -> None:
    attempt = begin(step, force=True)
    if ends == "lost":
        put(step, LOCK, '{"worker_id": "foreign", "timestamp": 99999999999}')
    else:
        attempt.fail()
    before = whole(step)

    with pytest.raises(LeaseLostError):
        attempt.withdraw()

    attempt.fail()
    assert whole(step) == before
    assert not attempt.cut_off


@pytest.mark.parametrize("fails", ["write_info", "read_status"])
def test_a_rebuild_that_cannot_begin_leaves_the_output_finished(
    fails: str, step: StepSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = tree(step.output_path)
    with monkeypatch.context() as patched:
        patched.setattr(cache_module, fails, refusing_under_the_lease(step, fails))
        with pytest.raises(StoreError, match="refused"):
            StepCache().begin(step, force=True)

    assert tree(step.output_path) == before


def test_an_output_that_another_worker_has_just_finished_stays_finished(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step = make("step")

    def finish_and_refuse() -> None:
        put(step, STATUS, "SUCCESS")
        raise StoreError("refused")

    with monkeypatch.context() as patched:
        read = refusing_under_the_lease(step, "read_status", finish_and_refuse)
        patched.setattr(cache_module, "read_status", read)
        with pytest.raises(StoreError, match="refused"):
            StepCache().begin(step)

    assert state(step) == ("SUCCESS", False, False)


def test_a_store_that_refuses_to_withdraw_leaves_the_output_finished(
    step: StepSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise StoreError("read only")

    before = tree(step.output_path)
    attempt = begin(step, force=True)
    with monkeypatch.context() as patched:
        patched.setattr(attempt_module, "write_status", refuse)
        with pytest.raises(StoreError, match="read only"):
            attempt.withdraw()

    attempt.fail()

    assert tree(step.output_path) == before


def test_what_commits_without_a_function_withdraws_first(
    step: StepSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    write = attempt_module.write_record

    def look(*arguments: object) -> None:
        seen.append(get(step, STATUS))
        write(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(attempt_module, "write_record", look)
    begin(step, force=True).commit()

    assert seen == ["RUNNING"]


def test_killed_at_any_point_a_rebuild_leaves_what_is_whole_or_is_built_again(
    step: StepSpec,
) -> None:
    data = Path(step.output_path, "data.txt")
    data.write_text("old")
    old = get(step, RECORD)

    def rebuild() -> None:
        attempt = begin(step, force=True)
        attempt.withdraw()
        data.write_text("new")
        attempt.result = {"n": 2}
        attempt.commit()

    seen = set()
    for _ in killed_at_each_change(step.output_path, rebuild):
        remove_lock(step.output_path)
        found = StepCache().look_up(step)
        seen.add(found.finished)
        if found.finished:
            assert (data.read_text() == "old") == (get(step, RECORD) == old)
        else:
            assert found.state is CacheState.MISS
            begin(step).give_back()
    assert seen == {True, False}
