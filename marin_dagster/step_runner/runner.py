"""``StepRunner``: run steps from a script, as Marin's does, with Dagster underneath.

Records the run in the given instance, else in that of ``DAGSTER_HOME``, else in a temporary one.
The caller's process is the run worker.
"""

import sys
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import dagster as dg

from marin_dagster._compat import InMemoryJob, capture_interrupts, execute_run
from marin_dagster.assets.marin_graph import MarinGraph
from marin_dagster.assets.output_loader import StepOutput
from marin_dagster.cache import DriftLog, OutputDir, StepCache, read_record, read_status
from marin_dagster.cache.plan import plan_from_cache
from marin_dagster.cache.status import Status
from marin_dagster.definitions import build_definitions
from marin_dagster.errors import (
    MarinDagsterError,
    OutputNotReadyError,
    StepError,
    StepsFailedError,
)
from marin_dagster.executor import runner_executor
from marin_dagster.executor.config import DEFAULT_MAX_CONCURRENT, effective_max_concurrent
from marin_dagster.lazy import ArtifactStep, load
from marin_dagster.runners import FraySettings, Runner
from marin_dagster.step_runner.cached_graphs import report_outputs, serve_cached
from marin_dagster.step_runner.dry_runs import log_dry_run
from marin_dagster.step_runner.external_outputs import external_faults, log_external_faults
from marin_dagster.step_runner.iterable_runs import run_drawn
from marin_dagster.step_runner.recording import (
    keeps_records,
    recording,
    temporary_instance,
    would_fail_runs,
)
from marin_dagster.steps import StepGraph, StepLike
from marin_dagster.steps.protocol import address, is_external
from marin_dagster.steps.text import summarize
from marin_dagster.steps.undeclared_inputs import check_undeclared_inputs

_JOB = "step_runner"
# Dagster's console logs every event at DEBUG, some fifty lines for each step.
_LOGGERS = {"console": {"config": {"log_level": "INFO"}}}
_DRAWN_AHEAD = 8
"""Steps that are drawn ahead of those that run, in multiples of ``max_concurrent``."""


@dataclass(frozen=True)
class StepResults(Mapping[str, StepOutput]):
    """The outputs of a run's steps: by output path, and also by step, handle, name with hash, or a
    name that only one step has."""

    graph: StepGraph
    """The steps that were asked for, with all their dependencies."""
    dry_run: bool = False
    """Whether this was a dry run."""

    def __getitem__(self, key: Any) -> StepOutput:
        """The finished output.

        Raises:
            KeyError: no such step, or several steps have this name.
            OutputNotReadyError: it is not built: it was not needed, or this was a dry run.
            RecordError: its record cannot be read.
        """
        step = self.graph.steps[self._path(key)]
        folder = OutputDir.at(step.output_path)
        finished = read_status(folder) is Status.SUCCESS
        if not finished and self.dry_run:
            raise OutputNotReadyError(
                f"step {address(step)} ({step.output_path}) is not built: this was a dry run. Call "
                "run() without dry_run to build it."
            )
        if not finished:
            raise OutputNotReadyError(
                f"step {address(step)} ({step.output_path}) is not built: nothing in this "
                "run needed it. Pass it to run()."
            )
        return StepOutput(step.output_path, address(step), read_record(folder))

    def __contains__(self, key: object) -> bool:
        try:
            return self._path(key) in self.graph.steps
        except KeyError:
            return False

    def __iter__(self) -> Iterator[str]:
        return iter(self.graph.steps)

    def __len__(self) -> int:
        return len(self.graph.steps)

    def _path(self, key: Any) -> str:
        if not isinstance(key, str):
            return str((key.lower() if hasattr(key, "lower") else key).output_path)
        return self.graph.path_of(key)


@dataclass(eq=False)
class _Call:
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

    def fail(self, step: StepLike, error: Exception) -> None:
        """Keep what a step raised."""
        self.failed[step.output_path] = error
        self.names.append(address(step))


@dataclass(frozen=True)
class StepRunner:
    """Runs steps and everything they need, except what is cached."""

    max_concurrent: int = DEFAULT_MAX_CONCURRENT
    """Steps at once; 0 means 8."""
    fray_client: Any = field(default=None, kw_only=True)
    """Takes steps with resources; Fray's current client when None, and processes of this machine
    when there is none, or only Fray's ``LocalClient``. A ``LocalClient`` that is given is refused:
    it honours no resources and cannot stop a step."""
    shared_disk: bool = field(default=False, kw_only=True)
    """Whether the client's workers see this machine's disk, so that outputs may lie on it."""
    instance: dg.DagsterInstance | None = field(default=None, kw_only=True)
    """Where the run is recorded. If it monitors runs and its launcher checks their workers, such as
    on Kubernetes, it would mark the run as failed: then it gets only the outputs."""
    strict: bool = field(default=False, kw_only=True)
    """Whether inputs that a step uses without depending on them are errors: before the run, if its
    function refers to them, and in the step, if it reads their files."""

    def run(
        self,
        steps: Iterable[Any],
        *,
        dry_run: bool = False,
        force_run_failed: bool = True,
        max_concurrent: int | None = None,
    ) -> StepResults:
        """Run steps, or handles to lazy artifacts; their dependencies need not be listed.

        A list is one run. Any other iterable is read while its first steps run, so that it may be
        endless or wait for its own steps; the steps read in the meantime are the next run. At most
        eight times ``max_concurrent`` steps are read ahead.

        Args:
            steps: the steps to build.
            dry_run: log what a run would do with each step, and why; read the store and write
                nothing. (Marin's lists every step and reads nothing.)
            force_run_failed: run steps again if their last attempt failed.
            max_concurrent: instead of the runner's own.

        Returns:
            The outputs.

        Raises:
            GraphError: the graph is wrong.
            UndeclaredInputsError: functions use steps that theirs do not depend on, and the runner
                is strict. If it is not, that is a warning.
            StepsFailedError: steps failed; independent ones have gone on.
            RoutingError: no runner takes some steps.
            KeyboardInterrupt: after the running steps have been stopped.
            Exception: what the iterable raised, after what it had yielded has run.
        """
        limit = effective_max_concurrent(
            self.max_concurrent if max_concurrent is None else max_concurrent
        )
        execution = {"dry_run": dry_run, "retry_failed": force_run_failed}
        call = _Call(limit, execution, self._runners())
        if dry_run or isinstance(steps, Collection) or not isinstance(steps, Iterable):
            graph = StepGraph.from_steps(steps)
            self._run_graph(graph, call)
        else:
            graph = self._run_drawn(steps, call)
        if errors := list(call.failed.values()):
            message = f"{len(errors)} step(s) failed: {summarize(call.names)}"
            raise StepsFailedError(message, errors) from errors[0]
        return StepResults(graph, dry_run=dry_run)

    def _run_drawn(self, steps: Iterable[Any], call: "_Call") -> StepGraph:
        """Run steps while they are drawn; the graph of them all."""
        drawn: list[StepLike] = []
        with recording(self.instance) as instance:
            recorded = replace(self, instance=instance)

            def run_portion(portion: list[Any]) -> None:
                graph = StepGraph.from_steps(portion)
                drawn.extend(graph.steps[path] for path in graph.terminals)
                # As in one run: a failed step and those downstream of it do not run again.
                lost = call.lost(graph)
                left = [graph.steps[path] for path in graph.terminals if path not in lost]
                if left:
                    recorded._run_graph(StepGraph.from_steps(left), call)

            try:
                run_drawn(steps, run_portion, most=_DRAWN_AHEAD * call.limit, stop=call.stop)
            except Exception as error:
                for failure in call.failed.values():
                    error.add_note(f"before that, a step failed: {failure}")
                raise
        return StepGraph.from_steps(drawn)

    def _run_graph(self, graph: StepGraph, call: "_Call") -> None:
        """Run what a graph's terminals need, in one run."""
        check_undeclared_inputs(graph, strict=self.strict)
        kept = recording(self.instance) if keeps_records(self.instance) else None
        if call.execution["dry_run"]:
            log_external_faults(graph, call.drifts)
            log_dry_run(
                graph,
                call.runners,
                retry_failed=call.execution["retry_failed"],
                recording=kept,
            )
            return
        retry_failed = call.execution["retry_failed"]
        for step, fault in external_faults(graph, call.drifts, retry_failed=retry_failed):
            call.fail(step, fault)
        if serve_cached(graph, call.drifts, kept):
            return
        failures: dict[str, list[BaseException]] = {}
        executor = runner_executor(
            call.limit,
            call.runners,
            frozenset(graph.terminals),
            failures,
            call.drifts,
            built=call.built,
            stop=call.stop,
        )
        config = {"execution": {"config": call.execution}, "loggers": _LOGGERS}
        marin = MarinGraph.of(graph, strict=self.strict)
        definitions = build_definitions(marin, executor=executor, job_name=_JOB, checks=False)
        if any(not is_external(step) for step in graph.steps.values()):
            with recording(self.instance) as instance:
                if would_fail_runs(instance):
                    # Only its outputs are recorded there.
                    with temporary_instance() as own:
                        raised = _run(definitions, own, config, failures)
                    report_outputs(instance, graph)
                else:
                    raised = _run(definitions, instance, config, failures)
            for path, name in marin.op_names.items():
                if name in raised:
                    call.fail(graph.steps[path], raised[name])

    def _runners(self) -> dict[str, Runner]:
        client = self.fray_client
        if client is None and "fray" in sys.modules:
            from marin_dagster.runners.fray import callers_client

            client = callers_client()
        if client is None:
            return {}
        from marin_dagster.runners.fray import FrayRunner

        return {"fray": FrayRunner("fray", FraySettings(shared_disk=self.shared_disk), client)}


def run(
    *handles: ArtifactStep[Any],
    max_concurrent: int = DEFAULT_MAX_CONCURRENT,
    force_run_failed: bool = True,
) -> list[Any]:
    """Build lazy artifacts and return them loaded, in the order given.

    Raises:
        StepsFailedError: some could not be built.
        ArtifactTypeMismatchError: one was recorded as another type.
    """
    StepRunner(max_concurrent).run(handles, force_run_failed=force_run_failed)
    return [load(handle) for handle in handles]


def resolve(handle: ArtifactStep[Any], *, max_concurrent: int = DEFAULT_MAX_CONCURRENT) -> Any:
    """Build one lazy artifact and return it loaded; :func:`run` for one handle."""
    return run(handle, max_concurrent=max_concurrent)[0]


def _run(
    definitions: dg.Definitions,
    instance: dg.DagsterInstance,
    config: Mapping[str, Any],
    failures: Mapping[str, list[BaseException]],
) -> dict[str, Exception]:
    """Run the job; what its steps raised in their last attempts, by step key."""
    job = definitions.resolve_job_def(_JOB)
    recorded = instance.create_run_for_job(job_def=job, run_config=config)
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
            raised[-1].add_note(f"in step {event.step_key} of run {recorded.run_id}")
            errors[event.step_key] = raised[-1]
        else:
            error = event.step_failure_data.error
            message = error.message if error else f"step {event.step_key} failed"
            errors[event.step_key] = StepError(message)
    if not errors:
        raise MarinDagsterError(f"run {recorded.run_id} failed; see its log.")
    return errors
