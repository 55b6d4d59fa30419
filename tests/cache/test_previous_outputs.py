"""Where earlier outputs are looked for: in the store, and where the scheduler saw them last."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import fsspec
import pytest

from helpers.cache import RECORD, STATUS, begin, build, make, put, why
from marin_dagster.cache import OutputDir
from marin_dagster.cache.previous_outputs import PreviousOutputs
from marin_dagster.cache.reasons import LastBuild, Reasons
from marin_dagster.errors import StoreError
from marin_dagster.steps import StepSpec


def aged(step: StepSpec, days: int) -> StepSpec:
    """A built step whose record was written some days ago."""
    then = datetime.now().timestamp() - days * 86400
    os.utime(Path(step.output_path, RECORD), (then, then))
    return step


def test_the_newest_other_hash_is_compared_with() -> None:
    aged(build(make("a/step", hash_attrs={"n": 1})), days=1)
    newest = build(make("a/step", hash_attrs={"n": 2}))
    aged(build(make("a/step", hash_attrs={"n": 3})), days=2)
    build(make("a/steps", hash_attrs={"n": 4}))
    build(make("b/step", hash_attrs={"n": 5}))

    reasons = why(make("a/step", hash_attrs={"n": 6}))

    assert reasons == Reasons(("attribute n: 2 -> 6",), newest.output_path)


def test_outputs_that_are_not_finished_or_not_of_the_name_are_passed_over() -> None:
    old = aged(build(make("step", hash_attrs={"n": 1})), days=2)
    put(build(make("step", hash_attrs={"n": 2})), STATUS, "FAILED")
    begun = begin(make("step", hash_attrs={"n": 3}))
    foreign = make("step", hash_attrs={"n": 4})
    put(foreign, STATUS, "SUCCESS")
    put(foreign, RECORD, json.dumps({"name": "other", "config": {}}))

    assert why(make("step", hash_attrs={"n": 5})).compared_with == old.output_path
    begun.fail()


def test_steps_of_the_same_graph_are_no_predecessors() -> None:
    other = build(make("step", hash_attrs={"n": 1}))
    step = make("step", hash_attrs={"n": 2})

    reasons = why(step, graph={other.output_path, step.output_path})

    assert reasons.lines == (
        "first build: no earlier output of step is known, other than steps of this graph",
    )


def test_a_step_in_a_path_of_its_own_is_compared_with_what_was_there() -> None:
    def step(n: int) -> StepSpec:
        return make("step", hash_attrs={"n": n}, override_output_path="mine")

    assert why(step(1)).lines == ("first build: no earlier output of step is known",)
    build(step(1))

    assert why(step(2), force=True).lines == (
        "forced: its output was finished",
        "attribute n: 1 -> 2",
    )


def test_a_broken_record_is_passed_over_and_said_to_be_unknown() -> None:
    put(build(make("step", hash_attrs={"n": 1})), RECORD, "{")

    reasons = why(make("step", hash_attrs={"n": 2}))

    assert reasons.lines == (
        "first build or a changed step: earlier outputs of step cannot be read",
    )


@pytest.mark.parametrize("fault", [StoreError("no"), PermissionError("no"), RuntimeError("no")])
def test_a_store_that_refuses_to_list_stops_nothing_and_is_asked_once(
    fault: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def refuse(folder: OutputDir) -> list[str]:
        asked.append(folder.url)
        raise fault

    monkeypatch.setattr(OutputDir, "_ls", refuse)
    earlier = PreviousOutputs()
    for name in ("one", "two"):
        (line,) = why(make(name), earlier).lines
        assert line == f"first build or a changed step: earlier outputs of {name} cannot be read"
    assert len(asked) == 1


def test_a_folder_is_listed_once_for_all_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    ls = OutputDir._ls
    monkeypatch.setattr(OutputDir, "_ls", lambda folder: asked.append(folder.url) or ls(folder))
    for n in range(3):
        build(make(f"step{n}", hash_attrs={"n": 1}))
    earlier = PreviousOutputs()

    lines = [why(make(f"step{n}", hash_attrs={"n": 2}), earlier).lines for n in range(3)]

    assert lines == [("attribute n: 1 -> 2",)] * 3
    assert len(asked) == 1


@pytest.mark.parametrize("prefix", ["memory://reasons", "memory://"])
def test_any_filesystem_will_do(prefix: str) -> None:
    fsspec.filesystem("memory").store.clear()
    old = build(make("step", output_path_prefix=prefix, hash_attrs={"n": 1}))
    build(make("step", output_path_prefix=prefix + "/deeper", hash_attrs={"n": 3}))

    reasons = why(make("step", output_path_prefix=prefix, hash_attrs={"n": 2}))

    assert reasons == Reasons(("attribute n: 1 -> 2",), old.output_path)


def test_a_bucket_is_listed_too(s3_prefix: str) -> None:
    old = build(make("a/step", output_path_prefix=s3_prefix, hash_attrs={"n": 1}))
    build(make("a/step", output_path_prefix=s3_prefix, hash_attrs={"n": 3}))
    reasons = why(
        make("a/step", output_path_prefix=s3_prefix, hash_attrs={"n": 2}),
        graph={make("a/step", output_path_prefix=s3_prefix, hash_attrs={"n": 3}).output_path},
    )

    assert reasons == Reasons(("attribute n: 1 -> 2",), old.output_path)


def test_what_the_scheduler_remembers_is_compared_with_first(store: Path) -> None:
    build(make("step", hash_attrs={"n": 1}))
    elsewhere = make("step", hash_attrs={"n": 2}, output_path_prefix=str(store / "other"))
    last = LastBuild(build(elsewhere).output_path, elsewhere.hash_id, datetime.now(UTC))
    step = make("step", hash_attrs={"n": 3})

    assert why(step, last=last) == Reasons(("attribute n: 2 -> 3",), last.path)
    Path(last.path, RECORD).unlink()
    assert why(make("step", hash_attrs={"n": 4}), last=last).lines == ("attribute n: 1 -> 4",)


def test_an_output_of_another_store_is_said_to_be_there(store: Path) -> None:
    def step(prefix: str) -> StepSpec:
        return make("step", output_path_prefix=str(store / prefix))

    last = LastBuild(build(step("old")).output_path, step("old").hash_id, datetime.now(UTC))

    assert why(step("new"), last=last).lines == (f"built before in another place: {last.path}",)
    Path(last.path, RECORD).unlink()
    assert why(step("newer"), last=last).lines == (
        f"first build here: its last output cannot be read any more: {last.path}",
    )
