"""Output paths: how they are joined and made absolute, and that they never enter the hash."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from marin_dagster.steps import StepGraph, StepSpec
from marin_dagster.steps.paths import DEFAULT_PREFIX, join


@pytest.mark.parametrize(
    ("prefix", "relative", "joined"),
    [
        ("/store", "a_1", "/store/a_1"),
        ("/store/", "a_1", "/store/a_1"),
        ("/store//deep///", "a//b/", "/store/deep/a/b"),
        ("/", "a_1", "/a_1"),
        ("s3://bucket", "a_1", "s3://bucket/a_1"),
        ("s3://bucket/", "a_1", "s3://bucket/a_1"),
        ("s3://bucket//x//", "a//b//", "s3://bucket/x/a/b"),
        ("gs://bucket/x", "a b-1/é", "gs://bucket/x/a b-1/é"),
        ("memory://cache", "a_1", "memory://cache/a_1"),
        ("memory://", "a_1", "memory://a_1"),
        ("file:///store", "a_1", "file:///store/a_1"),
    ],
)
def test_paths_are_joined_with_exactly_one_separator(
    prefix: str, relative: str, joined: str
) -> None:
    assert join(prefix, relative) == joined


def test_the_output_path_is_the_prefix_and_the_name_with_hash(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MARIN_PREFIX", "s3://bucket/store/")
    step = StepSpec("raw/text")
    assert step.output_path == f"s3://bucket/store/{step.name_with_hash}"


def test_the_steps_own_prefix_goes_before_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARIN_PREFIX", "s3://bucket/store")
    assert StepSpec("a", output_path_prefix="/own").output_path.startswith("/own/a_")


@pytest.mark.parametrize(
    ("override", "path"),
    [
        ("pinned/here", "s3://bucket/store/pinned/here"),
        ("pinned/here/", "s3://bucket/store/pinned/here"),
        ("/abs/elsewhere", "/abs/elsewhere"),
        ("gs://other/x", "gs://other/x"),
    ],
)
def test_a_relative_override_is_joined_and_an_absolute_one_stands(
    override: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARIN_PREFIX", "s3://bucket/store")
    assert StepSpec("a", override_output_path=override).output_path == path


@pytest.mark.parametrize("how", ["environment", "own prefix"])
def test_only_paths_differ_between_two_stores(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(prefix: str) -> list[StepSpec]:
        monkeypatch.setenv("MARIN_PREFIX", prefix if how == "environment" else "/unused")
        own = None if how == "environment" else prefix
        steps: list[StepSpec] = []
        for name in ("download", "normalize", "tokenize"):
            fields = {"output_path_prefix": own, "hash_attrs": {"n": len(steps)}}
            steps.append(StepSpec(name, deps=steps[-1:], **fields))
        StepGraph.from_steps(steps)
        return steps

    here, there = build("/here"), build("s3://there/x")
    assert [step.name_with_hash for step in here] == [step.name_with_hash for step in there]
    assert [step.dep_names for step in here] == [step.dep_names for step in there]
    assert [step.output_path for step in here] == [f"/here/{step.id}" for step in here]
    assert [step.output_path for step in there] == [f"s3://there/x/{step.id}" for step in there]


def test_the_prefix_is_read_at_first_use_and_kept_from_then_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step = StepSpec("a")
    monkeypatch.setenv("MARIN_PREFIX", "/first")
    assert step.output_path == f"/first/{step.id}"
    monkeypatch.setenv("MARIN_PREFIX", "/second")
    assert step.output_path == f"/first/{step.id}"
    assert StepSpec("a").output_path == f"/second/{step.id}"


@pytest.mark.parametrize("prefix", ["store", "./store", "inner/../store", "store/"])
def test_a_relative_prefix_is_made_absolute_once(
    prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MARIN_PREFIX", prefix)
    first = StepSpec("first")
    last = StepSpec("last", deps=[first])
    StepGraph.from_steps([last])
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert first.output_path == f"{tmp_path}/store/{first.id}"
    assert last.output_path == f"{tmp_path}/store/{last.id}"
    assert last.dep_paths == [first.output_path]


def test_an_own_relative_prefix_is_made_absolute_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    step = StepSpec("a", output_path_prefix="store")
    assert step.output_path == f"{tmp_path}/store/{step.id}"
    pinned = StepSpec("a", output_path_prefix="store", override_output_path="pinned")
    assert pinned.output_path == f"{tmp_path}/store/pinned"


def python(code: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    variables = {"PATH": os.environ["PATH"], "PYTHONWARNINGS": "always", **variables}
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, env=variables, check=True, capture_output=True, text=True, timeout=120
    )


WITHOUT_A_PREFIX = """
from marin_dagster.steps import StepGraph, StepSpec
steps = [StepSpec(f"s{index}") for index in range(50)]
StepGraph.from_steps([StepSpec("last", deps=steps)])
print(steps[0].output_path)
print(StepSpec("again").output_path)
"""


@pytest.mark.parametrize("unset", [{}, {"MARIN_PREFIX": ""}], ids=["missing", "empty"])
def test_the_default_prefix_is_warned_of_exactly_once(unset: dict[str, str]) -> None:
    done = python(WITHOUT_A_PREFIX, **unset)
    assert [path.rpartition("/")[0] for path in done.stdout.split()] == [DEFAULT_PREFIX] * 2
    assert DEFAULT_PREFIX == "/tmp/marin"
    assert done.stderr.count("MarinDagsterWarning") == 1
    assert done.stderr.count("MARIN_PREFIX is not set") == 1


def test_nothing_is_warned_of_when_there_is_a_prefix() -> None:
    assert "Warning" not in python(WITHOUT_A_PREFIX, MARIN_PREFIX="/store").stderr
