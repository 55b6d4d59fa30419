"""``StepOp``: the compute function of a step's op."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import dagster as dg

from marin_dagster._compat import without_beta_warnings
from marin_dagster.assets.build_history import BuildHistory
from marin_dagster.assets.integrity_check import CHECK_NAME, evaluate, unknown
from marin_dagster.assets.io_manager import cache_of
from marin_dagster.assets.job_exceptions import DESCRIBERS, restore
from marin_dagster.assets.step_control import StepControl, step_control
from marin_dagster.cache import (
    Attempt,
    CacheState,
    Drift,
    Hit,
    OutputDir,
    RunIdentity,
    Status,
    StepCache,
    find_drift,
)
from marin_dagster.errors import MarinDagsterError, RemoteFunctionError
from marin_dagster.events.asset_records import last_events
from marin_dagster.events.metadata import (
    CODE_VERSION_TAG,
    cut_off,
    input_version_tag,
    recorded_code_version,
    recorded_version,
    report_cut_off,
    sendable,
)
from marin_dagster.events.metadata_keys import COMPARED_WITH, DRIFT, JOB, JOB_URL, REASON, RUNNER
from marin_dagster.runners import (
    INLINE,
    DriverCallbacks,
    finish,
    read_job_file,
    reattach,
    run_inline,
    submit,
)
from marin_dagster.steps import StepGraph, StepLike
from marin_dagster.steps.protocol import (
    address,
    adopted_source,
    artifact_version,
    data_version,
    is_mutable,
    is_pinned,
)

OUTPUT_NAME = "result"


@dataclass(frozen=True, eq=False)
class StepOp:
    """The compute function of a step's op: serve from the cache, or build, and check the output.

    A run can select the output, the check, or both. The op yields the
    :class:`Hit` or the open :class:`Attempt`; the IO manager commits the latter.
    """

    step: StepLike
    graph: StepGraph
    io_manager_key: str
    input_steps: Mapping[str, StepLike]
    """The step of each of the op's inputs that is the output of one."""

    def __call__(
        self, context: dg.AssetExecutionContext, inputs: Mapping[str, Any]
    ) -> Iterator[dg.Output[Any] | dg.AssetCheckEvaluation]:
        # The keys in this job: Definitions.map_asset_specs or a prefix may have changed them.
        makes_asset = bool(context.selected_asset_keys)
        control = step_control.get() or StepControl()
        if makes_asset:
            if step_control.get() is None:
                _warn_of_executor(context)
            with control.failing():
                yield from self._serve_or_build(context, control)
        for check in context.selected_asset_check_keys:
            control.wait_for_events()
            evaluation = self._check(context, check.asset_key, has_output=makes_asset)
            # Not an AssetCheckResult: for it Dagster reads the asset's last materialization, which
            # costs more than the whole check.
            yield dg.Output(None, CHECK_NAME)
            yield evaluation

    def _check(
        self, context: dg.AssetExecutionContext, key: dg.AssetKey, *, has_output: bool
    ) -> dg.AssetCheckEvaluation:
        entry = None if has_output else last_events(context.instance, [key]).get(key)
        try:
            return evaluate(self.step, self.graph, key, entry)
        except MarinDagsterError as error:
            if not has_output:
                raise
            # The output is committed and recorded, so the step must not fail.
            return unknown(key, error)

    def _serve_or_build(
        self, context: dg.AssetExecutionContext, control: StepControl
    ) -> Iterator[dg.Output[Any]]:
        cache = cache_of(context.resources, self.io_manager_key, f"step {address(self.step)}")
        adopted = [dep for dep in self.step.deps if adopted_source(dep) is not None]
        # A finished output needs no inputs.
        if adopted and cache.look_up(self.step).state is not CacheState.HIT:
            for dep in adopted:
                _register(dep, cache, control, context)
        outcome = cache.begin(
            self.step,
            force=control.options.force,
            retry_failed=control.options.retry_failed,
            hit_expected=control.options.hit_expected,
            run=_identity(context, control),
            warn=_warn(context, control),
            wait=control.interrupt.wait,
            log=context.log.info,
        )
        if isinstance(outcome, Hit):
            context.log.info(f"{address(self.step)}: served from {outcome.folder.url}")
            yield self._output(context, outcome, control)
            return
        control.attempts.append(outcome)
        try:
            for dep in self.step.deps:
                if is_pinned(dep):  # drift of the other inputs is reported once the step is built
                    _built_version(dep, _warn(context, control))
            metadata = self._build(context, outcome, control)
            yield self._output(context, outcome, control, metadata)
        finally:
            # Does nothing once the IO manager has committed it.
            outcome.fail()

    def _build(
        self, context: dg.AssetExecutionContext, attempt: Attempt, control: StepControl
    ) -> dict[str, Any]:
        """Run the step's function; metadata about why and where."""
        try:
            return self._why(context, attempt, control) | _build(attempt, control, context)
        except BaseException:
            attempt.fail()
            report_cut_off(context, attempt)
            raise

    def _why(
        self, context: dg.AssetExecutionContext, attempt: Attempt, control: StepControl
    ) -> dict[str, Any]:
        """Log why the step runs; the same as metadata."""
        key = context.asset_key
        history = control.options.history or BuildHistory(context.instance, [key])
        reasons = history.reasons(attempt, key, self.graph, context.log)
        if attempt.previous is Status.RUNNING and history.was_finished(attempt, key):
            # The worker that began to rebuild it died and could not report that.
            context.log_event(cut_off(key, self.step))
        context.log.info(f"{address(self.step)} runs: {reasons.text}")
        metadata: dict[str, Any] = {REASON: reasons.text}
        if reasons.compared_with is not None:
            metadata[COMPARED_WITH] = dg.MetadataValue.path(reasons.compared_with)
        return metadata

    def _output(
        self,
        context: dg.AssetExecutionContext,
        value: Hit | Attempt,
        control: StepControl,
        metadata: Mapping[str, Any] | None = None,
    ) -> dg.Output[Any]:
        # As in Marin, a build from a drifted input warns; a hit does not.
        warn = _warn(context, control) if isinstance(value, Attempt) else None
        keys = context.assets_def.keys_by_input_name
        # Dagster does not know the version of a dependency that this instance never materialized,
        # and would call the output stale once the instance did.
        tags = {
            input_version_tag(keys[name]): version
            for name, step in self.input_steps.items()
            if (version := _built_version(step, warn)) is not None
        }
        version = data_version(self.step)
        if isinstance(value, Hit) and value.drift is not None:
            # The output was built by another recipe: Dagster shows it as out of date.
            version = recorded_version(self.step, value.drift)
            tags[CODE_VERSION_TAG] = recorded_code_version(self.step, value.drift) or version
            metadata = {DRIFT: sendable(value.drift.message)}
        elif is_mutable(self.step) and isinstance(value, Attempt):
            version = f"{version}-{value.id}"
        with without_beta_warnings():
            return dg.Output(
                value,
                output_name=OUTPUT_NAME,
                metadata=metadata,
                data_version=dg.DataVersion(version),
                tags=tags,
            )


def _identity(context: dg.AssetExecutionContext, control: StepControl) -> RunIdentity:
    return RunIdentity(context.run.job_name, context.run.run_id, control.options.from_script)


def _warn(
    context: dg.AssetExecutionContext, control: StepControl
) -> Callable[[StepLike, Drift], None]:
    return partial(control.options.drifts.warn, run_log=context.log)


def _warn_of_executor(context: dg.AssetExecutionContext) -> None:
    """Log, once in a run, what an executor other than ours does not do."""
    job = context.job_def
    chosen = context.run.step_keys_to_execute
    # Each step may run in a separate process, so only the first one logs it.
    first = next(
        (
            node.name
            for node in job.nodes_in_topological_order
            if isinstance(getattr(node.definition, "compute_fn", None), StepOp)
            and (not chosen or node.name in chosen)
        ),
        None,
    )
    if context.op_execution_context.op_handle.name == first and context.retry_number == 0:
        context.log.warning(
            f"This run's executor is {job.executor_def.name!r}, not marin_executor. It starts "
            "every selected step, also those that are cached or that nothing needs, and has "
            "neither force nor runners: steps with resources run in its own processes or threads, "
            "without limits. Give the code location our executor: "
            "dg.Definitions(..., executor=marin_executor)."
        )


def _built_version(
    step: StepLike, warn: Callable[[StepLike, Drift], None] | None = None
) -> str | None:
    """The data version of a finished output; None where only Dagster knows it.

    Args:
        step: the step.
        warn: called with its drift.
    """
    if is_mutable(step):
        return None
    if artifact_version(step) is None:
        return data_version(step)
    drift = None
    with suppress(MarinDagsterError):  # unreadable: as if it had not drifted
        drift = find_drift(step, OutputDir.at(step.output_path))
    if drift is not None and warn is not None:
        warn(step, drift)
    return recorded_version(step, drift)


def _register(
    step: StepLike, cache: StepCache, control: StepControl, context: dg.AssetExecutionContext
) -> None:
    """Write the record of adopted data, an external asset that no op builds."""
    run, warn = _identity(context, control), _warn(context, control)

    def adopt(attempt: Attempt) -> None:
        control.attempts.append(attempt)
        _run_inline(attempt, control)

    cache.register(
        step, adopt, run=run, warn=warn, wait=control.interrupt.wait, log=context.log.info
    )


def _build(
    attempt: Attempt, control: StepControl, context: dg.AssetExecutionContext
) -> dict[str, Any]:
    """Run the step's function on its runner; metadata about the job that ran it.

    An error goes to the step's log, too: the UI offers no log for a step that wrote nothing.
    """
    try:
        return _run(attempt, control, context)
    except Exception as error:
        first_line = str(error).partition("\n")[0]
        with control.captured():
            _write("stderr", f"{type(error).__name__}: {first_line}\n")
        raise


def _run(
    attempt: Attempt, control: StepControl, context: dg.AssetExecutionContext
) -> dict[str, Any]:
    # A function may end the process: what precedes it must be recorded.
    control.wait_for_events()
    left_over = read_job_file(attempt.folder)
    place = control.options.place
    if place.runner == INLINE and left_over is None:
        _run_inline(attempt, control)
        return {}
    controls = DriverCallbacks(
        check=control.interrupt.check,
        waking=control.interrupt.waking,
        write=_write,
        log=context.log.info,
        describers=DESCRIBERS,
        log_levels=control.options.log_levels,
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
        _run_inline(attempt, control)
        return {}
    page = {JOB_URL: dg.MetadataValue.url(job.url)} if job.url else {}
    return {RUNNER: runner, JOB: job.label, **page}


def _run_inline(attempt: Attempt, control: StepControl) -> None:
    control.interrupt.check()
    attempt.withdraw()
    with control.interrupt.user_code(), control.captured():
        attempt.result = run_inline(attempt.step, attempt.provenance)


def _write(stream: str, text: str) -> None:
    (sys.stderr if stream == "stderr" else sys.stdout).write(text)
