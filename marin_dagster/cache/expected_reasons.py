"""``find_expected_reasons``: why steps would run, before any of them begins, and what they run for.

A step's hash covers everything upstream, so one changed attribute makes everything downstream run.
The roots are the steps that changed themselves. To find them, this module follows the records of
earlier outputs upstream, also through steps that are finished by now.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from marin_dagster.cache.cache import LookUp
from marin_dagster.cache.parallel import map_parallel
from marin_dagster.cache.previous_outputs import PreviousOutputs
from marin_dagster.cache.reasons import (
    LastBuild,
    Prospect,
    Reasons,
    changed_itself,
    find_reasons,
    input_changes,
)
from marin_dagster.cache.record import ArtifactRecord
from marin_dagster.cache.status import STATUS_FILE, Status
from marin_dagster.cache.store import OutputDir
from marin_dagster.errors import RecordError, StoreError
from marin_dagster.steps import StepGraph, StepLike
from marin_dagster.steps.protocol import artifact_version

logger = logging.getLogger(__name__)

_Pair = tuple[str, str]
"""Output path of a step, and path of the earlier output that it is compared with."""


@dataclass(frozen=True)
class ExpectedReasons:
    """Why steps would run; all by output path."""

    reasons: Mapping[str, Reasons] = field(default_factory=dict)
    """Why each would run."""
    roots: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The steps whose changed attributes, recipe or list of inputs make it run, in the graph's
    order; the step itself may be one."""


def find_expected_reasons(
    graph: StepGraph,
    looks: Mapping[str, LookUp],
    earlier: PreviousOutputs,
    last: Mapping[str, LastBuild],
) -> ExpectedReasons:
    """Why steps would run. Reads only, in parallel, and never raises.

    Args:
        graph: the steps.
        looks: the look-up of each step that would run, by output path.
        earlier: the run's view of earlier outputs.
        last: the last outputs in the scheduler's records, by output path.
    """

    def why(path: str) -> Reasons:
        return find_reasons(
            _prospect(graph.steps[path], looks[path]),
            earlier,
            last=last.get(path),
            graph=graph.steps,
        )

    try:
        reasons = map_parallel(why, {path: path for path in graph.steps if path in looks})
        return ExpectedReasons(reasons, _roots(graph, reasons, earlier))
    except Exception:
        # Each filesystem raises its own errors, and others write records.
        logger.debug("no expected reasons", exc_info=True)
        return ExpectedReasons()


def _prospect(step: StepLike, look: LookUp) -> Prospect:
    folder = OutputDir.at(step.output_path)
    at = None
    if look.status not in (None, Status.SUCCESS):
        at = folder.modified(STATUS_FILE)
    return Prospect(step, folder, look.status, at, look.left_by)


def _roots(
    graph: StepGraph, reasons: Mapping[str, Reasons], earlier: PreviousOutputs
) -> dict[str, tuple[str, ...]]:
    starts = {
        path: (path, why.compared_with or path)
        for path, why in reasons.items()
        if why.record is not None
    }
    own: set[_Pair] = set()
    above: dict[_Pair, list[_Pair]] = {}
    asked = set(starts.values())
    level = {starts[path]: why.record for path, why in reasons.items() if why.record is not None}
    while level:
        unread: dict[_Pair, _Pair] = {}
        for pair, record in level.items():
            step = graph.steps[pair[0]]
            above[pair] = list(_changed_inputs(record, step))
            if changed_itself(record, step):
                own.add(pair)
            unread.update((found, found) for found in above[pair] if found not in asked)
        asked.update(unread)
        found = map_parallel(
            lambda pair: _record_at(graph.steps[pair[0]], pair[1], earlier), unread
        )
        level = {pair: record for pair, record in found.items() if record is not None}
    order = {path: number for number, path in enumerate(graph.steps)}
    roots: dict[_Pair, frozenset[str]] = {}
    # Inputs come first in the graph, so theirs are known.
    for pair in sorted(above, key=lambda pair: order[pair[0]]):
        inherited = (roots.get(found, frozenset()) for found in above[pair])
        roots[pair] = frozenset([pair[0]] if pair in own else []).union(*inherited)
    return {
        path: tuple(sorted(roots[pair], key=order.__getitem__)) for path, pair in starts.items()
    }


def _changed_inputs(record: ArtifactRecord, step: StepLike) -> Iterator[_Pair]:
    """The inputs of a step that differ from the record's, each with the one that it replaces.

    Empty for a lazy artifact: its recipe names the versions of its inputs, so it changes itself.
    """
    if artifact_version(step) is not None or len(record.deps) != len(record.dep_paths):
        return
    before = dict(zip(record.deps, record.dep_paths, strict=True))
    now = dict(zip(step.dep_names, step.dep_paths, strict=True))
    for name, gone, new in input_changes(record, step):
        yield from (
            (now[f"{name}_{one}"], before[f"{name}_{other}"])
            for one, other in zip(new, gone, strict=False)
            if f"{name}_{one}" in now and f"{name}_{other}" in before
        )


def _record_at(step: StepLike, path: str, earlier: PreviousOutputs) -> ArtifactRecord | None:
    try:
        found = earlier.at(path, step)
    except (RecordError, StoreError) as error:
        logger.debug("no record at %s: %s", path, error)
        return None
    return found.record if found is not None else None
