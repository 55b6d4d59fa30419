"""What tells apart the steps of a graph that share a name, such as the points of a sweep."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from marin_dagster.steps.attributes import leaves_in
from marin_dagster.steps.changes import cut, some
from marin_dagster.steps.graph import StepGraph
from marin_dagster.steps.protocol import StepLike, address, artifact_version, attributes


def differences(graph: StepGraph) -> dict[str, str]:
    """What sets each step apart that shares its name with others of the graph, by output path.

    Such as ``lr=0.1, model.layers=2``: the version of a lazy artifact and the attributes that
    differ, or else the inputs; of many, the first 5.
    """
    named: dict[str, list[str]] = defaultdict(list)
    for path, step in graph.steps.items():
        named[step.name].append(path)
    found: dict[str, str] = {}
    for paths in named.values():
        if len(paths) > 1:
            found |= zip(paths, _marks([graph.steps[path] for path in paths]), strict=True)
    return {path: mark for path, mark in found.items() if mark}


def _marks(steps: Sequence[StepLike]) -> Iterator[str]:
    values = [_values(step) for step in steps]
    inputs = [{address(dep): None for dep in step.deps} for step in steps]
    names = dict.fromkeys(name for value in values for name in value)
    differ = [name for name in names if len({value.get(name) for value in values}) > 1]
    for own, read in zip(values, inputs, strict=True):
        marks = [f"{name}={cut(own[name])}" if name in own else f"no {name}" for name in differ]
        reads = [f"reads {dep}" for dep in read if any(dep not in other for other in inputs)]
        yield some(marks or reads)


def _values(step: StepLike) -> Mapping[str, str]:
    version = artifact_version(step)
    first = {} if version is None else {"version": version}
    return first | {name: _text(value) for name, value in leaves_in(attributes(step))}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
