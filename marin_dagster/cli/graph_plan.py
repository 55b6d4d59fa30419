"""``plan_graph``: the decisions of a run over a named graph, by output path."""

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import dagster as dg
from pydantic import ValidationError

from marin_dagster.cache import CacheState, StepCache
from marin_dagster.cache.status import STATUS_FILE
from marin_dagster.cli.graph_names import NamedGraph
from marin_dagster.cli.settings import Settings
from marin_dagster.cli.step_assets import StepAssets
from marin_dagster.cli.step_names import path_of
from marin_dagster.errors import GraphError, RoutingError
from marin_dagster.executor.decisions import Decisions
from marin_dagster.executor.graph_decisions import decide_planned
from marin_dagster.executor.step_outcomes import BLOCKED, PRUNED, RUN, SERVED, StepOutcome
from marin_dagster.runners import Routing, RoutingConfig, StepOverride
from marin_dagster.steps import StepGraph
from marin_dagster.steps.protocol import adopted_source, is_external

_ACTIONS = {RUN: "run", SERVED: "cached", PRUNED: "pruned", BLOCKED: "blocked"}


@dataclass(frozen=True)
class GraphPlan:
    """What a run would do with the steps of a graph; mappings are by output path."""

    name: str
    graph: StepGraph
    assets: StepAssets
    decisions: Decisions
    outcomes: Mapping[str, StepOutcome]
    """The selected steps."""
    owners: Mapping[str, str]
    """The workers that are building steps."""
    places: Mapping[str, str]
    """Names of the runners."""
    external: Mapping[str, str]
    """Data that no run builds, and whether it is there."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """The executor's config for such a run."""

    def action(self, path: str) -> str:
        """What a run would do with a step: one of ``ACTIONS``."""
        if path in self.external:
            return "external"
        action = _ACTIONS[self.outcomes[path].becomes]
        return "elsewhere" if action == "run" and path in self.owners else action

    def asset(self, path: str) -> str:
        """The asset key of a step, with slashes; empty for data that no run builds."""
        key = self.assets.keys.get(path)
        return key.to_user_string() if key is not None else ""

    def paths(self, *actions: str) -> list[str]:
        """Output paths of the selected steps with one of these actions, in the graph's order."""
        return [path for path in self.outcomes if self.action(path) in actions]


@contextmanager
def open_instance() -> Iterator[dg.DagsterInstance | None]:
    """The instance of ``DAGSTER_HOME``; None without one."""
    if not os.environ.get("DAGSTER_HOME"):
        yield None
        return
    with dg.DagsterInstance.get() as instance:
        yield instance


def plan_graph(
    named: NamedGraph,
    settings: Settings,
    *,
    instance: dg.DagsterInstance | None,
    select: str | None = None,
    force: Collection[str] = (),
    retry_failed: bool | None = None,
    runners: Collection[str] = (),
) -> GraphPlan:
    """Decide what a run would do. Reads the store and the instance, and writes nothing.

    As in any run, the last selected steps are needed: those that no other selected step reads.

    Args:
        named: the graph.
        settings: the project's.
        instance: knows earlier builds; None for none.
        select: the assets to consider, in Dagster's syntax; all when None.
        force: steps to build although they are cached; ``*`` for all selected ones.
        retry_failed: whether steps run whose last attempt failed; the project's setting when None.
        runners: ``name``, or ``step=name`` for one step.

    Raises:
        GraphError: the graph or the selection is wrong, or an option names no step.
        RoutingError: the configured runners or routes are not valid.
    """
    graph = named.graph()
    assets = StepAssets(named.definitions())
    chosen = set(assets.planned) if select is None else assets.select(select)
    planned = {key: one for key, one in assets.planned.items() if key in chosen}
    retry = next((one for one in (retry_failed, settings.retry_failed) if one is not None), True)
    key_at = {one.step.output_path: key for key, one in planned.items()}
    forced = set(planned) if "*" in force else {_key(graph, key_at, name) for name in force}
    execution = {**settings.execution, "steps": dict(settings.execution.get("steps", {}))}
    for given in runners:
        step, separator, runner = given.rpartition("=")
        keys = [_key(graph, key_at, step)] if separator else list(planned)
        for key in keys:
            name = planned[key].step.name_with_hash
            execution["steps"][name] = {**execution["steps"].get(name, {}), "runner": runner}
    routing, overrides = routing_of(graph, assets, execution)
    try:
        decisions, outcomes = decide_planned(
            planned,
            routing=routing,
            retry_failed=retry,
            instance=instance,
            forced=forced,
            overrides=overrides,
            cache_for=assets.cache_for,
        )
    finally:
        routing.close()
    path_of = {key: path for path, key in key_at.items()}
    running = {key for key, look in decisions.looks.items() if look.state is CacheState.RUNNING}
    return GraphPlan(
        name=named.name,
        graph=graph,
        assets=assets,
        decisions=decisions,
        outcomes={path_of[key]: outcome for key, outcome in outcomes.items()},
        owners={path_of[key]: decisions.looks[key].owner or "" for key in running},
        places={path_of[key]: place.runner for key, place in decisions.places.items()},
        external=_external(graph) if select is None else {},
        config={
            **execution,
            "retry_failed": retry,
            "force": sorted(planned[key].step.name_with_hash for key in forced),
        },
    )


def routing_of(
    graph: StepGraph, assets: StepAssets, execution: Mapping[str, Any]
) -> tuple[Routing, dict[str, StepOverride]]:
    """The runners and routes in an executor's config, and its settings for steps by step key.

    Args:
        graph: all steps.
        assets: those that a run can build.
        execution: the config.

    Raises:
        GraphError: a setting names no step.
        RoutingError: the runners or routes are not valid.
    """
    key_at = {one.step.output_path: key for key, one in assets.planned.items()}
    routing = Routing(_routing_config(execution), assets.runners)
    return routing, _overrides(graph, key_at, routing.config.steps)


def _routing_config(execution: Mapping[str, Any]) -> RoutingConfig:
    try:
        return RoutingConfig.model_validate(execution)
    except ValidationError as error:
        raise RoutingError(f"tool.marin_dagster.execution in pyproject.toml: {error}") from error


def _key(graph: StepGraph, key_at: Mapping[str, str], name: str) -> str:
    """The step key of a selected step."""
    path = path_of(graph, name)
    if path not in key_at:
        raise GraphError(f"step {name!r} is not selected, or no run builds it.")
    return key_at[path]


def _overrides(
    graph: StepGraph, key_at: Mapping[str, str], steps: Mapping[str, StepOverride]
) -> dict[str, StepOverride]:
    found = {}
    for name, override in steps.items():
        path = path_of(graph, name)
        if path in key_at:
            found[key_at[path]] = override
    return found


def _external(graph: StepGraph) -> dict[str, str]:
    steps = [step for step in graph.steps.values() if is_external(step)]
    looks = StepCache().look_up_many(steps)
    return {step.output_path: _data(step, looks[step.output_path]) for step in steps}


def _data(step: Any, look: Any) -> str:
    if look.error is not None:
        return str(look.error)
    if look.finished:
        return "its data is there"
    if (source := adopted_source(step)) is not None:
        return f"adopts {source}; the first step that reads it registers it"
    return f"no run builds it: put its data there, with SUCCESS in its {STATUS_FILE}"
