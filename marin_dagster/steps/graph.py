"""``StepGraph``: every step that some terminals need; ``plan_run``: which of them must run."""

import functools
import warnings
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

from marin_dagster.errors import CollisionError, GraphError, MarinDagsterWarning
from marin_dagster.steps.attributes import identity_json, strings_in
from marin_dagster.steps.paths import check_step_path, join
from marin_dagster.steps.protocol import StepLike, address, is_external, lowered
from marin_dagster.steps.remote import step_function, step_resources
from marin_dagster.steps.spec import StepSpec
from marin_dagster.steps.text import did_you_mean, shown, summarize
from marin_dagster.steps.toposort import deps_first


@dataclass(frozen=True, eq=False)
class StepGraph:
    """Steps by output path, dependencies before dependents.

    Build it with :meth:`from_steps`, which checks everything that needs no store.
    """

    steps: Mapping[str, StepLike]
    """Each step under its output path, in the order in which Marin would schedule them."""
    terminals: tuple[str, ...]
    """Output paths of the steps that the caller asked for."""

    @classmethod
    def from_steps(cls, terminals: Iterable[StepLike]) -> "StepGraph":
        """The graph of ``terminals`` and everything they depend on.

        Steps with the same output path are one step, as in Marin. Names, paths and attributes are
        checked here, so that they cannot fail in the middle of a run.

        Args:
            terminals: the steps, or handles that are lowered to steps. They may include
                dependencies of others.

        Raises:
            CycleError: steps depend on each other in a ring.
            CollisionError: two different steps have one output path.
            StepNameError: a name or path that cannot be a folder of a store.
            HashAttributeError: an attribute that JSON cannot hold.
            GraphError: something in ``terminals`` or a step's ``deps`` is not a step, or a step's
                attributes, function or resources are of the wrong type.
        """
        if not isinstance(terminals, Iterable):
            raise GraphError(f"steps: {shown(terminals)} is not a list. Give a list of steps.")
        wanted = lowered(terminals)
        steps: dict[str, StepLike] = {}
        folders: dict[str, StepLike] = {}
        for step in deps_first(wanted):
            _check_step(step, folders)
            steps.setdefault(step.output_path, step)
        return cls(
            steps=MappingProxyType(steps),
            terminals=tuple(dict.fromkeys(step.output_path for step in wanted)),
        )

    def dependencies(self, path: str) -> tuple[str, ...]:
        """Output paths that the step at ``path`` reads, each once, in its own order."""
        return tuple(dict.fromkeys(self.steps[path].dep_paths))

    def path_of(self, name: str) -> str:
        """The output path of the step that a text names.

        Args:
            name: an output path, a name with hash, the address of a lazy artifact, or a name that
                only one step has.

        Raises:
            KeyError: no step, or several steps have this name. The message lists what to write.
        """
        if name in self.steps:
            return name
        for path, step in self.steps.items():
            if name in (step.name_with_hash, address(step)):
                return path
        named = [path for path, step in self.steps.items() if name == step.name]
        if len(named) == 1:
            return named[0]
        if named:
            which = summarize(address(self.steps[path]) for path in named)
            raise KeyError(
                f"{len(named)} steps are called {name!r}: name one with its hash: {which}."
            )
        hint = did_you_mean(name, (step.name for step in self.steps.values()))
        raise KeyError(f"There is no step {name!r}.{hint}")

    @cached_property
    def dependents(self) -> Mapping[str, tuple[str, ...]]:
        """For each output path, the paths of the steps that read it."""
        readers: dict[str, list[str]] = {path: [] for path in self.steps}
        for path in self.steps:
            for dep in self.dependencies(path):
                readers[dep].append(path)
        return MappingProxyType({path: tuple(found) for path, found in readers.items()})

    def needed_by(self, path: str, is_built: Callable[[str], bool]) -> StepLike | None:
        """The unfinished step at the end of the graph for which a run of everything would build
        the missing output at ``path``: itself when nothing reads it, None when nothing needs it.

        The same decision as :func:`plan_run`, but from the readers of the output alone.

        Args:
            path: the output path.
            is_built: as in :func:`plan_run`; called at most once for each path.
        """
        seen: set[str] = set()
        waiting = [path]
        while waiting:
            needed = waiting.pop()
            found = _readers(self, needed, frozenset())
            readers = {reader for reader in found if not is_external(self.steps[reader])}
            if not readers:
                return self.steps[needed]
            waiting += [reader for reader in readers - seen if not is_built(reader)]
            seen |= readers
        return None


@dataclass(frozen=True)
class RunPlan:
    """The decision for each selected step, as output paths."""

    run: frozenset[str]
    """Not built, and needed: the function runs."""
    hits: frozenset[str]
    """Built: served from the cache."""
    pruned: frozenset[str]
    """Not built, but not needed: every step that would read it is built."""
    blocked: Mapping[str, tuple[str, ...]]
    """Needed, but these dependencies are neither built nor selected: cannot run."""


def plan_run(
    graph: StepGraph,
    *,
    is_built: Callable[[str], bool],
    has_output: Callable[[str], bool] | None = None,
    selected: Collection[str] | None = None,
    required: Collection[str] = (),
    forced: Collection[str] = (),
) -> RunPlan:
    """Decide what must run, with Marin's pruning: a built step hides its dependencies unless
    another step that must run, or the caller, needs them.

    The caller needs the ends of its selection: the selected steps that no selected step reads.

    Args:
        graph: the steps.
        is_built: whether the cache would serve the output at a path. Called at most once for each
            path; false for dev versions.
        has_output: whether a path that is not selected has a finished output to read; the same as
            ``is_built`` unless given, and different for dev versions.
        selected: output paths to consider; all of them when None.
        required: selected paths that are needed even if every step that reads them is built.
        forced: selected paths that run even when they are built.
    """
    chosen = frozenset(graph.steps if selected is None else selected)
    force = chosen.intersection(forced)
    built = frozenset(path for path in chosen - force if is_built(path))
    ends = (path for path in chosen if chosen.isdisjoint(_readers(graph, path, chosen)))
    needed: set[str] = set()
    waiting = deque([*ends, *chosen.intersection(required), *force])
    while waiting:
        path = waiting.popleft()
        if path in built or path in needed:
            continue
        needed.add(path)
        waiting.extend(dep for dep in graph.dependencies(path) if dep in chosen)

    outside: dict[str, bool] = {}
    blocked: dict[str, tuple[str, ...]] = {}
    for path in (path for path in graph.steps if path in needed):
        unselected = [dep for dep in graph.dependencies(path) if dep not in chosen]
        for dep in unselected:
            if dep not in outside:
                outside[dep] = (has_output or is_built)(dep)
        if missing := tuple(dep for dep in unselected if not outside[dep]):
            blocked[path] = missing
    return RunPlan(
        run=frozenset(needed - blocked.keys()),
        hits=built,
        pruned=chosen - built - needed,
        blocked=MappingProxyType(blocked),
    )


def _readers(graph: StepGraph, path: str, chosen: frozenset[str]) -> set[str]:
    """The steps that read an output, also through external steps, which cannot be selected."""
    found: set[str] = set()
    waiting = list(graph.dependents[path])
    while waiting:
        reader = waiting.pop()
        if reader not in found:
            found.add(reader)
            if reader not in chosen and is_external(graph.steps[reader]):
                waiting.extend(graph.dependents[reader])
    return found


def graph_faults(terminals: Iterable[Any]) -> Iterator[tuple[StepLike | None, GraphError]]:
    """Every reason for which :meth:`StepGraph.from_steps` would refuse these steps, each with its
    step; None for a ring, and for what is not a step. Steps downstream of a wrong one are left out:
    their hashes do not exist.

    Args:
        terminals: as for :meth:`StepGraph.from_steps`.
    """
    try:
        order = deps_first(lowered(terminals))
    except GraphError as error:
        yield None, error
        return
    folders: dict[str, StepLike] = {}
    wrong: set[int] = set()
    for step in order:
        if any(id(dep) in wrong for dep in step.deps):
            wrong.add(id(step))
            continue
        try:
            _check_step(step, folders)
        except GraphError as error:
            wrong.add(id(step))
            yield step, error


def _check_step(step: StepLike, folders: dict[str, StepLike]) -> None:
    """Check a step whose dependencies have been checked.

    Args:
        step: the step.
        folders: the steps so far by output path, however it is spelled; receives this one.
    """
    _check_attributes(step)
    _check_execution(step)
    check_step_path(step)
    # A path can be spelled in several ways, but all steps must spell it the same.
    known = folders.setdefault(join(step.output_path.removeprefix("file://"), ""), step)
    if (known.name_with_hash, known.output_path) != (step.name_with_hash, step.output_path):
        raise CollisionError(
            f"steps {known.name_with_hash!r} and {step.name_with_hash!r} both write to "
            f"{step.output_path}. Change override_output_path of one of them."
        )
    if known is not step:
        _warn_if_functions_differ(known, step)


def _check_attributes(step: StepLike) -> None:
    if not isinstance(step.hash_attrs, Mapping):
        raise GraphError(
            f"step {step.name!r}: hash_attrs is {shown(step.hash_attrs)}, not a dictionary."
        )
    if not isinstance(step, StepSpec):
        # Another class may hash what JSON cannot hold, and its error would not name the step.
        identity_json(step.name, step.hash_attrs, [])
    step.hash_id  # noqa: B018  (dependencies come first, so this never recurses deeply)
    for at, text in strings_in(step.hash_attrs, "hash_attrs"):
        for dep_path in dict.fromkeys(step.dep_paths):
            if dep_path in text:
                warnings.warn(
                    f"step {step.name!r}: {at} contains the output path of a dependency "
                    f"({dep_path}), so its hash changes with the store's address. Leave the path "
                    "out of hash_attrs and read it from the dependency in the function.",
                    MarinDagsterWarning,
                    stacklevel=4,
                )


def _warn_if_functions_differ(known: StepLike, step: StepLike) -> None:
    """Two steps with one identity are one step; different functions suggest a mistake."""
    codes = [_code(known), _code(step)]
    if None not in codes and codes[0] is not codes[1]:
        warnings.warn(
            f"two steps are both {known.name_with_hash!r} but have different functions "
            f"({', '.join(str(code.co_name) for code in codes)}); only the first will run. Give "
            "them different names or attributes.",
            MarinDagsterWarning,
            stacklevel=4,
        )


def _code(step: StepLike) -> Any:
    function: Any = step_function(step)
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__code__", None)


def _check_execution(step: StepLike) -> None:
    if step.fn is not None and not callable(step.fn):
        raise GraphError(f"step {step.name!r}: fn is {shown(step.fn)}, which cannot be called.")
    resources = step_resources(step)
    if resources is not None and not hasattr(resources, "device"):
        raise GraphError(
            f"step {step.name!r}: resources is a {type(resources).__name__}. Give a ResourceConfig."
        )
