"""``MarinExecutor``: runs the steps of one run in threads, except those that are cached."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

import dagster as dg

from marin_dagster._compat import (
    ExecuteRunWithPlanIterable,
    ExecutionPlan,
    ExecutionStep,
    PlanExecutionContext,
    PlanExecutionContextManager,
    PlanOrchestrationContext,
    RetryMode,
    StepDependencyConfig,
    StepOutputHandle,
)
from marin_dagster.assets.previous_builds import PreviousBuilds
from marin_dagster.assets.step_control import PartitionRange
from marin_dagster.cache import DriftLog
from marin_dagster.executor.compute_logs import job_log_levels
from marin_dagster.executor.config import ExecutorSettings
from marin_dagster.executor.contexts import context_for, writing_events
from marin_dagster.executor.decisions import Decisions, decide
from marin_dagster.executor.event_writer import EventWriter
from marin_dagster.executor.partition_ranges import as_steps
from marin_dagster.executor.planned_events import withdraw_planned_events, withdrawing_on_error
from marin_dagster.executor.pools import RunSlots
from marin_dagster.executor.run_steps import PlannedStep, by_step_key, steps_of_run
from marin_dagster.executor.run_summary import RunSummary
from marin_dagster.executor.skipped_step_events import (
    report,
    report_dry_run,
    report_outcomes,
    report_unreachable,
    summary,
)
from marin_dagster.executor.step_loop import OptionsOf, StepLoop
from marin_dagster.executor.step_options import RunOptions
from marin_dagster.executor.step_outcomes import find_outcomes
from marin_dagster.executor.stuck_steps import unreachable
from marin_dagster.executor.threads import StepThreads
from marin_dagster.runners import Routing, Runner


@dataclass(frozen=True)
class MarinExecutor(dg.Executor):
    """Runs the steps of one run, each in its own thread of the run worker.

    The main thread decides and reports. It waits for the threads' events in one queue.
    """

    settings: ExecutorSettings
    runners: Mapping[str, Runner] = field(default_factory=dict)
    """Runners made in code, by name, in addition to those of the config."""
    required: frozenset[str] = frozenset()
    """Output paths to build even if no selected step reads them."""
    failures: dict[str, list[BaseException]] | None = None
    """Receives what steps raise, by step key."""
    from_script: bool = False
    """Whether the run's process is the user's script."""
    drifts: DriftLog = field(default_factory=DriftLog)
    """Warns of drifted outputs, once in this run."""
    built: set[str] = field(default_factory=set)
    """Output paths that a call of several runs has built; not to be built again."""
    stop: threading.Event = field(default_factory=threading.Event)
    """Interrupts the run when it is set, as a signal does."""

    @property
    def retries(self) -> RetryMode:
        """Whether Dagster's retry policies apply."""
        return self.settings.retries

    @property
    def step_dependency_config(self) -> StepDependencyConfig:
        """Which dependencies must have ended before a step may start."""
        return self.settings.step_dependency_config

    def execute(
        self, plan_context: PlanOrchestrationContext, execution_plan: ExecutionPlan
    ) -> Iterator[dg.DagsterEvent]:
        """Run the plan and yield its events, as Dagster's executors do."""
        yield from ExecuteRunWithPlanIterable(
            execution_plan=execution_plan,
            iterator=self._iterate,
            execution_context_manager=PlanExecutionContextManager(
                job=plan_context.job,
                retry_mode=self.settings.retries,
                execution_plan=execution_plan,
                run_config=plan_context.run_config,
                dagster_run=plan_context.dagster_run,
                instance=plan_context.instance,
                # A failing step must not end the others' threads.
                raise_on_error=False,
                output_capture=plan_context.output_capture,
                step_dependency_config=self.settings.step_dependency_config,
            ),
        )

    def _iterate(
        self, job_context: PlanExecutionContext, execution_plan: ExecutionPlan
    ) -> Iterator[dg.DagsterEvent]:
        planned = steps_of_run(job_context, execution_plan)
        executor, keys_of = self, by_step_key(planned)
        if len(planned) > len(keys_of):
            # A step of several partitions has an output although some of them have failed.
            early = StepDependencyConfig(require_upstream_step_success=False)
            executor = replace(self, settings=replace(self.settings, step_dependency_config=early))
        # A step that starts before its inputs' steps end reads these steps' events.
        waits = executor.settings.step_dependency_config.require_upstream_step_success
        with writing_events(job_context, keys_of if waits else ()) as (job_context, events):
            yield from executor._run(job_context, execution_plan, planned, keys_of, events)

    def _run(
        self,
        job_context: PlanExecutionContext,
        execution_plan: ExecutionPlan,
        planned: Mapping[str, PlannedStep],
        keys_of: Mapping[str, Sequence[str]],
        events: EventWriter,
    ) -> Iterator[dg.DagsterEvent]:
        dry_run, count = self.settings.dry_run, len(execution_plan.step_keys_to_execute)
        assets = {step.asset: step.step_key for step in planned.values()}
        with withdrawing_on_error(job_context, assets):
            limit = self.settings.limit
            routing = Routing(self.settings.routing_config(), self.runners)
        try:
            with withdrawing_on_error(job_context, assets):
                decisions = decide(
                    job_context,
                    execution_plan,
                    planned,
                    self.settings,
                    routing,
                    self.required,
                    frozenset(self.built),
                )
                if not dry_run:
                    decisions.check_places()
            history = PreviousBuilds(job_context.instance, decisions.may_build())
            others = [key for key in execution_plan.step_keys_to_execute if key not in keys_of]
            outcomes = find_outcomes(others, decisions, history)
            partitions = max(map(len, keys_of.values()), default=1)
            steps = f"{count} steps{f' for {partitions} partitions' if partitions > 1 else ''}"
            doing = f"Executing {steps} in threads, at most {limit} at once"
            if dry_run:
                doing = f"Dry run of {steps}: runs nothing and only reads the store"
            yield report_outcomes(job_context, execution_plan, outcomes, doing)
            if dry_run:
                yield from report_dry_run(job_context, execution_plan, outcomes, keys_of, events)
            else:
                yield from self._execute(
                    job_context, execution_plan, decisions, keys_of, routing, history, events
                )
        finally:
            routing.close()

    def _execute(
        self,
        job_context: PlanExecutionContext,
        execution_plan: ExecutionPlan,
        decisions: Decisions,
        keys_of: Mapping[str, Sequence[str]],
        routing: Routing,
        history: PreviousBuilds,
        events: EventWriter,
    ) -> Iterator[dg.DagsterEvent]:
        if self.failures is not None:
            self.failures.update((key, [error]) for key, error in decisions.blocked.items())
        if routing.chose_process and decisions.runs_remotely:
            job_context.log.info(
                "No runner is configured: steps with resources run in processes on this machine."
            )
        of_steps = as_steps(decisions)
        job_context.log.info(summary(execution_plan, of_steps))
        managed = job_context.instance.managed_python_loggers
        options_of = RunOptions(
            decisions=decisions,
            keys_of=keys_of,
            runners=routing.runners,
            history=history,
            log_levels=job_log_levels(managed, self.settings.log_level),
            retry_failed=self.settings.retry_failed,
            from_script=self.from_script,
            drifts=self.drifts,
            failures=self.failures,
            range=PartitionRange(self.settings.limit),
        )
        failed, run_summary = False, RunSummary(decisions, keys_of, options_of.range.reported)
        try:
            for event in self._carry_out(job_context, execution_plan, of_steps, options_of, events):
                failed = failed or event.is_step_failure
                run_summary.count(event)
                yield event
        except dg.DagsterExecutionInterruptedError:
            job_context.log.info(run_summary.text(execution_plan))
            raise
        self.built.update(decisions.planned[key].step.output_path for key in run_summary.built)
        job_context.log.info(run_summary.text(execution_plan))
        if failed:
            withdraw_planned_events(job_context, decisions.left_alone)

    def _carry_out(
        self,
        job_context: PlanExecutionContext,
        execution_plan: ExecutionPlan,
        decisions: Decisions,
        options_of: OptionsOf,
        events: EventWriter,
    ) -> Iterator[dg.DagsterEvent]:
        yield from report(job_context, execution_plan, decisions, self.drifts, events)
        keep = decisions.keep(execution_plan)
        # Cached steps come first: they need neither other steps nor a slot of a pool.
        cached = [key for key in keep if key in decisions.cached]
        vanished: set[str] = set()
        for event in self._start(
            job_context, execution_plan, cached, nullcontext(), decisions, options_of, events
        ):
            if event.is_step_failure and event.step_key:
                vanished.add(event.step_key)
            yield event
        lost = unreachable(execution_plan.get_executable_step_deps(), vanished, decisions.cached)
        report_unreachable(job_context, execution_plan, lost)
        others = [key for key in keep if key not in decisions.cached and key not in lost]
        slots = RunSlots(job_context.instance, job_context.dagster_run)
        yield from self._start(
            job_context, execution_plan, others, slots, decisions, options_of, events
        )

    def _start(
        self,
        job_context: PlanExecutionContext,
        whole_plan: ExecutionPlan,
        keys: list[str],
        slots: AbstractContextManager[RunSlots | None],
        decisions: Decisions,
        options_of: OptionsOf,
        events: EventWriter,
    ) -> Iterator[dg.DagsterEvent]:
        """Run some of the plan's steps, in threads."""
        if not keys:
            return
        plan = whole_plan.build_subset_plan(
            keys, job_context.job_def, job_context.resolved_run_config
        )
        job_context = context_for(job_context, plan)
        with (
            slots as context,
            plan.start(
                retry_mode=self.settings.retries,
                max_concurrent=self.settings.limit,
                tag_concurrency_limits=self.settings.tag_concurrency_limits,
                instance_concurrency_context=context,
                step_dependency_config=self.settings.step_dependency_config,
            ) as active,
        ):
            for handle in _outputs_there(plan):
                active.mark_step_produced_output(handle)
            threads = StepThreads(self.settings.log_level)
            try:
                loop = StepLoop(
                    job_context, active, decisions, threads, options_of, events, self.stop
                )
                yield from loop.run()
            finally:
                # Whatever ends the run, its steps must stop.
                threads.interrupt()
                # Nothing else frees the slot of a step that is left behind.
                if context is not None:
                    for key in threads.running:
                        context.free_step(key)


def _outputs_there(plan: ExecutionPlan) -> Iterator[StepOutputHandle]:
    """Outputs that the plan's steps read of steps that are not in it: served or built before.

    Where steps start as soon as what they read is there, Dagster would wait for these for ever.
    """
    keys = set(plan.step_keys_to_execute)
    for step in plan.steps:
        # A step of a dynamic output is not there yet, and reads steps of the same plan.
        if step.key in keys and isinstance(step, ExecutionStep):
            for read in step.step_inputs:
                for handle in read.get_step_output_handle_dependencies():
                    if handle.step_key not in keys:
                        yield handle
