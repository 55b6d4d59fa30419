"""``StepLoop``: starts the steps of one plan and passes their threads' events on to Dagster."""

import asyncio
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import dagster as dg

from marin_dagster._compat import (
    ActiveExecution,
    EngineEventData,
    ExecutionStep,
    PlanExecutionContext,
)
from marin_dagster.assets.step_control import StepControl, StepOptions
from marin_dagster.events.metadata import cut_off
from marin_dagster.executor.contexts import context_for
from marin_dagster.executor.decisions import Decisions
from marin_dagster.executor.event_writer import EventWriter
from marin_dagster.executor.threads import StepMessage, StepThreads

_LOOK_FOR_INTERRUPT_S = 0.2


class OptionsOf(Protocol):
    """Makes a step's options."""

    def __call__(self, key: str, *, again: bool) -> StepOptions:
        """The options of a step; ``again`` when this run has tried it before."""
        ...


@dataclass(eq=False)
class StepLoop:
    """The main thread's loop over one plan."""

    context: PlanExecutionContext
    active: ActiveExecution
    decisions: Decisions
    threads: StepThreads
    options_of: OptionsOf
    events: EventWriter
    stop: threading.Event
    """Interrupts the run when it is set, as a signal does."""
    _outputs: dict[str, dg.DagsterEvent] = field(default_factory=dict)
    _retries: dict[str, dg.DagsterEvent] = field(default_factory=dict)
    _interrupted_at: float | None = None

    def run(self) -> Iterator[dg.DagsterEvent]:
        """Run the steps and yield their events.

        Raises:
            DagsterExecutionInterruptedError: interrupted; the steps have stopped, or did not within
                their time.
        """
        while self.threads.running or not self.active.is_complete:
            yield from self._poll()
            if self._interrupted_at is None:
                self._start()
                yield from self.active.concurrency_event_iterator(self.context)
            elif self._is_grace_over(time.monotonic() - self._interrupted_at):
                yield from self._leave_behind()
                break
            for message in self.threads.messages(_pause_s(self.active)):
                yield from self._dispatch(message)
            yield from self.active.plan_events_iterator(self.context)
        if self._interrupted_at is not None:
            raise dg.DagsterExecutionInterruptedError

    def _poll(self) -> Iterator[dg.DagsterEvent]:
        """Look for an interrupt, and stop the steps on the first."""
        interrupted = self.active.check_for_interrupts() or self.stop.is_set()
        if self._interrupted_at is not None or not interrupted:
            return
        running = self.threads.running
        yield dg.DagsterEvent.engine_event(
            self.context,
            f"Interrupted: stopping {len(running)} steps",
            EngineEventData.interrupted(list(running)),
        )
        self.active.mark_interrupted()
        self.threads.interrupt()
        self._interrupted_at = time.monotonic()

    def _start(self) -> None:
        """Start a thread for each step that is ready."""
        for step in self.active.get_steps_to_execute():
            state = self.active.get_known_state()
            again = state.get_retry_state().get_attempt_count(step.key) > 0
            options = self.options_of(step.key, again=again)
            context, loop = self.context, None
            if not options.is_ours and self._needs_what_failed(step, options):
                continue
            if not options.is_ours:
                # An ordinary asset may be async, and a loop runs in one thread only.
                loop = asyncio.new_event_loop()
                context = context_for(context, context.execution_plan, loop)
            control = StepControl(options, wait_for_events=partial(self.events.wait, step.key))
            self.threads.start(context.for_step(step, state), control, loop)

    def _needs_what_failed(self, step: ExecutionStep, options: StepOptions) -> bool:
        """Whether an ordinary step reads a step of which some partitions failed; then it does not
        run, as below any failure. It cannot tell which partitions are there."""
        failed = options.range.partly_failed if options.range else set()
        missing = failed & step.get_execution_dependency_keys()
        if missing:
            self.context.for_step(step).log.error(
                f"Dependencies for step {step.key} failed for some partitions: "
                f"{', '.join(sorted(missing))}. Not executing."
            )
            self.active.mark_abandoned(step.key)
        return bool(missing)

    def _is_grace_over(self, waited_s: float) -> bool:
        return all(waited_s > self.decisions.grace_s(key) for key in self.threads.running)

    def _leave_behind(self) -> Iterator[dg.DagsterEvent]:
        """Report the steps that did not stop."""
        for key in self.threads.running:
            self.context.log.error(
                f"Step {key} did not stop within {self.decisions.grace_s(key):.0f} s and is left "
                "behind. Other workers wait for its output until its lease expires."
            )
            step_context = self.context.for_step(self.active.get_step_by_key(key))
            for attempt in self.threads.attempts(key):
                if attempt.cut_off:
                    lost = cut_off(self.decisions.planned[key].asset, attempt.step)
                    yield dg.DagsterEvent.asset_observation(step_context, lost)

    def _dispatch(self, message: StepMessage) -> Iterator[dg.DagsterEvent]:
        """Yield a thread's event, and give it to Dagster's plan at the right time."""
        key, event = message.step_key, message.event
        if event is None:
            if key in self._retries:
                self.active.handle_event(self._retries.pop(key))
            self.active.verify_complete(self.context, key)
            return
        yield event
        if message.from_hook or event.event_type is dg.DagsterEventType.LOGS_CAPTURED:
            return
        output = self._outputs.pop(key, None)
        if output is not None and not event.is_step_failure:
            self.active.handle_event(output)
        if event.is_step_up_for_retry:
            # Only when this attempt's thread has ended, with its hooks and logs.
            self._retries[key] = event
        elif event.is_successful_output:
            # Dagster yields this event before the IO manager stores the output. No step may read
            # the output before the next event.
            self._outputs[key] = event
        else:
            self.active.handle_event(event)


def _pause_s(active: ActiveExecution) -> float:
    # sleep_interval() is 0 when nothing waits for a retry or a slot.
    return min(_LOOK_FOR_INTERRUPT_S, max(0.0, active.sleep_interval()) or _LOOK_FOR_INTERRUPT_S)
