"""``RunnerCall``: one call of ``StepRunner.run``, which may be several runs of Dagster's."""

import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import dagster as dg

from marin_dagster._compat import InMemoryJob, capture_interrupts, execute_run
from marin_dagster.assets.marin_graph import MarinGraph
from marin_dagster.cache import DriftLog, StepCache
from marin_dagster.cache.plan import plan_from_cache
from marin_dagster.definitions import build_definitions
from marin_dagster.errors import MarinDagsterError, StepError, StepsFailedError
from marin_dagster.executor import runner_executor
from marin_dagster.runners import Runner
from marin_dagster.step_runner.failures import script_console, with_own_frames
from marin_dagster.steps import StepGraph, StepLike
from marin_dagster.steps.protocol import address
from marin_dagster.steps.text import summarize

JOB = "step_runner"


@dataclass(eq=False)
class RunnerCall:
    """One call of :meth:`StepRunner.run`, which may be several runs."""

    limit: int
    """Steps at once."""
    execution: Mapping[str, bool]
    """The executor's config."""
    runners: Mapping[str, Runner]
    """Runners made in code, by name."""
    failed: dict[str, Exception] = field(default_factory=dict)
    """What steps raised, by output path."""
    names: list[str] = field(default_factory=list)
    """The steps that failed."""
    built: set[str] = field(default_factory=set)
    """Output paths of steps that were built."""
    drifts: DriftLog = field(default_factory=DriftLog)
    """Warns of each drifted output once."""
    stop: threading.Event = field(default_factory=threading.Event)
    """Set to stop what runs."""

    def lost(self, graph: StepGraph) -> frozenset[str]:
        """Output paths of a graph's steps that failed before, and of those that need them."""
        if self.failed.keys().isdisjoint(graph.steps):
            return frozenset()
        required = graph.terminals
        seen = plan_from_cache(StepCache(), graph, selected=graph.steps, required=required)
        return seen.below(graph, self.failed) | self.failed.keys()

    def fail(self, step: StepLike, error: Exception, partition: str | None = None) -> None:
        """Keep what a step raised, in a partition if it has one."""
        self.failed[step.output_path] = error
        self.names.append(address(step) + (f" [{partition}]" if partition else ""))

    def raise_failures(self) -> None:
        """Raise what steps raised, if any did.

        Raises:
            StepsFailedError: steps failed.
        """
        if errors := list(self.failed.values()):
            message = f"{len(errors)} step(s) failed: {summarize(self.names)}"
            raise StepsFailedError(message, errors) from errors[0]

    def definitions(
        self,
        marin: MarinGraph,
        required: Collection[str],
        failures: dict[str, list[BaseException]],
    ) -> dg.Definitions:
        """Definitions for runs of this call, with the job ``step_runner``.

        Args:
            marin: the graph.
            required: output paths to build even if no selected step reads them.
            failures: receives what steps raised, by step key.
        """
        executor = runner_executor(
            self.limit,
            self.runners,
            frozenset(required),
            failures,
            self.drifts,
            built=self.built,
            stop=self.stop,
        )
        return dg.Definitions.merge(
            build_definitions(marin, executor=executor, job_name=JOB, checks=False),
            dg.Definitions(loggers={"console": script_console}),
        )

    def run(
        self,
        definitions: dg.Definitions,
        instance: dg.DagsterInstance,
        failures: Mapping[str, list[BaseException]],
        *,
        assets: Collection[dg.AssetKey] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> dict[str, Exception]:
        """Run the job; what its steps raised in their last attempts, by step key.

        Args:
            definitions: they have the job ``step_runner``.
            instance: where the run is recorded.
            failures: what the executor's steps raised, by step key.
            assets: the assets to select; all when None.
            tags: the run's tags.

        Raises:
            KeyboardInterrupt: after the running steps have been stopped.
            MarinDagsterError: the run failed, but none of its steps.
        """
        job = definitions.resolve_job_def(JOB)
        if assets is not None:
            job = job.get_subset(asset_selection=set(assets))
        config = {"execution": {"config": dict(self.execution)}, "loggers": {"console": {}}}
        recorded = instance.create_run_for_job(job_def=job, run_config=config, tags=tags)
        try:
            with capture_interrupts():
                result = execute_run(InMemoryJob(job), recorded, instance, raise_on_error=True)
        except dg.DagsterExecutionInterruptedError:
            raise KeyboardInterrupt from None
        errors: dict[str, Exception] = {}
        if result.success:
            return errors
        for event in result.all_events:
            if not event.is_step_failure or event.step_key is None:
                continue
            # The last attempt's.
            raised = failures.get(event.step_key, [])
            if raised and isinstance(raised[-1], Exception):
                error = with_own_frames(raised[-1])
                error.add_note(f"in step {event.step_key} of run {recorded.run_id}")
                errors[event.step_key] = error
            else:
                info = event.step_failure_data.error
                message = info.message if info else f"step {event.step_key} failed"
                errors[event.step_key] = StepError(message)
        if not errors:
            raise MarinDagsterError(f"run {recorded.run_id} failed; see its log.")
        return errors
