"""Records, old formats and provenance: what one side writes is what the other would have."""

import dataclasses
import enum
import json
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import rigging.provenance
from hypothesis import given, settings
from hypothesis import strategies as st
from marin.execution.artifact import Artifact, read_artifact
from marin.execution.artifact import read_record as marin_read_record
from marin.execution.step_runner import run_step
from marin.execution.step_spec import StepSpec as MarinStep
from marin.execution.step_status import StatusFile
from marin_peer import marin_lock, marin_status, read_json, write_file
from pydantic import BaseModel, ConfigDict, Field, ValidationError, computed_field

import marin_dagster.cache.provenance as our_provenance
from helpers.runs import DATA
from marin_dagster import StepCache, StepSpec
from marin_dagster.cache import (
    Attempt,
    CacheState,
    OutputDir,
    Status,
    launch_provenance,
    read_record,
    read_status,
)
from marin_dagster.cache.status import parse_status
from marin_dagster.errors import RecordError
from marin_dagster.runners import run_inline

pytestmark = pytest.mark.interop

GOLDEN = DATA / "golden" / "marin_cache"
OUTPUTS = sorted(str(path.parent.relative_to(GOLDEN)) for path in GOLDEN.rglob(".executor_status"))


# Old formats -------------------------------------------------------------------------------------


def test_the_recorded_tree_has_every_form_in_it() -> None:
    expected = json.loads((DATA / "golden" / "marin_cache.expected.json").read_text())["outputs"]
    assert set(OUTPUTS) == set(expected)
    assert len(OUTPUTS) >= 14


@pytest.mark.parametrize("output", OUTPUTS)
def test_the_recorded_tree_is_read_equal_by_both_readers(output: str, tmp_path: Path) -> None:
    path = str(shutil.copytree(GOLDEN / output, tmp_path / "copy"))
    folder = OutputDir.at(path)
    assert read_status(folder) == marin_status(path)
    ours, marins = read_record(folder), marin_read_record(path)
    assert (ours and ours.model_dump()) == (marins and marins.model_dump())
    assert (ours and ours.model_dump_json()) == (marins and marins.model_dump_json())


def test_the_recorded_stale_lease_holds_for_neither(tmp_path: Path) -> None:
    path = str(shutil.copytree(GOLDEN / "held", tmp_path / "held"))
    assert (tmp_path / "held" / ".executor_status.lock").exists()
    assert marin_lock(path).active_holder_id() is None
    step = MarinStep("held", override_output_path=path, fn=lambda path: None)
    assert StepCache().look_up(step).state is CacheState.MISS


tokens = st.sampled_from(["SUCCESS", "FAILED", "RUNNING", "DEP_FAILED", "OTHER"])
events = st.builds(
    lambda status, extra: json.dumps({"status": status, **extra}),
    tokens | st.none() | st.integers(0, 3),
    st.sampled_from([{}, {"time": 1.5}, {"message": "line\nbreak"}]),
)
lines = events | st.sampled_from(['{"no": "status"}', "{", "{broken", "[1]", "null", "", "  "])
spaces = st.sampled_from(["", " ", "\n", "\r\n", "\t", " \n\n"])


@settings(max_examples=300, deadline=None, database=None)
@given(
    content=st.builds(lambda left, token, right: left + token + right, spaces, tokens, spaces)
    | st.builds(lambda found, right: "\n".join(found) + right, st.lists(lines), spaces)
)
def test_a_status_in_any_form_is_a_success_for_both_or_for_neither(content: str) -> None:
    # Both readers, without a file for each example.
    found = [line.strip() for line in content.splitlines() if line.strip()]
    if len(found) <= 1 and not "".join(found).startswith("{"):
        marins = "".join(found) or None
    else:
        marins = StatusFile._parse_legacy_status(found)
    known = marins if marins in Status.__members__ else None
    assert parse_status(content.encode()) == known


@pytest.mark.parametrize(
    "content",
    [
        "SUCCESS",
        " SUCCESS\n\n",
        '{"status": "RUNNING"}\n{"status": "SUCCESS"}\n',
        '{"status": "SUCCESS"}\nnot json\n{"other": 1}\n',
        '{"status": "SUCCESS"}\n{"status": "FAILED"}',
        '{"status": 1}',
        "{",
        "",
        "\n",
        "success",
    ],
)
def test_a_status_file_is_a_success_for_both_or_for_neither(content: str, tmp_path: Path) -> None:
    write_file(str(tmp_path), ".executor_status", content)
    ours = read_status(OutputDir.at(str(tmp_path)))
    assert (ours is Status.SUCCESS) == (marin_status(str(tmp_path)) == "SUCCESS")


FULL = {
    "name": "a/b",
    "version": "2026.01.02",
    "fingerprint": "0123abcd",
    "result_type": "m.T",
    "output_path": "/x",
    "deps": ["c@2026.01.01"],
    "dep_paths": ["/y"],
    "config": {"a": [1, 2.5, None, True, {"b": "é"}]},
    "source": "/z",
    "result": {"n": 10**30, "f": 1e22},
    "fingerprint_payload": "{}",
    "provenance": {
        "tree_hash": "t",
        "base_commit": "b",
        "dirty": True,
        "branch": None,
        "built_by": None,
        "git_remote": None,
        "created_at": "",
        "command_line": ["a", "b"],
    },
}


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(FULL),
        json.dumps({**FULL, "provenance": None, "later_field": 1}),
        json.dumps({"output_path": "/x", "result": {"n": 1}}),
        json.dumps({"output_path": "/x"}),
        json.dumps({"result": {}}),
        json.dumps({"result": None, "deps": ["a"]}),
        json.dumps({"name": "a", "foreign": 1}),
        json.dumps({"name": "", "foreign": 1}),
        json.dumps({"version": "v1", "output_dir": "/x", "counters": {"n": 3}}),
        json.dumps({"output_path": "/x", "config": {"a": 1}, "foreign": [1, {"b": None}]}),
        json.dumps({"provenance": None, "foreign": True}),
        '{"result": {"x": NaN, "y": [Infinity, -Infinity]}}',
        '{"foreign": NaN}',
        "{}",
        # What neither can read.
        "",
        "{",
        "[]",
        "null",
        '"text"',
        json.dumps({"name": None}),
        json.dumps({"version": 3, "foreign": 1}),
        json.dumps({"deps": "a"}),
        json.dumps({"result": [1]}),
        json.dumps({"dep_paths": [1]}),
    ],
)
def test_a_record_in_any_form_is_read_equal_by_both(text: str, tmp_path: Path) -> None:
    write_file(str(tmp_path), ".artifact.json", text)
    folder = OutputDir.at(str(tmp_path))
    try:
        marins = marin_read_record(str(tmp_path))
    except ValidationError:
        with pytest.raises(RecordError):
            read_record(folder)
        return
    ours = read_record(folder)
    assert ours is not None
    assert marins is not None
    assert ours.model_dump_json() == marins.model_dump_json()


@pytest.mark.parametrize(
    "info",
    [
        {"name": "old", "config": {"a": 1}, "output_path": "/x", "dependencies": ["/y"]},
        {"executor_version": "ray", "name": "old", "version": {"a": "b"}},
        {"name": None, "config": None, "output_path": None, "dependencies": None},
        {},
        {"executor_version": "step_runner", "name": "new", "config": {"a": 1}},
    ],
)
def test_an_info_file_without_a_record_is_read_equal_by_both(
    info: dict[str, Any], tmp_path: Path
) -> None:
    write_file(str(tmp_path), ".executor_info", json.dumps(info))
    ours, marins = read_record(OutputDir.at(str(tmp_path))), marin_read_record(str(tmp_path))
    assert (ours and ours.model_dump()) == (marins and marins.model_dump())
    assert (marins is None) == (info.get("executor_version") == "step_runner")


# The record of a step ----------------------------------------------------------------------------


class Colour(enum.StrEnum):
    RED = "red"


class Inner(BaseModel):
    loss: float = math.nan


class Model(BaseModel):
    inner: Inner = Inner()
    when: datetime = datetime(2026, 1, 2, 3, 4, 5)
    path: Path = Path("/x")
    colour: Colour = Colour.RED
    pair: tuple[int, int] = (1, 2)
    by_number: dict[int, str] = Field(default_factory=lambda: {1: "a"})
    none: int | None = None
    hidden: int = Field(default=1, exclude=True)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def double(self) -> int:
        return 2


class Aliased(BaseModel):
    model_config = ConfigDict(populate_by_name=True)

    learning_rate: float = Field(default=0.1, alias="learningRate")


class OutputOnlyAlias(BaseModel):
    learning_rate: float = Field(default=0.1, serialization_alias="lr")


class Tokens(Artifact):
    count: int = 7


@dataclasses.dataclass(frozen=True)
class Part:
    sizes: tuple[int, ...] = (1, 2)
    colour: Colour = Colour.RED


@dataclasses.dataclass
class Whole:
    part: Part = Part()
    parts: list[Part] = dataclasses.field(default_factory=lambda: [Part(), Part((3,))])
    _private: int = 4
    silent: float = dataclasses.field(default=math.inf, repr=False)


RESULTS: dict[str, Any] = {
    "nothing": None,
    "an empty dictionary": {},
    "nested values": {"a": {"b": [1, 2.5, None, True, "é\u2028\x00"]}, "z": 1, "b": 2},
    "numbers": {"n": 10**30, "f": 1e22, "g": 0.1, "h": 5.0, "i": -0.0, "j": 1e-7},
    "not a number": {"x": math.nan, "y": [math.inf, -math.inf]},
    "a tuple": {"t": (1, (2, 3))},
    "an enum": {"c": Colour.RED},
    "a model": Model(),
    "a model with aliases": Aliased(),
    "a model with an alias for output": OutputOnlyAlias(),
    "an artifact": Tokens(path="/y"),
    "an artifact with more": Tokens(path="/y", extra=[1]),  # type: ignore[call-arg]
    "a dataclass": Whole(),
}

ATTRIBUTES: dict[str, dict[str, Any]] = {
    "no attributes": {},
    "nested attributes": {"a": {"b": [1, 2.5, None, True, "é"]}, "z": 1, "b": 2},
    "tuples": {"t": (1, (2, 3))},
    "not a number": {"x": math.nan},
    "an enum": {"c": Colour.RED},
}


def marins_record(make: Callable[[Any], Any]) -> str:
    """The text of the record that Marin writes; its output is removed."""
    step = make(MarinStep)
    run_step(step)
    text = Path(step.output_path, ".artifact.json").read_text()
    shutil.rmtree(step.output_path)
    return text


def our_record(make: Callable[[Any], Any]) -> str:
    """The text of the record that we write."""
    step = make(StepSpec)
    attempt = StepCache().begin(step)
    assert isinstance(attempt, Attempt)
    attempt.result = run_inline(step)
    attempt.commit()
    return Path(step.output_path, ".artifact.json").read_text()


def without_moment(text: str) -> str:
    """A record's text without the two fields about when and how the process began."""
    text = re.sub(r'"created_at": "[^"]+"', '"created_at": "…"', text)
    return re.sub(r'"command_line": \[[^\]]*\]', '"command_line": ["…"]', text)


@pytest.mark.parametrize("result", RESULTS)
def test_the_record_of_a_result_is_marins_document(result: str) -> None:
    def make(kind: Any) -> Any:
        dep = kind("dep", override_output_path="elsewhere/dep")
        write_file(dep.output_path, ".executor_status", "SUCCESS")
        return kind(
            "group/step",
            deps=[dep, dep],
            hash_attrs={"a": 1},
            fingerprint_payload='{"a": 1}',
            fn=lambda path: RESULTS[result],
        )

    marins, ours = marins_record(make), our_record(make)
    assert json.loads(without_moment(ours)) == json.loads(without_moment(marins))
    assert without_moment(ours) == without_moment(marins)


@pytest.mark.parametrize("attrs", ATTRIBUTES)
def test_the_record_of_a_steps_attributes_is_marins_document(attrs: str) -> None:
    def make(kind: Any) -> Any:
        return kind("step", hash_attrs=ATTRIBUTES[attrs], fn=lambda path: None)

    marins, ours = marins_record(make), our_record(make)
    assert without_moment(ours) == without_moment(marins)


@pytest.mark.parametrize(
    "result",
    [[1], "text", 5, True, object(), Whole],
    ids=["list", "str", "int", "bool", "object", "class"],
)
def test_what_marin_cannot_record_fails_on_both_sides(result: Any, store: Path) -> None:
    step = MarinStep("a", fn=lambda path: result)
    with pytest.raises(ValidationError):
        run_step(step)
    assert marin_status(step.output_path) == "FAILED"
    shutil.rmtree(step.output_path)
    attempt = StepCache().begin(step)
    assert isinstance(attempt, Attempt)
    attempt.result = run_inline(step)
    with pytest.raises(TypeError, match=step.name_with_hash):
        attempt.commit()
    assert marin_status(step.output_path) == "FAILED"


class Vocabulary(BaseModel):
    size: int


def test_each_side_loads_the_typed_result_that_the_other_wrote(store: Path) -> None:
    def make(kind: Any) -> Any:
        return kind("vocab", fn=lambda path: Vocabulary(size=9))

    our_record(make)
    path = make(MarinStep).output_path
    assert read_artifact(path, Vocabulary) == Vocabulary(size=9)
    assert Artifact.raw_load(path).model_dump() == {"path": path, "size": 9}
    shutil.rmtree(path)
    run_step(make(MarinStep))
    record = read_record(OutputDir.at(path))
    assert record is not None
    assert record.typed_result(Vocabulary, where=path) == Vocabulary(size=9)


def test_our_record_has_the_types_of_marins_field_by_field(store: Path) -> None:
    def make(kind: Any) -> Any:
        return kind("a", hash_attrs={"a": 1}, fn=lambda path: {"n": 1})

    path = make(MarinStep).output_path
    marins = json.loads(marins_record(make))
    our_record(make)
    ours = read_json(path, ".artifact.json")
    assert list(ours) == list(marins)
    assert list(ours["provenance"]) == list(marins["provenance"])
    for name, value in marins["provenance"].items():
        assert type(ours["provenance"][name]) is type(value), name
    record = marin_read_record(path)
    assert record is not None
    assert isinstance(record.provenance, rigging.provenance.Provenance)
    assert record.provenance.command_line == tuple(sys.argv)
    assert datetime.fromisoformat(record.provenance.created_at) <= datetime.now()


# Provenance --------------------------------------------------------------------------------------


@pytest.fixture
def _fresh_provenance() -> Iterator[None]:
    """Let both sides look again; a process asks only once."""
    caches = (our_provenance._capture_once, rigging.provenance._capture_once)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


CHANGES = {
    "clean": "true",
    "changed": "echo 'a = 2' > code.py",
    "staged": "echo 'a = 2' > code.py; git add code.py; echo 'a = 3' > code.py",
    "staged anew": "echo 'b = 2' > new.py; git add new.py",
    "untracked": "echo 'b = 2' > new.py",
    "deleted": "rm code.py",
    "executable": "chmod +x code.py",
    "detached": "git checkout --detach",
    "in a subfolder": "mkdir inner; echo 'b = 2' > inner/new.py; echo 'a = 2' > code.py",
}
"""What may have happened to a checkout."""


@pytest.mark.usefixtures("_fresh_provenance")
@pytest.mark.parametrize("state", ["no checkout", "no commit", *CHANGES])
def test_the_provenance_of_a_checkout_is_marins(
    state: str, quiet_checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = tmp_path / "checkout"
    for variable in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{variable}_NAME", "Tester")
        monkeypatch.setenv(f"GIT_{variable}_EMAIL", "tester@example.org")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    if state in CHANGES:
        shutil.copytree(quiet_checkout, checkout)
    else:
        checkout.mkdir()
    monkeypatch.chdir(checkout)
    if state == "no commit":
        subprocess.run(["git", "init"], check=True)
    subprocess.run(CHANGES.get(state, "true"), shell=True, check=True)
    if state == "in a subfolder":
        monkeypatch.chdir(checkout / "inner")

    ours = dataclasses.asdict(launch_provenance())
    marins = dataclasses.asdict(rigging.provenance.launch_provenance())
    assert {**ours, "created_at": None} == {**marins, "created_at": None}
    assert bool(ours["tree_hash"]) == (state in CHANGES)


PUBLISHED = {
    "tree_hash": "t",
    "base_commit": "b",
    "dirty": True,
    "branch": "work",
    "built_by": "somebody",
    "git_remote": "r",
    "created_at": "2026-01-02T03:04:05",
    "command_line": ["launch.py", "--flag"],
}


@pytest.mark.usefixtures("_fresh_provenance")
@pytest.mark.parametrize(
    "published",
    [
        json.dumps(PUBLISHED),
        json.dumps({**PUBLISHED, "later_field": 1}),
        json.dumps({name: PUBLISHED[name] for name in ("tree_hash", "base_commit", "dirty")}),
        # Malformed: both ask git instead.
        json.dumps({"built_by": "somebody"}),
        json.dumps({**PUBLISHED, "built_by": 5}),
        "{",
        "",
    ],
)
def test_a_published_provenance_is_read_as_marin_reads_it(
    published: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.setenv("MARIN_PROVENANCE", published)
    marins = dataclasses.asdict(rigging.provenance.launch_provenance())
    ours = dataclasses.asdict(launch_provenance())
    if marins["created_at"] != PUBLISHED["created_at"]:
        ours["created_at"] = marins["created_at"]
    assert ours == marins
