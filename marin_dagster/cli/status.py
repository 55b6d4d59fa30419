"""``marin-dagster status``: what is in the store of each step."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from marin_dagster.cli.options import GraphChoice, common_options, graph_options, step_argument
from marin_dagster.cli.output import counted, file_size, print_json, print_table, short_time

if TYPE_CHECKING:
    from marin_dagster.cache import LookUp
    from marin_dagster.steps import StepLike


@dataclass(frozen=True)
class OutputState:
    """One step's output."""

    __pydantic_config__ = {"use_attribute_docstrings": True}  # noqa: RUF012

    step: str
    """Name with hash, or the address of a lazy artifact."""
    name: str
    """Name."""
    path: str
    """Output path."""
    state: str
    """finished; failed: the last attempt failed; running; interrupted: its worker is gone; missing;
    unknown: the store refused, or the output is not what the step expects."""
    owner: str | None
    """The worker that is building it, or was."""
    heartbeat_age_s: float | None
    """Seconds since that worker renewed its lease."""
    files: int | None
    """Number of files of a finished output; null without ``--sizes``."""
    bytes: int | None
    """Their size."""
    written_at: str | None
    """When its status was written, ISO 8601, UTC."""
    built_by: str | None
    """The user that built it."""
    commit: str | None
    """The commit that it was built from; ``+`` at its end: with uncommitted changes."""
    problem: str | None
    """Why the state is unknown, or the drift of a lazy artifact."""


@dataclass(frozen=True)
class StatusResult:
    """What is in the store of each step."""

    __pydantic_config__ = {"use_attribute_docstrings": True}  # noqa: RUF012

    graph: str
    """The graph's name."""
    steps: list[OutputState]
    """Its steps, inputs before the steps that read them."""
    counts: dict[str, int]
    """How many steps have each state."""
    command: str = "status"
    version: int = 1
    """Of this format. A change that breaks readers increases it."""


@click.command()
@step_argument("steps", nargs=-1)
@graph_options
@click.option(
    "--sizes/--no-sizes", default=True, help="Whether to list the files of finished outputs."
)
@common_options
def status(choice: GraphChoice, steps: tuple[str, ...], sizes: bool, as_json: bool) -> None:
    """Show what is in the store of each step, or of those named.

    Finished, failed, running (with its worker, and the age of its heartbeat) or interrupted; who
    built it, when, and how large it is. Reads only.
    """
    from marin_dagster.cache import StepCache
    from marin_dagster.cache.parallel import map_parallel
    from marin_dagster.cli.step_names import path_of

    named = choice.load()
    graph = named.graph()
    paths = [path_of(graph, name) for name in steps] or list(graph.steps)
    chosen = {path: graph.steps[path] for path in graph.steps if path in set(paths)}
    looks = StepCache().look_up_many(chosen.values())
    states = map_parallel(lambda step: _state(step, looks[step.output_path], sizes=sizes), chosen)
    counts = Counter(one.state for one in states.values())
    result = StatusResult(named.name, list(states.values()), dict(counts))
    if as_json:
        print_json(result)
        return
    print_table(
        ("", "STEP", "SIZE", "WRITTEN", "BY", ""),
        [
            (
                one.state,
                one.step,
                "" if one.bytes is None else file_size(one.bytes),
                short_time(one.written_at),
                one.built_by or "",
                _note(one),
            )
            for one in result.steps
        ],
    )
    each = ", ".join(f"{count} {state}" for state, count in result.counts.items())
    click.echo(f"\n{counted(len(result.steps), 'step')}: {each}.")


def _note(one: OutputState) -> str:
    if one.owner is None:
        return one.problem or ""
    return f"{one.owner}, last heartbeat {one.heartbeat_age_s:.0f} s ago"


def _state(step: "StepLike", look: "LookUp", *, sizes: bool) -> OutputState:
    from marin_dagster.cache import OutputDir
    from marin_dagster.cache.status import STATUS_FILE
    from marin_dagster.errors import RecordError, StoreError
    from marin_dagster.steps.protocol import address

    state = state_name(look)
    more: dict[str, Any] = {"problem": look.drift.message if look.drift else None}
    try:
        folder = OutputDir.at(step.output_path)
        if state in ("running", "interrupted"):
            more |= _holder(folder)
        if look.finished:
            more |= _built(folder)
        if look.finished and sizes:
            files = folder.files()
            more |= {"files": len(files), "bytes": sum(files.values())}
        if look.status is not None and (moment := folder.modified(STATUS_FILE)) is not None:
            more["written_at"] = moment.isoformat(timespec="seconds")
    except (StoreError, RecordError, OSError) as error:
        more["problem"] = str(error)
    if look.error is not None:
        more["problem"] = str(look.error)
    unset = dict.fromkeys(
        ("owner", "heartbeat_age_s", "files", "bytes", "written_at", "built_by", "commit")
    )
    return OutputState(
        step=address(step), name=step.name, path=step.output_path, state=state, **{**unset, **more}
    )


def state_name(look: "LookUp") -> str:
    """The state of an output in one word; see :attr:`OutputState.state`."""
    from marin_dagster.cache import CacheState, Status

    if look.finished:
        return "finished"
    if look.state is CacheState.MISS:
        return "interrupted" if look.status is Status.RUNNING else "missing"
    return str(look.state.value)


def _holder(folder: Any) -> Mapping[str, Any]:
    from marin_dagster.cache.maintenance import find_holder

    holder = find_holder(folder)
    if holder is None:
        return {}
    return {"owner": holder.lease.worker_id, "heartbeat_age_s": round(holder.age_s, 1)}


def _built(folder: Any) -> Mapping[str, Any]:
    from marin_dagster.cache import read_record

    record = read_record(folder)
    provenance = record.provenance if record else None
    if provenance is None:
        return {}
    dirty = "+" if provenance.dirty else ""
    return {
        "built_by": provenance.built_by,
        "commit": provenance.base_commit + dirty if provenance.base_commit else None,
    }
