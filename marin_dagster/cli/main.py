"""``marin-dagster``: the commands, and how their errors reach the user."""

import sys
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import click

from marin_dagster.cli.check import check
from marin_dagster.cli.diff import diff
from marin_dagster.cli.exits import INTERRUPTED, Unusable
from marin_dagster.cli.explain import explain
from marin_dagster.cli.lineage import lineage
from marin_dagster.cli.logs import logs
from marin_dagster.cli.outputs import adopt, invalidate, unlock
from marin_dagster.cli.plan import plan
from marin_dagster.cli.run import run
from marin_dagster.cli.status import status
from marin_dagster.errors import MarinDagsterError, MarinDagsterWarning

_EPILOG = (
    "Exit codes: 0 done; 1 a step failed, or a check found something; 2 the command could not do "
    "its work; 130 interrupted."
)


class _Group(click.Group):
    """Shows an error that a user can mend without its traceback, unless ``--debug`` is given."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with warnings.catch_warnings():
                warnings.showwarning = partial(_show_warning, warnings.showwarning)
                return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("Interrupted.", err=True)
            ctx.exit(INTERRUPTED)
        except Exception as error:
            if ctx.meta.get("marin_dagster.debug"):
                traceback.print_exc()
            if not _is_explained(error):
                raise
            raise Unusable(str(error)) from error


def _show_warning(show: Callable[..., None], message: Any, kind: Any, *place: Any) -> None:
    """Show a warning of this package without the line of code that the user cannot change."""
    if isinstance(message, MarinDagsterWarning):
        click.echo(f"Warning: {message}", err=True)
    else:
        show(message, kind, *place)


def _is_explained(error: Exception) -> bool:
    """Whether an error states what is wrong, so that its traceback adds nothing for the user."""
    dagster = sys.modules.get("dagster")
    return isinstance(error, MarinDagsterError) or (
        dagster is not None and isinstance(error, dagster.DagsterError)
    )


@click.group(cls=_Group, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="marin-dagster")
def main() -> None:
    """Build graphs of steps, and ask what is in their cache.

    A graph is named MODULE:ATTRIBUTE or FILE.py:ATTRIBUTE: a list of steps, a function that returns
    one, or Dagster's Definitions.
    """


for _command in (plan, run, status, explain, unlock, invalidate, adopt, check, lineage, diff, logs):
    main.add_command(_command)
