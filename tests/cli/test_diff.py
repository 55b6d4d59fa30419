"""``marin-dagster diff``, against a commit of a real repository."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from cli.conftest import Project

GRAPH = ("-g", "pipeline.py:steps")


def git(*arguments: str) -> str:
    identity = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    done = subprocess.run(
        ["git", *identity, *arguments], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def repository(project: Project) -> Project:
    """The project, committed with its graph built; the working tree then changes."""
    git("init", "--quiet", "--initial-branch", "main")
    git("add", "pipeline.py")
    git("commit", "--quiet", "--message", "first")
    return project


def edit(project: Project, old: str, new: str) -> None:
    file = project.folder / "pipeline.py"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))


def changes(result: dict[str, Any]) -> dict[str, tuple[str, bool]]:
    return {one["name"]: (one["change"], one["reruns"]) for one in result["changes"]}


def test_a_changed_attribute_and_what_it_costs(repository: Project) -> None:
    assert repository("run", *GRAPH).code == 0
    edit(repository, 'SETTINGS.get("lr", 0.1)', "0.2")

    found = repository("diff", "--json", *GRAPH, "HEAD").json

    assert found["revision"] == git("rev-parse", "HEAD")
    assert found["total"] == 4
    assert changes(found) == {"model": ("changed", True), "report": ("changed", True)}
    model, report = found["changes"]
    assert model["why"] == ["attribute lr: 0.1 -> 0.2"]
    assert report["why"] == ["upstream model changed"]
    assert model["before"] != model["after"]
    assert model["seconds"] >= 0
    assert found["unknown_times"] == 0
    text = repository("diff", *GRAPH, "HEAD").out
    assert "This change reruns 2 of 4 steps, about 0." in text

    # Built meanwhile, by somebody who has the change.
    assert repository("run", *GRAPH).code == 0
    built = repository("diff", "--json", *GRAPH, "HEAD").json
    assert changes(built) == {"model": ("changed", False), "report": ("changed", False)}
    assert repository("diff", *GRAPH, "HEAD").out.endswith("This change reruns none of 4 steps.\n")


def test_the_instances_durations_come_first(repository: Project, dagster_home: Path) -> None:
    assert repository("run", *GRAPH).code == 0
    with dg.DagsterInstance.get() as instance:
        for seconds, name in ((2520.0, "model"), (60.0, "report")):
            metadata = {"marin/cache": "built", "marin/duration_s": seconds}
            instance.report_runless_asset_event(dg.AssetMaterialization(name, metadata=metadata))
    edit(repository, 'SETTINGS.get("lr", 0.1)', "0.2")
    assert (
        "This change reruns 2 of 4 steps, about 43 min." in repository("diff", *GRAPH, "HEAD").out
    )


def test_markdown(repository: Project) -> None:
    edit(repository, 'SETTINGS.get("lr", 0.1)', "'a|b'")
    lines = repository("diff", "--markdown", *GRAPH, "HEAD").out.splitlines()
    assert lines[0] == "**This change reruns 2 of 4 steps.**"
    assert lines[2:4] == ["| step | change | why | last took |", "|---|---|---|---|"]
    assert "'a\\|b'" in lines[4]
    assert len(lines) == 6


def test_added_and_removed_steps(repository: Project) -> None:
    edit(repository, 'report = step("report", model, clean)', 'summary = step("summary", model)')
    edit(repository, "steps = [report]", "steps = [summary]")
    found = repository("diff", "--json", *GRAPH, "HEAD").json
    assert changes(found) == {"summary": ("added", True), "report": ("removed", False)}


def test_no_change(repository: Project) -> None:
    found = repository("diff", *GRAPH, "HEAD")
    assert (found.code, found.out.splitlines()[-1]) == (0, "This change reruns none of 4 steps.")


def test_the_worktree_is_removed_and_the_checkout_untouched(repository: Project) -> None:
    edit(repository, 'SETTINGS.get("lr", 0.1)', "0.2")
    hook = repository.folder / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\ntouch ran-a-hook\n")
    hook.chmod(0o755)
    before = git("status", "--porcelain", "--untracked-files=no")

    assert repository("diff", *GRAPH, "HEAD").code == 0
    edit(repository, "def make", "def made")
    assert repository("diff", *GRAPH, "HEAD").code == 0

    assert git("worktree", "list").count("\n") == 0
    assert git("status", "--porcelain", "--untracked-files=no") == before
    assert not (repository.folder / "ran-a-hook").exists()


@pytest.mark.parametrize("installed", [False, True])
def test_the_commits_own_modules_are_loaded(
    installed: bool, repository: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = repository.folder / "src" / "other_package"
    source.mkdir(parents=True)
    (source / "__init__.py").write_text("")
    (source / "values.py").write_text("LR = 1\n")
    (source / "graph.py").write_text(
        "from marin_dagster import StepSpec\n"
        "from other_package.values import LR\n"
        "steps = [StepSpec('x', hash_attrs={'lr': LR}, fn=print)]\n"
    )
    git("add", ".")
    git("commit", "--quiet", "--message", "second")
    (source / "values.py").write_text("LR = 2\n")
    environment = {**os.environ}
    folder = repository.folder if installed else source.parent
    if installed:
        # As an editable installation does.
        environment["PYTHONPATH"] = str(source.parent)

    done = subprocess.run(
        [
            *(sys.executable, "-m", "marin_dagster.cli", "diff", "HEAD"),
            "-g",
            "other_package.graph:steps",
        ],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "attribute lr: 1 -> 2" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["nonsense", *GRAPH], "nonsense^{commit}"),
        (["--", "--output=x", *GRAPH], "--output=x^{commit}"),
        (["HEAD", "-g", "broken.py:steps"], "broken.py:steps at "),
    ],
)
def test_what_cannot_be_compared(arguments: list[str], expected: str, repository: Project) -> None:
    (repository.folder / "broken.py").write_text("from pipeline import steps")
    if arguments[0] == "--":
        arguments = [*GRAPH, "--", arguments[1]]
    found = repository("diff", *arguments)
    assert found.code == 2
    assert expected in found.err
    assert "Traceback" not in found.err


def test_outside_a_repository(project: Project) -> None:
    found = project("diff", "HEAD", *GRAPH)
    assert found.code == 2
    assert "not a git repository" in found.err
