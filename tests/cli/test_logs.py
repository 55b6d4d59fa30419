"""``marin-dagster logs``."""

from pathlib import Path

import pytest

from cli.conftest import Project

GRAPH = ("-g", "other.py:steps")
TALKING = """
import logging, os, sys
from marin_dagster import StepSpec
def talk(output_path):
    print(os.environ["SAYS"])
    logging.getLogger("mine").warning("logged")
    if os.environ["SAYS"] == "failing": raise RuntimeError("on purpose")
quiet = StepSpec("quiet", fn=lambda output_path: None)
steps = [StepSpec("talks", deps=[quiet], fn=talk)]
"""


def test_the_log_of_the_last_attempt(
    project: Project, dagster_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project.folder / "other.py").write_text(TALKING)
    monkeypatch.setenv("SAYS", "failing")
    assert project("run", *GRAPH).code == 1

    first = project("logs", "--json", *GRAPH, "talks").json
    assert first["stdout"] == "failing\n"
    assert "logged" in first["stderr"]
    assert "RuntimeError: on purpose" in first["stderr"]

    monkeypatch.setenv("SAYS", "better")
    assert project("run", *GRAPH).code == 0
    assert project("run", *GRAPH).code == 0  # serves it, and has no log of it
    second = project("logs", "--json", *GRAPH, "talks").json
    assert second["stdout"] == "better\n"
    assert second["run_id"] != first["run_id"]
    text = project("logs", *GRAPH, "talks").out
    assert text.startswith("-- stdout\nbetter\n-- stderr\n")

    silent = project("logs", *GRAPH, "quiet")
    assert silent.code == 1
    assert "has no log of it" in silent.err


def test_without_an_instance(project: Project) -> None:
    (project.folder / "other.py").write_text(TALKING)
    found = project("logs", *GRAPH, "talks")
    assert found.code == 2
    assert "DAGSTER_HOME is not set" in found.err
