"""``marin-dagster check``: find mistakes in a graph without running it, for pull requests."""

import os
from collections import Counter
from dataclasses import dataclass

import click

from marin_dagster.cli.exits import FAILED
from marin_dagster.cli.options import GraphChoice, common_options, graph_options
from marin_dagster.cli.output import counted, print_json, styled


@dataclass(frozen=True)
class Finding:
    """One mistake, or something that is probably one."""

    __pydantic_config__ = {"use_attribute_docstrings": True}  # noqa: RUF012

    rule: str
    """cycle, duplicate-address, attribute, name, graph, load, asset-key, runner, absolute-path,
    missing-function, undeclared-input, or warning."""
    level: str
    """error or warning."""
    message: str
    """What is wrong, and what to do."""
    step: str | None
    """The step's name."""
    file: str | None
    """The file of the step's function, else that of the graph."""
    line: int | None
    """The line in it."""


@dataclass(frozen=True)
class CheckResult:
    """The mistakes in a graph."""

    __pydantic_config__ = {"use_attribute_docstrings": True}  # noqa: RUF012

    graph: str
    """The graph's name."""
    steps: int
    """How many steps were checked."""
    findings: list[Finding]
    """What was found; errors first."""
    command: str = "check"
    version: int = 1
    """Of this format. A change that breaks readers increases it."""


@click.command()
@graph_options
@click.option("--strict", is_flag=True, help="Exit with 1 for warnings, too.")
@click.option(
    "--github/--no-github",
    default=None,
    help="Print annotations for GitHub Actions. Default: inside GitHub Actions.",
)
@common_options
def check(choice: GraphChoice, strict: bool, github: bool | None, as_json: bool) -> None:
    """Find mistakes in a graph, without running it or reading the store.

    Errors: steps in a ring, two steps with one output path or asset key, attributes that JSON
    cannot hold, names that cannot be folders, unknown runners, resources that no runner takes, code
    that raises. Warnings: steps that a function uses without declaring them, absolute paths in
    attributes, and steps without a function.

    Exits with 1 if there is an error.
    """
    from marin_dagster.cli.graph_checks import check_graph

    result = check_graph(choice)
    if github is None:
        github = os.environ.get("GITHUB_ACTIONS") == "true"
    if as_json:
        print_json(result)
    elif github:
        for finding in result.findings:
            click.echo(annotation(finding))
    else:
        for finding in result.findings:
            place = f" ({finding.file}:{finding.line})" if finding.file else ""
            click.echo(f"{styled(finding.level)} {finding.rule}: {finding.message}{place}")
    levels = Counter(finding.level for finding in result.findings)
    if not as_json:
        found = ", ".join(counted(levels[level], level) for level in ("error", "warning"))
        click.echo(f"{counted(result.steps, 'step')}: {found}.", err=github)
    if levels["error"] or (strict and levels["warning"]):
        raise click.exceptions.Exit(FAILED)


def annotation(finding: Finding) -> str:
    """The command with which GitHub Actions shows a finding in a pull request's files.

    Its files are named from the repository's root, the folder in ``GITHUB_WORKSPACE``.
    """
    properties = {"title": f"marin-dagster: {finding.rule}"}
    if finding.file is not None:
        root = os.environ.get("GITHUB_WORKSPACE") or os.getcwd()
        inside = os.path.commonpath([os.path.realpath(root), os.path.realpath(finding.file)])
        if inside == os.path.realpath(root):
            relative = os.path.relpath(os.path.realpath(finding.file), os.path.realpath(root))
            properties = {"file": relative, "line": str(finding.line or 1), **properties}
    stated = ",".join(f"{name}={_escaped(value, ':,')}" for name, value in properties.items())
    return f"::{finding.level} {stated}::{_escaped(finding.message)}"


def _escaped(text: str, more: str = "") -> str:
    for character in "%\r\n" + more:
        text = text.replace(character, f"%{ord(character):02X}")
    return text
