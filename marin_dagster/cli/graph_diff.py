"""``diff_graph``: compares the graph of the working tree with that of another commit."""

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from marin_dagster.cache import OutputDir, StepCache
from marin_dagster.cache.parallel import map_parallel
from marin_dagster.cache.record import INFO_FILE
from marin_dagster.cache.status import STATUS_FILE, Status, read_status
from marin_dagster.cli.diff import DiffResult, StepChange
from marin_dagster.cli.graph_dump import dump_steps
from marin_dagster.cli.graph_names import NamedGraph
from marin_dagster.cli.options import GraphChoice
from marin_dagster.cli.revisions import resolve_revision, steps_at
from marin_dagster.errors import StoreError
from marin_dagster.steps.diff import changes
from marin_dagster.steps.paths import PREFIX_VARIABLE, output_prefix
from marin_dagster.steps.protocol import is_external
from marin_dagster.steps.text import limit_lines

_Steps = Mapping[str, Mapping[str, Any]]


def diff_graph(choice: GraphChoice, revision: str) -> DiffResult:
    """Load both graphs and compare their steps. Reads the store, and the instance if there is one.

    Raises:
        RevisionError: the commit does not exist, or its graph cannot be loaded.
        GraphError: the working tree's graph is wrong.
    """
    # Both sides must have the same paths, wherever they are loaded.
    os.environ[PREFIX_VARIABLE] = output_prefix(None)
    named = choice.load()
    folder = Path.cwd() if choice.name is not None else choice.settings.folder or Path.cwd()
    top, commit = resolve_revision(revision, folder)
    before = steps_at(commit, top, folder.resolve(), named.name, choice.partition)
    after = dump_steps(named.name, folder, choice.partition)
    graph = named.graph()
    pairs = list(_pairs(before, after))
    differing = [path for path, _ in pairs if path is not None]
    looks = StepCache().look_up_many(graph.steps[path] for path in differing)
    unfinished = {
        path
        for path in differing
        if not looks[path].finished and not is_external(graph.steps[path])
    }
    seconds = _seconds(named, pairs)
    found = [_change(path, old, before, after, path in unfinished, seconds) for path, old in pairs]
    times = [one.seconds for one in found if one.reruns]
    return DiffResult(
        graph=named.name,
        revision=commit,
        total=len(after),
        changes=found,
        seconds=round(sum(one for one in times if one is not None), 1),
        unknown_times=times.count(None),
    )


def _pairs(before: _Steps, after: _Steps) -> Iterator[tuple[str | None, str | None]]:
    """Output paths now and before of each step that differs. Steps are the same by their path, else
    by their name, in order."""
    left: dict[str, list[str]] = defaultdict(list)
    for path, step in before.items():
        if path not in after:
            left[step["name"]].append(path)
    for path, step in after.items():
        if path not in before:
            yield path, left[step["name"]].pop(0) if left[step["name"]] else None
        elif before[path]["version"] != step["version"]:
            yield path, path
    for paths in left.values():
        yield from ((None, path) for path in paths)


def _change(
    path: str | None,
    old: str | None,
    before: _Steps,
    after: _Steps,
    unfinished: bool,
    seconds: Mapping[str, float],
) -> StepChange:
    was = before[old] if old is not None else None
    now = after[path] if path is not None else None
    some = now or was or {}
    if now is None or was is None:
        change = "removed" if now is None else "added"
    else:
        change = "drifted" if path == old else "changed"
    return StepChange(
        name=str(some["name"]),
        change=change,
        before=was["address"] if was else None,
        after=now["address"] if now else None,
        why=_why(was, now) if was and now else [],
        reruns=unfinished,
        seconds=seconds.get(old or path or ""),
    )


def _why(was: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    lines = [f"attribute {line}" for line in changes(was["attributes"], now["attributes"])]
    gone, new = (
        {name for address, name in one["deps"].items() if address not in other["deps"]}
        for one, other in ((was, now), (now, was))
    )
    for name in sorted(gone | new):
        how = "changed" if name in gone & new else "added" if name in new else "removed"
        lines.append(f"upstream {name} {how}")
    return limit_lines(lines) or ["its output path"]


def _seconds(named: NamedGraph, pairs: list[tuple[str | None, str | None]]) -> dict[str, float]:
    """How long the last builds took, by the older output path of each pair."""
    paths = {old or now or "": now for now, old in pairs}
    found = {
        path: took
        for path, took in map_parallel(_store_seconds, {path: path for path in paths}).items()
        if took is not None
    }
    if os.environ.get("DAGSTER_HOME"):
        found.update(_recorded_seconds(named, paths))
    return found


def _recorded_seconds(
    named: NamedGraph, paths: Mapping[str, str | None]
) -> Iterator[tuple[str, float]]:
    from marin_dagster.cli.graph_plan import open_instance
    from marin_dagster.cli.step_assets import StepAssets
    from marin_dagster.events.asset_records import last_events
    from marin_dagster.events.metadata import built_in_s

    keys = StepAssets(named.definitions()).keys
    with open_instance() as instance:
        assert instance is not None
        events = last_events(instance, list(keys.values()))
    for path, now in paths.items():
        key = keys.get(now) if now is not None else None
        took = built_in_s(events.get(key)) if key is not None else None
        if took is not None:
            yield path, took


def _store_seconds(path: str) -> float | None:
    """From the first start of a finished output to its end, by the store's clock."""
    folder = OutputDir.at(path)
    try:
        if read_status(folder) is not Status.SUCCESS:
            return None
    except StoreError:
        return None
    began, ended = folder.modified(INFO_FILE), folder.modified(STATUS_FILE)
    if began is None or ended is None or ended < began:
        return None
    return round((ended - began).total_seconds(), 3)
