"""``LiveProgress``: a table of the running steps, at the bottom of a terminal."""

import io
import os
import sys
import time
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from marin_dagster.cli.output import STYLES
from marin_dagster.cli.run_states import BUILT, CACHED, FAILED, RUNNING, RunStates, StepState
from marin_dagster.executor.log_capture import current_step

_ENDED_ROWS = 5
"""Ended steps that stay visible above the running ones."""
_TAIL_BYTES = 4096
_REFRESHES_PER_S = 4


class LiveProgress:
    """The running steps with time and last printed line, the last ended ones, and totals."""

    def __init__(self, states: RunStates, to_run: int) -> None:
        self._states = states
        self._to_run = to_run
        self._began = time.monotonic()
        self._ended: list[StepState] = []
        self._live = Live(
            # Not whatever sys.stdout is: that is replaced while the table is shown.
            console=Console(file=sys.stdout),
            get_renderable=self._render,
            refresh_per_second=_REFRESHES_PER_S,
            transient=False,
        )
        self._streams: tuple[Any, Any] = (sys.stdout, sys.stderr)

    def __enter__(self) -> Self:
        self._live.start()
        self._streams = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = _WithoutSteps(sys.stdout), _WithoutSteps(sys.stderr)
        return self

    def __exit__(self, *failure: Any) -> None:
        sys.stdout, sys.stderr = self._streams
        self._live.stop()

    def changed(self, key: str | None) -> None:
        """A step has started or ended."""
        step = self._states.steps[key or ""]
        if step.state in (BUILT, CACHED, FAILED):
            self._ended.append(step)

    def _render(self) -> Group:
        table = Table(box=None, pad_edge=False, show_header=False, expand=True)
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True, overflow="ellipsis")
        table.add_column(no_wrap=True, justify="right")
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=1, style="dim")
        failed = [one for one in self._ended if one.state == FAILED]
        others = [one for one in self._ended if one.state != FAILED]
        for one in (*failed[-_ENDED_ROWS:], *others[-_ENDED_ROWS:]):
            error = (one.error or "").partition("\n")[0]
            _add(table, one, "" if one.seconds is None else _clock(one.seconds), error)
        for one in self._states.with_state(RUNNING):
            _add(table, one, _clock(time.monotonic() - one.began), _last_line(one.log))
        return Group(table, self._totals())

    def _totals(self) -> Table:
        ended = len(self._ended)
        line = Table(box=None, pad_edge=False, show_header=False)
        counts = {
            state: sum(one.state == state for one in self._ended)
            for state in (BUILT, CACHED, FAILED)
        }
        running = len(self._states.with_state(RUNNING))
        texts = [f"{count} {state}" for state, count in counts.items() if count]
        texts += [f"{running} running"] * bool(running)
        texts += [f"{self._to_run - ended - running} to come"]
        line.add_row(
            ProgressBar(total=self._to_run, completed=ended, width=20),
            Text(f"{ended}/{self._to_run}"),
            Text(", ".join(texts)),
            Text(_clock(time.monotonic() - self._began)),
        )
        return line


class _WithoutSteps(io.TextIOBase):
    """A stream that drops what steps print: their logs have it, and the table its last line."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        if current_step() is None:
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        return int(self._stream.fileno())


def _add(table: Table, one: StepState, took: str, more: str) -> None:
    table.add_row(
        Text(one.state, style=STYLES.get(one.state, "")), Text(one.name), Text(took), Text(more)
    )


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _last_line(path: str | None) -> str:
    """The last line with text at the end of a file that grows; empty when it cannot be read."""
    try:
        with open(path or os.devnull, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            lines = file.read().decode("utf-8", "replace").split("\n")
    except OSError:
        return ""
    texts = [line.rsplit("\r", 1)[-1].strip() for line in lines]
    return next((text for text in reversed(texts) if text), "")
