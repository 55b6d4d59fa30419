"""What a step has read without depending on it: warnings and metadata, or an error."""

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import dagster as dg

from marin_dagster.errors import UndeclaredDependencyError
from marin_dagster.events.metadata_keys import UNDECLARED_INPUTS
from marin_dagster.runners import OutputRead, ReadScope
from marin_dagster.steps import StepGraph, StepLike
from marin_dagster.steps.paths import is_relative, join, output_prefix
from marin_dagster.steps.protocol import address, adopted_source
from marin_dagster.steps.text import limit_lines
from marin_dagster.steps.toposort import deps_first

_MAX_ENTRIES = 20
"""Outputs in the metadata."""


def read_scope(step: StepLike, graph: StepGraph) -> ReadScope | None:
    """Where to look for what a step reads; None if no output of its graph is on a local disk."""
    prefixes = _prefixes(graph)
    return ReadScope(prefixes, _folders([step, *step.deps])) if prefixes else None


def check_reads(
    step: StepLike, reads: Sequence[OutputRead], log: dg.DagsterLogManager, *, strict: bool
) -> dict[str, Any]:
    """Warn of outputs that a step has read and that are not among its dependencies, also the
    transitive ones.

    Args:
        step: the step.
        reads: outputs that its function has read, except those of its direct dependencies.
        log: the step's log.
        strict: raise instead of a warning.

    Returns:
        Metadata that lists them; empty if there are none.

    Raises:
        UndeclaredDependencyError: there are some, and ``strict`` is set.
    """
    if not reads:
        return {}
    declared = _folders(deps_first([step]))
    undeclared = [
        read
        for read in reads
        if not any(read.output_path == one or _is_below(read.output_path, one) for one in declared)
    ]
    if not undeclared:
        return {}
    names = limit_lines([f"{read.name} ({read.file})" for read in undeclared])
    message = (
        f"step {address(step)} ({step.output_path}): its function read outputs of steps on which "
        f"it does not depend: {', '.join(names)}. A change there does not rebuild this step. Add "
        "them to deps=[…] of the step."
    )
    if strict:
        raise UndeclaredDependencyError(message)
    log.warning(message)
    entries = [{"step": read.name, "file": read.file} for read in undeclared]
    return {UNDECLARED_INPUTS: dg.MetadataValue.json(entries[:_MAX_ENTRIES])}


_known_prefixes: WeakKeyDictionary[StepGraph, tuple[str, ...]] = WeakKeyDictionary()


def _prefixes(graph: StepGraph) -> tuple[str, ...]:
    """The local prefixes of a graph's outputs."""
    if graph not in _known_prefixes:
        own = {getattr(step, "output_path_prefix", None) for step in graph.steps.values()}
        _known_prefixes[graph] = tuple(_local(output_prefix(prefix) for prefix in own))
    return _known_prefixes[graph]


def _folders(steps: Iterable[StepLike]) -> tuple[str, ...]:
    """The local folders with the data of steps."""
    return tuple(_local(path for step in steps for path in _data_paths(step)))


def _data_paths(step: StepLike) -> Iterator[str]:
    yield step.output_path
    source = adopted_source(step)
    if source is not None:
        yield join(output_prefix(None), source) if is_relative(source) else source


def _local(paths: Iterable[str]) -> Iterator[str]:
    """Local ones of some paths or URLs, and what they are behind symlinks."""
    for path in paths:
        local = path.removeprefix("file://")
        if "://" not in local:
            plain = os.path.normpath(local)
            yield from dict.fromkeys((os.path.realpath(plain), plain))


def _is_below(folder: str, top: str) -> bool:
    return folder.startswith(f"{top}/")
