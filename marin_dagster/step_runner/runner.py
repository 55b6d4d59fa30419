"""``StepRunner``: run steps from a script, as Marin's does, with Dagster underneath.

Records the run in the given instance, else in that of ``DAGSTER_HOME``, else in a temporary one.
The caller's process is the run worker.
"""

import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, overload

import dagster as dg

from marin_dagster.assets.marin_graph import MarinGraph
from marin_dagster.executor.config import DEFAULT_MAX_CONCURRENT, effective_max_concurrent
from marin_dagster.lazy import ArtifactStep, load
from marin_dagster.runners import FraySettings, Runner
from marin_dagster.step_runner.cached_graphs import report_outputs, serve_cached
from marin_dagster.step_runner.dry_runs import log_dry_run
from marin_dagster.step_runner.external_outputs import external_faults, log_external_faults
from marin_dagster.step_runner.iterable_runs import run_drawn
from marin_dagster.step_runner.partition_runs import ChosenPartitions, run_partitions
from marin_dagster.step_runner.recording import (
    keeps_records,
    recording,
    temporary_instance,
    would_fail_runs,
)
from marin_dagster.step_runner.results import StepResults
from marin_dagster.step_runner.runner_call import RunnerCall
from marin_dagster.steps import StepGraph, StepLike
from marin_dagster.steps.protocol import is_external
from marin_dagster.steps.undeclared_inputs import check_undeclared_inputs

_DRAWN_AHEAD = 8
"""Steps that are drawn ahead of those that run, in multiples of ``max_concurrent``."""


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

    @overload
    def run(
        self,
        steps: Iterable[Any],
        *,
        dry_run: bool = False,
        force_run_failed: bool = True,
        max_concurrent: int | None = None,
    ) -> StepResults: ...

    @overload
    def run(
        self,
        steps: Callable[[str], Iterable[Any]] | MarinGraph,
        *,
        partition_keys: Sequence[str],
        dry_run: bool = False,
        force_run_failed: bool = True,
        max_concurrent: int | None = None,
    ) -> Mapping[str, StepResults]: ...

    def run(
        self,
        steps: Any,
        *,
        partition_keys: Sequence[str] | None = None,
        dry_run: bool = False,
        force_run_failed: bool = True,
        max_concurrent: int | None = None,
    ) -> StepResults | Mapping[str, StepResults]:
        """Run steps, or handles to lazy artifacts; their dependencies need not be listed.

        A list is one run. Any other iterable is read while its first steps run, so that it may be
        endless or wait for its own steps; the steps read in the meantime are the next run. At most
        eight times ``max_concurrent`` steps are read ahead.

        With ``partition_keys``, each partition in which something must run is one run, recorded as
        that partition of the assets; a partition that reads another comes after it. Steps that all
        partitions share and that read several of them, such as a leaderboard, come last.

        Args:
            steps: the steps to build. With ``partition_keys``, a function from the key of a
                partition to its steps, or a :meth:`MarinGraph.of` it, which can also state the
                assets' partitions, shared steps and translator.
            partition_keys: the partitions to build.
            dry_run: log what a run would do with each step, and why; read the store and write
                nothing. (Marin's lists every step and reads nothing.)
            force_run_failed: run steps again if their last attempt failed.
            max_concurrent: instead of the runner's own.

        Returns:
            The outputs; with ``partition_keys``, those of each partition by its key.

        Raises:
            GraphError: the graph, or a partition or its graph, is wrong.
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
        call = RunnerCall(limit, execution, self._runners())
        if partition_keys is not None:
            chosen = ChosenPartitions.of(steps, partition_keys, strict=self.strict)
            check_undeclared_inputs(chosen.marin.graph, strict=chosen.marin.strict)
            run_partitions(chosen, call, self.instance)
            call.raise_failures()
            return chosen.results(dry_run=dry_run)
        if dry_run or isinstance(steps, Collection) or not isinstance(steps, Iterable):
            graph = StepGraph.from_steps(steps)
            self._run_graph(graph, call)
        else:
            graph = self._run_drawn(steps, call)
        call.raise_failures()
        return StepResults(graph, dry_run=dry_run)

    def _run_drawn(self, steps: Iterable[Any], call: RunnerCall) -> StepGraph:
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

    def _run_graph(self, graph: StepGraph, call: RunnerCall) -> None:
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
        marin = MarinGraph.of(graph, strict=self.strict)
        definitions = call.definitions(marin, graph.terminals, failures)
        if any(not is_external(step) for step in graph.steps.values()):
            with recording(self.instance) as instance:
                if would_fail_runs(instance):
                    # Only its outputs are recorded there.
                    with temporary_instance() as own:
                        raised = call.run(definitions, own, failures)
                    report_outputs(instance, graph)
                else:
                    raised = call.run(definitions, instance, failures)
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
