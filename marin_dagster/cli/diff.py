"""``marin-dagster diff``: which steps a change reruns."""

from collections.abc import Iterator
from dataclasses import dataclass

import click

from marin_dagster.cli.options import GraphChoice, common_options, graph_options
from marin_dagster.cli.output import counted, print_json, print_table


@dataclass(frozen=True)
class StepChange:
    """One step that differs between two commits."""

    __pydantic_config__ = {"use_attribute_docstrings": True}  # noqa: RUF012

    name: str
    """Its name."""
    change: str
    """added; removed; changed: another hash; drifted: a lazy artifact with another recipe under the
    same version, which runs serve as it is."""
    before: str | None
    """Name with hash, or address, in the other commit."""
    after: str | None
    """The same in the working tree."""
    why: list[str]
    """The attributes or the upstream steps that differ."""
    reruns: bool
    """Whether a run would build it: it is not removed, and not finished in the store."""
    seconds: float | None
    """How long the last build took, as the instance or the store's times show."""


@dataclass(frozen=True)
class DiffResult:
    """How the working tree's graph differs from that of another commit."""

    __pydantic_config__ = {"use_attribute_docstrings": True}  # noqa: RUF012

    graph: str
    """The graph's name."""
    revision: str
    """The commit's hash."""
    total: int
    """How many steps the working tree's graph has."""
    changes: list[StepChange]
    """The steps that differ, inputs before the steps that read them; removed ones last."""
    seconds: float
    """The sum of the known times of the steps that rerun."""
    unknown_times: int
    """How many steps rerun of which no time is known."""
    command: str = "diff"
    version: int = 1
    """Of this format. A change that breaks readers increases it."""


@click.command()
@click.argument("revision", metavar="REV")
@graph_options
@click.option("--markdown", is_flag=True, help="Print Markdown, for a comment on a pull request.")
@common_options
def diff(choice: GraphChoice, revision: str, markdown: bool, as_json: bool) -> None:
    """Show which steps differ between the working tree and the commit REV, and what that costs.

    Checks REV out into a temporary git worktree and loads the same graph there. A step that differs
    reruns if its new output is not finished in the store. Times come from the instance of
    DAGSTER_HOME, else from the times of the files in the store.
    """
    from marin_dagster.cli.graph_diff import diff_graph

    result = diff_graph(choice, revision)
    if as_json:
        print_json(result)
    elif markdown:
        for line in _markdown(result):
            click.echo(line)
    else:
        print_table(("", "STEP", "WHY", "TOOK"), _rows(result))
        click.echo(f"\n{headline(result)}" if result.changes else headline(result))


def headline(result: DiffResult) -> str:
    """``This change reruns 3 of 84 steps, about 42 min.``"""
    from marin_dagster.steps.text import spoken

    reruns = sum(one.reruns for one in result.changes)
    if not reruns:
        return f"This change reruns none of {counted(result.total, 'step')}."
    cost = ""
    if reruns > result.unknown_times:
        least = "at least" if result.unknown_times else "about"
        cost = f", {least} {spoken(result.seconds)}"
    return f"This change reruns {reruns} of {counted(result.total, 'step')}{cost}."


def _rows(result: DiffResult) -> Iterator[tuple[str, str, str, str]]:
    from marin_dagster.steps.text import spoken

    for one in result.changes:
        what = one.change if one.reruns or one.change == "removed" else f"{one.change}, no rerun"
        took = "" if one.seconds is None else spoken(one.seconds)
        yield what, one.after or one.before or one.name, "; ".join(one.why), took


def _markdown(result: DiffResult) -> Iterator[str]:
    from marin_dagster.steps.text import markdown_cell

    yield f"**{headline(result)}**"
    if result.changes:
        yield ""
        yield "| step | change | why | last took |\n|---|---|---|---|"
        for what, step, why, took in _rows(result):
            yield f"| {' | '.join(markdown_cell(text) for text in (step, what, why, took))} |"
