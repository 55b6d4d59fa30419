"""``StepOp``: what a step's op does: serve the output from the cache, or build it."""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import dagster as dg

from marin_dagster._compat import disable_dagster_warnings
from marin_dagster.cache import Attempt, Hit, StepCache
from marin_dagster.control import StepControl, step_control
from marin_dagster.errors import StepError
from marin_dagster.runners import (
    INLINE,
    Controls,
    finish,
    read_job_note,
    run_inline,
    submit,
    take_over,
)
from marin_dagster.steps import StepGraph, StepLike

OUTPUT_NAME = "result"


@dataclass(frozen=True, eq=False)
class StepOp:
    """The compute function of a step's op: serve from the cache, or build.

    It yields the :class:`Hit` or the open :class:`Attempt`; the IO manager commits the latter.
    """

    step: StepLike
    graph: StepGraph
    io_manager_key: str
    input_hashes: Mapping[str, str]
    """Hash of the dependency behind each input of the op."""

    def __call__(
        self, context: dg.AssetExecutionContext, inputs: Mapping[str, Any]
    ) -> Iterator[dg.Output[Any]]:
        control = step_control.get() or StepControl()
        cache: StepCache | None = getattr(
            getattr(context.resources, self.io_manager_key), "cache", None
        )
        if cache is None:
            raise StepError(
                f"step {self.step.name_with_hash}: the resource {self.io_manager_key!r} is no "
                "MarinIOManager. Give one, or another io_manager_key."
            )
        outcome = cache.begin(
            self.step,
            force=control.force,
            retry_failed=control.retry_failed,
            hit_expected=control.hit_expected,
            wait=control.wait,
            say=context.log.info,
        )
        if isinstance(outcome, Hit):
            context.log.info(f"{self.step.name_with_hash}: served from {outcome.folder.url}")
            yield self._output(context, outcome)
            return
        control.attempts.append(outcome)
        try:
            metadata = _build(outcome, control, context)
            yield self._output(context, outcome, metadata)
        finally:
            # The IO manager has committed it by now, unless something went wrong on the way.
            outcome.abandon()

    def _output(
        self,
        context: dg.AssetExecutionContext,
        value: Hit | Attempt,
        metadata: Mapping[str, Any] | None = None,
    ) -> dg.Output[Any]:
        # The keys as they are in this job: they may have been changed after build_marin_assets.
        keys = context.assets_def.keys_by_input_name
        # Dagster cannot know the version of a dependency that this instance never materialized,
        # and would call the output stale as soon as it did.
        versions = {
            f"dagster/input_data_version/{keys[name].to_user_string()}": hash_id
            for name, hash_id in self.input_hashes.items()
        }
        with disable_dagster_warnings():  # tags of an output are in beta
            return dg.Output(
                value,
                output_name=OUTPUT_NAME,
                metadata=metadata,
                data_version=dg.DataVersion(self.step.hash_id),
                tags=versions,
            )


def _build(
    attempt: Attempt, control: StepControl, context: dg.AssetExecutionContext
) -> Mapping[str, Any] | None:
    """Run the step's function where it belongs; metadata about the job that ran it."""
    # Only where somebody has begun before can a job have been left over.
    left_over = read_job_note(attempt.folder) if attempt.previous is not None else None
    place = control.place
    if place.runner == INLINE and left_over is None:
        _run_inline(attempt, control)
        return None
    controls = Controls(
        check=control.check, waking=control.waking, write=_write, say=context.log.info
    )
    # What the job writes belongs to the step's log.
    with control.captured():
        job = None
        if left_over is not None:
            job = take_over(control.runners, left_over, attempt, controls)
        if job is None and place.runner != INLINE:
            runner = control.runners[place.runner]
            job = submit(runner, attempt, place.request, controls)
        if job is not None:
            finish(job, attempt, controls)
    if job is None:
        _run_inline(attempt, control)
        return None
    page = {"marin/job_url": dg.MetadataValue.url(job.url)} if job.url else {}
    return {"marin/runner": place.runner, "marin/job": job.label, **page}


def _run_inline(attempt: Attempt, control: StepControl) -> None:
    with control.user_code():
        attempt.result = run_inline(attempt.step)


def _write(stream: str, text: str) -> None:
    (sys.stderr if stream == "stderr" else sys.stdout).write(text)
