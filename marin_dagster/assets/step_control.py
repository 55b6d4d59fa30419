"""How an executor controls the step that runs in the current context.

An executor that knows the cache sets a :class:`StepControl` for each step. Under any other executor
a step runs with the default options.
"""

import contextvars
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property

from marin_dagster.assets.interrupt import Interrupt
from marin_dagster.assets.previous_builds import PreviousBuilds
from marin_dagster.cache import Attempt, Drift, DriftLog
from marin_dagster.errors import MarinDagsterError
from marin_dagster.runners import INLINE_PLACEMENT, Placement, Runner


@dataclass(eq=False)
class PartitionRange:
    """What the steps of a run of several partitions share."""

    limit: int = 1
    """Partitions of all steps that are built at once."""
    failed: dict[str, str] = field(default_factory=dict)
    """The partition of each output path that was not built."""
    partly_failed: set[str] = field(default_factory=set)
    """Keys of the steps that have an output although some of their partitions failed."""
    reported: dict[str, str] = field(default_factory=dict)
    """How each output path came about, ``built`` or ``hit``, once the run has reported it."""

    @cached_property
    def slots(self) -> threading.Semaphore:
        """One for each partition that is being built."""
        return threading.Semaphore(self.limit)


@dataclass(frozen=True)
class StepOptions:
    """What the executor has decided for one step."""

    is_ours: bool = True
    """Whether it is a step of a graph, not an ordinary asset or op."""
    force: bool = False
    """Build even when the output is finished."""
    retry_failed: bool = True
    """Build again when the last attempt failed."""
    hit_expected: bool = False
    """The look-up found the output finished, and its inputs were pruned: serve it or fail."""
    place: Placement = INLINE_PLACEMENT
    """Where the step runs."""
    runners: Mapping[str, Runner] = field(default_factory=dict)
    """Every runner of the run, by name."""
    log_levels: Mapping[str, int] = field(default_factory=dict)
    """The lowest level of Python's loggers in the step's job, by name."""
    from_script: bool = False
    """Whether the run's process is the user's script."""
    history: PreviousBuilds | None = None
    """Earlier builds of the run's steps; None when each step reads its own."""
    drifts: DriftLog = field(default_factory=DriftLog)
    """Warns of drifted outputs, once in a run."""
    observe: bool = False
    """The output is finished, and the instance has recorded it: report it as served."""
    drift: Drift | None = None
    """How an output that is to be observed has drifted."""
    refused: MarinDagsterError | None = None
    """Why the step cannot run."""
    partitions: Mapping[str, "StepOptions"] = field(default_factory=dict)
    """Of a step that builds several partitions of an asset: the options of each. A partition
    without options is not needed."""
    range: PartitionRange | None = None
    """What the steps of a run of several partitions share."""
    failures: list[BaseException] | None = None
    """Collects the exceptions of the step's attempt, for callers that need the objects."""


def _nothing() -> None:
    """Other executors store each event before the next."""


@dataclass(eq=False)
class StepControl:
    """One step while it runs."""

    options: StepOptions = field(default_factory=StepOptions)
    interrupt: Interrupt = field(default_factory=Interrupt)
    attempts: list[Attempt] = field(default_factory=list)
    """Attempts that the step began; at the end the executor fails those still open."""
    wait_for_events: Callable[[], None] = _nothing
    """Returns when the step's events so far are stored; raises what the storage raised."""
    captured: Callable[[], AbstractContextManager[None]] = nullcontext
    """Makes a context in which stdout and stderr go to the step's log."""

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Add what the body raises to the options' ``failures``; Dagster keeps only its text."""
        failures = self.options.failures
        try:
            yield
        except GeneratorExit:
            raise
        except BaseException as error:
            if failures is not None and error not in failures:
                failures.append(error)
            raise


step_control: contextvars.ContextVar[StepControl | None] = contextvars.ContextVar(
    "marin_dagster_step_control", default=None
)
"""The control of the step that runs in this context; None under other executors."""
