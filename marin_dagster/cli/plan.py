"""``marin-dagster plan``: what a run would do with each step, and why."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from marin_dagster.cli.options import (
    GraphChoice,
    common_options,
    complete_steps,
    graph_options,
    select_option,
)
from marin_dagster.cli.output import counted, print_json, print_table, styled

if TYPE_CHECKING:
    from marin_dagster.cli.graph_plan import GraphPlan

ACTIONS = ("run", "elsewhere", "blocked", "cached", "pruned", "external")
"""What a run does with a step, in the order of the summary."""


@dataclass(frozen=True)
class PlannedAction:
    """What a run would do with one step."""

    __pydantic_config__ = {"use_attribute_docstrings": True}  # noqa: RUF012

    step: str
    """Name with hash, or the address of a lazy artifact."""
    name: str
    """Name."""
    path: str
    """Output path."""
    asset: str
    """Asset key, its parts separated by slashes; empty for data that no run builds."""
    action: str
    """run; elsewhere: another worker is building it, and a run waits for that; blocked: it cannot
    run; cached; pruned: not finished, and nothing needs it; external: no run builds it."""
    why: list[str]
    """The reasons, at least one."""
    because_of: list[str]
    """The changed steps because of which it runs; it may be one of them."""
    compared_with: str | None
    """Path of the earlier output that the reasons refer to."""
    owner: str | None
    """The worker that is building it."""
    runner: str | None
    """The runner of a step that would run; ``inline`` is the process of the run itself."""
    deps: list[str]
    """Output paths that it reads."""


@dataclass(frozen=True)
class PlanResult:
    """What a run would do with each step of a graph."""

    __pydantic_config__ = {"use_attribute_docstrings": True}  # noqa: RUF012

    graph: str
    """The graph's name."""
    steps: list[PlannedAction]
    """Its steps, inputs before the steps that read them."""
    counts: dict[str, int]
    """How many steps have each action."""
    command: str = "plan"
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
    help="Assume that this step is built although it is cached. Repeatable.",
)
@click.option(
    "--retry-failed/--no-retry-failed",
    default=None,
    help="Whether steps run whose last attempt failed. Default: they do.",
)
@click.option("--tree", is_flag=True, help="Show the steps below those that read them.")
@common_options
def plan(
    choice: GraphChoice,
    select: str | None,
    force: tuple[str, ...],
    retry_failed: bool | None,
    tree: bool,
    as_json: bool,
) -> None:
    """Show what a run would do with each step, and why.

    Reads the store and, if DAGSTER_HOME is set, what Dagster has recorded there. Runs and writes
    nothing.
    """
    from marin_dagster.cli.graph_plan import open_instance, plan_graph

    named = choice.load()
    with open_instance() as instance:
        found = plan_graph(
            named,
            choice.settings,
            instance=instance,
            select=select,
            force=force,
            retry_failed=retry_failed,
        )
    result = plan_result(found)
    if as_json:
        print_json(result)
    elif tree:
        for line in _tree(result):
            click.echo(line)
        click.echo(f"\n{plan_summary(result.counts)}")
    else:
        print_table(
            ("", "STEP", "WHY"), [(one.action, one.step, _why(one)) for one in result.steps]
        )
        click.echo(f"\n{plan_summary(result.counts)}")


def plan_result(found: "GraphPlan") -> PlanResult:
    """A plan as the command prints it."""
    steps = list(_actions(found))
    counts = Counter(one.action for one in steps)
    return PlanResult(
        found.name, steps, {action: counts[action] for action in ACTIONS if counts[action]}
    )


def plan_summary(counts: Mapping[str, int]) -> str:
    """``3 steps: 1 run, 2 cached.``"""
    each = ", ".join(f"{count} {action}" for action, count in counts.items())
    return f"{counted(sum(counts.values()), 'step')}: {each}."


def _actions(found: "GraphPlan") -> Iterator[PlannedAction]:
    from marin_dagster.steps.protocol import address

    for path, step in found.graph.steps.items():
        outcome = found.outcomes.get(path)
        if outcome is None and path not in found.external:
            continue
        placement = found.places.get(path)
        action = found.action(path)
        yield PlannedAction(
            step=address(step),
            name=step.name,
            path=path,
            asset=found.asset(path),
            action=action,
            why=[found.external[path]] if outcome is None else list(outcome.reasons),
            because_of=list(outcome.roots) if outcome else [],
            compared_with=outcome.compared_with if outcome else None,
            owner=found.owners.get(path),
            runner=placement if action == "run" else None,
            deps=list(found.graph.dependencies(path)),
        )


def _why(one: PlannedAction) -> str:
    others = [root for root in one.because_of if root != one.step]
    because = f" (because of {', '.join(others[:3])}{' …' * (len(others) > 3)})" if others else ""
    return "; ".join(one.why) + because


def _tree(result: PlanResult) -> Iterator[str]:
    from marin_dagster.cli.trees import tree_lines

    by_path = {one.path: one for one in result.steps}
    read = {dep for one in result.steps for dep in one.deps}

    def label(path: str, again: bool) -> str:
        one = by_path[path]
        return f"{one.step}  {styled(one.action)}  {'shown above' if again else _why(one)}"

    return tree_lines(
        [path for path in by_path if path not in read],
        lambda path: [dep for dep in by_path[path].deps if dep in by_path],
        label,
    )
