"""Checks or adopts the outputs of requested steps that no run builds: external, pinned, adopted."""

import logging
from collections.abc import Iterator

from marin_dagster.cache import Attempt, DriftLog, StepCache
from marin_dagster.cache.status import STATUS_FILE
from marin_dagster.errors import MarinDagsterError, StepWithoutFunctionError
from marin_dagster.runners import run_inline
from marin_dagster.steps import StepGraph, StepLike
from marin_dagster.steps.protocol import address, adopted_source, is_external

logger = logging.getLogger(__name__)


def external_faults(
    graph: StepGraph, drifts: DriftLog, *, retry_failed: bool
) -> Iterator[tuple[StepLike, Exception]]:
    """Check or register the requested steps that no run builds; yields those that fail."""
    for path in graph.terminals:
        step = graph.steps[path]
        try:
            if adopted_source(step) is not None:
                StepCache().register(step, adopt, retry_failed=retry_failed, warn=drifts.warn)
            else:
                _check_external(step, drifts)
        except Exception as error:  # the function may be Marin's
            yield step, error


def log_external_faults(graph: StepGraph, drifts: DriftLog) -> None:
    """Log which of the requested steps that no run builds are missing."""
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


def adopt(attempt: Attempt) -> None:
    """Run the function of a step that adopts data, which writes the record."""
    attempt.result = run_inline(attempt.step)
