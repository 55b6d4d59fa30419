"""What must hold before a step is built, and the errors that explain what does not."""

from marin_dagster.cache.drift import find_drift
from marin_dagster.cache.parallel import map_parallel
from marin_dagster.cache.status import STATUS_FILE, Status, read_status
from marin_dagster.cache.store import OutputDir
from marin_dagster.errors import (
    DependencyNotBuiltError,
    OutputVanishedError,
    PreviousAttemptFailedError,
    StepWithoutFunctionError,
)
from marin_dagster.steps.protocol import StepLike, address


def check_may_build(
    step: StepLike, status: Status | None, *, retry_failed: bool, hit_expected: bool
) -> None:
    """Check that a step whose output is not finished may be built.

    Args:
        step: the step.
        status: that of its output.
        retry_failed: whether it is built although its last attempt failed.
        hit_expected: whether the run has left its inputs alone, since it was finished.

    Raises:
        OutputVanishedError: its output was finished when the run began.
        PreviousAttemptFailedError: its last attempt failed.
        StepWithoutFunctionError: it has no function.
    """
    where = f"step {address(step)} ({step.output_path})"
    if hit_expected:
        raise OutputVanishedError(
            f"{where}: its output was finished when this run began, so its inputs were left alone; "
            f"now its status is {status or 'missing'}. Run again to rebuild it with its inputs."
        )
    if status in (Status.FAILED, Status.DEP_FAILED) and not retry_failed:
        raise previous_failure(step)
    if step.fn is None:
        raise StepWithoutFunctionError(
            f"{where}: has no finished output and no function to build it. Put its data there and "
            f"write SUCCESS into {STATUS_FILE} beside it, or give the step a function."
        )


def previous_failure(step: StepLike) -> PreviousAttemptFailedError:
    """The error for a step whose last attempt failed, in a run that does not retry failures."""
    return PreviousAttemptFailedError(
        f"step {address(step)} ({step.output_path}): its last attempt failed. Set retry_failed to "
        f"run it again, or delete its {STATUS_FILE}."
    )


def check_dependencies(step: StepLike) -> None:
    """Check that all inputs of a step are finished.

    Raises:
        DependencyNotBuiltError: some are not.
    """
    dependencies = {dep.output_path: dep for dep in step.deps}
    found = map_parallel(_dependency_status, dependencies)
    missing = [
        f"{address(dependencies[path])} ({path}: {status or 'nothing there'})"
        for path, status in found.items()
        if status is not Status.SUCCESS
    ]
    if missing:
        raise DependencyNotBuiltError(
            f"step {address(step)} ({step.output_path}) reads outputs that are not finished: "
            f"{', '.join(missing)}. Select these steps, too, or build them first."
        )


def _dependency_status(dep: StepLike) -> Status | None:
    folder = OutputDir.at(dep.output_path)
    status = read_status(folder)
    if status is Status.SUCCESS and dep.hash_attrs.get("expected_fingerprint") is not None:
        find_drift(dep, folder)  # raises when the output is not the expected one
    return status
