"""Finds the step that an argument names."""

from typing import TYPE_CHECKING

from marin_dagster.errors import GraphError

if TYPE_CHECKING:
    from marin_dagster.cli.options import GraphChoice
    from marin_dagster.steps import StepGraph


def path_of(graph: "StepGraph", name: str) -> str:
    """:meth:`StepGraph.path_of`, with a GraphError."""
    try:
        return graph.path_of(name)
    except KeyError as error:
        raise GraphError(str(error.args[0])) from error


def names_of(graph: "StepGraph") -> list[str]:
    """For each step, its name if no other step has it, else its name with hash or address."""
    from collections import Counter

    from marin_dagster.steps.protocol import address

    counts = Counter(step.name for step in graph.steps.values())
    return [step.name if counts[step.name] == 1 else address(step) for step in graph.steps.values()]


def is_path(name: str) -> bool:
    """Whether a text is an output path: absolute, or a URL."""
    return name.startswith("/") or "://" in name


def output_paths(choice: "GraphChoice", names: tuple[str, ...]) -> dict[str, str]:
    """The names of steps by output path. An output path stands for itself, so that outputs can be
    handled without the code that made them."""
    if all(is_path(name) for name in names):
        return {name: name for name in names}
    from marin_dagster.steps.protocol import address

    graph = choice.load().graph()
    paths = [path_of(graph, name) for name in names]
    return {path: address(graph.steps[path]) for path in paths}
