"""Steps of one name in a graph: how they differ, such as the points of a sweep."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from marin_dagster.steps.attributes import leaves_in
from marin_dagster.steps.graph import StepGraph
from marin_dagster.steps.protocol import StepLike, address, artifact_version, attributes
from marin_dagster.steps.text import shorten


def differences(graph: StepGraph) -> dict[str, list[str]]:
    """How each step differs from the others with its name, by output path.

    For example ``["lr=0.1", "model.layers=2"]``: the version of a lazy artifact and the attributes
    that differ; if none do, the inputs, ``["reads raw_1a2b3c4d"]``.
    """
    named: dict[str, list[str]] = defaultdict(list)
    for path, step in graph.steps.items():
        named[step.name].append(path)
    found: dict[str, list[str]] = {}
    for paths in named.values():
        if len(paths) > 1:
            found |= zip(paths, _marks([graph.steps[path] for path in paths]), strict=True)
    return {path: marks for path, marks in found.items() if marks}


def _marks(steps: Sequence[StepLike]) -> Iterator[list[str]]:
    values = [_values(step) for step in steps]
    inputs = [[address(dep) for dep in step.deps] for step in steps]
    shared = set(inputs[0]).intersection(*inputs)
    names = dict.fromkeys(name for value in values for name in value)
    differ = [name for name in names if len({value.get(name) for value in values}) > 1]
    for own, read in zip(values, inputs, strict=True):
        marks = [f"{name}={shorten(own[name])}" if name in own else f"no {name}" for name in differ]
        yield marks or [f"reads {dep}" for dep in dict.fromkeys(read) if dep not in shared]


def _values(step: StepLike) -> Mapping[str, str]:
    version = artifact_version(step)
    first = {} if version is None else {"version": version}
    return first | {name: _text(value) for name, value in leaves_in(attributes(step))}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
