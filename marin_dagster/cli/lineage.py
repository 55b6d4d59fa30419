"""``marin-dagster lineage``: what an output was made from, or what was made from it."""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from marin_dagster.cli.options import common_options, prefix_option
from marin_dagster.cli.output import print_json, styled
from marin_dagster.cli.settings import read_settings, use_prefix

if TYPE_CHECKING:
    from marin_dagster.cache.lineage import Lineage


@dataclass(frozen=True)
class LineageOutput:
    """One output."""

    __pydantic_config__ = {"use_attribute_docstrings": True}  # noqa: RUF012

    path: str
    """Its path."""
    identity: str
    """name_hash, or name@version of a lazy artifact."""
    state: str
    """recorded; missing: it has no record, or is gone; unreadable: its record cannot be read."""
    next: list[str]
    """Paths of the outputs that it was made from; with ``--down``, that were made from it."""
    built_by: str | None
    """The user that built it."""
    commit: str | None
    """The commit that it was built from."""
    dagster_run_id: str | None
    """The run that built it."""


@dataclass(frozen=True)
class LineageResult:
    """The outputs in one direction from an output."""

    __pydantic_config__ = {"use_attribute_docstrings": True}  # noqa: RUF012

    path: str
    """The output."""
    direction: str
    """up or down."""
    outputs: list[LineageOutput]
    """It and all others, the nearest first."""
    command: str = "lineage"
    version: int = 1
    """Of this format. A change that breaks readers increases it."""


@click.command()
@click.argument("path")
@click.option("--down", is_flag=True, help="Show what was made from it, instead.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["tree", "mermaid", "openlineage"]),
    default="tree",
    help="tree; a Mermaid flowchart; or OpenLineage events, one JSON document on each line.",
)
@prefix_option
@common_options
def lineage(path: str, down: bool, form: str, prefix: str | None, as_json: bool) -> None:
    """Show what the output at PATH was made from, from the records in the store alone.

    Needs no code. With --down, searches the store (--prefix, else MARIN_PREFIX) for what was made
    from PATH, which may have been removed meanwhile. PATH is an output's folder or URL; a relative
    one is an address below the prefix.
    """
    from marin_dagster.cache.lineage import downstream, upstream
    from marin_dagster.cli.step_names import is_path
    from marin_dagster.steps.paths import join, output_prefix

    use_prefix(prefix, read_settings())
    if not is_path(path):
        path = os.path.abspath(path) if os.path.isdir(path) else join(output_prefix(None), path)
    found = downstream(path, output_prefix(None)) if down else upstream(path)
    if as_json:
        print_json(_result(found, down=down))
    elif form == "mermaid":
        from marin_dagster.cli.lineage_formats import mermaid

        click.echo(mermaid(found, down=down))
    elif form == "openlineage":
        from marin_dagster.cli.lineage_formats import openlineage_events

        for event in openlineage_events(found):
            click.echo(event)
    else:
        _print_tree(found)
    start = found.nodes[found.start]
    if start.state != "recorded" and len(found.nodes) == 1:
        click.echo(f"There is no record in {start.path}, and no record names it.", err=True)
        raise click.exceptions.Exit(1)


def _print_tree(found: "Lineage") -> None:
    from marin_dagster.cli.trees import tree_lines

    def label(path: str, again: bool) -> str:
        node = found.nodes[path]
        state = "" if node.state == "recorded" else f"  {styled(node.state)}"
        return f"{node.identity}  {node.path}{state}{'  (shown above)' * again}"

    for line in tree_lines([found.start], lambda path: found.next.get(path, ()), label):
        click.echo(line)


def _result(found: "Lineage", *, down: bool) -> LineageResult:
    outputs = []
    for path, node in found.nodes.items():
        provenance: Any = node.record.provenance if node.record else None
        outputs.append(
            LineageOutput(
                path=path,
                identity=node.identity,
                state=node.state,
                next=list(found.next.get(path, ())),
                built_by=provenance.built_by if provenance else None,
                commit=(provenance.base_commit or None) if provenance else None,
                dagster_run_id=getattr(provenance, "dagster_run_id", None),
            )
        )
    return LineageResult(found.start, "down" if down else "up", outputs)
