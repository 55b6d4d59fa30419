"""``marin-dagster run``: build what is not in the cache."""

from collections import Counter
from dataclasses import dataclass

import click

from marin_dagster.cli.exits import FAILED, INTERRUPTED
from marin_dagster.cli.options import (
    GraphChoice,
    common_options,
    complete_steps,
    graph_options,
    select_option,
)
from marin_dagster.cli.output import counted, print_json

ENDS = ("built", "cached", "failed", "stopped", "not run", "pruned", "external")
"""What became of a step, in the order of the summary."""


@dataclass(frozen=True)
class StepEnd:
    """What became of one step."""

    __pydantic_config__ = {"use_attribute_docstrings": True}  # noqa: RUF012

    step: str
    """Name with hash, or the address of a lazy artifact."""
    name: str
    """Name."""
    path: str
    """Output path."""
    asset: str
    """Asset key, its parts separated by slashes; empty for data that no run builds."""
    end: str
    """built; cached; failed; stopped: Ctrl-C came first; not run: it needs a step that failed or
    was stopped; pruned: not finished, and nothing needs it; external: no run builds it."""
    seconds: float | None
    """How long the function of a built step took, and waiting for its runner."""
    error: str | None
    """Why it failed."""


@dataclass(frozen=True)
class RunResult:
    """What became of each step."""

    __pydantic_config__ = {"use_attribute_docstrings": True}  # noqa: RUF012

    graph: str
    """The graph's name."""
    steps: list[StepEnd]
    """Its steps, inputs before the steps that read them."""
    counts: dict[str, int]
    """How many steps have each end."""
    seconds: float
    """How long the run took."""
    run_id: str | None
    """The run in the instance of DAGSTER_HOME; null if nothing had to run, or without one."""
    interrupted: bool
    """Whether Ctrl-C ended the run."""
    command: str = "run"
    version: int = 1
    """Of this format. A change that breaks readers increases it."""


@click.command()
@graph_options
@select_option
@click.option(
    "--force",
    metavar="STEP",
    shell_complete=complete_steps,
    multiple=True,
    help="Build this step although it is cached; '*' for all selected ones. Repeatable.",
)
@click.option(
    "--retry-failed/--no-retry-failed",
    default=None,
    help="Whether to build steps whose last attempt failed. Default: they are built.",
)
@click.option(
    "--runner",
    "runners",
    metavar="[STEP=]NAME",
    multiple=True,
    help="Run all steps, or this one, on a runner: inline, process, or one of the project's "
    "settings. Repeatable.",
)
@click.option(
    "--max-concurrent",
    type=click.IntRange(min=0),
    metavar="N",
    help="Steps that run at once; 0 means 8.",
)
@common_options
def run(
    choice: GraphChoice,
    select: str | None,
    force: tuple[str, ...],
    retry_failed: bool | None,
    runners: tuple[str, ...],
    max_concurrent: int | None,
    as_json: bool,
) -> None:
    """Build the steps that are not in the cache.

    The run is recorded in the instance of DAGSTER_HOME, if that is set. A terminal shows a table of
    the running steps, with the last line that each printed; otherwise each step is a line when it
    ends. Ctrl-C stops the running steps; what is finished stays finished.
    """
    from marin_dagster.cli.run_graph import run_graph

    result = run_graph(
        choice.load(),
        choice.settings,
        select=select,
        force=force,
        retry_failed=retry_failed,
        runners=runners,
        max_concurrent=max_concurrent,
        quiet=as_json,
    )
    if as_json:
        print_json(result)
    else:
        _print_summary(result)
    if result.interrupted:
        raise click.exceptions.Exit(INTERRUPTED)
    if result.counts.get("failed"):
        raise click.exceptions.Exit(FAILED)


def _print_summary(result: RunResult) -> None:
    for one in result.steps:
        if one.error is not None:
            click.echo(
                f"\n{click.style('failed', fg='red')} {one.step} ({one.path})\n  {one.error}"
            )
    left = [one.step for one in result.steps if one.end in ("stopped", "not run")]
    if result.interrupted and left:
        click.echo("\nInterrupted. The next run builds what is left:")
        for one in result.steps:
            if one.end in ("stopped", "not run"):
                click.echo(f"  {one.step} ({one.end})")
    each = ", ".join(f"{count} {end}" for end, count in result.counts.items())
    recorded = f" Run {result.run_id}." if result.run_id else ""
    total = counted(sum(result.counts.values()), "step")
    click.echo(f"\n{total}: {each}; {result.seconds:.1f} s.{recorded}")


def count_ends(steps: list[StepEnd]) -> dict[str, int]:
    """How many steps have each end."""
    counts = Counter(one.end for one in steps)
    return {end: counts[end] for end in ENDS if counts[end]}
