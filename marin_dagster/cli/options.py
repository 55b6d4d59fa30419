"""Options that several commands have."""

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from marin_dagster.cli.settings import Settings, read_settings, use_prefix

if TYPE_CHECKING:
    from marin_dagster.cli.graph_names import NamedGraph

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class GraphChoice:
    """The graph that the options name, and the project's settings."""

    name: str | None
    partition: str | None
    settings: Settings

    def load(self) -> "NamedGraph":
        """Import it.

        Raises:
            click.UsageError: no graph is named.
            GraphNameError: see :func:`load_named`.
            GraphError: the graph is wrong.
        """
        from marin_dagster.cli.graph_names import load_named

        if self.name is not None:
            return load_named(self.name, partition=self.partition)
        if self.settings.graph is None:
            raise click.UsageError(
                "Name a graph: --graph module:attribute or file.py:attribute. To name it once, add "
                'graph = "…" under [tool.marin_dagster] in pyproject.toml.'
            )
        folder = self.settings.folder
        return load_named(self.settings.graph, folder=folder, partition=self.partition)


prefix_option = click.option(
    "--prefix",
    metavar="FOLDER",
    help="Folder or URL of the outputs, instead of MARIN_PREFIX.",
)


def graph_options(command: F) -> F:
    """Adds ``--graph``, ``--prefix`` and ``--partition``; the command gets a :class:`GraphChoice`
    named ``choice``."""

    @functools.wraps(command)
    def with_choice(
        *args: Any, graph: str | None, prefix: str | None, partition: str | None, **rest: Any
    ) -> Any:
        settings = read_settings()
        use_prefix(prefix, settings)
        return command(*args, choice=GraphChoice(graph, partition, settings), **rest)

    for option in (
        click.option(
            "--partition",
            metavar="KEY",
            help="Call the graph's function with the key of this partition.",
        ),
        prefix_option,
        click.option(
            "-g",
            "--graph",
            metavar="NAME",
            envvar="MARIN_DAGSTER_GRAPH",
            help="The graph: module:attribute or file.py:attribute.",
        ),
    ):
        with_choice = option(with_choice)
    return with_choice  # type: ignore[return-value]


def step_argument(name: str, **settings: Any) -> Callable[[F], F]:
    """An argument that names steps: by name, name with hash, address or output path."""
    metavar = "STEP..." if "nargs" in settings else "STEP"
    if "nargs" in settings and not settings.get("required"):
        metavar = "[STEP]..."
    return click.argument(name, metavar=metavar, shell_complete=complete_steps, **settings)


def complete_steps(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """For the shell: names and addresses of the graph's steps that begin with a text; none if the
    graph cannot be loaded."""
    from contextlib import redirect_stderr

    from marin_dagster.cli.step_names import names_of

    with open(os.devnull, "w") as nowhere, redirect_stderr(nowhere):
        try:
            choice = GraphChoice(
                ctx.params.get("graph"), ctx.params.get("partition"), read_settings()
            )
            names = names_of(choice.load().graph())
        except Exception:  # whatever the user's code raises
            return []
    return [name for name in names if name.startswith(incomplete)]


select_option = click.option(
    "--select",
    metavar="SELECTION",
    help="Only these assets, in Dagster's syntax for selections, such as '+key:model'.",
)


def common_options(command: F) -> F:
    """Adds ``--debug``, and ``--json``, which the command gets as ``as_json``."""
    for option in (
        click.option(
            "--debug",
            is_flag=True,
            expose_value=False,
            callback=_set_debug,
            help="Show the traceback of an error.",
        ),
        click.option("--json", "as_json", is_flag=True, help="Print the result as JSON."),
    ):
        command = option(command)
    return command


def _set_debug(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    ctx.meta["marin_dagster.debug"] = value
