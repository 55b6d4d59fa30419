"""The threads that run steps, and the queue on which their events reach the main thread."""

import asyncio
import contextvars
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field

import dagster as dg

from marin_dagster._compat import dagster_event_sequence_for_step, trigger_hook
from marin_dagster.assets.step_control import StepControl, step_control
from marin_dagster.cache import Attempt
from marin_dagster.executor.compute_logs import step_log


@dataclass(frozen=True)
class StepMessage:
    """What a step's thread sends to the main thread."""

    step_key: str
    event: dg.DagsterEvent | None = None
    """An event of the step; None when its thread has finished."""
    from_hook: bool = False
    """Whether the event is from one of the step's hooks; the step itself has ended."""


@dataclass(eq=False)
class StepThreads:
    """Runs each step in its own thread."""

    log_level: int
    """The lowest level of Python's logging in steps' logs, for loggers without a level."""
    _messages: "queue.SimpleQueue[StepMessage]" = field(default_factory=queue.SimpleQueue)
    _running: dict[str, StepControl] = field(default_factory=dict)

    @property
    def running(self) -> tuple[str, ...]:
        """Keys of the steps whose thread has not finished."""
        return tuple(self._running)

    def attempts(self, key: str) -> tuple[Attempt, ...]:
        """The attempts that a running step has begun."""
        return tuple(self._running[key].attempts)

    def start(
        self,
        context: dg.StepExecutionContext,
        control: StepControl,
        event_loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """Run a step in a new thread, with the caller's context variables.

        Args:
            context: the step.
            control: the step's options, and the way to interrupt it.
            event_loop: the step's own loop, closed when the thread ends.
        """
        key = context.step.key
        self._running[key] = control
        thread = threading.Thread(
            target=contextvars.copy_context().run,
            args=(self._work, context, control, event_loop),
            name=f"marin-step-{key}",
            # A step that cannot be stopped must not keep the process from ending.
            daemon=True,
        )
        thread.start()

    def interrupt(self) -> None:
        """Stop every running step."""
        for control in self._running.values():
            control.interrupt.set()

    def messages(self, timeout_s: float) -> Iterator[StepMessage]:
        """The messages in the queue; waits up to ``timeout_s`` seconds for the first."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                message = self._messages.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return
            deadline = 0.0
            if message.event is None:
                del self._running[message.step_key]
            yield message

    def _sender(self, key: str) -> Callable[[dg.DagsterEvent], None]:
        return lambda event: self._messages.put(StepMessage(key, event))

    def _work(
        self,
        context: dg.StepExecutionContext,
        control: StepControl,
        event_loop: asyncio.AbstractEventLoop | None,
    ) -> None:
        key = context.step.key
        step_control.set(control)
        events: list[dg.DagsterEvent] = []
        try:
            with step_log(context, self._sender(key), self.log_level) as captured:
                control.captured = captured
                # Our op captures its function only; of an ordinary op, the log gets everything.
                with nullcontext() if control.options.is_ours else captured():
                    for event in dagster_event_sequence_for_step(context):
                        events.append(event)
                        self._messages.put(StepMessage(key, event))
                with captured():
                    for event in trigger_hook(context, events):
                        self._messages.put(StepMessage(key, event, from_hook=True))
        except dg.DagsterExecutionInterruptedError:
            # Dagster has made the failure event already, and raises again to end the run; here it
            # ends one step's thread.
            pass
        except BaseException:
            context.log.debug("the step's thread ended with an exception", exc_info=True)
        finally:
            for attempt in control.attempts:
                attempt.fail()
            if event_loop is not None:
                event_loop.close()
            self._messages.put(StepMessage(key))
