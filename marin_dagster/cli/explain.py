"""``marin-dagster explain``: everything about one step."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from marin_dagster.cli.options import GraphChoice, common_options, graph_options, step_argument
from marin_dagster.cli.output import print_json, styled

if TYPE_CHECKING:
    from marin_dagster.steps import StepGraph, StepLike


@dataclass(frozen=True)
class RelatedStep:
    """A step upstream or downstream."""

    __pydantic_config__ = {"use_attribute_docstrings": True}  # noqa: RUF012

    step: str
    """Name with hash, or address."""
    path: str
    """Output path."""
    direct: bool
    """Whether no other step is between the two."""


@dataclass(frozen=True)
class ExplainResult:
    """Everything about one step."""

    __pydantic_config__ = {"use_attribute_docstrings": True}  # noqa: RUF012

    step: str
    """Name with hash, or the address of a lazy artifact."""
    name: str
    """Name."""
    path: str
    """Output path."""
    artifact_version: str | None
    """Version of a lazy artifact."""
    data_version: str
    """What identifies the content: the hash, or a lazy artifact's fingerprint."""
    function: str | None
    """File and line of its function."""
    attributes: dict[str, Any]
    """Its attributes, or a lazy artifact's configuration."""
    hashed: str
    """The text whose SHA-256 begins with the hash."""
    action: str
    """What a run would do; see ``plan``."""
    why: list[str]
    """The reasons."""
    because_of: list[str]
    """The changed steps because of which it runs."""
    state: str
    """What is in the store; see ``status``."""
    built: dict[str, Any] | None
    """Of a finished output: provenance as its record has it."""
    compared_with: str | None
    """Path of an earlier output of this step."""
    differences: list[str]
    """How that one differs from the step."""
    upstream: list[RelatedStep]
    """Steps that it reads, directly or not."""
    downstream: list[RelatedStep]
    """Steps of the graph that read it, directly or not."""
    command: str = "explain"
    version: int = 1
    """Of this format. A change that breaks readers increases it."""


@click.command()
@step_argument("step")
@graph_options
@common_options
def explain(choice: GraphChoice, step: str, as_json: bool) -> None:
    """Explain one step: what enters its hash, what a run would do with it and why, how it differs
    from its earlier output, and what it reads.

    Reads only.
    """
    result = _explain(choice, step)
    if as_json:
        print_json(result)
        return
    click.echo(f"{result.step}\n")
    rows: list[tuple[str, str]] = [
        ("path", result.path),
        ("state", styled(result.state)),
        ("a run", f"{styled(result.action)}: {'; '.join(result.why)}"),
        ("because of", ", ".join(result.because_of)),
        ("function", result.function or "none: no run builds it"),
        ("hash of", result.hashed),
    ]
    rows += [("attribute", f"{name} = {value!r}") for name, value in result.attributes.items()]
    if result.built is not None:
        built = ", ".join(f"{name} {value}" for name, value in result.built.items() if value)
        rows.append(("built", built))
    if result.compared_with:
        rows.append(("earlier", result.compared_with))
        rows += [("differs", line) for line in result.differences]
    rows += [("reads", one.step) for one in result.upstream if one.direct]
    rows += [("read by", one.step) for one in result.downstream if one.direct]
    for label, text in rows:
        if text:
            click.echo(f"{label:<11} {text}")


def _explain(choice: GraphChoice, name: str) -> ExplainResult:
    from marin_dagster.cache import OutputDir, StepCache
    from marin_dagster.cache.previous_outputs import PreviousOutputs
    from marin_dagster.cache.reasons import compare
    from marin_dagster.cli.graph_plan import open_instance, plan_graph
    from marin_dagster.cli.status import state_name
    from marin_dagster.cli.step_names import path_of
    from marin_dagster.steps.attributes import identity_json
    from marin_dagster.steps.protocol import address, artifact_version, attributes, data_version

    named = choice.load()
    with open_instance() as instance:
        found = plan_graph(named, choice.settings, instance=instance)
    path = path_of(found.graph, name)
    step = found.graph.steps[path]
    outcome = found.outcomes.get(path)
    folder = OutputDir.at(path)
    look = StepCache().look_up_many([step])[path]
    earlier = PreviousOutputs().newest(step, folder, found.graph.steps).found
    return ExplainResult(
        step=address(step),
        name=step.name,
        path=path,
        artifact_version=artifact_version(step),
        data_version=data_version(step),
        function=_function(step),
        attributes=dict(attributes(step)),
        hashed=identity_json(step.name, step.hash_attrs, list(step.dep_names)),
        action=found.action(path) if outcome or path in found.external else "none",
        why=list(outcome.reasons) if outcome else [found.external.get(path, "")],
        because_of=list(outcome.roots) if outcome else [],
        state=state_name(look),
        built=_provenance(folder) if look.finished else None,
        compared_with=earlier.path if earlier else None,
        differences=compare(earlier.record, step) if earlier else [],
        upstream=_related(found.graph, path, up=True),
        downstream=_related(found.graph, path, up=False),
    )


def _provenance(folder: Any) -> dict[str, Any] | None:
    from dataclasses import asdict

    from marin_dagster.cache import read_record
    from marin_dagster.errors import RecordError

    try:
        record = read_record(folder)
    except RecordError as error:
        return {"unreadable": str(error)}
    if record is None or record.provenance is None:
        return None
    return {**asdict(record.provenance), "command_line": list(record.provenance.command_line)}


def _function(step: "StepLike") -> str | None:
    from marin_dagster.steps.remote import written_function

    code = getattr(written_function(step)[0], "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else None


def _related(graph: "StepGraph", path: str, *, up: bool) -> list[RelatedStep]:
    from marin_dagster.steps.protocol import address

    def near(at: str) -> tuple[str, ...]:
        return graph.dependencies(at) if up else graph.dependents[at]

    direct = set(near(path))
    found: set[str] = set()
    waiting = [path]
    while waiting:
        for one in near(waiting.pop()):
            if one not in found:
                found.add(one)
                waiting.append(one)
    return [
        RelatedStep(address(graph.steps[one]), one, one in direct)
        for one in graph.steps
        if one in found
    ]
