"""Runs a step's function where the executor has placed it: in this thread, or on a runner."""

import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import dagster as dg

from marin_dagster.assets.job_exceptions import DESCRIBERS, restore
from marin_dagster.assets.step_control import StepControl
from marin_dagster.assets.undeclared_reads import check_reads, read_scope
from marin_dagster.cache import Attempt, RunIdentity, StepCache
from marin_dagster.errors import RemoteFunctionError, UndeclaredDependencyError
from marin_dagster.events.metadata_keys import JOB, JOB_URL, RUNNER
from marin_dagster.runners import (
    INLINE,
    DriverCallbacks,
    OutputRead,
    ReadScope,
    delete_job_file,
    finish,
    noting_reads,
    read_job_file,
    reattach,
    run_inline,
    submit,
    take_reads,
)
from marin_dagster.steps import StepGraph, StepLike


def run_identity(context: dg.AssetExecutionContext, control: StepControl) -> RunIdentity:
    """The run, as records of outputs name it."""
    return RunIdentity(context.run.job_name, context.run.run_id, control.options.from_script)


def register(
    step: StepLike,
    cache: StepCache,
    control: StepControl,
    run: RunIdentity,
    log: dg.DagsterLogManager,
) -> None:
    """Write the record of adopted data, an external asset that no op builds."""

    def adopt(attempt: Attempt) -> None:
        control.attempts.append(attempt)
        _run_inline(attempt, control)

    warn = partial(control.options.drifts.warn, run_log=log)
    cache.register(step, adopt, run=run, warn=warn, wait=control.interrupt.wait, log=log.info)


def run_function(
    attempt: Attempt,
    control: StepControl,
    context: dg.AssetExecutionContext,
    graph: StepGraph,
    *,
    strict: bool,
) -> dict[str, Any]:
    """Run the step's function on its runner; metadata about the job that ran it, and about outputs
    that it read without depending on them.

    An error goes to the step's log, too: the UI offers no log for a step that wrote nothing.

    Args:
        attempt: the open attempt.
        control: the step's control.
        context: the op's context.
        graph: the step's graph.
        strict: whether undeclared reads are errors.

    Raises:
        UndeclaredDependencyError: the function read an undeclared output, and ``strict`` is set.
    """
    try:
        metadata, reads = _run(attempt, control, context, read_scope(attempt.step, graph))
        try:
            return metadata | check_reads(attempt.step, reads, context.log, strict=strict)
        except UndeclaredDependencyError:
            # The next attempt must not attach to this job, which has succeeded.
            delete_job_file(attempt)
            raise
    except Exception as error:
        first_line = str(error).partition("\n")[0]
        with control.captured():
            _write("stderr", f"{type(error).__name__}: {first_line}\n")
        raise


def _run(
    attempt: Attempt,
    control: StepControl,
    context: dg.AssetExecutionContext,
    scope: ReadScope | None,
) -> tuple[dict[str, Any], Sequence[OutputRead]]:
    # A function may end the process: what precedes it must be recorded.
    control.wait_for_events()
    left_over = read_job_file(attempt.folder)
    place = control.options.place
    if place.runner == INLINE and left_over is None:
        return {}, _run_inline(attempt, control, scope)
    controls = DriverCallbacks(
        check=control.interrupt.check,
        waking=control.interrupt.waking,
        write=_write,
        log=context.log.info,
        describers=DESCRIBERS,
        log_levels=control.options.log_levels,
        reads=scope,
    )
    # The job's output goes to the step's log.
    with control.captured():
        job, runner = None, place.runner
        if left_over is not None:
            job = reattach(control.options.runners, left_over, attempt, controls)
            runner = left_over.runner if job is not None else runner
        if job is None and runner != INLINE:
            job = submit(control.options.runners[runner], attempt, place.request, controls)
        if job is not None:
            try:
                finish(job, attempt, controls)
            except RemoteFunctionError as error:
                raised = restore(error)
                if raised is error:
                    raise
                raise raised from error
    if job is None:
        return {}, _run_inline(attempt, control, scope)
    page = {JOB_URL: dg.MetadataValue.url(job.url)} if job.url else {}
    reads = take_reads(attempt.folder, job.name) if scope is not None else ()
    return {RUNNER: runner, JOB: job.label, **page}, reads


def _run_inline(
    attempt: Attempt, control: StepControl, scope: ReadScope | None = None
) -> Sequence[OutputRead]:
    """Run the function in this thread; the outputs that it read, except those in the scope."""
    control.interrupt.check()
    attempt.withdraw()
    with control.interrupt.user_code(), control.captured(), noting_reads(scope) as reads:
        attempt.result = run_inline(attempt.step, attempt.provenance)
    return () if reads is None else reads.outputs()


def _write(stream: str, text: str) -> None:
    (sys.stderr if stream == "stderr" else sys.stdout).write(text)
