"""``check_graph``: every mistake in a named graph, in the order of its steps."""

import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marin_dagster.cli.check import CheckResult, Finding
from marin_dagster.cli.graph_modules import GraphCodeError
from marin_dagster.cli.graph_names import NamedGraph
from marin_dagster.cli.options import GraphChoice
from marin_dagster.cli.settings import Settings
from marin_dagster.errors import (
    CollisionError,
    CycleError,
    GraphError,
    HashAttributeError,
    MarinDagsterError,
    MarinDagsterWarning,
    ResourceError,
    RoutingError,
    StepNameError,
    UndeclaredInputsError,
)
from marin_dagster.steps import StepGraph, StepLike
from marin_dagster.steps.attributes import strings_in
from marin_dagster.steps.graph import graph_faults
from marin_dagster.steps.paths import output_prefix
from marin_dagster.steps.protocol import address, artifact_version
from marin_dagster.steps.remote import written_function
from marin_dagster.steps.undeclared_inputs import undeclared_inputs

_RULES: tuple[tuple[type[MarinDagsterError], str], ...] = (
    (CycleError, "cycle"),
    (UndeclaredInputsError, "undeclared-input"),
    (CollisionError, "duplicate-address"),
    (HashAttributeError, "attribute"),
    (StepNameError, "name"),
    (GraphError, "graph"),
    (RoutingError, "runner"),
    (ResourceError, "runner"),
)

_ABSOLUTE = re.compile(r"(file://|~)?/[^\s/].*")


def check_graph(choice: GraphChoice) -> CheckResult:
    """Load a graph and check all of it. Reads nothing in the store.

    Raises:
        click.UsageError: no graph is named.
        GraphNameError: the module, file or attribute does not exist.
    """
    name = choice.name or choice.settings.graph or ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", MarinDagsterWarning)
        try:
            named = choice.load()
        except GraphCodeError as error:
            cause = error.__cause__
            place = _Place(error.file, error.line)
            found = [_finding(cause if isinstance(cause, GraphError) else error, place)]
            return CheckResult(name, 0, found)
        findings, count = _checked(named, choice.settings)
    seen = {
        str(one.message): None for one in caught if issubclass(one.category, MarinDagsterWarning)
    }
    place = _Place(named.file, named.line)
    findings += [
        Finding("warning", "warning", message, None, place.file, place.line)
        for message in seen
        # MARIN_PREFIX belongs to the machine; undeclared inputs are reported apart.
        if "MARIN_PREFIX is not set" not in message and "does not depend on" not in message
    ]
    findings.sort(key=lambda finding: finding.level)
    return CheckResult(name, count, findings)


@dataclass(frozen=True)
class _Place:
    file: str | None
    line: int | None


def _checked(named: NamedGraph, settings: Settings) -> tuple[list[Finding], int]:
    own = _Place(named.file, named.line)
    if isinstance(named.value, list):
        faults = [
            _finding(error, _place(step, own), step) for step, error in graph_faults(named.value)
        ]
        if faults:
            return faults, len(faults)
    graph = named.graph()
    findings = [
        *_asset_faults(named, graph, settings, own),
        *_undeclared(graph, own),
        *_doubts(graph, own),
    ]
    return findings, len(graph.steps)


def _undeclared(graph: StepGraph, own: _Place) -> Iterator[Finding]:
    for found in undeclared_inputs(graph):
        step = graph.steps[found.output_path]
        message = (
            f"step {found.step}: its function uses {found.used} ({found.where}), which is not "
            "among its dependencies, so a change there does not rebuild it. Add it to deps=[…]."
        )
        place = _place(step, own)
        yield Finding("undeclared-input", "warning", message, step.name, *_both(place))


def _asset_faults(
    named: NamedGraph, graph: StepGraph, settings: Settings, own: _Place
) -> Iterator[Finding]:
    from marin_dagster.cli.graph_plan import routing_of
    from marin_dagster.cli.step_assets import StepAssets

    try:
        assets = StepAssets(named.definitions())
    except CollisionError as error:
        yield Finding("asset-key", "error", str(error), None, *_both(own))
        return
    try:
        routing, overrides = routing_of(graph, assets, settings.execution)
    except MarinDagsterError as error:
        yield _finding(error, own)
        return
    try:
        for key, planned in assets.planned.items():
            try:
                routing.place(planned.step, tag=planned.runner, override=overrides.get(key))
            except (RoutingError, ResourceError) as error:
                yield _finding(error, _place(planned.step, own), planned.step)
    finally:
        routing.close()


def _doubts(graph: StepGraph, own: _Place) -> Iterator[Finding]:
    for step in graph.steps.values():
        place = _place(step, own)
        if step.fn is None:
            message = (
                f"step {address(step)} has no function: no run builds it. If its data comes from "
                "elsewhere, ignore this; else give it a function."
            )
            yield Finding("missing-function", "warning", message, step.name, *_both(place))
        if artifact_version(step) is not None:
            continue  # the fingerprint covers its configuration
        for at, text in strings_in(step.hash_attrs, "hash_attrs"):
            if _is_absolute(text):
                message = (
                    f"step {address(step)}: {at} is an absolute path ({text:.90}), so the hash "
                    "differs between machines. Leave it out of hash_attrs, or make it relative."
                )
                yield Finding("absolute-path", "warning", message, step.name, *_both(place))


def _is_absolute(text: str) -> bool:
    """Whether a text is a path on this machine or below the prefix; not any URL is."""
    prefix = output_prefix(None)
    inside = text == prefix or text.startswith(prefix.rstrip("/") + "/")
    return inside or _ABSOLUTE.fullmatch(text) is not None


def _finding(error: BaseException, place: _Place, step: StepLike | None = None) -> Finding:
    rule = next((rule for kind, rule in _RULES if isinstance(error, kind)), "load")
    return Finding(rule, "error", str(error), step.name if step else None, *_both(place))


def _both(place: _Place) -> tuple[str | None, int | None]:
    return place.file, place.line


def _place(step: StepLike | None, own: _Place) -> _Place:
    """Where a step's function is written, if that is in the project; else the graph's place."""
    code: Any = getattr(written_function(step)[0], "__code__", None) if step is not None else None
    if code is None:
        return own
    folder = Path(own.file).parent if own.file else Path.cwd()
    inside = Path(code.co_filename).is_relative_to(folder) or Path(code.co_filename).is_relative_to(
        Path.cwd()
    )
    return _Place(code.co_filename, code.co_firstlineno) if inside else own
