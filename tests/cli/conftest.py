"""A project in a folder of its own, and the command line in it."""

import inspect
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner

from marin_dagster.cache import provenance
from marin_dagster.cli.main import main

PIPELINE = '''
import json
import os
from functools import partial
from pathlib import Path

import dagster as dg
import fsspec

from marin_dagster import StepSpec, build_definitions

print("this module prints")
SETTINGS = json.loads(os.environ.get("SETTINGS", "{}"))


def write(output_path, name, says=None):
    """Write one file."""
    with open(os.environ["CALLS"], "a") as calls:
        calls.write(name + "\\n")
    if name in SETTINGS.get("failing", []):
        raise RuntimeError(f"{name} fails on purpose")
    with fsspec.open(f"{output_path}/data.txt", "w") as file:
        file.write(name)
    return {"size": 1}


def step(name, *deps, **fields):
    return StepSpec(name, deps=deps, fn=partial(write, name=name), **fields)


raw = step("raw", hash_attrs={"seed": SETTINGS.get("seed", 1)})
clean = step("data/clean", raw)
model = step("model", clean, hash_attrs={"lr": SETTINGS.get("lr", 0.1)})
report = step("report", model, clean)
steps = [report]
defs = build_definitions(steps)


def make():
    return steps


def daily(key):
    return [step("day", raw, hash_attrs={"date": key})]
'''


@dataclass(frozen=True)
class Outcome:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The result, which agrees with the command's schema."""
        result = json.loads(self.out)
        schemas = resources.files("marin_dagster.cli") / "schemas"
        schema = json.loads((schemas / f"{result['command']}.json").read_text())
        jsonschema.validate(result, schema)
        return result


@dataclass(frozen=True)
class FlushedAtItsEnd:
    """A command whose ``stderr`` is written out at its end, as a process's is.

    The runner of click 8.1 reads what is there without that.
    """

    command: Any

    @property
    def name(self) -> str:
        return str(self.command.name)

    def main(self, *arguments: Any, **options: Any) -> Any:
        try:
            return self.command.main(*arguments, **options)
        finally:
            sys.stderr.flush()


@dataclass(frozen=True)
class Project:
    """A folder with ``pipeline.py``."""

    folder: Path
    calls: Path
    set_environment: Callable[[str, str], None]

    def __call__(self, *arguments: str, stdin: str | None = None) -> Outcome:
        """Run ``marin-dagster`` in this process."""
        separates = "mix_stderr" in inspect.signature(CliRunner).parameters
        runner: Any = CliRunner(**({"mix_stderr": False} if separates else {}))
        # A command is a process: it imports the project's modules anew.
        for name in [name for name in sys.modules if name.partition("_")[0] == "pipeline"]:
            del sys.modules[name]
        done = runner.invoke(FlushedAtItsEnd(main), list(arguments), input=stdin)
        if done.exception and not isinstance(done.exception, SystemExit):
            raise done.exception
        return Outcome(done.exit_code, done.stdout, done.stderr)

    def settings(self, **settings: Any) -> None:
        """Change the pipeline: ``seed``, ``lr``, names of ``failing`` steps."""
        self.set_environment("SETTINGS", json.dumps(settings))

    def took(self) -> list[str]:
        """Names of the steps whose functions ran since the last call."""
        calls = self.calls.read_text().split() if self.calls.exists() else []
        self.calls.unlink(missing_ok=True)
        return calls


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "pipeline.py").write_text(PIPELINE)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.delenv("MARIN_DAGSTER_GRAPH", raising=False)
    before = set(sys.modules)
    yield Project(folder, tmp_path / "calls", monkeypatch.setenv)
    for name in set(sys.modules) - before:
        if name.startswith(("pipeline", "broken", "other")):
            del sys.modules[name]
    # A process asks git about its folder once; later tests in this process are in the checkout.
    provenance._capture_once.cache_clear()


@pytest.fixture
def dagster_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``DAGSTER_HOME``, an empty instance."""
    home = tmp_path / "dagster"
    home.mkdir()
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    return home
