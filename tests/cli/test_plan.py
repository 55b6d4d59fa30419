"""``marin-dagster plan``."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Project
from marin_dagster import StepRunner
from marin_dagster.cache.lease import format_lease, new_lease

GRAPH = ("-g", "pipeline.py:steps")


def snapshot(*folders: Path) -> dict[str, bytes]:
    return {
        str(path): path.read_bytes()
        for folder in folders
        for path in folder.rglob("*")
        if path.is_file()
    }


def build(project: Project) -> None:
    sys.path.insert(0, str(project.folder))
    import pipeline

    StepRunner().run(pipeline.steps)
    project.took()


def actions(result: dict[str, Any]) -> dict[str, str]:
    return {step["name"]: step["action"] for step in result["steps"]}


def test_each_step_has_its_action_and_the_reason(project: Project, store: Path) -> None:
    build(project)
    shutil.rmtree(next(store.glob("raw_*")))
    project.settings(lr=0.2)

    found = project("plan", "--json", *GRAPH).json

    assert actions(found) == {
        "raw": "pruned",
        "data/clean": "cached",
        "model": "run",
        "report": "run",
    }
    raw, clean, model, report = found["steps"]
    assert "every selected step that reads it is in the cache" in raw["why"][0]
    assert clean["why"] == ["its output is finished; this run records it as a materialization"]
    assert model["why"] == ["attribute lr: 0.1 -> 0.2"]
    assert Path(model["compared_with"]).parent == store
    assert model["compared_with"] != model["path"]
    assert model["because_of"] == [model["step"]]
    assert report["because_of"] == [model["step"]]
    assert report["why"][0].startswith("upstream model changed: ")
    assert report["deps"] == [model["path"], clean["path"]]
    assert found["counts"] == {"run": 2, "cached": 1, "pruned": 1}


def test_a_step_that_another_worker_builds_names_the_worker(project: Project) -> None:
    build(project)
    [model] = [
        one for one in project("plan", "--json", *GRAPH).json["steps"] if one["name"] == "model"
    ]
    Path(model["path"], ".executor_status").write_text("RUNNING")
    Path(model["path"], ".executor_status.lock").write_bytes(format_lease(new_lease("host-7")))

    found = project("plan", "--json", *GRAPH).json

    # The report is finished, so nothing waits for the model.
    assert actions(found)["model"] == "pruned"
    shutil.rmtree(found["steps"][-1]["path"])
    found = project("plan", "--json", *GRAPH).json
    assert actions(found) | {"report": "run"} == {
        "raw": "cached",
        "data/clean": "cached",
        "model": "elsewhere",
        "report": "run",
    }
    assert {one["name"]: one["owner"] for one in found["steps"]}["model"] == "host-7"
    table = project("plan", *GRAPH).out
    assert "elsewhere" in table
    assert "host-7 is building it" in table


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--select", "model"], {"model": "blocked"}),
        (["--select", "+key:model"], {"raw": "run", "data/clean": "run", "model": "run"}),
        (["--select", 'key:"data/*" or key:raw'], {"raw": "run", "data/clean": "run"}),
        (["--select", "group:default and key:raw"], {"raw": "run"}),
    ],
)
def test_a_selection_in_dagsters_syntax(
    arguments: list[str], expected: dict[str, str], project: Project
) -> None:
    found = project("plan", "--json", *GRAPH, *arguments)
    assert actions(found.json) == expected
    assert "Warning" not in found.err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--select", "foo("], "--select 'foo('"),
        (["--select", "nothing"], "--select 'nothing'"),
        (["--force", "modle"], "There is no step 'modle'. Did you mean 'model'?"),
        (["--select", "raw", "--force", "model"], "step 'model' is not selected"),
    ],
)
def test_an_option_that_names_nothing(
    arguments: list[str], expected: str, project: Project
) -> None:
    found = project("plan", *GRAPH, *arguments)
    assert found.code == 2
    assert expected in found.err


def test_forced_and_failed_steps(project: Project, store: Path) -> None:
    build(project)
    assert actions(project("plan", "--json", *GRAPH, "--force", "model").json)["model"] == "run"
    for name in ("model", "report"):
        next(store.glob(f"{name}_*/.executor_status")).write_text("FAILED")

    retried = project("plan", "--json", *GRAPH).json
    assert {one["name"]: one["why"][-1].partition(" at ")[0] for one in retried["steps"][2:]} == {
        "model": "the last attempt failed",
        "report": "the last attempt failed",
    }
    left = project("plan", "--json", *GRAPH, "--no-retry-failed").json
    assert actions(left)["model"] == "blocked"
    (project.folder / "pyproject.toml").write_text("[tool.marin_dagster]\nretry_failed = false")
    assert project("plan", "--json", *GRAPH).json["counts"] == left["counts"]
    assert project("plan", "--json", *GRAPH, "--retry-failed").json["counts"] == retried["counts"]


def test_data_that_no_run_builds(project: Project) -> None:
    (project.folder / "other.py").write_text(
        "from marin_dagster import StepSpec\n"
        "from pipeline import step\n"
        "given = StepSpec('given')\n"
        "steps = [step('reader', given)]\n"
    )

    def given() -> tuple[str, dict[str, Any]]:
        found = project("plan", "--json", "-g", "other.py:steps").json
        return found["steps"][0]["why"][0], actions(found)

    why, found = given()
    assert why.startswith("no run builds it: put its data there")
    assert found == {"given": "external", "reader": "blocked"}
    path = project("plan", "--json", "-g", "other.py:steps").json["steps"][0]["path"]
    Path(path).mkdir(parents=True)
    Path(path, ".executor_status").write_text("SUCCESS")
    assert given() == ("its data is there", {"given": "external", "reader": "run"})


def test_a_plan_writes_nothing(project: Project, store: Path, dagster_home: Path) -> None:
    build(project)
    project.settings(seed=2)
    assert project("plan", *GRAPH).code == 0  # Dagster sets its home up
    before = snapshot(store, dagster_home)

    assert project("plan", *GRAPH).code == 0

    assert snapshot(store, dagster_home) == before
    assert project.took() == []


def test_the_tree_shows_each_step_below_its_readers_and_explains_it_once(project: Project) -> None:
    lines = project("plan", "--tree", *GRAPH).out.splitlines()
    names = [line.partition("_")[0] for line in lines[:-2]]
    assert names == [
        "report",
        "├── model",
        "│   └── data/clean",
        "│       └── raw",
        "└── data/clean",
    ]
    assert lines[4].endswith("shown above")
    assert lines[-1] == "4 steps: 4 run."


def test_a_long_chain_is_shown_as_a_tree(project: Project) -> None:
    (project.folder / "other.py").write_text(
        "from pipeline import step\n"
        "last = step('s0')\n"
        "for number in range(1, 1500): last = step(f's{number}', last)\n"
        "steps = [last]\n"
    )
    found = project("plan", "--tree", "-g", "other.py:steps")
    assert found.out.splitlines()[-1] == "1500 steps: 1500 run."


def test_piped_output_is_not_cut_and_has_no_colours(project: Project, store: Path) -> None:
    environment = {**os.environ, "COLUMNS": "40", "FORCE_COLOR": ""}
    done = subprocess.run(
        [sys.executable, "-m", "marin_dagster.cli", "plan", *GRAPH],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    table = done.stdout
    assert "\x1b" not in table
    assert all(line == line.rstrip() for line in table.splitlines())
    [raw] = [line.split(None, 2) for line in table.splitlines() if " raw_" in line]
    assert raw[0] == "run"
    assert raw[2] == "first build: no earlier output of raw is known"


def test_the_plan_of_definitions_uses_their_keys_runners_and_lease_times(project: Project) -> None:
    (project.folder / "other.py").write_text(
        "import dagster as dg\n"
        "from marin_dagster import *\n"
        "from marin_dagster.runners import ProcessSettings\n"
        "from marin_dagster.runners.process import ProcessRunner\n"
        "import marin_dagster as md\n"
        "from pipeline import step\n"
        "class Ours(md.DagsterMarinTranslator):\n"
        "    def get_asset_key(self, step): return super().get_asset_key(step).with_prefix('our')\n"
        "    def get_op_tags(self, step): return {'marin/runner': 'own'}\n"
        "own = ProcessRunner('own', ProcessSettings())\n"
        "defs = md.build_definitions([step('one')], translator=Ours(), runners={'own': own})\n"
        "other = dg.Definitions(assets=[dg.AssetSpec('unrelated')])\n"
        "merged = dg.Definitions.merge(defs, other)\n"
    )
    for name in ("defs", "merged"):
        [one] = project("plan", "--json", "-g", f"other.py:{name}").json["steps"]
        assert (one["asset"], one["runner"]) == ("our/one", "own")
    assert json.dumps(one)
