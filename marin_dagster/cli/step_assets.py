"""The steps inside Dagster's Definitions, with the keys, resources and executor they have there."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import dagster as dg

from marin_dagster._compat import without_beta_warnings
from marin_dagster.assets.io_manager import MarinIOManager
from marin_dagster.assets.step_op import StepOp
from marin_dagster.cache import StepCache
from marin_dagster.errors import GraphError
from marin_dagster.events.asset_records import AssetPartition
from marin_dagster.events.metadata_keys import RUNNER
from marin_dagster.executor import marin_executor, runners_of
from marin_dagster.executor.run_steps import PlannedStep
from marin_dagster.runners import Runner
from marin_dagster.steps import StepGraph

JOB = "materialize_steps"


@dataclass(frozen=True, eq=False)
class StepAssets:
    """The assets of Definitions that steps build."""

    definitions: dg.Definitions

    @cached_property
    def planned(self) -> Mapping[str, PlannedStep]:
        """Each step under its op's name, which is its step key in a run; inputs first."""
        found: dict[str, PlannedStep] = {}
        for asset in self.definitions.assets or ():
            op = getattr(asset, "node_def", None)
            if not isinstance(asset, dg.AssetsDefinition) or not isinstance(op, dg.OpDefinition):
                continue
            if isinstance(op.compute_fn, StepOp) and asset.keys:
                (key,) = asset.keys
                runner = op.tags.get(RUNNER)
                found[op.name] = PlannedStep(
                    op.compute_fn, op.name, AssetPartition(key), None, runner
                )
        return found

    @cached_property
    def keys(self) -> Mapping[str, dg.AssetKey]:
        """The asset key of each output path that a run can build."""
        return {one.step.output_path: one.asset.key for one in self.planned.values()}

    @cached_property
    def executor(self) -> dg.ExecutorDefinition:
        """The executor for the steps: that of the definitions or of their jobs if it is ours."""
        jobs = self.definitions.jobs or ()
        candidates = [
            self.definitions.executor,
            *(getattr(job, "executor_def", None) for job in jobs),
        ]
        ours = (one for one in candidates if isinstance(one, dg.ExecutorDefinition))
        return next((one for one in ours if one.name == marin_executor.name), marin_executor)

    @property
    def runners(self) -> Mapping[str, Runner]:
        """The executor's runners that were made in code."""
        return runners_of(self.executor)

    def cache_for(self, key_of: Mapping[str, str]) -> StepCache:
        """The cache of a graph's steps; takes their step keys by output path."""
        op = self.planned[next(iter(key_of.values()))].op
        manager: Any = (self.definitions.resources or {}).get(op.io_manager_key)
        return manager.cache if isinstance(manager, MarinIOManager) else StepCache()

    def select(self, selection: str) -> set[str]:
        """Step keys of the steps in a selection.

        Args:
            selection: in Dagster's syntax.

        Raises:
            GraphError: the selection cannot be parsed, or contains no step.
        """
        assets = self.definitions.get_repository_def().asset_graph
        try:
            with without_beta_warnings():
                chosen = dg.AssetSelection.from_string(selection).resolve(assets)
        except dg.DagsterError as error:
            raise GraphError(f"--select {selection!r}: {error}") from error
        found = {key for key, one in self.planned.items() if one.asset.key in chosen}
        if not found:
            raise GraphError(f"--select {selection!r} contains no step that a run can build.")
        return found

    def job(self, keys: Collection[dg.AssetKey]) -> dg.JobDefinition:
        """A job over some of the assets, with :attr:`executor`."""
        job = dg.define_asset_job(
            JOB, selection=dg.AssetSelection.assets(*keys), executor_def=self.executor
        )
        return dg.Definitions(
            assets=self.definitions.assets,
            asset_checks=self.definitions.asset_checks,
            resources=self.definitions.resources,
            jobs=[job],
        ).resolve_job_def(JOB)


def check_unpartitioned(definitions: dg.Definitions, name: str) -> None:
    """Refuse assets with partitions: which of their steps are meant, only their function knows.

    Raises:
        GraphError: an asset has partitions.
    """
    for one in StepAssets(definitions).planned.values():
        if one.op.partitions is not None:
            raise GraphError(
                f"{name}: asset {one.asset.key.to_user_string()!r} has partitions. Name the "
                "function that returns the steps of a partition, and give --partition."
            )


def graph_of(definitions: dg.Definitions) -> StepGraph:
    """The graph of all steps in the definitions."""
    graphs = {id(one.op.graph): one.op.graph for one in StepAssets(definitions).planned.values()}
    return StepGraph.from_steps(
        graph.steps[path] for graph in graphs.values() for path in graph.terminals
    )
