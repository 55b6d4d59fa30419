"""``StepRunner``: run steps from a script, as Marin's does, with Dagster underneath.

Recorded in the instance that is given, else in that of ``DAGSTER_HOME``, else in one that lasts as
long as the run. The caller's process is the run worker.
"""

import logging
import os
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from marin_dagster._compat import InMemoryJob, capture_interrupts, execute_run
from marin_dagster.cache import Attempt, DriftLog, Folder, StepCache, read_record, read_status
from marin_dagster.cache.status import STATUS_FILE, Status
from marin_dagster.definitions import build_definitions
from marin_dagster.errors import (
    MarinDagsterError,
    OutputNotReadyError,
    StepError,
    StepsFailedError,
    StepWithoutFunctionError,
)
from marin_dagster.executor import runner_executor
from marin_dagster.executor.config import DEFAULT_MAX_CONCURRENT, effective_max_concurrent
from marin_dagster.io_manager import StepOutput
from marin_dagster.lazy import ArtifactStep, load
from marin_dagster.runners import FraySettings, Runner, run_inline
from marin_dagster.steps import StepGraph, StepLike
from marin_dagster.steps.protocol import address, adopted_source, is_external

_JOB = "step_runner"
# Dagster's console tells of every event at DEBUG, some fifty lines for each step.
_LOGGERS = {"console": {"config": {"log_level": "INFO"}}}
logger = logging.getLogger(__name__)
_opening = threading.Lock()


@dataclass(frozen=True)
class StepResults(Mapping[str, StepOutput]):
    """The outputs of a run's steps: by output path, and also by step, handle or name with hash."""

    graph: StepGraph
    """Everything that the run was about."""
    dry_run: bool = False
    """Whether nothing was to run."""

    def __getitem__(self, key: Any) -> StepOutput:
        """The finished output.

        Raises:
            KeyError: no such step.
            OutputNotReadyError: it is not built: it was not needed, or this was a dry run.
            RecordError: its record cannot be read.
        """
        step = self.graph.steps[self._path(key)]
        folder = Folder.at(step.output_path)
        finished = read_status(folder) is Status.SUCCESS
        if not finished and self.dry_run:
            raise OutputNotReadyError(
                f"step {address(step)} ({step.output_path}) is not built: this was a dry run. Call "
                "run() without dry_run to build it."
            )
        if not finished:
            raise OutputNotReadyError(
                f"step {address(step)} ({step.output_path}) is not built: nothing in this "
                "run needed it. Ask for it in run()."
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
        if key in self.graph.steps:
            return key
        for path, step in self.graph.steps.items():
            if key in (step.name_with_hash, address(step)):
                return path
        raise KeyError(key)


@dataclass(frozen=True)
class StepRunner:
    """Runs steps and everything they need; what is cached is not run."""

    max_concurrent: int = DEFAULT_MAX_CONCURRENT
    """Steps at once; 0 means 8."""
    fray_client: Any = field(default=None, kw_only=True)
    """Takes steps with resources; Fray's current client when None, and processes of this machine
    when there is none, or only Fray's ``LocalClient``. A ``LocalClient`` that is given is refused:
    it honours no resources and cannot stop a step."""
    shared_disk: bool = field(default=False, kw_only=True)
    """Whether the client's workers see this machine's disk, so that outputs may lie on it."""
    instance: dg.DagsterInstance | None = field(default=None, kw_only=True)
    """Where the run is recorded."""

    def run(
        self,
        steps: Iterable[Any],
        *,
        dry_run: bool = False,
        force_run_failed: bool = True,
        max_concurrent: int | None = None,
    ) -> StepResults:
        """Run steps, or handles to lazy artifacts; their dependencies need not be listed.

        Args:
            steps: what is wanted.
            dry_run: log what would become of each step, and why, as a run right now would decide
                it; read the store and write nothing. (Marin's lists every step and reads nothing.)
            force_run_failed: run steps again whose last attempt failed.
            max_concurrent: instead of the runner's own.

        Returns:
            The outputs.

        Raises:
            GraphError: the graph is wrong.
            StepsFailedError: steps failed; independent ones have gone on.
            RoutingError: steps ask for what no runner can give.
            KeyboardInterrupt: after the running steps have been stopped.
        """
        graph = StepGraph.from_steps(steps)
        limit = effective_max_concurrent(
            self.max_concurrent if max_concurrent is None else max_concurrent
        )
        errors: list[Exception] = []
        drifts = DriftLog()
        if dry_run:
            _log_external_faults(graph, drifts)
        else:
            errors += _external_faults(graph, drifts, retry_failed=force_run_failed)
        failures: dict[str, list[BaseException]] = {}
        executor = runner_executor(
            limit, self._runners(), frozenset(graph.terminals), failures, drifts
        )
        execution = {"dry_run": dry_run, "retry_failed": force_run_failed}
        config = {"execution": {"config": execution}, "loggers": _LOGGERS}
        definitions = build_definitions(graph, executor=executor, job_name=_JOB, checks=False)
        if any(not is_external(step) for step in graph.steps.values()):
            with self._recording() as instance:
                errors += _run(definitions, instance, config, failures)
        if errors:
            raise StepsFailedError(f"{len(errors)} step(s) failed", errors) from errors[0]
        return StepResults(graph, dry_run=dry_run)

    def _runners(self) -> dict[str, Runner]:
        client = self.fray_client
        if client is None and "fray" in sys.modules:
            from marin_dagster.runners.fray import callers_client

            client = callers_client()
        if client is None:
            return {}
        from marin_dagster.runners.fray import FrayRunner

        return {"fray": FrayRunner("fray", FraySettings(shared_disk=self.shared_disk), client)}

    @contextmanager
    def _recording(self) -> Iterator[dg.DagsterInstance]:
        if self.instance is not None:
            yield self.instance
        elif os.environ.get("DAGSTER_HOME"):
            # One at a time: a new home is set up when it is first opened, and by one only.
            with _opening:
                opened = dg.DagsterInstance.get()
                opened.get_runs_count()
            with opened as instance:
                yield instance
        else:
            # On disk: not every release's instance in memory can be used from several threads.
            with (
                tempfile.TemporaryDirectory(prefix="marin-dagster-") as folder,
                dg.DagsterInstance.local_temp(folder) as instance,
            ):
                yield instance


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


def _external_faults(
    graph: StepGraph, drifts: DriftLog, *, retry_failed: bool
) -> Iterator[Exception]:
    """See to the wanted steps that no run builds; yields why one cannot be had."""
    for path in graph.terminals:
        step = graph.steps[path]
        try:
            if adopted_source(step) is not None:
                _register_adopted(step, drifts, retry_failed=retry_failed)
            else:
                _check_external(step, drifts)
        except Exception as error:  # the function may be Marin's
            yield error


def _log_external_faults(graph: StepGraph, drifts: DriftLog) -> None:
    """Log which wanted steps cannot be had that no run builds."""
    for path in graph.terminals:
        step = graph.steps[path]
        try:
            if adopted_source(step) is None:
                _check_external(step, drifts)
        except MarinDagsterError as error:
            logger.warning("Dry run: would be blocked: %s", error)


def _check_external(step: StepLike, drifts: DriftLog) -> None:
    if not is_external(step):
        return
    found = StepCache().look_up(step)
    if found.drift is not None:
        drifts.warn(step, found.drift)
    if not found.finished:
        raise StepWithoutFunctionError(
            f"step {address(step)} ({step.output_path}) has no finished output, and no run builds "
            f"it. Put its data there, with SUCCESS in its {STATUS_FILE}."
        )


def _register_adopted(step: StepLike, drifts: DriftLog, *, retry_failed: bool) -> None:
    outcome = StepCache().begin(step, retry_failed=retry_failed, warn=drifts.warn)
    if isinstance(outcome, Attempt):
        try:
            outcome.result = run_inline(step)
            outcome.commit()
        finally:
            outcome.abandon()


def _run(
    definitions: dg.Definitions,
    instance: dg.DagsterInstance,
    config: Mapping[str, Any],
    failures: Mapping[str, list[BaseException]],
) -> list[Exception]:
    """Run the job; what its steps raised."""
    job = definitions.resolve_job_def(_JOB)
    recorded = instance.create_run_for_job(job_def=job, run_config=config)
    try:
        with capture_interrupts():
            result = execute_run(InMemoryJob(job), recorded, instance, raise_on_error=True)
    except dg.DagsterExecutionInterruptedError:
        raise KeyboardInterrupt from None
    if result.success:
        return []
    errors: list[Exception] = []
    for event in result.all_events:
        if not event.is_step_failure or event.step_key is None:
            continue
        # The last attempt's.
        raised = failures.get(event.step_key, [])
        if raised and isinstance(raised[-1], Exception):
            raised[-1].add_note(f"in step {event.step_key} of run {recorded.run_id}")
            errors.append(raised[-1])
        else:
            said = event.step_failure_data.error
            errors.append(StepError(said.message if said else f"step {event.step_key} failed"))
    if not errors:
        raise MarinDagsterError(f"run {recorded.run_id} failed; its log says why.")
    return errors
