"""``PartitionedStepOp``: builds the partitions of a run that has several, side by side.

Dagster runs one step for all of them. Each partition has its own attempt, materialization and data
version, and fails alone: the step fails once the others have ended.
"""

import contextvars
import queue
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from graphlib import TopologicalSorter
from typing import Any

import dagster as dg

from marin_dagster._compat import WITHOUT_EVENTS
from marin_dagster.assets.cache_integrity_check import CHECK_NAME, combined
from marin_dagster.assets.interrupt import Interrupt
from marin_dagster.assets.partitions import run_partitions
from marin_dagster.assets.step_control import (
    PartitionRange,
    StepControl,
    StepOptions,
    step_control,
)
from marin_dagster.assets.step_op import OUTPUT_NAME, StepOp, warn_of_executor
from marin_dagster.cache import Attempt
from marin_dagster.errors import DependencyNotBuiltError, PartitionsFailedError
from marin_dagster.events.asset_records import (
    DATA_VERSION_TAG,
    LastEvent,
    last_events,
    last_version,
)
from marin_dagster.events.found_outputs import ASSUMED_VERSION
from marin_dagster.events.metadata import (
    CODE_VERSION_TAG,
    NO_EVENT,
    input_pointer_tag,
    input_version_tag,
    report_cut_off,
    served_observation,
)
from marin_dagster.steps.protocol import address
from marin_dagster.steps.text import summarize

_LOOK_FOR_INTERRUPT_S = 0.2


@dataclass(frozen=True)
class BuiltPartitions:
    """The value of an output whose partitions the op has committed and reported."""

    keys: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class PartitionedStepOp(StepOp):
    """The compute function of a step's op in a graph with partitions."""

    def __call__(
        self, context: dg.AssetExecutionContext, inputs: Mapping[str, Any]
    ) -> Iterator[dg.Output[Any] | dg.AssetCheckEvaluation]:
        keys: Sequence[str] = ()
        if self.partitions is not None and self.partitions.is_partitioned(self.step.name):
            keys = run_partitions(context.run, self.partitions.definition, context.instance)
        if len(keys) < 2:
            yield from self.of_run(context).run(context)
            return
        ops = {key: self.at(key) for key in keys}
        makes_asset = bool(context.selected_asset_keys)
        control = step_control.get() or StepControl()
        if makes_asset:
            if step_control.get() is None:
                warn_of_executor(context)
            with control.failing():
                yield from _Builds(context, control, ops).run()
        for check in context.selected_asset_check_keys:
            evaluations = [
                op.check(context, check.asset_key, has_output=makes_asset) for op in ops.values()
            ]
            yield dg.Output(None, CHECK_NAME)
            yield combined(evaluations)


@dataclass(eq=False)
class _Builds:
    """The builds of one step's partitions."""

    context: dg.AssetExecutionContext
    control: StepControl
    ops: Mapping[str, StepOp]

    def run(self) -> Iterator[dg.Output[Any]]:
        """Build all partitions; then yield the output, or raise, or both."""
        wanted = self._wanted
        errors = self._build_all(wanted)
        if errors and (self._will_retry(errors) or len(errors) == len(wanted)):
            raise self._failure(errors)
        built = tuple(key for key in wanted if key not in errors)
        if errors:
            self._range.partly_failed.add(str(self.context.op_execution_context.op_handle))
        # Downstream starts when there is an output, so that what did not fail goes on.
        yield dg.Output(BuiltPartitions(built), OUTPUT_NAME, metadata=WITHOUT_EVENTS)
        if errors:
            raise self._failure(errors)

    @cached_property
    def _wanted(self) -> Mapping[str, StepOptions]:
        if step_control.get() is None:  # another executor
            return dict.fromkeys(self.ops, StepOptions())
        return {
            key: self.control.options.partitions[key]
            for key in self.ops
            if key in self.control.options.partitions
        }

    @cached_property
    def _range(self) -> PartitionRange:
        return self.control.options.range or PartitionRange()

    @cached_property
    def _input_events(self) -> Mapping[dg.AssetKey, LastEvent | None]:
        """The last event of each input, as it was before the first partition was built."""
        keys = [dep.asset_key for dep in self._spec.deps]
        return {**dict.fromkeys(keys), **last_events(self.context.instance, keys)}

    @property
    def _spec(self) -> dg.AssetSpec:
        spec: dg.AssetSpec = self.context.assets_def.specs_by_key[self.context.asset_key]
        return spec

    def _build_all(self, wanted: Mapping[str, StepOptions]) -> dict[str, Exception]:
        """What the partitions raised."""
        errors: dict[str, Exception] = {}
        order = TopologicalSorter(self._reads(wanted))
        order.prepare()
        # A pool gives the step one slot.
        limit = 1 if self.context.op_def.pool else self._range.limit
        self._input_events  # noqa: B018  (read before anything is built)
        ended: queue.SimpleQueue[tuple[str, BaseException | None]] = queue.SimpleQueue()
        waiting: deque[str] = deque()
        running = 0
        stopped: BaseException | None = None
        while order.is_active() and (running or stopped is None):
            waiting.extend(order.get_ready())
            while waiting and running < limit and stopped is None:
                self._start(waiting.popleft(), wanted, ended)
                running += 1
            key, error = ended.get()
            running -= 1
            order.done(key)
            if isinstance(error, Exception):
                self._range.failed[self.ops[key].step.output_path] = key
                self.context.log.error(f"Partition {key} failed: {error}", exc_info=error)
                errors[key] = error
            elif error is not None:
                stopped = error
        if stopped is not None:
            raise stopped
        return errors

    def _start(
        self,
        key: str,
        wanted: Mapping[str, StepOptions],
        ended: "queue.SimpleQueue[tuple[str, BaseException | None]]",
    ) -> None:
        """Build a partition in a thread of its own, which ends with an item in ``ended``."""

        def work() -> None:
            try:
                self._build(key, wanted[key])
            except BaseException as error:
                ended.put((key, error))
            else:
                ended.put((key, None))

        threading.Thread(
            target=contextvars.copy_context().run,
            args=(work,),
            name=f"marin-step-{self.context.op_execution_context.op.name}-{key}",
            # As for a step: one that cannot be stopped must not keep the process from ending.
            daemon=True,
        ).start()

    def _reads(self, wanted: Mapping[str, StepOptions]) -> dict[str, set[str]]:
        """For each partition, the other partitions of the same step that it reads."""
        keys = {self.ops[key].step.output_path: key for key in wanted}
        return {
            key: {
                keys[dep]
                for dep in self.ops[key].graph.dependencies(self.ops[key].step.output_path)
                if dep in keys
            }
            for key in wanted
        }

    def _build(self, key: str, options: StepOptions) -> None:
        """Build, serve or refuse one partition."""
        op = self.ops[key]
        child = StepControl(
            options,
            attempts=self.control.attempts,
            wait_for_events=self.control.wait_for_events,
            captured=self.control.captured,
        )
        with self.control.interrupt.waking(child.interrupt.set), self._slot(child.interrupt):
            if options.refused is not None:
                raise options.refused
            self._check_inputs(op)
            path = op.step.output_path
            if path in self._range.reported:
                return  # before a retry
            how = "hit"
            if options.observe:
                self._observe(op, options)
            else:
                for output in op.serve_or_build(self.context, child):
                    self._commit(op, output)
                    how = "built" if isinstance(output.value, Attempt) else how
            self._range.reported[path] = how
            self._range.failed.pop(path, None)

    def _observe(self, op: StepOp, options: StepOptions) -> None:
        context = self.context
        if options.drift is not None:
            options.drifts.warn(op.step, options.drift, context.log)
        context.log_event(served_observation(op.asset(context), op.step, options.drift))

    @contextmanager
    def _slot(self, interrupt: Interrupt) -> Iterator[None]:
        slots = self._range.slots
        while not slots.acquire(timeout=_LOOK_FOR_INTERRUPT_S):
            interrupt.check()
        try:
            interrupt.check()
            yield
        finally:
            slots.release()

    def _check_inputs(self, op: StepOp) -> None:
        failed = {
            op.graph.steps[dep].name: self._range.failed[dep]
            for dep in op.graph.dependencies(op.step.output_path)
            if dep in self._range.failed
        }
        if failed:
            inputs = summarize(f"{name!r} of partition {key}" for name, key in failed.items())
            raise DependencyNotBuiltError(
                f"step {address(op.step)} ({op.step.output_path}) needs {inputs}, which failed in "
                "this run."
            )

    def _commit(self, op: StepOp, output: dg.Output[Any]) -> None:
        """Commit the output of one partition and report its materialization."""
        context, value = self.context, output.value
        manager = getattr(context.resources, op.io_manager_key)
        try:
            metadata = manager.commit(value, context.log)
        except BaseException:
            if isinstance(value, Attempt):
                report_cut_off(context, op.asset(context), value)
            raise
        assert output.data_version is not None
        tags = {
            CODE_VERSION_TAG: self._spec.code_version or context.run.run_id,
            **self._input_tags(),
            **(output.tags or {}),
            DATA_VERSION_TAG: output.data_version.value,
            "dagster/data_version_is_user_provided": "true",
        }
        if isinstance(op.partition, dg.MultiPartitionKey):
            tags |= {
                f"dagster/partition/{name}": part
                for name, part in op.partition.keys_by_dimension.items()
            }
        context.log_event(
            dg.AssetMaterialization(
                context.asset_key,
                partition=op.partition,
                metadata={**output.metadata, **metadata},
                tags=tags,
            )
        )

    def _input_tags(self) -> dict[str, str]:
        tags = {}
        for key, entry in self._input_events.items():
            tags[input_version_tag(key)] = last_version(entry) or ASSUMED_VERSION
            at = entry.storage_id if entry else None
            tags[input_pointer_tag(key)] = str(at) if at else NO_EVENT
        return tags

    def _will_retry(self, errors: Mapping[str, Exception]) -> bool:
        if _are_final(errors):
            return False
        policy = self.context.op_def.retry_policy
        left = policy is not None and self.context.retry_number < policy.max_retries
        return left or any(isinstance(error, dg.RetryRequested) for error in errors.values())

    def _failure(self, errors: Mapping[str, Exception]) -> Exception:
        for error in errors.values():
            if isinstance(error, dg.RetryRequested):
                return error
        texts = (
            f"{key}: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
            for key, error in errors.items()
        )
        message = (
            f"{len(errors)} of {len(self._wanted)} partitions of "
            f"{self.context.asset_key.to_user_string()!r} failed: {summarize(texts, '; ')}"
        )
        if self.context.op_def.retry_policy is not None and _are_final(errors):
            return dg.Failure(message, allow_retries=False)
        return PartitionsFailedError(message)


def _are_final(errors: Mapping[str, Exception]) -> bool:
    """Whether a retry is not allowed, or of no use because an input failed after its retries."""
    return all(
        isinstance(one, DependencyNotBuiltError)
        or (isinstance(one, dg.Failure) and not one.allow_retries)
        for one in errors.values()
    )
