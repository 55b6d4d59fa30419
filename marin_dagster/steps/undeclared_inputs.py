"""``undeclared_inputs``: steps that a step's function uses and that its step does not depend on.

If ``b`` reads the output of ``a`` without ``deps=[a]``, a change of ``a`` does not change the hash
of ``b``, so the old output of ``b`` is served. ``used_steps`` finds what a function uses. This
module decides what of it is undeclared:

- A transitive dependency is declared: its hash enters the step's.
- A collection that contains the step itself, or a step that depends on it, is a register of steps
  from which the function picks. So is a dictionary that contains a dependency of the step. What the
  function picks is seen only when it runs.
- Of any other collection, the function uses every step.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from weakref import WeakKeyDictionary

from marin_dagster.errors import UndeclaredInputsError, warn
from marin_dagster.steps.graph import StepGraph
from marin_dagster.steps.protocol import address, is_external
from marin_dagster.steps.text import limit_lines, summarize
from marin_dagster.steps.used_steps import StepUse, UsedSteps


@dataclass(frozen=True)
class UndeclaredInput:
    """A step that another step's function uses, without being among that step's dependencies."""

    step: str
    """Name with hash, or address, of the step whose function it is."""
    output_path: str
    """The output path of that step."""
    used: str
    """Name with hash, or address, of the step that the function uses."""
    used_path: str
    """The output path of the used step."""
    where: str
    """How the function refers to it, such as ``global 'corpus'``."""


def undeclared_inputs(graph: StepGraph) -> list[UndeclaredInput]:
    """The undeclared inputs that the functions of a graph show, in the order of the graph.

    Calls none of the graph's functions and reads nothing from the store.

    Args:
        graph: the steps. Used steps need not be in it.
    """
    used_steps = UsedSteps(graph)
    reach = _Reach(graph)
    found: dict[tuple[str, str], UndeclaredInput] = {}
    for path, step in graph.steps.items():
        if is_external(step):
            continue
        for use in used_steps.of(step):
            for used_path in _undeclared(use, path, reach):
                used = used_steps.names[used_path]
                entry = UndeclaredInput(address(step), path, used, used_path, use.where)
                found.setdefault((path, used_path), entry)
    return list(found.values())


def check_undeclared_inputs(graph: StepGraph, *, strict: bool) -> None:
    """Warn of a graph's undeclared inputs: once for each graph, and at most 20 lines.

    Args:
        graph: the steps.
        strict: raise instead.

    Raises:
        UndeclaredInputsError: there are some, and the graph is strict.
    """
    is_first = graph not in _messages
    if is_first:
        by_step: dict[str, list[UndeclaredInput]] = {}
        for entry in undeclared_inputs(graph):
            by_step.setdefault(entry.output_path, []).append(entry)
        _messages[graph] = limit_lines([_message(entries) for entries in by_step.values()])
    if strict and _messages[graph]:
        raise UndeclaredInputsError("\n".join(_messages[graph]))
    for message in _messages[graph] if is_first else []:
        warn(message)


_messages: WeakKeyDictionary[StepGraph, list[str]] = WeakKeyDictionary()
"""What was found in the graphs that were checked."""


def _message(entries: Sequence[UndeclaredInput]) -> str:
    uses = summarize(f"{entry.used} ({entry.where})" for entry in entries)
    them = "it" if len(entries) == 1 else "them"
    return (
        f"step {entries[0].step} ({entries[0].output_path}): its function uses {uses}, but the "
        f"step does not depend on {them}: a change there does not rebuild it, and a run may start "
        f"it first. Add {them} to deps=[…] of the step."
    )


def _undeclared(use: StepUse, reader: str, reach: "_Reach") -> list[str]:
    others = [path for path in use.paths if path != reader]
    if use.is_collection and len(others) < len(use.paths):
        return []
    undeclared = [path for path in others if not reach.is_upstream(path, reader)]
    if use.is_mapping and len(undeclared) < len(others):
        return []
    if use.is_collection and any(reach.is_upstream(reader, path) for path in undeclared):
        return []
    return undeclared


class _Reach:
    """Which step is upstream of which."""

    def __init__(self, graph: StepGraph) -> None:
        self._graph = graph

    @cached_property
    def _rank(self) -> dict[str, int]:
        return {path: rank for rank, path in enumerate(self._graph.steps)}

    def is_upstream(self, path: str, reader: str) -> bool:
        """Whether the step at ``path`` is a dependency of ``reader``, also a transitive one."""
        if path not in self._graph.steps or reader not in self._graph.steps:
            return False
        if path in self._graph.steps[reader].dep_paths:
            return True
        # Dependencies come first, so the walk need not go beyond the rank that it looks for.
        lowest = self._rank[path]
        if lowest >= self._rank[reader]:
            return False
        seen: set[str] = set()
        waiting = [reader]
        while waiting:
            for dep in self._graph.steps[waiting.pop()].dep_paths:
                if dep == path:
                    return True
                if dep not in seen and self._rank[dep] > lowest:
                    seen.add(dep)
                    waiting.append(dep)
        return False
