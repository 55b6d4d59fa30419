"""``PartitionedSteps``: a function from the key of a partition to the graph of its steps.

A step has one output folder, so a partition chooses the step: the function returns the steps of one
partition, and steps of the same name in different partitions are one asset. A step whose output
path is the same in every partition is shared by all. A step may also read a step of another
partition, such as yesterday's checkpoint.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from threading import Lock
from types import MappingProxyType
from typing import Any

from marin_dagster.errors import GraphError, MarinDagsterError
from marin_dagster.steps.graph import StepGraph
from marin_dagster.steps.protocol import StepLike
from marin_dagster.steps.text import summarize

StepsFor = Callable[[str], Iterable[Any]]
"""Returns the steps of the partition whose key it gets; their dependencies need not be listed."""

_KEPT = 64
"""Graphs of partitions that stay in memory."""
_SEARCHED = 2_000
"""Partitions that are searched for the owner of a step that another partition reads."""


@dataclass(frozen=True, eq=False)
class Partition:
    """The graph of one partition."""

    key: str
    """The partition's key."""
    graph: StepGraph
    """Its steps, and all steps of other partitions that they need."""
    steps: Mapping[str, StepLike]
    """The partition's own step of each name, in the order of the graph."""

    @cached_property
    def paths(self) -> frozenset[str]:
        """Output paths of the partition's own steps."""
        return frozenset(step.output_path for step in self.steps.values())

    def inputs(self, name: str) -> tuple[frozenset[str], Mapping[str, tuple[str, ...]]]:
        """What the partition's own step of a name reads.

        Returns:
            The names of those dependencies that are its own, and the output paths of those that
            belong to other partitions, by name.
        """
        own: set[str] = set()
        others: dict[str, list[str]] = defaultdict(list)
        for path in self.graph.dependencies(self.steps[name].output_path):
            dep = self.graph.steps[path]
            if path in self.paths:
                own.add(dep.name)
            else:
                others[dep.name].append(path)
        return frozenset(own), {dep: tuple(paths) for dep, paths in others.items()}


@dataclass(frozen=True, eq=False)
class PartitionedSteps:
    """The steps of every partition, and what all partitions have in common."""

    steps_for: StepsFor
    """Returns the steps of one partition."""
    samples: tuple[str, ...]
    """Keys of partitions that are compared when the graph is loaded. The first is the reference:
    choose one that stays when partitions are added."""
    shared_names: frozenset[str] = frozenset()
    """Names of steps that all partitions share, for when the samples cannot show it."""
    _kept: dict[str, Partition] = field(default_factory=dict, repr=False)
    _lock: Lock = field(default_factory=Lock, repr=False)

    @classmethod
    def from_function(
        cls, steps_for: StepsFor, samples: Iterable[str], *, shared: Iterable[str] = ()
    ) -> "PartitionedSteps":
        """Call the function for each sample, and compare what it returns.

        Args:
            steps_for: returns the steps of one partition.
            samples: keys of partitions, at least one; the first is the reference.
            shared: names of steps that all partitions share. Steps with the same output path in
                each of several samples are found without it.

        Raises:
            GraphError: there is no sample; a partition's graph is wrong; names or dependencies
                differ between partitions; or a shared step has different output paths.
        """
        found = cls(steps_for, tuple(dict.fromkeys(samples)), frozenset(shared))
        if not found.samples:
            raise GraphError(
                "there is no partition yet, so the steps are unknown. Give the key of an example: "
                "example_partitions=['…']."
            )
        if unknown := found.shared_names - found.reference.steps.keys():
            raise GraphError(
                f"unpartitioned: no step is called {summarize(map(repr, sorted(unknown)))}. Use "
                f"names among {summarize(map(repr, found.reference.steps))}."
            )
        for key in found.samples:
            found.at(key)
        return found

    @property
    def reference(self) -> Partition:
        """The partition that stands for all: its steps' hashes are the code versions."""
        return self._at(self.samples[0])

    @cached_property
    def shared(self) -> frozenset[str]:
        """Names of steps that are not partitioned."""
        several = [self._at(key) for key in self.samples]
        seen = {
            name: {partition.steps[name].output_path for partition in several}
            for name in several[0].steps
            if all(name in partition.steps for partition in several)
        }
        alike = {name for name, paths in seen.items() if len(paths) == 1 < len(several)}
        return self.shared_names | alike

    @cached_property
    def _read_of_others(self) -> Mapping[str, frozenset[str]]:
        """For each name, the names that it reads of other partitions in some sample."""
        several = [self._at(key) for key in self.samples]
        return {
            name: frozenset().union(*(partition.inputs(name)[1] for partition in several))
            for name in self.reference.steps
        }

    def at(self, key: str) -> Partition:
        """The partition of a key; the function is called if the key was not asked for lately.

        Raises:
            GraphError: its graph is wrong, or names, dependencies or shared steps are not those of
                the reference partition.
        """
        partition = self._at(key)
        if partition is not self.reference:
            self._check(partition)
        return partition

    def partitions_read(
        self, key: str, name: str, keys: Sequence[str]
    ) -> Mapping[str, tuple[str, ...]]:
        """For each dependency of a step, the other partitions of it that the step reads.

        Args:
            key: the partition of the step.
            name: the step's name.
            keys: all partitions, in order. Of these, 2,000 are searched, the nearest earlier ones
                first.

        Returns:
            Names of dependencies, each with the keys in the order of the search.

        Raises:
            GraphError: a dependency belongs to none of them.
        """
        partition = self.at(key)
        wanted = {
            (dep, path)
            for dep, paths in partition.inputs(name)[1].items()
            for path in paths
            if dep not in self.shared  # it has one output, wherever it is read
        }
        found: dict[str, list[str]] = defaultdict(list)
        at = keys.index(key) if key in keys else len(keys)
        for other in islice((*reversed(keys[:at]), *keys[at + 1 :]), _SEARCHED):
            if not wanted:
                break
            steps = self._at(other).steps
            for dep, path in [(dep, path) for dep, path in wanted if dep in steps]:
                if steps[dep].output_path == path:
                    wanted.remove((dep, path))
                    found[dep].append(other)
        for dep, path in wanted:
            raise GraphError(
                f"partition {key!r}: step {name!r} reads {dep!r} at {path}, which is not the "
                f"output of {dep!r} in any partition. Return the steps that belong to a partition "
                "from its call of the function."
            )
        return {dep: tuple(owners) for dep, owners in found.items()}

    def _at(self, key: str) -> Partition:
        with self._lock:
            if key in self._kept:
                # The least recently used go first.
                self._kept[key] = self._kept.pop(key)
                return self._kept[key]
        partition = _partition(self.steps_for, key)
        with self._lock:
            while len(self._kept) >= _KEPT:
                # The reference stays: all others are compared with it.
                del self._kept[next(old for old in self._kept if old != self.samples[0])]
            return self._kept.setdefault(key, partition)

    def _check(self, partition: Partition) -> None:
        reference = self.reference
        where = f"partitions {reference.key!r} and {partition.key!r}"
        advice = "The function must return steps of the same names for every partition."
        here, there = partition.steps.keys(), reference.steps.keys()
        for present, absent, names in (
            (partition, reference, here - there),
            (reference, partition, there - here),
        ):
            if names:
                raise GraphError(
                    f"{where} have different steps: {present.key!r} has "
                    f"{summarize(map(repr, sorted(names)))}, {absent.key!r} does not. {advice}"
                )
        for name, step in partition.steps.items():
            expected = reference.steps[name]
            if name in self.shared and step.output_path != expected.output_path:
                raise GraphError(
                    f"{where} share the step {name!r}, but its output paths differ: "
                    f"{expected.output_path} and {step.output_path}. Leave the partition out of "
                    "its attributes and dependencies, or do not name it in unpartitioned."
                )
            if (step.fn is None) != (expected.fn is None):
                without = partition if step.fn is None else reference
                raise GraphError(
                    f"{where}: step {name!r} has no function in {without.key!r} only. Give it one "
                    "in every partition or in none."
                )
            # What it reads of other partitions may be missing at an end: the first day has no
            # day before it.
            (own, others), (own_expected, others_expected) = (
                partition.inputs(name),
                reference.inputs(name),
            )
            differing = (own ^ own_expected) - (others.keys() | others_expected.keys())
            if partition.key not in self.samples:
                differing |= others.keys() - own_expected - self._read_of_others[name]
            if differing:
                reader = partition if (own | others.keys()) & differing else reference
                raise GraphError(
                    f"{where}: step {name!r} depends on {summarize(map(repr, sorted(differing)))} "
                    f"in {reader.key!r} only. Its dependencies must have the same names in every "
                    "partition."
                )


def _partition(steps_for: StepsFor, key: str) -> Partition:
    try:
        graph = StepGraph.from_steps(steps_for(key))
        own = _own_steps(graph)
    except GraphError as error:
        raise type(error)(f"partition {key!r}: {error}") from error
    except MarinDagsterError:
        raise
    except Exception as error:
        raise GraphError(
            f"partition {key!r}: the function that returns its steps raised "
            f"{type(error).__name__}: {error}"
        ) from error
    return Partition(key, graph, MappingProxyType(own))


def _own_steps(graph: StepGraph) -> dict[str, StepLike]:
    """The partition's own step of each name.

    Own are the steps that the function returned, and what own steps read. Of several steps with one
    name, it is the one that was returned, or else the one that needs the others: today's
    checkpoint, not yesterday's. What only a step of another partition reads belongs to others, too.
    """
    candidates: dict[str, list[str]] = defaultdict(list)
    for path in graph.terminals:
        candidates[graph.steps[path].name].append(path)
    returned = frozenset(candidates)
    own: dict[str, str] = {}
    # Readers before what they read: each name is decided before its step's inputs are seen.
    for path in reversed(list(graph.steps)):
        name = graph.steps[path].name
        if path not in candidates[name]:
            continue
        if name not in own and (name not in returned or path in graph.terminals):
            own[name] = path
            for dep in graph.dependencies(path):
                dep_name = graph.steps[dep].name
                if dep_name not in returned:
                    candidates[dep_name].append(dep)
    for name, paths in candidates.items():
        others = [path for path in dict.fromkeys(paths) if path != own[name]]
        if not _upstream(graph, own[name]).issuperset(others):
            both = summarize([*others, own[name]])
            raise GraphError(
                f"{len(others) + 1} steps are called {name!r} ({both}). Give them different names; "
                "if they belong to different partitions, return only this partition's from the "
                "function."
            )
    return {step.name: step for path, step in graph.steps.items() if own.get(step.name) == path}


def _upstream(graph: StepGraph, path: str) -> set[str]:
    found: set[str] = set()
    waiting = list(graph.dependencies(path))
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting.extend(graph.dependencies(path))
    return found
