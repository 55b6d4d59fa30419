"""``marin-dagster status`` and ``explain``."""

import time
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Project
from marin_dagster.cache.lease import Lease, format_lease, new_lease

GRAPH = ("-g", "pipeline.py:steps")


def put(folder: Path, status: str, lease: Lease | None = None) -> None:
    (folder / ".executor_status").write_text(status)
    if lease is not None:
        (folder / ".executor_status.lock").write_bytes(format_lease(lease))


def by_name(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {step["name"]: step for step in result["steps"]}


def test_each_output_has_its_state(project: Project, store: Path) -> None:
    project("run", *GRAPH)
    now = time.time()
    put(next(store.glob("data/clean_*")), "RUNNING", Lease("live-worker", now - 20))
    put(next(store.glob("model_*")), "RUNNING", Lease("dead-worker", now - 500))
    put(next(store.glob("report_*")), "FAILED")
    project.took()

    found = project("status", "--json", *GRAPH)

    steps = by_name(found.json)
    assert {name: step["state"] for name, step in steps.items()} == {
        "raw": "finished",
        "data/clean": "running",
        "model": "interrupted",
        "report": "failed",
    }
    assert steps["data/clean"]["owner"] == "live-worker"
    assert 20 <= steps["data/clean"]["heartbeat_age_s"] < 200
    assert steps["model"]["owner"] == "dead-worker"
    assert steps["model"]["heartbeat_age_s"] >= 500
    raw = steps["raw"]
    assert (raw["files"], raw["bytes"]) == (1, len("raw"))
    assert raw["built_by"]
    assert raw["written_at"].endswith("+00:00")
    assert project.took() == []

    table = project("status", *GRAPH, "--no-sizes").out
    assert "live-worker, last heartbeat 2" in table
    assert table.splitlines()[-1] == "4 steps: 1 finished, 1 running, 1 interrupted, 1 failed."


def test_a_named_step_on_a_store_that_refuses(project: Project, broken_store: list[str]) -> None:
    found = project("status", "--json", *GRAPH, "model").json
    [model] = found["steps"]
    assert model["state"] == "unknown"
    assert "broken://bucket/store/model_" in model["problem"]


def test_a_missing_output(project: Project) -> None:
    assert project("status", "--json", *GRAPH).json["counts"] == {"missing": 4}


def test_a_step_that_is_not_in_the_graph(project: Project) -> None:
    found = project("status", *GRAPH, "modell")
    assert found.code == 2
    assert "Did you mean 'model'?" in found.err


@pytest.mark.parametrize("how", ["name", "step", "path"])
def test_a_step_is_explained_however_it_is_named(how: str, project: Project) -> None:
    named = {"name": "model", **by_name(project("status", "--json", *GRAPH).json)["model"]}[how]

    found = project("explain", "--json", *GRAPH, named).json

    assert found["attributes"] == {"lr": 0.1}
    assert found["data_version"] == found["step"].removeprefix("model_")
    assert '"attrs": {"lr": 0.1}' in found["hashed"]
    assert found["function"].startswith(f"{project.folder}/pipeline.py:")
    assert (found["state"], found["action"]) == ("missing", "run")
    assert [(one["step"].partition("_")[0], one["direct"]) for one in found["upstream"]] == [
        ("raw", False),
        ("data/clean", True),
    ]
    assert [one["step"].partition("_")[0] for one in found["downstream"]] == ["report"]


def test_an_explanation_compares_with_the_earlier_output(project: Project, store: Path) -> None:
    project("run", *GRAPH)
    project.settings(lr=0.2)

    before = project("explain", "--json", *GRAPH, "model").json
    assert before["why"] == ["attribute lr: 0.1 -> 0.2"]
    assert before["differences"] == ["attribute lr: 0.1 -> 0.2"]
    assert before["built"] is None
    project("run", *GRAPH)
    after = project("explain", "--json", *GRAPH, "model").json
    assert (after["state"], after["action"]) == ("finished", "cached")
    assert after["differences"] == before["differences"]
    assert after["built"]["dagster_job"] == "materialize_steps"

    text = project("explain", *GRAPH, "model").out
    assert "differs     attribute lr: 0.1 -> 0.2" in text
    assert "reads       data/clean_" in text


def test_an_explanation_of_a_running_step_names_the_worker(project: Project, store: Path) -> None:
    project("run", *GRAPH)
    put(next(store.glob("report_*")), "RUNNING", new_lease("live-worker"))
    found = project("explain", "--json", *GRAPH, "report").json
    assert (found["state"], found["action"]) == ("running", "elsewhere")
    assert "live-worker is building it" in found["why"][0]


def test_a_graph_with_partitions_asks_for_one(project: Project) -> None:
    (project.folder / "other.py").write_text(
        "import dagster as dg\n"
        "from marin_dagster import build_definitions\n"
        "from pipeline import daily\n"
        "days = dg.DailyPartitionsDefinition('2026-11-01', end_date='2026-11-10')\n"
        "defs = build_definitions(daily, partitions_def=days)\n"
    )
    for command in ("status", "plan"):
        found = project(command, "-g", "other.py:defs")
        assert found.code == 2
        assert "has partitions. Name the function" in found.err
