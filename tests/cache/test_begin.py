"""Beginning a step: served, built, or refused before anything is written."""

import json
from pathlib import Path
from typing import Any

import pytest

from helpers.cache import (
    LOCK,
    STATUS,
    begin,
    build,
    get,
    lease,
    make,
    nothing,
    put,
    tree,
)
from marin_dagster.cache import Hit, StepCache
from marin_dagster.cache import cache as cache_module
from marin_dagster.errors import (
    DependencyNotBuiltError,
    OutputVanishedError,
    PreviousAttemptFailedError,
    StepNameError,
    StepWithoutFunctionError,
)
from marin_dagster.steps import StepSpec


class Waited(Exception):
    """Raised instead of waiting."""


def must_not_wait(seconds: float) -> None:
    raise Waited


DEV = {"fingerprint": "f", "version": "dev"}


@pytest.mark.parametrize("attrs", [DEV, DEV | {"version": "mine-dev"}])
def test_a_dev_version_is_built_again_although_it_is_finished(attrs: dict[str, str]) -> None:
    step = build(make("step", hash_attrs=attrs))
    begin(step).commit()


@pytest.mark.parametrize(
    "attrs", [DEV | {"version": "2026.01.02"}, {"version": "dev"}, {"fingerprint": "f"}]
)
def test_any_other_version_is_served(attrs: dict[str, str]) -> None:
    step = build(make("step", hash_attrs=attrs))
    assert isinstance(StepCache().begin(step), Hit)


def test_a_forced_step_is_built_although_it_is_finished() -> None:
    step = build(make("step"), result={"n": 1})
    attempt = begin(step, force=True)
    attempt.result = {"n": 2}
    attempt.commit()
    assert json.loads(get(step, ".artifact.json") or "")["result"] == {"n": 2}


@pytest.mark.parametrize(
    "content", [lease("foreign-1", age_s=-1e6), "", "garbage"], ids=["live", "empty", "garbage"]
)
def test_a_finished_output_is_served_while_a_foreign_lock_stands(content: str) -> None:
    step = build(make("step"))
    put(step, LOCK, content)
    before = tree(step.output_path)
    assert isinstance(StepCache().begin(step, wait=must_not_wait), Hit)
    assert tree(step.output_path) == before


@pytest.mark.parametrize("status", ["FAILED", "DEP_FAILED"])
def test_a_failed_step_is_built_again(status: str) -> None:
    step = make("step")
    put(step, STATUS, status)
    build(step)
    assert get(step, STATUS) == "SUCCESS"


@pytest.mark.parametrize("status", ["FAILED", "DEP_FAILED"])
def test_without_retries_a_failed_step_is_an_error_naming_it(status: str) -> None:
    step = make("step")
    put(step, STATUS, status)
    before = tree(step.output_path)
    with pytest.raises(PreviousAttemptFailedError, match=step.name_with_hash) as caught:
        StepCache().begin(step, retry_failed=False)
    assert step.output_path in str(caught.value)
    assert tree(step.output_path) == before


def test_a_step_that_cannot_be_started_has_failed_and_holds_no_lease(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*arguments: Any) -> None:
        raise OSError("full")

    monkeypatch.setattr(cache_module, "write_info", refuse)
    with pytest.raises(OSError, match="full"):
        StepCache().begin(make("step"))
    assert (get(make("step"), STATUS), get(make("step"), LOCK)) == ("FAILED", None)


def test_a_finished_step_needs_no_function_and_an_unfinished_one_does(store: Path) -> None:
    build(make("done"))
    assert isinstance(StepCache().begin(StepSpec("done")), Hit)
    step = StepSpec("missing")
    with pytest.raises(StepWithoutFunctionError, match=step.name_with_hash):
        StepCache().begin(step)
    assert not Path(step.output_path).exists()


def test_an_unfinished_dependency_is_an_error_and_nothing_is_written(store: Path) -> None:
    done, failed, missing = build(make("done")), make("failed"), make("missing")
    begin(failed).fail()
    before = tree(store)
    step = make("step", done, failed, missing, failed)
    with pytest.raises(DependencyNotBuiltError) as caught:
        StepCache().begin(step)
    message = str(caught.value)
    for part in (step.id, f"{failed.id} ({failed.output_path}: FAILED)", missing.output_path):
        assert part in message
    assert done.id not in message
    assert tree(store) == before


def test_a_finished_step_is_served_although_its_dependencies_are_gone() -> None:
    step = StepSpec("step", deps=[make("gone")], fn=nothing)
    put(step, STATUS, "SUCCESS")
    assert isinstance(StepCache().begin(step), Hit)


def test_an_output_that_vanished_after_its_inputs_were_pruned_is_not_built(store: Path) -> None:
    step = make("step")
    with pytest.raises(OutputVanishedError, match=step.name_with_hash):
        StepCache().begin(step, hit_expected=True)
    assert not store.exists()
    assert isinstance(StepCache().begin(build(step), hit_expected=True), Hit)


@pytest.mark.parametrize(
    "fields",
    [
        *({"name": name} for name in ("a/../../b", "..", "s3://b/x", "zip::x", "a\nb", "a\0b")),
        *({"name": name} for name in ("x" * 300, "é" * 150, "x" * 247, "/a", "a/", "")),
        {"name": "a", "override_output_path": "../b"},
        {"name": "a", "override_output_path": "x" * 256},
        {"name": "a", "override_output_path": "a\0b"},
    ],
    ids=lambda fields: ascii(fields)[:60],
)
def test_a_name_that_cannot_be_a_folder_is_refused_before_anything_is_written(
    fields: dict[str, str], tmp_path: Path, store: Path
) -> None:
    with pytest.raises(StepNameError):
        StepCache().begin(StepSpec(**fields, fn=nothing))
    assert not store.exists()
    assert not list(tmp_path.iterdir())


def test_the_longest_name_that_is_accepted_can_be_built() -> None:
    for name in ("x" * 246, "é" * 123):
        assert get(build(make(name)), STATUS) == "SUCCESS"
