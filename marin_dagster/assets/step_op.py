"""``StepOp``: the compute function of a step's op."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import dagster as dg

from marin_dagster._compat import without_beta_warnings
from marin_dagster.assets.cache_integrity_check import CHECK_NAME, evaluate, unknown
from marin_dagster.assets.cache_resource import cache_of
from marin_dagster.assets.chosen_step import ChosenStep
from marin_dagster.assets.function_runs import register, run_function, run_identity
from marin_dagster.assets.previous_builds import PreviousBuilds
from marin_dagster.assets.step_control import StepControl, step_control
from marin_dagster.cache import (
    Attempt,
    CacheState,
    Drift,
    Hit,
    OutputDir,
    Status,
    find_drift,
)
from marin_dagster.errors import MarinDagsterError
from marin_dagster.events.asset_records import (
    AssetPartition,
    last_partition_events,
    last_version,
)
from marin_dagster.events.metadata import (
    CODE_VERSION_TAG,
    NO_EVENT,
    cut_off,
    input_pointer_tag,
    input_version_tag,
    recorded_code_version,
    recorded_version,
    report_cut_off,
    sendable,
)
from marin_dagster.events.metadata_keys import COMPARED_WITH, DRIFT, REASON
from marin_dagster.steps import StepLike
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
class StepOp(ChosenStep):
    """The compute function of a step's op: serve from the cache, or build, and check the output.

    A run can select the output, the check, or both. The op yields the
    :class:`Hit` or the open :class:`Attempt`; the IO manager commits the latter.
    """

    strict: bool = False
    """Whether it fails if its function reads an undeclared input."""

    def __call__(
        self, context: dg.AssetExecutionContext, inputs: Mapping[str, Any]
    ) -> Iterator[dg.Output[Any] | dg.AssetCheckEvaluation]:
        yield from self.of_run(context).run(context)

    def run(
        self, context: dg.AssetExecutionContext
    ) -> Iterator[dg.Output[Any] | dg.AssetCheckEvaluation]:
        """Serve, build and check the step of one partition, or of a graph without partitions."""
        # The keys in this job: Definitions.map_asset_specs or a prefix may have changed them.
        makes_asset = bool(context.selected_asset_keys)
        control = step_control.get() or StepControl()
        if makes_asset:
            if step_control.get() is None:
                warn_of_executor(context)
            with control.failing():
                if control.options.refused is not None:
                    raise control.options.refused
                yield from self.serve_or_build(context, control)
        for check in context.selected_asset_check_keys:
            evaluation = self.check(context, check.asset_key, has_output=makes_asset)
            # Not an AssetCheckResult: for it Dagster reads the asset's last materialization, which
            # costs more than the whole check.
            yield dg.Output(None, CHECK_NAME)
            yield evaluation

    def check(
        self, context: dg.AssetExecutionContext, key: dg.AssetKey, *, has_output: bool
    ) -> dg.AssetCheckEvaluation:
        """Evaluate the check of an asset; with ``has_output``, of what this run has stored."""
        asset = AssetPartition(key, self.partition)
        entry = None
        if not has_output:
            entry = last_partition_events(context.instance, [asset]).get(asset)
        try:
            return evaluate(self.step, self.graph, asset, entry)
        except MarinDagsterError as error:
            if not has_output:
                raise
            # The output is committed and recorded, so the step must not fail.
            return unknown(asset, error)

    def serve_or_build(
        self, context: dg.AssetExecutionContext, control: StepControl
    ) -> Iterator[dg.Output[Any]]:
        """Yield the finished output, or that of an open attempt; fails an attempt that is not
        committed when it is continued."""
        cache = cache_of(context.resources, self.io_manager_key, f"step {address(self.step)}")
        adopted = [dep for dep in self.step.deps if adopted_source(dep) is not None]
        # A finished output needs no inputs.
        if adopted and cache.look_up(self.step).state is not CacheState.HIT:
            for dep in adopted:
                register(dep, cache, control, run_identity(context, control), context.log)
        outcome = cache.begin(
            self.step,
            force=control.options.force,
            retry_failed=control.options.retry_failed,
            hit_expected=control.options.hit_expected,
            run=run_identity(context, control),
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
            return self._why(context, attempt, control) | run_function(
                attempt, control, context, self.graph, strict=self.strict
            )
        except BaseException:
            attempt.fail()
            report_cut_off(context, self.asset(context), attempt)
            raise

    def _why(
        self, context: dg.AssetExecutionContext, attempt: Attempt, control: StepControl
    ) -> dict[str, Any]:
        """Log why the step runs; the same as metadata."""
        asset = self.asset(context)
        history = control.options.history or PreviousBuilds(context.instance, [asset])
        reasons = history.reasons(attempt, asset, self.graph, context.log)
        if attempt.previous is Status.RUNNING and history.was_finished(attempt, asset):
            # The worker that began to rebuild it died and could not report that.
            context.log_event(cut_off(asset, self.step))
        context.log.info(f"{address(self.step)} runs: {reasons.text}")
        metadata: dict[str, Any] = {REASON: reasons.text}
        if reasons.compared_with is not None:
            metadata[COMPARED_WITH] = dg.MetadataValue.path(reasons.compared_with)
        return metadata

    def asset(self, context: dg.AssetExecutionContext) -> AssetPartition:
        """The asset, by its key in this job, or the partition of it."""
        return AssetPartition(context.asset_key, self.partition)

    def _unrecorded_inputs(
        self, context: dg.AssetExecutionContext, keys: Mapping[str, dg.AssetKey]
    ) -> Iterator[dg.AssetKey]:
        """Partitioned inputs whose present version this instance has not recorded."""
        if self.partitions is None or self.partition is None:
            return
        partition = self.partitions.steps.at(self.partition)
        own, _ = partition.inputs(self.step.name)
        inputs = {
            AssetPartition(keys[of], self.partition): partition.steps[name]
            for of, name in self.partitioned_inputs.items()
            if name in own
        }
        recorded = last_partition_events(context.instance, inputs)
        for asset, step in inputs.items():
            version = last_version(recorded.get(asset))
            if not is_mutable(step) and version != _built_version(step):
                yield asset.key

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
        for key in self._unrecorded_inputs(context, keys):
            # Likewise: the first record of the partition must not look like a change.
            tags[input_pointer_tag(key)] = NO_EVENT
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


def _warn(
    context: dg.AssetExecutionContext, control: StepControl
) -> Callable[[StepLike, Drift], None]:
    return partial(control.options.drifts.warn, run_log=context.log)


def warn_of_executor(context: dg.AssetExecutionContext) -> None:
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
