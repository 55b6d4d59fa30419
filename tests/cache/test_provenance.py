"""Provenance: from git in a real checkout, from the launch's environment, and never an error."""

import getpass
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path

import pytest

from helpers.cache import STATUS, begin, build, get, make, put, tree
from marin_dagster.cache import (
    Provenance,
    RunIdentity,
    built_as,
    launch_provenance,
    provenance,
    read_record,
)
from marin_dagster.cache.provenance import RunProvenance
from marin_dagster.cache.store import OutputDir

Git = Callable[..., str]


@pytest.fixture(autouse=True)
def _captured_anew() -> Iterator[None]:
    provenance._capture_once.cache_clear()
    yield
    provenance._capture_once.cache_clear()


@pytest.fixture
def git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Git:
    """Runs git in a new checkout with one commit, which is the working directory."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    monkeypatch.chdir(checkout)

    def run(*arguments: str | bytes) -> str:
        identity = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
        command = ["git", *identity, *arguments]
        done = subprocess.run(command, check=True, capture_output=True, cwd=checkout)
        return done.stdout.decode().strip()

    run("init", "--quiet", "--initial-branch", "work")
    Path("train.py").write_text("version 1")
    run("add", ".")
    run("commit", "--quiet", "-m", "first")
    return run


def tree_of_tracked_content(git: Git, monkeypatch: pytest.MonkeyPatch) -> str:
    """The short hash of what the working tree holds, by way of an index of its own."""
    with monkeypatch.context() as patch:
        patch.setenv("GIT_INDEX_FILE", str(Path.cwd().parent / "own-index"))
        git("read-tree", "HEAD")
        git("add", "--update")
        return git("rev-parse", "--short", git("write-tree"))


def test_a_clean_checkout(git: Git) -> None:
    found = launch_provenance()
    assert found.base_commit == git("rev-parse", "--short", "HEAD")
    assert found.tree_hash == git("rev-parse", "--short", "HEAD^{tree}")
    assert (found.dirty, found.branch, found.git_remote) == (False, "work", None)
    assert found.built_by
    assert found.command_line
    assert found.created_at


@pytest.mark.parametrize("where", [".", "inner"])
@pytest.mark.parametrize("trouble", ["none", "git knows no user", "another git runs"])
def test_a_dirty_checkout_has_the_hash_of_what_runs(
    trouble: str, where: str, git: Git, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("train.py").write_text("version 2")
    expected = tree_of_tracked_content(git, monkeypatch)
    if trouble == "git knows no user":
        git("config", "user.useConfigOnly", "true")
    elif trouble == "another git runs":
        Path(".git/index.lock").touch()
    Path("inner").mkdir()
    monkeypatch.chdir(where)
    found = launch_provenance()
    assert found.dirty
    assert found.base_commit == git("rev-parse", "--short", "HEAD")
    assert found.tree_hash == expected != git("rev-parse", "--short", "HEAD^{tree}")


def test_an_untracked_file_makes_a_checkout_dirty(git: Git) -> None:
    Path("new.py").write_text("x")
    found = launch_provenance()
    assert found.dirty
    assert found.tree_hash == git("rev-parse", "--short", "HEAD^{tree}")


def test_the_checkout_is_left_as_it_was(git: Git) -> None:
    Path("train.py").write_text("version 2")
    before = {name: state for name, state in tree(".").items() if "/objects" not in name}
    launch_provenance()
    after = {name: state for name, state in tree(".").items() if "/objects" not in name}
    assert after == before


def test_what_cannot_be_found_out_is_no_error(git: Git, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(tempfile, "TemporaryDirectory", refuse)
    monkeypatch.setattr(getpass, "getuser", refuse)
    found = launch_provenance()
    assert found.base_commit == git("rev-parse", "--short", "HEAD")
    assert found.built_by is None


def test_a_detached_head_has_no_branch(git: Git) -> None:
    git("checkout", "--quiet", "--detach")
    found = launch_provenance()
    assert found.branch is None
    assert found.base_commit == git("rev-parse", "--short", "HEAD")


def test_the_remote_is_named(git: Git) -> None:
    git("remote", "add", "origin", "https://example.org/pipeline.git")
    assert launch_provenance().git_remote == "https://example.org/pipeline.git"


@pytest.mark.parametrize("user", ["user:s3cr3t", "s3cr3t", "user:p@s3cr3t"])
def test_a_password_in_the_remote_is_not_published(user: str, git: Git) -> None:
    git("remote", "add", "origin", f"https://{user}@example.org/pipeline.git")
    step = build(make("step"))
    assert "s3cr3t" not in (get(step, ".artifact.json") or "")
    assert "example.org/pipeline.git" in (launch_provenance().git_remote or "")


SECRETS = {
    "an option": ["train.py", "--password", "s3cr3t"],
    "a URL": ["train.py", "--db=postgresql://user:s3cr3t@db/x"],
    "a variable": ["train.py", "HF_TOKEN=s3cr3t"],
}


@pytest.mark.parametrize("where", SECRETS)
@pytest.mark.parametrize("source", ["own", "published", "a function's record"])
def test_a_credential_in_a_command_line_is_not_published(
    source: str, where: str, git: Git, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = SECRETS[where]
    if source == "own":
        monkeypatch.setattr(sys, "argv", command)
    elif source == "published":
        monkeypatch.setenv("MARIN_PROVENANCE", json.dumps(PUBLISHED | {"command_line": command}))
    step = make("step", writes_record=source == "a function's record")
    attempt = begin(step)
    if step.writes_record:
        written = {"name": "x", "own": 1, "provenance": PUBLISHED | {"command_line": command}}
        put(step, ".artifact.json", json.dumps(written))
    attempt.commit()
    document = json.loads(get(step, ".artifact.json") or "")
    assert "s3cr3t" not in str(document)
    assert document["provenance"]["command_line"][0] == "train.py"
    assert document.get("own") == (1 if step.writes_record else None)


def test_a_functions_arguments_are_shown_without_credentials() -> None:
    begin(make("step", fn=partial(print, "https://user:s3cr3t@example.org"))).fail()
    begin(make("other", fn=partial(print, password="s3cr3t"))).fail()
    for step in make("step"), make("other"):
        assert "s3cr3t" not in (get(step, ".executor_info") or "")


@pytest.mark.parametrize("from_script", [False, True])
def test_in_a_dagster_run_the_record_names_the_run(
    from_script: bool, git: Git, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["dagster", "api", "grpc"])
    run = RunIdentity("nightly", "run-1", from_script)
    step = make("step")
    begin(step, run=run).commit()
    found = read_record(OutputDir.at(step.output_path))
    assert found
    assert isinstance(found.provenance, RunProvenance)
    assert (found.provenance.dagster_job, found.provenance.dagster_run_id) == ("nightly", "run-1")
    assert found.provenance.command_line == (tuple(sys.argv) if from_script else ())
    assert found.provenance.base_commit == git("rev-parse", "--short", "HEAD")


def test_a_record_that_a_function_wrote_names_the_run_that_built_it() -> None:
    own = {"name": "x", "config": {"a": "é"}, "provenance": PUBLISHED}
    minimal = {"name": "y", "result": {"n": 1}}
    of_earlier_run = {**own, "provenance": asdict(EARLIER)}
    for name, written in {"own": own, "minimal": minimal, "earlier": of_earlier_run}.items():
        step = make(name, writes_record=True)
        attempt = begin(step, run=RunIdentity("nightly", "run-2"))
        put(step, ".artifact.json", json.dumps(written))
        attempt.commit()
        document = json.loads(get(step, ".artifact.json") or "")
        if name == "own":
            named = {"dagster_job": "nightly", "dagster_run_id": "run-2", "command_line": []}
            written = {**written, "provenance": PUBLISHED | named}
        assert document == json.loads(json.dumps(written))


def test_what_runs_in_a_build_records_the_builds_provenance() -> None:
    with built_as(EARLIER):
        assert launch_provenance() is EARLIER
    assert launch_provenance() is not EARLIER


def test_a_branch_that_is_no_unicode_is_no_error(git: Git) -> None:
    git(b"symbolic-ref", b"HEAD", b"refs/heads/caf\xe9")
    step = build(make("step"))
    assert get(step, STATUS) == "SUCCESS"


@pytest.mark.parametrize("where", ["no checkout", "an empty repository", "a removed folder"])
def test_outside_of_a_commit_the_facts_of_git_are_empty(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path / "folder")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    if where == "an empty repository":
        subprocess.run(["git", "init", "--quiet"], check=True)
    elif where == "a removed folder":
        (tmp_path / "folder").rmdir()
    found = launch_provenance()
    assert (found.tree_hash, found.base_commit, found.git_remote) == ("", "", None)
    assert found.created_at
    monkeypatch.chdir(tmp_path)


def test_without_git_the_facts_of_git_are_empty(
    git: Git, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = launch_provenance()
    assert (found.tree_hash, found.base_commit, found.dirty) == ("", "", False)
    assert found.branch is None
    assert found.built_by


PUBLISHED = {
    "tree_hash": "aaaa",
    "base_commit": "bbbb",
    "dirty": True,
    "branch": "main",
    "built_by": "someone",
    "git_remote": "https://example.org/x.git",
    "created_at": "2026-01-02T03:04:05",
    "command_line": ["train.py", "--fast"],
}


def test_what_the_launch_published_is_taken_as_it_is(
    git: Git, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARIN_PROVENANCE", json.dumps(PUBLISHED | {"future": 1}))
    found = launch_provenance()
    assert asdict(found) == PUBLISHED | {"command_line": ("train.py", "--fast")}
    step = build(make("step"))
    assert json.loads(get(step, ".artifact.json") or "")["provenance"] == PUBLISHED


EARLIER = Provenance("aaaa", "bbbb").in_run(RunIdentity("weekly", "run-1"))


def test_what_a_run_published_is_taken_with_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARIN_PROVENANCE", EARLIER.to_json())
    assert launch_provenance() == EARLIER


MALFORMED = [
    "",
    "garbage",
    "null",
    "[]",
    '"text"',
    "{}",
    '{"tree_hash": "aaaa"}',
    json.dumps(PUBLISHED | {"tree_hash": 5}),
    json.dumps(PUBLISHED | {"base_commit": None}),
    json.dumps(PUBLISHED | {"built_by": ["someone"]}),
    json.dumps(PUBLISHED | {"command_line": 7}),
    json.dumps(PUBLISHED | {"command_line": [1, None]}),
    "[" * 100_000,
]


@pytest.mark.parametrize("value", MALFORMED, ids=lambda value: ascii(value[:40]))
def test_malformed_published_provenance_is_passed_over(
    value: str, git: Git, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARIN_PROVENANCE", value)
    assert launch_provenance().base_commit == git("rev-parse", "--short", "HEAD")
    record = read_record(OutputDir.at(build(make("step")).output_path))
    assert record
    assert isinstance(record.provenance, Provenance)


def test_it_is_captured_once_also_by_many_threads(git: Git) -> None:
    with ThreadPoolExecutor(16) as pool:
        found = set(map(id, pool.map(lambda _: launch_provenance(), range(64))))
    assert len(found) == 1
    before = launch_provenance()
    git("commit", "--quiet", "--allow-empty", "-m", "later")
    assert launch_provenance() is before
