"""A graph that Marin really runs, some 1,000 steps: same assets, same edges, same dry run."""

import logging
import re
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from marin.execution.step_runner import StepRunner as MarinRunner
from marin.execution.step_runner import _expand_unseen

from helpers.dagster_server import running_server
from helpers.runs import run_job

pytestmark = [
    pytest.mark.interop,
    # One of its steps has a dependency's path among its attributes, as the warning states.
    pytest.mark.filterwarnings("ignore:.*contains the output path of a dependency"),
]
LOCATION = Path(__file__).with_name("all_sources_location.py")
STORE = "/tmp/never-touched"


@pytest.fixture(scope="module")
def location() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        # Output paths are computed once, when they are first asked for.
        patch.setenv("MARIN_PREFIX", STORE)
        import all_sources_location

        all_sources_location.defs.resolve_asset_graph()
        yield all_sources_location


@pytest.fixture(scope="module")
def expanded(location: Any) -> dict[str, Any]:
    """Marin's own expansion of the same terminals, by output path."""
    seen: set[str] = set()
    found: list[Any] = []
    for step in location.steps:
        found += _expand_unseen(step, seen)
    return {step.output_path: step for step in found}


def test_assets_and_edges_are_marins(location: Any, expanded: dict[str, Any]) -> None:
    graph = location.defs.resolve_asset_graph()
    nodes = {node.metadata["dagster/uri"]: node for node in graph.asset_nodes}

    assert len(nodes) > 800
    assert nodes.keys() == expanded.keys()
    keys = {path: node.key for path, node in nodes.items()}
    for path, step in expanded.items():
        assert nodes[path].parent_keys == {keys[dep.output_path] for dep in step.deps}
        assert nodes[path].metadata["marin/name_with_hash"] == step.name_with_hash


def test_a_dry_run_lists_what_marins_lists(
    location: Any, instance: dg.DagsterInstance, caplog: pytest.LogCaptureFixture
) -> None:
    run = run_job(location.defs, instance, config={"dry_run": True})

    ours = {re.findall(r"(\S+) -> ", message)[0] for message in run.skipped().values()}
    with caplog.at_level(logging.INFO):
        MarinRunner().run(location.steps, dry_run=True)
    marins = set(re.findall(r"\[DRY RUN\] Would run (\S+)", caplog.text))

    assert run.success
    assert ours == marins
    assert not Path(STORE).exists()


def test_it_loads_in_the_webserver(expanded: dict[str, Any], tmp_path: Path) -> None:
    with running_server(tmp_path / "home", LOCATION, MARIN_PREFIX=STORE) as server:
        answer = server.query("{ assetNodes { assetKey { path } dependencyKeys { path } } }")

    nodes = answer["assetNodes"]
    assert len(nodes) == len(expanded)
    edges = sum(len(node["dependencyKeys"]) for node in nodes)
    assert edges == sum(len({dep.output_path for dep in step.deps}) for step in expanded.values())
