"""``run_drawn``: run steps while an iterable still yields more, one portion after the other."""

import contextvars
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

_SETTLE_S = 0.2
"""Seconds in which a quick iterable may add to a portion: each portion is a run of Dagster's."""


@dataclass(eq=False)
class _Portions:
    """Steps that are drawn and do not run yet; one thread puts, another takes."""

    most: int
    _drawn: list[Any] = field(default_factory=list)
    _ended: bool = False
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def put(self, step: Any) -> bool:
        """Add a step as soon as fewer than ``most`` wait; False once no more are taken."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or len(self._drawn) < self.most)
            if not self._ended:
                self._drawn.append(step)
                self._changed.notify_all()
            return not self._ended

    def take(self) -> list[Any]:
        """All steps that wait; blocks until there are some, and returns none at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._drawn)
            full_at = time.monotonic() + _SETTLE_S
            self._changed.wait_for(
                lambda: self._ended or len(self._drawn) >= self.most,
                timeout=max(0.0, full_at - time.monotonic()),
            )
            portion, self._drawn = self._drawn, []
            self._changed.notify_all()
            return portion

    def end(self, *, drop: bool = False) -> None:
        """Accept no more steps; with ``drop``, discard those that wait."""
        with self._changed:
            self._ended = True
            if drop:
                self._drawn.clear()
            self._changed.notify_all()


def run_drawn(
    steps: Iterable[Any],
    run: Callable[[list[Any]], None],
    *,
    most: int,
    stop: threading.Event,
) -> None:
    """Draw steps in the caller's thread, and run what has been drawn in another.

    As in Marin, the first step runs before the iterable ends, so that one without an end, or one
    that waits for what its steps do, is consumed. Unlike in Marin, what is drawn while a portion
    runs waits for the portion's end.

    Args:
        steps: the iterable.
        run: runs a portion; an exception ends it all.
        most: how many steps are drawn ahead of what runs.
        stop: set when the caller is interrupted; ``run`` then ends soon.

    Raises:
        Exception: what ``run`` raised, else what the iterable raised, once everything that was
            drawn before has run.
    """
    portions = _Portions(most)
    faults: list[BaseException] = []
    # Not join(): before Python 3.13, a join that is interrupted takes the thread for ended.
    ended = threading.Event()

    def work() -> None:
        try:
            while portion := portions.take():
                run(portion)
        except BaseException as error:
            faults.append(error)
        finally:
            portions.end(drop=True)
            ended.set()

    worker = threading.Thread(
        target=contextvars.copy_context().run, args=(work,), name="marin-step-runner", daemon=True
    )
    worker.start()
    broken: Exception | None = None
    try:
        try:
            for step in steps:
                if not portions.put(step):
                    break
        except Exception as error:
            broken = error
        portions.end()
        ended.wait()
    except BaseException:
        stop.set()
        portions.end(drop=True)
        ended.wait()
        raise
    if faults:
        raise faults[0]
    if broken is not None:
        raise broken
