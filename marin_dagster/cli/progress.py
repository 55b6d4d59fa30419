"""How a run shows its progress: as lines here, as a table in ``live_table``."""

import sys
from contextlib import AbstractContextManager, redirect_stdout
from typing import IO, Any, Protocol, Self

import click

from marin_dagster.cli.output import styled
from marin_dagster.cli.run_states import RUNNING, WAITING, RunStates


class Progress(AbstractContextManager[Any], Protocol):
    """Shows a run while it is open."""

    def changed(self, key: str | None) -> None:
        """The step with this key has started or ended; called by another thread."""
        ...


class LineProgress:
    """A line for each step that ends, for pipes and files. What steps print goes to stderr."""

    def __init__(self, states: RunStates, to_run: int, stream: IO[str]) -> None:
        self._states = states
        self._to_run = to_run
        self._stream = stream
        self._ended = 0
        self._redirected = redirect_stdout(sys.stderr)

    def __enter__(self) -> Self:
        self._redirected.__enter__()
        return self

    def __exit__(self, *failure: Any) -> None:
        self._redirected.__exit__(*failure)

    def changed(self, key: str | None) -> None:
        step = self._states.steps[key or ""]
        if step.state in (RUNNING, WAITING):
            return
        self._ended += 1
        took = f" in {step.seconds:.1f} s" if step.seconds is not None else ""
        line = f"[{self._ended}/{self._to_run}] {styled(step.state)} {step.name}{took}"
        click.echo(line, file=self._stream)
