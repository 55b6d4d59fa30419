"""The page about partitions: its snippets work, each on its own."""

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from helpers.runs import run_job
from marin_dagster import MarinIOManager

PAGE = Path(__file__).parents[2] / "docs" / "partitions.md"
TITLES = {
    "daily": "A daily training",
    "sweep": "A sweep with a leaderboard",
    "chain": "Steps of other partitions",
    "dynamic": "Shared steps",
    "multi": "Shared steps",
    "schedule": "Schedules",
    "script": "From a script",
}


def snippets() -> dict[str, list[str]]:
    """The snippets under each heading."""
    parts = re.split(r"^## (.*)$", PAGE.read_text(), flags=re.MULTILINE)[1:]
    return {
        title: re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        for title, text in zip(parts[::2], parts[1::2], strict=True)
    }


def result(name: str) -> dict[str, Any]:
    """What a snippet defines."""
    found = snippets()[TITLES[name]]
    snippet = found[1] if name == "multi" else found[0]
    namespace: dict[str, Any] = {"__name__": "snippet"}
    exec(compile(snippet, str(PAGE), "exec"), namespace)
    return namespace


def test_every_snippet_has_a_test() -> None:
    assert sum(map(len, snippets().values())) == len(TITLES)


def test_a_day_is_trained(instance: dg.DagsterInstance) -> None:
    definitions = result("daily")["defs"]

    run = run_job(definitions, instance, partition="2026-11-02")

    assert run.success
    assert run.materialized()["train"].metadata["words"].value == 5
    assert {found.partition for found in run.materialized().values()} == {"2026-11-02"}


def test_the_points_of_the_sweep_and_then_the_leaderboard(instance: dg.DagsterInstance) -> None:
    made = result("sweep")

    runs = [run_job(made["defs"], instance, partition=rate) for rate in made["RATES"]]

    assert all(run.success for run in runs)
    built = [sorted(run.materialized()) for run in runs]
    assert built == [["train"], ["train"], ["leaderboard", "train"]]


def test_a_day_starts_from_the_day_before(instance: dg.DagsterInstance) -> None:
    definitions = result("chain")["defs"]

    early = run_job(definitions, instance, partition="2026-11-02")
    assert "of another partition" in early.error("train")
    for day in ("2026-11-01", "2026-11-02"):
        assert run_job(definitions, instance, partition=day).success
    train = dg.AssetKey("train")
    mapping = definitions.resolve_asset_graph().get_partition_mapping(train, train)
    assert mapping.start_offset == -1


@pytest.mark.parametrize(
    ("name", "partition", "expected"),
    [
        ("dynamic", "ada", {"tokenizer": None, "train": "ada"}),
        ("multi", "2026-11-01|small", {"train": "2026-11-01|small"}),
    ],
)
def test_dynamic_and_multi_partitions(
    name: str, partition: str, expected: dict[str, str | None], instance: dg.DagsterInstance
) -> None:
    instance.add_dynamic_partitions("customers", ["ada"])

    run = run_job(result(name)["defs"], instance, partition=partition)

    assert {key: found.partition for key, found in run.materialized().items()} == expected


def test_the_schedule_looks_back() -> None:
    repository = result("schedule")["defs"].get_repository_def()
    with dg.instance_for_test() as home:
        context = dg.build_schedule_context(
            instance=home,
            repository_def=repository,
            resources={"marin_io_manager": MarinIOManager()},
            scheduled_execution_time=datetime(2026, 11, 21, tzinfo=UTC),
        )
        with context:
            tick = repository.get_schedule_def("hourly").evaluate_tick(context)

    days = [f"2026-11-{day:02}" for day in range(1, 21)]
    assert [request.partition_key for request in tick.run_requests] == days


def test_the_script_builds_its_partitions() -> None:
    assert list(result("script")["results"]) == ["0.1", "0.2"]
