"""``marin-dagster unlock``, ``invalidate`` and ``adopt``: change the files beside outputs."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from marin_dagster.cli.exits import FAILED, Refused
from marin_dagster.cli.options import GraphChoice, common_options, graph_options, step_argument
from marin_dagster.cli.output import print_json

if TYPE_CHECKING:
    from marin_dagster.steps import StepGraph


@dataclass(frozen=True)
class ChangedOutput:
    """One output."""

    __pydantic_config__ = {"use_attribute_docstrings": True}  # noqa: RUF012

    step: str
    """Name with hash, or address; the path if that was given."""
    path: str
    """Output path."""
    changed: bool
    """Whether its files have changed."""
    message: str
    """What was done or found."""


@dataclass(frozen=True)
class UnlockResult:
    """The leases that were removed."""

    __pydantic_config__ = {"use_attribute_docstrings": True}  # noqa: RUF012

    outputs: list[ChangedOutput]
    """The steps named."""
    command: str = "unlock"
    version: int = 1
    """Of this format. A change that breaks readers increases it."""


@dataclass(frozen=True)
class InvalidateResult:
    """The outputs that are not finished any more."""

    __pydantic_config__ = {"use_attribute_docstrings": True}  # noqa: RUF012

    outputs: list[ChangedOutput]
    """The steps named, and with ``--downstream`` those that read them."""
    command: str = "invalidate"
    version: int = 1
    """Of this format. A change that breaks readers increases it."""


@dataclass(frozen=True)
class AdoptResult:
    """The data that is now registered or marked as complete."""

    __pydantic_config__ = {"use_attribute_docstrings": True}  # noqa: RUF012

    outputs: list[ChangedOutput]
    """The steps named, or all that adopt data."""
    command: str = "adopt"
    version: int = 1
    """Of this format. A change that breaks readers increases it."""


_yes_option = click.option("-y", "--yes", is_flag=True, help="Do it without asking.")


@click.command()
@step_argument("steps", nargs=-1, required=True)
@graph_options
@click.option("-y", "--yes", is_flag=True, help="Remove the lease of a live worker, too.")
@common_options
def unlock(choice: GraphChoice, steps: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Remove the lease on outputs, so that another worker may build them at once.

    STEP is a step of the graph, or an output path. Shows the lease's owner and the age of its
    heartbeat. The lease of a worker that may be alive stays, unless --yes is given; such a worker
    notices at its next heartbeat, and its attempt fails.
    """
    from marin_dagster.cache import OutputDir
    from marin_dagster.cache.maintenance import find_holder
    from marin_dagster.cache.maintenance import unlock as remove_lease
    from marin_dagster.cli.step_names import output_paths

    outputs = []
    refused = False
    for path, name in output_paths(choice, steps).items():
        folder = OutputDir.at(path)
        holder = find_holder(folder)
        if holder is None:
            outputs.append(ChangedOutput(name, path, False, "not locked"))
            continue
        age = f"last heartbeat {holder.age_s:.0f} s ago"
        who = f"{holder.lease.worker_id}, {age}"
        if holder.is_live and not yes:
            refused = True
            message = f"locked by {who}: it may be alive. Stop it first, or give --yes"
            outputs.append(ChangedOutput(name, path, False, message))
            continue
        remove_lease(folder, holder)
        outputs.append(ChangedOutput(name, path, True, f"unlocked; the lease was of {who}"))
    _print(UnlockResult(outputs), as_json=as_json)
    if refused:
        raise click.exceptions.Exit(FAILED)


@click.command()
@step_argument("steps", nargs=-1, required=True)
@graph_options
@click.option("--downstream", is_flag=True, help="Also the steps that read them, and so on.")
@_yes_option
@common_options
def invalidate(
    choice: GraphChoice, steps: tuple[str, ...], downstream: bool, yes: bool, as_json: bool
) -> None:
    """Call finished outputs unfinished, so that the next run that needs them builds them again.

    STEP is a step of the graph, or an output path. The files stay until the function overwrites
    them. A finished step that reads an invalidated one still hides it from runs: give --downstream,
    or select the step alone.
    """
    from marin_dagster.cache import OutputDir
    from marin_dagster.cache.maintenance import invalidate as call_unfinished
    from marin_dagster.cli.step_names import output_paths, path_of
    from marin_dagster.errors import LeaseLostError
    from marin_dagster.steps.protocol import address

    if downstream:
        graph = choice.load().graph()
        wanted = {path_of(graph, name) for name in steps}
        paths = {path: address(graph.steps[path]) for path in _with_readers(graph, wanted)}
    else:
        paths = output_paths(choice, steps)
    if not yes:
        for path, name in paths.items():
            click.echo(f"  {name} ({path})", err=True)
        click.confirm("Call these outputs unfinished?", abort=True, err=True)
    outputs = []
    refused = False
    for path, name in paths.items():
        try:
            changed = call_unfinished(OutputDir.at(path))
        except LeaseLostError as error:
            refused = True
            outputs.append(ChangedOutput(name, path, False, str(error)))
            continue
        message = "not finished any more" if changed else "was not finished"
        outputs.append(ChangedOutput(name, path, changed, message))
    _print(InvalidateResult(outputs), as_json=as_json)
    if refused:
        raise click.exceptions.Exit(FAILED)


@click.command()
@step_argument("steps", nargs=-1)
@graph_options
@common_options
def adopt(choice: GraphChoice, steps: tuple[str, ...], as_json: bool) -> None:
    """Register data that exists already.

    For a lazy artifact that adopts data, writes its record. For a named step without a function, or
    a pinned artifact, marks the data at its output path as complete. Without STEP, all artifacts of
    the graph that adopt data.
    """
    from marin_dagster.cli.step_names import path_of
    from marin_dagster.steps.protocol import adopted_source

    graph = choice.load().graph()
    paths = [path_of(graph, name) for name in steps]
    if not steps:
        paths = [path for path, step in graph.steps.items() if adopted_source(step) is not None]
        if not paths:
            raise Refused("No step of this graph adopts data.")
    _print(AdoptResult([_adopted(graph, path) for path in paths]), as_json=as_json)


def _adopted(graph: "StepGraph", path: str) -> ChangedOutput:
    from marin_dagster.cache import OutputDir, StepCache
    from marin_dagster.cache.maintenance import mark_complete
    from marin_dagster.errors import AdoptedDataMissingError
    from marin_dagster.step_runner.external_outputs import adopt as write_record
    from marin_dagster.steps.protocol import address, adopted_source, is_external

    step = graph.steps[path]
    name, folder = address(step), OutputDir.at(path)
    source = adopted_source(step)
    if source is not None:
        was_finished = StepCache().look_up(step).finished
        StepCache().register(step, write_record)
        message = f"{'was registered' if was_finished else 'registered'}: {source}"
        return ChangedOutput(name, path, not was_finished, message)
    if not is_external(step):
        raise Refused(f"step {name} ({path}) is built by runs. Run it instead.")
    if not folder.exists() or not folder.names():
        raise AdoptedDataMissingError(
            f"step {name}: there is no data in {path}. Put it there first."
        )
    changed = mark_complete(folder)
    return ChangedOutput(name, path, changed, "marked as complete" if changed else "was complete")


def _with_readers(graph: "StepGraph", paths: set[str]) -> list[str]:
    found = set(paths)
    for path in graph.steps:  # inputs come first
        if not found.isdisjoint(graph.dependencies(path)):
            found.add(path)
    return [path for path in graph.steps if path in found]


def _print(result: UnlockResult | InvalidateResult | AdoptResult, *, as_json: bool) -> None:
    if as_json:
        print_json(result)
        return
    for one in result.outputs:
        click.echo(f"{one.step}: {one.message}.")
