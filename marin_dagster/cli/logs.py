"""``marin-dagster logs``: what a step's last attempt printed."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from marin_dagster.cli.exits import Refused, Unusable
from marin_dagster.cli.options import GraphChoice, common_options, graph_options, step_argument
from marin_dagster.cli.output import print_json

if TYPE_CHECKING:
    import dagster as dg


@dataclass(frozen=True)
class LogsResult:
    """What a step's last attempt printed."""

    __pydantic_config__ = {"use_attribute_docstrings": True}  # noqa: RUF012

    step: str
    """Name with hash, or the address of a lazy artifact."""
    path: str
    """Output path."""
    run_id: str
    """The run of the attempt."""
    stdout: str
    """What it printed."""
    stderr: str
    """What it wrote to stderr and logged with Python's logging."""
    command: str = "logs"
    version: int = 1
    """Of this format. A change that breaks readers increases it."""


@click.command()
@step_argument("step")
@graph_options
@common_options
def logs(choice: GraphChoice, step: str, as_json: bool) -> None:
    """Print the log of a step's last attempt, from the instance of DAGSTER_HOME.

    Exits with 1 if there is none: the step has not run in this instance, or printed nothing.
    """
    from marin_dagster.cli.graph_plan import open_instance
    from marin_dagster.cli.step_assets import StepAssets
    from marin_dagster.cli.step_names import path_of
    from marin_dagster.steps.protocol import address

    named = choice.load()
    graph = named.graph()
    path = path_of(graph, step)
    planned = StepAssets(named.definitions()).planned
    key = next((key for key, one in planned.items() if one.step.output_path == path), None)
    with open_instance() as instance:
        if instance is None:
            raise Unusable(
                "DAGSTER_HOME is not set, so no logs are kept. Set it for runs, and here."
            )
        found = None if key is None else _last_log(instance, key, planned[key].asset.key)
    name = address(graph.steps[path])
    if found is None:
        raise Refused(f"step {name}: the instance has no log of it.")
    run_id, stdout, stderr = found
    if as_json:
        print_json(LogsResult(name, path, run_id, stdout, stderr))
        return
    for title, text in (("stdout", stdout), ("stderr", stderr)):
        if text:
            if stdout and stderr:
                click.secho(f"-- {title}", bold=True)
            click.echo(text, nl=not text.endswith("\n"))


def _last_log(
    instance: "dg.DagsterInstance", step_key: str, asset: "dg.AssetKey"
) -> tuple[str, str, str] | None:
    """The run, stdout and stderr of the last attempt that has a log."""
    import dagster as dg

    from marin_dagster.events.asset_records import last_events

    last = last_events(instance, [asset]).get(asset)
    # The last run of the asset may have served it.
    runs = [last.run_id, last.record.run_id if last.record else None] if last else []
    for run_id in dict.fromkeys(run for run in runs if run):
        captured = instance.all_logs(run_id, of_type=dg.DagsterEventType.LOGS_CAPTURED)
        for entry in reversed(captured):
            data: Any = entry.dagster_event.logs_captured_data if entry.dagster_event else None
            if data is not None and step_key in (data.step_keys or ()):
                manager = instance.compute_log_manager
                found = manager.get_log_data(manager.build_log_key_for_run(run_id, data.file_key))
                return run_id, _text(found.stdout), _text(found.stderr)
    return None


def _text(content: bytes | None) -> str:
    return (content or b"").decode("utf-8", "replace")
